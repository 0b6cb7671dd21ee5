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
use crate::platform::{AivaxConfig, Config, Flavor, Kind, WebhookConfig};

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
    let name = name.text_that(allowed, is_name).unwrap_or_default().into();
    let kind = kind(&section);
    let config = match kind {
        // It sends no webhooks: with no secret, none would pass.
        Kind::Aivax(AivaxConfig { budget, .. }) => Config {
            name,
            kind,
            call_deadline: budget,
            webhook: WebhookConfig::Standard { secrets: Vec::new(), tolerance: Duration::ZERO },
        },
        Kind::AgentsApi { .. } => Config {
            name,
            kind,
            call_deadline: section.key("call_deadline").duration(SECOND..=units::LONGEST).unwrap_or(24 * HOUR),
            webhook: webhook(&section.key("webhook").required("required; it says how webhooks are authenticated")),
        },
    };
    section.finish();
    config
}

fn is_name(text: &str) -> bool {
    let part = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
    text.len() <= 64 && text.starts_with(|c: char| c.is_ascii_lowercase()) && text.bytes().all(part)
}

#[derive(Clone, Copy)]
enum Type {
    AgentsApi,
    Aivax,
}

fn kind(section: &Section) -> Kind {
    let kind = section.key("type").required("required; must be one of agents_api, aivax");
    match kind.choice(&[("agents_api", Type::AgentsApi), ("aivax", Type::Aivax)]) {
        Some(Type::AgentsApi) => agents_api(section),
        Some(Type::Aivax) => Kind::Aivax(aivax(section)),
        None => {
            section.leave_open();
            Kind::AgentsApi { base_url: String::new(), api_key: SecretString::default(), flavor: Flavor::OpenAi }
        }
    }
}

fn agents_api(section: &Section) -> Kind {
    let base_url = section.key("base_url").required("required, such as https://api.openai.com/v1");
    let flavors = [("openai", Flavor::OpenAi), ("rebyte", Flavor::Rebyte)];
    let url = api_url(&base_url).unwrap_or_default();
    let guess = if is_rebyte(&url) { Flavor::Rebyte } else { Flavor::OpenAi };
    Kind::AgentsApi {
        flavor: section.key("flavor").choice(&flavors).unwrap_or(guess),
        base_url: url,
        api_key: section.key("api_key").required("required").secret().unwrap_or_default(),
    }
}

/// The URL that an account's API has, without a slash at its end.
fn api_url(item: &Item) -> Option<String> {
    let url = item.url()?;
    if url.starts_with("http://") && !is_loopback(url) {
        item.warn("plain http: the API key and all results are sent unencrypted");
    }
    Some(url.trim_end_matches('/').into())
}

fn aivax(section: &Section) -> AivaxConfig {
    let keys = section.key("hook_keys").required("required; the account's hook key, two while it is rotated");
    let items = keys.list();
    if keys.value().is_some_and(|v| v.as_array().is_some_and(|keys| !(1..=2).contains(&keys.len()))) {
        keys.error("must hold one key, or two while it is rotated");
    }
    let secrets = section.key("listing_secret");
    let secrets = if secrets.value().is_some_and(serde_json::Value::is_array) { secrets.list() } else { vec![secrets] };
    AivaxConfig {
        hook_keys: items.iter().filter_map(hook_key).collect(),
        cost: cost(&section.key("cost")),
        listing_key: listing_key(&section.key("listing_key")),
        listing_secrets: secrets.iter().filter_map(Item::some_secret).collect(),
        budget: section.key("budget").duration(SECOND..=Duration::from_secs(300)).unwrap_or(25 * SECOND),
        api_key: section.key("api_key").secret(),
        base_url: api_url(&section.key("base_url")).unwrap_or_else(|| AIVAX.to_owned()),
    }
}

/// It stands in a URL.
fn listing_key(item: &Item) -> Option<SecretString> {
    let key = item.some_secret()?;
    if !key.expose_secret().bytes().all(|b| b.is_ascii_alphanumeric() || b"-._~".contains(&b)) {
        item.error("must hold only what a URL takes: letters, digits, dashes, dots, underscores, tildes");
    }
    Some(key)
}

const AIVAX: &str = "https://inference.aivax.net/api/v1";

/// Whoever sees one nonce can try keys against it at leisure.
fn hook_key(item: &Item) -> Option<SecretString> {
    let key = item.secret()?;
    match chars(&key) {
        0..8 => item.error("must have at least 8 characters"),
        8..16 => item.warn("the key is short: whoever sees a nonce can guess it"),
        _ => {}
    }
    Some(key)
}

/// Every step doubles what a stranger can make us compute; a low one makes guessing keys cheap.
fn cost(item: &Item) -> std::ops::RangeInclusive<u32> {
    let section = item.section();
    let (min, max) = (section.key("min"), section.key("max"));
    let from = min.number(4..=16).map_or(10, |n| n as u32);
    let to = max.number(4..=16).map_or(13, |n| n as u32);
    section.finish();
    if from > to {
        min.error(&format!("must not be more than max, which is {to}"));
    }
    from..=to
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
