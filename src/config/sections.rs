//! The sections that a file has once.

use std::{io::IsTerminal, net::SocketAddr, sync::Arc, time::Duration};

use secrecy::{ExposeSecret, SecretString};

use super::{reader::Item, units};
use crate::{admin, ingress, queue, retry, store, telemetry, worker};

pub(super) const MOMENT: Duration = Duration::from_millis(100);
pub(super) const SECOND: Duration = Duration::from_secs(1);
pub(super) const HOUR: Duration = Duration::from_secs(3600);

pub(super) fn ingress(item: &Item) -> ingress::Config {
    let section = item.section();
    let config = ingress::Config {
        listen: listen(&section.key("listen"), ([0, 0, 0, 0], 8080)),
        max_body: section.key("max_body").size(1024..=64 << 20).unwrap_or(256 << 10),
        public_url: section.key("public_url").url().map(|url| url.trim_end_matches('/').into()),
    };
    section.finish();
    config
}

pub(super) fn admin(item: &Item) -> admin::Config {
    let section = item.section();
    let listen = listen(&section.key("listen"), ([127, 0, 0, 1], 9090));
    let key = section.key("token");
    let empty = key.is_absent() || key.value().is_some_and(|v| v.as_str() == Some(""));
    let token = if empty { None } else { key.secret() };
    if empty && !listen.ip().is_loopback() {
        key.error("required because admin.listen is not loopback; at least 16 characters");
    }
    if token.as_ref().is_some_and(|token| chars(token) < 16) {
        key.error("must have at least 16 characters");
    }
    section.finish();
    admin::Config { listen, token }
}

fn listen(item: &Item, default: ([u8; 4], u16)) -> SocketAddr {
    let read = item.parse("must be an IP address and a port, such as 0.0.0.0:8080", |v| v.as_str()?.parse().ok());
    read.unwrap_or_else(|| default.into())
}

pub(super) fn chars(secret: &SecretString) -> usize {
    secret.expose_secret().chars().count()
}

#[derive(Clone, Copy)]
enum QueueType {
    Embedded,
    RabbitMq,
}

pub(super) fn queue(item: &Item) -> queue::Config {
    let section = item.section();
    let kind = section.key("type");
    let choice = kind.choice(&[("embedded", QueueType::Embedded), ("rabbitmq", QueueType::RabbitMq)]);
    let config = match choice {
        Some(QueueType::RabbitMq) => queue::Config::RabbitMq(queue::RabbitMqConfig {
            url: amqp_url(&section.key("url").required("required, such as amqp://user:password@host:5672/vhost")),
            prefix: section.key("prefix").text_that(PREFIX, is_prefix).unwrap_or("actiond").into(),
            prefetch: section.key("prefetch").number(1..=65_535).map_or(64, |n| n as u16),
            topology: section.key("topology").choice(TOPOLOGIES).unwrap_or(queue::Topology::Manage),
            confirm_timeout: section.key("confirm_timeout").duration(MOMENT..=HOUR).unwrap_or(5 * SECOND),
        }),
        Some(QueueType::Embedded) => queue::Config::Embedded,
        None => {
            if !kind.is_absent() {
                section.leave_open();
            }
            queue::Config::Embedded
        }
    };
    section.finish();
    config
}

const TOPOLOGIES: &[(&str, queue::Topology)] =
    &[("manage", queue::Topology::Manage), ("verify", queue::Topology::Verify)];
const PREFIX: &str = "must be 1 to 100 letters, digits, dots, dashes or underscores";

