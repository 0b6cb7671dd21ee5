//! How the sessions of an account that may wait are learned of: webhooks and how they are authenticated, polls, streams.

use std::time::Duration;

use axum::http::HeaderName;
use base64::{Engine, prelude::BASE64_STANDARD};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use super::{
    reader::{Item, Section},
    sections::{HOUR, MOMENT, SECOND},
};
use crate::platform::{Intake, Poll, WebhookConfig};

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Webhook,
    Poll,
    Stream,
}

const WAYS: &[(&str, Way)] = &[("webhook", Way::Webhook), ("poll", Way::Poll), ("stream", Way::Stream)];

/// `pace` is the key of `poll`, which counts for an account's runs too.
pub(super) fn intake(section: &Section, pace: &Item, poll: Poll, has_runs: bool) -> Intake {
    let ways = ways(section.key("intake"));
    let takes = |way| ways.contains(&way);
    let key = section.key("webhook");
    if !takes(Way::Webhook) && !key.is_absent() {
        key.error("is not used: add webhook to intake, or remove it");
    }
    if !takes(Way::Poll) && !has_runs && !pace.is_absent() {
        pace.error("is not used: add poll to intake, or remove it");
    }
    let read = || webhook(&key.required("required; it says how webhooks are authenticated"));
    Intake {
        webhook: takes(Way::Webhook).then(read),
        poll: takes(Way::Poll).then_some(poll),
        stream: takes(Way::Stream),
    }
}

/// One of them, or a list.
fn ways(item: Item) -> Vec<Way> {
    let items = match item.value() {
        None => return vec![Way::Webhook],
        Some(Value::Array(items)) if items.is_empty() => {
            item.error("must hold at least one of webhook, poll, stream");
            return vec![Way::Webhook];
        }
        Some(Value::Array(_)) => item.list(),
        Some(_) => vec![item],
    };
    items.iter().filter_map(|item| item.choice(WAYS)).collect()
}

pub(super) fn poll(item: &Item) -> Poll {
    let section = item.section();
    let every = section.key("every");
    let poll = Poll {
        every: every.duration(MOMENT..=HOUR).unwrap_or(2 * SECOND),
        max: section.key("max").duration(MOMENT..=HOUR).unwrap_or(30 * SECOND),
    };
    section.finish();
    if poll.every > poll.max {
        every.error("must not be longer than max");
    }
    poll
}

#[derive(Clone, Copy)]
enum Scheme {
    Standard,
    SharedSecret,
}

fn webhook(item: &Item) -> WebhookConfig {
    let section = item.section();
    let insecure = section.key("insecure");
    let secrets = section.key("secrets");
    if insecure.bool() == Some(true) {
        insecure.warn("webhooks are not authenticated: anybody who reaches the listener can wake a session");
        if !secrets.is_absent() {
            secrets.error("cannot be used with insecure: true; remove one of them");
        }
        for unused in ["scheme", "tolerance", "header"] {
            section.key(unused);
        }
        section.finish();
        return WebhookConfig::Insecure;
    }
    let choices = [("standard", Scheme::Standard), ("shared_secret", Scheme::SharedSecret)];
    let scheme = section.key("scheme").choice(&choices).unwrap_or(Scheme::Standard);
    let items = if item.is_absent() { Vec::new() } else { secret_items(&secrets) };
    let config = match scheme {
        Scheme::Standard => WebhookConfig::Standard {
            secrets: items.iter().filter_map(signing_secret).collect(),
            tolerance: section.key("tolerance").duration(SECOND..=24 * HOUR).unwrap_or(Duration::from_secs(300)),
        },
        Scheme::SharedSecret => WebhookConfig::SharedSecret {
            header: section
                .key("header")
                .text_that("must be the name of an HTTP header", |name| HeaderName::from_bytes(name.as_bytes()).is_ok())
                .unwrap_or("X-Webhook-Secret")
                .into(),
            secrets: items.iter().filter_map(Item::some_secret).collect(),
        },
    };
    section.finish();
    config
}

fn secret_items<'a>(secrets: &Item<'a>) -> Vec<Item<'a>> {
    let items = secrets.list();
    if secrets.is_absent() || secrets.value().is_some_and(|v| v.as_array().is_some_and(Vec::is_empty)) {
        secrets.error("needs at least one secret; insecure: true accepts webhooks of anybody");
    }
    items
}

/// The key of a Standard Webhooks signature must be one that nobody guesses: an empty or short one signs forgeries.
pub(super) fn signing_secret(item: &Item) -> Option<SecretString> {
    let secret = item.secret()?;
    let key = match secret.expose_secret().strip_prefix("whsec_") {
        Some(encoded) => match BASE64_STANDARD.decode(encoded) {
            Ok(key) => key.len(),
            Err(_) => {
                item.error("what follows whsec_ is not base64; copy the whole secret");
                return None;
            }
        },
        None => secret.expose_secret().len(),
    };
    match key {
        0 => item.error("must not be an empty key; copy the whole secret"),
        1..16 => item.error("the key must have at least 16 bytes; copy the whole secret"),
        16..24 => item.warn("the key is short: Standard Webhooks asks for 24 to 64 bytes"),
        _ => {}
    }
    Some(secret)
}

#[cfg(test)]
mod tests;
