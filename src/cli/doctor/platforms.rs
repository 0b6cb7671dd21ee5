//! The platforms: what the key may do, which time it is there, whether webhooks can come and be believed.

use std::{net::IpAddr, time::Duration};

use axum::http::Uri;
use futures_util::future::join_all;
use secrecy::ExposeSecret as _;

use super::{Finding, reach};
use crate::{
    config::Config,
    http,
    ingress::signature::decode_key,
    platform::{self, Access, AgentsApi, Kind, Probe, WebhookConfig},
};

const PATIENCE: Duration = Duration::from_secs(5);
/// Seconds that a clock may be off before it is worth a word.
const SKEW: i64 = 10;
/// Standard Webhooks asks for keys within.
const KEY: std::ops::RangeInclusive<usize> = 24..=64;

pub(super) async fn platforms(config: &Config) -> Vec<Finding> {
    join_all(config.platforms.iter().map(one)).await.concat()
}

async fn one(platform: &platform::Config) -> Vec<Finding> {
    let area = format!("platform {}", platform.name);
    let (base_url, api_key) = match &platform.kind {
        Kind::AgentsApi { base_url, api_key, .. } => (base_url, api_key),
        Kind::WorkflowRuns { .. } => {
            return vec![Finding::ok(&area, "runs are polled with the account's key")];
        }
        Kind::Aivax(aivax) if aivax.api_key.is_none() => {
            return vec![Finding::ok(&area, "AIVAX calls public_url; nothing is asked there")];
        }
        Kind::Aivax(aivax) => {
            return vec![match reach::connect(&aivax.base_url).await {
                Ok(()) => Finding::ok(&area, "base_url takes connections"),
                Err(why) => Finding::fail(&area, format!("base_url cannot be reached: {why}"), "searches need it"),
            }];
        }
    };
    let client = match http::client() {
        Ok(client) => client,
        Err(error) => return vec![Finding::fail(&area, http::describe(&error), "look at the proxy's variables")],
    };
    let mut findings = match AgentsApi::new(&platform.name, base_url, api_key, client) {
        Ok(api) => answered(&area, &api.probe().await, platform.intake.webhook.as_ref().and_then(tolerance)),
        Err(why) => vec![Finding::fail(&area, why, "correct it")],
    };
    findings.extend(platform.intake.webhook.iter().flat_map(|webhook| secrets(&area, webhook)));
    findings
}

fn tolerance(webhook: &WebhookConfig) -> Option<Duration> {
    match webhook {
        WebhookConfig::Standard { tolerance, .. } => Some(*tolerance),
        WebhookConfig::SharedSecret { .. } | WebhookConfig::Insecure => None,
    }
}

fn answered(area: &str, probe: &Probe, tolerance: Option<Duration>) -> Vec<Finding> {
    let mut findings = vec![match &probe.read {
        Access::Granted => Finding::ok(area, "the api_key may read sessions"),
        Access::Refused(401) => Finding::fail(
            area,
            "the api_key is refused (401)",
            "enter the whole key of the right project; is its variable set?",
        ),
        Access::Refused(status) => Finding::fail(
            area,
            format!("the api_key may not read sessions ({status})"),
            "give it the scope api.agents.read",
        ),
        Access::Absent => Finding::warn(
            area,
            "there is no list of sessions at base_url (404)",
            "base_url ends before /agents, such as https://api.openai.com/v1; without a list, lost webhooks are not made up for",
        ),
        Access::Unknown(why) => Finding::fail(
            area,
            format!("no answer that tells anything: {why}"),
            "look at base_url, the network and the proxy's variables",
        ),
    }];
    match &probe.write {
        Access::Refused(403) => findings.push(Finding::fail(
            area,
            "the api_key may not post events (403): no result could be given back",
            "give it the scope api.agents.write",
        )),
        Access::Granted if probe.read != Access::Absent => {
            findings.push(Finding::ok(area, "the api_key may post events"));
        }
        _ => {}
    }
    findings.extend(probe.skew.map(|skew| clock(area, skew, tolerance)));
    findings
}