fn is_prefix(text: &str) -> bool {
    (1..=100).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

fn amqp_url(item: &Item) -> SecretString {
    let url = item.secret().unwrap_or_default();
    let rest = ["amqp://", "amqps://"].iter().find_map(|scheme| url.expose_secret().strip_prefix(scheme));
    let is_right = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/') && !rest.contains(' '));
    if !is_right && !url.expose_secret().is_empty() {
        item.error("must be amqp://user:password@host:port/vhost, or amqps://");
    }
    url
}

pub(super) fn store(item: &Item) -> store::Config {
    let section = item.section();
    let url = section.key("url");
    let config = store::Config {
        url: if url.is_absent() { "sqlite://actiond.db".into() } else { store_url(&url) },
        max_connections: section.key("max_connections").number(1..=1000).map_or(20, |n| n as u32),
        timeout: section.key("timeout").duration(MOMENT..=HOUR).unwrap_or(10 * SECOND),
        retention: retention(&section.key("retention")),
    };
    section.finish();
    config
}

/// A day at least: what repeats a call within it must find the row.
fn retention(item: &Item) -> Option<Duration> {
    let never = |value: &serde_json::Value| value == "never" || value == "0" || value.as_u64() == Some(0);
    match item.value().is_some_and(never) {
        true => None,
        false => Some(item.duration(24 * HOUR..=units::LONGEST).unwrap_or(30 * 24 * HOUR)),
    }
}

fn store_url(item: &Item) -> SecretString {
    let url = item.secret().unwrap_or_default();
    let known = ["sqlite://", "postgres://", "postgresql://"];
    let rest = known.iter().find_map(|scheme| url.expose_secret().strip_prefix(scheme));
    if rest.is_none_or(str::is_empty) && !url.expose_secret().is_empty() {
        item.error("must be sqlite://file or postgres://user:password@host/database");
    }
    url
}

/// `sqlite`, `postgres`, `postgresql`, or nothing where the URL is wrong.
pub(super) fn scheme(store: &store::Config) -> &str {
    store.url.expose_secret().split_once("://").map_or("", |(scheme, _)| scheme)
}

pub(super) fn worker(item: &Item) -> worker::Config {
    let section = item.section();
    let unknown_functions = [("leave", worker::UnknownFunctions::Leave), ("fail", worker::UnknownFunctions::Fail)];
    let config = worker::Config {
        concurrency: section.key("concurrency").number(1..=10_000).map_or(64, |n| n as usize),
        grace_period: section.key("grace_period").duration(Duration::ZERO..=HOUR).unwrap_or(30 * SECOND),
        lease: section.key("lease").duration(MOMENT..=HOUR).unwrap_or(30 * SECOND),
        confirm_after: section.key("confirm_after").duration(MOMENT..=24 * HOUR).unwrap_or(30 * SECOND),
        recheck: section.key("recheck").duration(MOMENT..=24 * HOUR).unwrap_or(30 * SECOND),
        max_deliveries: section.key("max_deliveries").number(1..=1_000_000).map_or(100, |n| n as u32),
        max_hold: section.key("max_hold").duration(MOMENT..=24 * HOUR).unwrap_or(600 * SECOND),
        unknown_functions: section
            .key("unknown_functions")
            .choice(&unknown_functions)
            .unwrap_or(worker::UnknownFunctions::Leave),
        pools: pools(&section.key("pools")),
    };
    section.finish();
    config
}

/// The pool that something is pinned to.
pub(super) fn pool(item: &Item, pools: &[String]) -> Option<Arc<str>> {
    let is_known = |name: &str| pools.iter().any(|pool| pool == name);
    item.text_that("must be the name of a pool in worker.pools", is_known).map(Into::into)
}

/// The names become parts of the names of queues and of objects on Kubernetes.
fn pools(item: &Item) -> Vec<String> {
    let allowed = "must be 1 to 40 lowercase letters, digits or dashes, not first or last a dash";
    let is_pool = |text: &str| {
        let part = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
        (1..=40).contains(&text.len()) && text.bytes().all(part) && !text.starts_with('-') && !text.ends_with('-')
    };
    let mut pools: Vec<String> = Vec::new();
    for item in item.list() {
        let Some(name) = item.text_that(allowed, is_pool) else { continue };
        match pools.iter().any(|pool| pool == name) {
            true => item.error("is listed already"),
            false => pools.push(name.to_owned()),
        }
    }
    pools
}

pub(super) fn sweep(item: &Item) -> worker::sweep::Config {
    let section = item.section();
    let config = worker::sweep::Config {
        enabled: section.key("enabled").bool().unwrap_or(true),
        every: section.key("every").duration(SECOND..=24 * HOUR).unwrap_or(300 * SECOND),
        window: section.key("window").duration(60 * SECOND..=30 * 24 * HOUR).unwrap_or(24 * HOUR),
    };
    section.finish();
    config
}

/// A policy; what is not written is as in `base`.
pub(super) fn retry(item: &Item, base: &retry::Policy) -> retry::Policy {
    let section = item.section();
    let initial = section.key("initial");
    let policy = retry::Policy {
        initial: initial.duration(Duration::from_millis(1)..=24 * HOUR).unwrap_or(base.initial),
        multiplier: section.key("multiplier").decimal(1.0..=100.0).unwrap_or(base.multiplier),
        max: section.key("max").duration(Duration::from_millis(1)..=24 * HOUR).unwrap_or(base.max),
        max_attempts: section.key("max_attempts").number(1..=1000).map_or(base.max_attempts, |n| n as u32),
    };
    section.finish();
    if policy.initial > policy.max && (policy.initial, policy.max) != (base.initial, base.max) {
        initial.error(&format!("must not be longer than max, which is {}", units::show(policy.max)));
    }
    policy
}

pub(super) fn telemetry(item: &Item) -> telemetry::Config {
    let section = item.section();
    let formats = [("json", telemetry::LogFormat::Json), ("text", telemetry::LogFormat::Text)];
    let by_terminal = || match std::io::stderr().is_terminal() {
        true => telemetry::LogFormat::Text,
        false => telemetry::LogFormat::Json,
    };
    let otlp = section.key("otlp");
    let off = otlp.value().is_some_and(|v| v.as_str() == Some(""));
    let config = telemetry::Config {
        log: section.key("log").choice(&formats).unwrap_or_else(by_terminal),
        otlp: if off { None } else { otlp.url().map(|url| url.trim_end_matches('/').into()) },
    };
    section.finish();
    config
}
