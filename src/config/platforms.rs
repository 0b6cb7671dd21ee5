//! `platforms`: the accounts.

use std::time::Duration;

use axum::http::Uri;
use secrecy::{ExposeSecret, SecretString};

use super::{
    functions::sign,
    intake::{intake, poll},
    reader::{Item, Section},
    sections::{HOUR, SECOND, chars},
    units,
};
use crate::platform::{AivaxConfig, Config, Flavor, ForwardConfig, Intake, Kind, runs_of};

/// Every account; the workflow runs of one follow it as an account of their own.
pub(super) fn platforms(item: &Item) -> Vec<Config> {
    let (mut platforms, mut names): (Vec<Config>, Vec<String>) = (Vec::new(), Vec::new());
    for item in item.list() {
        let (platform, runs) = platform(&item);
        item.unique(&platform.name, names.iter().map(String::as_str));
        names.push(platform.name.clone());
        platforms.push(platform);
        platforms.extend(runs);
    }
    if platforms.is_empty() {
        item.warn("there are none, so no webhook can be accepted");
    }
    platforms
}

fn platform(item: &Item) -> (Config, Option<Config>) {
    let section = item.section();
    let name = section.key("name").required("required; the last part of the webhook's path");
    let allowed = "must be 1 to 64 lower-case letters, digits, dashes or underscores, a letter first";
    let name = name.text_that(allowed, is_name).unwrap_or_default().into();
    let kind = kind(&section);
    let (config, runs) = match kind {
        // It is not asked, it calls.
        Kind::Aivax(AivaxConfig { budget, .. }) => {
            (Config { name, kind, call_deadline: budget, intake: Intake::default(), forward: None }, None)
        }
        kind => sessions_and_runs(&section, name, kind),
    };
    section.finish();
    (config, runs)
}

fn sessions_and_runs(section: &Section, name: String, kind: Kind) -> (Config, Option<Config>) {
    let key = section.key("workflow_runs");
    let has_runs = key.bool().unwrap_or(false);
    let runs = match &kind {
        Kind::AgentsApi { base_url, api_key, flavor } if has_runs => {
            if *flavor != Flavor::Rebyte {
                key.error("only Rebyte has workflow runs; if this is one, set flavor: rebyte");
            }
            let (base_url, api_key) = (base_url.clone(), api_key.clone());
            Some(Kind::WorkflowRuns { base_url, api_key, flavor: *flavor })
        }
        _ => None,
    };
    let pace = section.key("poll");
    let poll = poll(&pace);
    let config = Config {
        intake: intake(section, &pace, poll, has_runs),
        call_deadline: section.key("call_deadline").duration(SECOND..=units::LONGEST).unwrap_or(24 * HOUR),
        forward: forward(&section.key("forward_other_actions")),
        name,
        kind,
    };
    let runs = runs.map(|kind| Config {
        name: runs_of(&config.name),
        kind,
        // There are no webhooks for runs.
        intake: Intake { poll: Some(poll), ..Intake::default() },
        ..config.clone()
    });
    (config, runs)
}

fn forward(item: &Item) -> Option<ForwardConfig> {
    if item.is_absent() {
        return None;
    }
    let section = item.section();
    let url = section.key("url").required("required, such as https://approvals.internal/agent");
    let config = ForwardConfig { url: url.url().unwrap_or_default().into(), sign: sign(&section.key("sign")) };
    section.finish();
    Some(config)
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