/// `skew`: by how many seconds their clock is ahead.
fn clock(area: &str, skew: i64, tolerance: Option<Duration>) -> Finding {
    let off = skew.abs();
    let what = match skew {
        0 => "its clock and ours agree".to_owned(),
        1.. => format!("our clock is {off} s behind its"),
        _ => format!("our clock is {off} s ahead of its"),
    };
    let limit = tolerance.map(|tolerance| i64::try_from(tolerance.as_secs()).unwrap_or(i64::MAX));
    match limit {
        Some(limit) if off >= limit => Finding::fail(
            area,
            format!("{what}, and webhook.tolerance is {limit} s: every webhook is refused"),
            "set this machine's clock by NTP",
        ),
        _ if off > SKEW => Finding::warn(area, what, "set this machine's clock by NTP"),
        _ => Finding::ok(area, what),
    }
}

/// What a secret looks like, never what it is.
fn secrets(area: &str, webhook: &WebhookConfig) -> Vec<Finding> {
    let secrets = match webhook {
        WebhookConfig::Standard { secrets, .. } | WebhookConfig::SharedSecret { secrets, .. } => secrets,
        WebhookConfig::Insecure => {
            let remedy = "take insecure out, and put the platform's secret into webhook.secrets";
            return vec![Finding::warn(area, "webhooks are believed whoever sends them", remedy)];
        }
    };
    let mut findings = Vec::new();
    for (at, secret) in secrets.iter().enumerate() {
        let secret = secret.expose_secret();
        if secrets[..at].iter().any(|before| before.expose_secret() == secret) {
            let what = format!("webhook.secrets[{at}] is the same as one before it");
            findings.push(Finding::warn(area, what, "take it out"));
        }
        if matches!(webhook, WebhookConfig::SharedSecret { .. }) {
            continue;
        }
        let length = decode_key(secret).map_or(0, |key| key.len());
        if !secret.starts_with("whsec_") {
            let what = format!("webhook.secrets[{at}] has no whsec_ in front, so that its letters are the key");
            findings.push(Finding::warn(area, what, "copy the whole secret, if the platform's begins with whsec_"));
        } else if !KEY.contains(&length) {
            let what = format!("webhook.secrets[{at}] has a key of {length} bytes, and 24 to 64 are usual");
            findings.push(Finding::warn(area, what, "copy the whole secret"));
        }
    }
    if findings.is_empty() {
        let what = match secrets.len() {
            1 => "the webhook secret has the usual shape".to_owned(),
            n => format!("{n} webhook secrets of the usual shape: the later ones are for a rotation"),
        };
        findings.push(Finding::ok(area, what));
    }
    findings
}

/// Whether the platforms can get here, as far as that can be told from here.
pub(super) async fn public_url(config: &Config) -> Vec<Finding> {
    let area = "public_url";
    let Some(url) = &config.ingress.public_url else {
        return vec![Finding::warn(
            area,
            "ingress.public_url is not set",
            "set it to where this listener is reached from outside: for results that come later and for actiond subscription",
        )];
    };
    let mut findings: Vec<Finding> = hints(url).into_iter().collect();
    let Some(platform) = config.platforms.iter().find(|p| p.intake.webhook.is_some()) else {
        return findings;
    };
    findings.push(ask(&format!("{url}/webhooks/{}", platform.name)).await);
    findings
}

/// What the URL alone tells.
fn hints(url: &str) -> Option<Finding> {
    let uri: Uri = url.parse().ok()?;
    let host = uri.host()?.trim_matches(['[', ']']).to_ascii_lowercase();
    let is_private = match host.parse::<IpAddr>() {
        Ok(IpAddr::V4(ip)) => ip.is_loopback() || ip.is_private() || ip.is_link_local() || ip.is_unspecified(),
        Ok(IpAddr::V6(ip)) => ip.is_loopback() || ip.is_unique_local() || ip.is_unspecified(),
        Err(_) => {
            let inside = [".local", ".internal", ".lan", ".svc", ".cluster.local"];
            host == "localhost" || !host.contains('.') || inside.iter().any(|end| host.ends_with(end))
        }
    };
    if is_private {
        let remedy = "name the address that the internet knows, of a load balancer or a tunnel";
        return Some(Finding::warn("public_url", format!("{host} is an address of this network only"), remedy));
    }
    (uri.scheme_str() != Some("https"))
        .then(|| Finding::warn("public_url", "it is not https", "platforms send webhooks to https alone"))
}

