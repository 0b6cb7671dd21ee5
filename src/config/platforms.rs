//! `platforms`: the accounts, and how their webhooks are authenticated.

use std::time::Duration;

use axum::http::{HeaderName, Uri};
use base64::{Engine, prelude::BASE64_STANDARD};
use secrecy::{ExposeSecret, SecretString};

use super::{
    reader::{Item, Section},
    sections::{HOUR, SECOND, chars},
    units,
};
use crate::platform::{Config, Flavor, Kind, WebhookConfig};

pub(super) fn platforms(item: &Item) -> Vec<Config> {
    let mut platforms: Vec<Config> = Vec::new();
    for item in item.list() {
        let platform = platform(&item);
        item.unique(&platform.name, platforms.iter().map(|p| p.name.as_str()));
        platforms.push(platform);
    }
    if platforms.is_empty() {
        item.warn("there are none, so no webhook can be accepted");
    }
    platforms
}

fn platform(item: &Item) -> Config {
    let section = item.section();
    let name = section.key("name").required("required; the last part of the webhook's path");
    let allowed = "must be 1 to 64 lower-case letters, digits, dashes or underscores, a letter first";
    let config = Config {
        name: name.text_that(allowed, is_name).unwrap_or_default().into(),
        kind: kind(&section),
        call_deadline: section.key("call_deadline").duration(SECOND..=units::LONGEST).unwrap_or(24 * HOUR),
        webhook: webhook(&section.key("webhook").required("required; it says how webhooks are authenticated")),
    };
    section.finish();
    config
}

fn is_name(text: &str) -> bool {
    let part = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    text.len() <= 64 && text.starts_with(|c: char| c.is_ascii_lowercase()) && text.bytes().all(part)
}

fn kind(section: &Section) -> Kind {
    let kind = section.key("type").required("required; must be agents_api");
    if kind.choice(&[("agents_api", ())]).is_none() {
        section.leave_open();
        return Kind::AgentsApi { base_url: String::new(), api_key: SecretString::default(), flavor: Flavor::OpenAi };
    }
    let base_url = section.key("base_url").required("required, such as https://api.openai.com/v1");
    let url = base_url.url().unwrap_or_default();
    if url.starts_with("http://") && !is_loopback(url) {
        base_url.warn("plain http: the API key and all results are sent unencrypted");
    }
    let flavors = [("openai", Flavor::OpenAi), ("rebyte", Flavor::Rebyte)];
    let guess = if is_rebyte(url) { Flavor::Rebyte } else { Flavor::OpenAi };
    Kind::AgentsApi {
        flavor: section.key("flavor").choice(&flavors).unwrap_or(guess),
        base_url: url.trim_end_matches('/').into(),
        api_key: section.key("api_key").required("required").secret().unwrap_or_default(),
    }
}

fn is_rebyte(url: &str) -> bool {
    let host = host(url);
    host == "rebyte.ai" || host.ends_with(".rebyte.ai")
}

fn host(url: &str) -> String {
    let uri: Option<Uri> = url.parse().ok();
    uri.as_ref().and_then(Uri::host).unwrap_or_default().trim_matches(['[', ']']).to_ascii_lowercase()
}

fn is_loopback(url: &str) -> bool {
    let host = host(url);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
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
            secrets: items.iter().filter_map(shared_secret).collect(),
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
fn signing_secret(item: &Item) -> Option<SecretString> {
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

fn shared_secret(item: &Item) -> Option<SecretString> {
    let secret = item.secret()?;
    if chars(&secret) < 16 {
        item.error("must have at least 16 characters");
    }
    Some(secret)
}