/// A GET, which the route of webhooks refuses in its own way.
async fn ask(url: &str) -> Finding {
    let area = "public_url";
    let remedy = "start the ingress, or look at DNS, load balancer and certificate; from inside a network it may not be reachable";
    let sent = match http::client() {
        Ok(client) => client.get(url).timeout(PATIENCE).send().await,
        Err(error) => Err(error),
    };
    let response = match sent {
        Ok(response) => response,
        Err(error) => {
            return Finding::warn(area, format!("nothing answers there: {}", http::describe(&error)), remedy);
        }
    };
    let takes_posts = response.headers().get("allow").is_some_and(|allow| allow.as_bytes().starts_with(b"POST"));
    match response.status().as_u16() {
        405 if takes_posts => Finding::ok(area, "the ingress answers there"),
        status @ 300..400 => Finding::fail(
            area,
            format!("it redirects ({status})"),
            "platforms follow no redirects: name the last URL, and no trailing slash",
        ),
        status => Finding::warn(
            area,
            format!("something else than the ingress answers there (status {status})"),
            "let the proxy pass /webhooks, /functions and /results to actiond",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Level, *};

    fn levels(findings: &[Finding]) -> Vec<Level> {
        findings.iter().map(|finding| finding.level).collect()
    }

    #[test]
    fn a_clock_is_judged_by_the_tolerance_of_webhooks() {
        let clock = |skew, tolerance| clock("p", skew, tolerance).level;
        let tolerance = Some(Duration::from_secs(300));
        let judged: Vec<_> = [0, -10, 11, 299, -300, 4000].map(|skew| clock(skew, tolerance)).to_vec();
        assert_eq!(judged, [Level::Ok, Level::Ok, Level::Warn, Level::Warn, Level::Fail, Level::Fail]);
        assert_eq!(clock(4000, None), Level::Warn, "nothing is signed with a time");
    }

    #[test]
    fn a_key_is_judged_by_what_it_was_refused() {
        let judged = |read: Access, write: Access| {
            answered("p", &Probe { read, write, skew: None }, None).iter().map(|f| f.level).collect::<Vec<_>>()
        };
        assert_eq!(judged(Access::Granted, Access::Granted), [Level::Ok, Level::Ok]);
        assert_eq!(judged(Access::Granted, Access::Refused(403)), [Level::Ok, Level::Fail]);
        assert_eq!(judged(Access::Refused(401), Access::Refused(401)), [Level::Fail]);
        assert_eq!(judged(Access::Absent, Access::Granted), [Level::Warn]);
        assert_eq!(judged(Access::Unknown("x".into()), Access::Unknown("x".into())), [Level::Fail]);
    }

    #[test]
    fn secrets_are_judged_by_their_shape_and_never_shown() {
        let standard = |secrets: &[&str]| WebhookConfig::Standard {
            secrets: secrets.iter().map(|secret| (*secret).into()).collect(),
            tolerance: Duration::from_secs(300),
        };
        let right = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
        assert_eq!(levels(&secrets("p", &standard(&[right]))), [Level::Ok]);
        for wrong in ["a-plain-secret-with-letters", "whsec_AAECAwQFBgcICQoLDA0ODw=="] {
            let found = secrets("p", &standard(&[right, wrong]));
            assert_eq!(levels(&found), [Level::Warn]);
            assert!(found[0].what.contains("secrets[1]") && !found[0].what.contains(wrong), "{found:?}");
        }
        assert_eq!(levels(&secrets("p", &standard(&[right, right]))), [Level::Warn]);
        assert_eq!(levels(&secrets("p", &WebhookConfig::Insecure)), [Level::Warn]);
    }

    #[test]
    fn a_url_that_nobody_outside_reaches_is_hinted_at() {
        for url in
            ["http://127.0.0.1:8080", "https://10.0.0.3", "https://actiond", "https://a.internal", "https://[::1]"]
        {
            assert!(hints(url).is_some_and(|f| f.what.contains("this network")), "{url}");
        }
        assert!(hints("http://a.example.com").is_some_and(|f| f.what.contains("https")));
        assert_eq!(hints("https://a.example.com"), None);
    }
}
