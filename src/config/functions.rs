//! `functions`: what the model may call, and what runs then.

use std::collections::BTreeMap;

use axum::http::{HeaderName, HeaderValue};
use secrecy::SecretString;
use serde_json::{Value, json};

use super::{
    approval::{approval, has_time},
    expand::is_variable,
    intake::signing_secret,
    limits::limits,
    reader::{Item, Section},
    sections::{HOUR, MOMENT, SECOND, pool, retry},
};
use crate::{
    allow::Rule,
    function::{
        Config, IfInterrupted, is_name,
        source::{DEFAULT_MIN, DEFAULT_RERANKER, DEFAULT_TOP, search_parameters},
    },
    handler::{self, Body, CommandConfig, HttpConfig, McpConfig, QueryAccount, QueryCollectionConfig, Response, Sign},
    mcp, platform,
    redact::Path,
    retry as policy,
    schema::Schema,
};

pub(super) fn functions(
    item: &Item,
    base: &policy::Policy,
    platforms: &[platform::Config],
    servers: &[mcp::Config],
    pools: &[String],
) -> Vec<Config> {
    let mut functions: Vec<Config> = Vec::new();
    for item in item.list() {
        let function = function(&item, base, platforms, servers, pools);
        fits_platforms(&item, &function, platforms);
        has_time(&item, &function, platforms);
        fits_pool(&item, &function, platforms);
        item.unique(&function.name, functions.iter().map(|f| f.name.as_str()));
        functions.push(function);
    }
    functions
}

/// Every platform has its own rule for names; one that is wrong everywhere is reported already.
fn fits_platforms(item: &Item, function: &Config, platforms: &[platform::Config]) {
    if function.name.is_empty() {
        return;
    }
    // An account's runs share its rule, unless they alone are answered.
    let counts = |platform: &platform::Config| {
        let is_runs = matches!(platform.kind, platform::Kind::WorkflowRuns { .. });
        function.answers(&platform.name) && (!is_runs || function.platforms.contains(&platform.name))
    };
    for platform in platforms.iter().filter(|platform| counts(platform)) {
        if let Err(why) = platform.flavor().check_name(&function.name) {
            let what =
                format!("{why} at platform {}: rename it, or list the other platforms in platforms", platform.name);
            item.error_at(".name", &what);
        }
    }
}

fn fits_pool(item: &Item, function: &Config, platforms: &[platform::Config]) {
    let calls = |p: &&platform::Config| matches!(p.kind, platform::Kind::Aivax(_)) && function.answers(&p.name);
    if let (Some(pool), Some(platform)) = (&function.pool, platforms.iter().find(calls)) {
        item.warn(&format!(
            "platform {} calls the ingress, which does not run functions of pool {pool}",
            platform.name
        ));
    }
}

fn function(
    item: &Item,
    base: &policy::Policy,
    known: &[platform::Config],
    servers: &[mcp::Config],
    pools: &[String],
) -> Config {
    let section = item.section();
    let name = section.key("name").required("required; the name that the model calls");
    let name = name.text_that("must be 1 to 64 letters, digits, dashes or underscores", is_name);
    let mut config = Config {
        name: name.unwrap_or_default().into(),
        description: section.key("description").text().unwrap_or_default().into(),
        parameters: parameters(&section.key("parameters")),
        deferred: section.key("deferred").bool().unwrap_or(false),
        handler: handler(
            &section.key("handler").required("required; what runs when the function is called"),
            known,
            servers,
        ),
        if_interrupted: section.key("if_interrupted").choice(INTERRUPTED).unwrap_or(IfInterrupted::Rerun),
        retry: retry(&section.key("retry"), base),
        limits: limits(&section.key("limits")),
        require_metadata: section.key("require_metadata").list().iter().filter_map(metadata_key).collect(),
        allow: allow(&section.key("allow")),
        approval: approval(&section.key("approval")),
        platforms: platforms(&section.key("platforms"), known),
        dedupe: section.key("dedupe").duration(SECOND..=24 * HOUR),
        redact: section.key("redact").list().iter().filter_map(redacted).collect(),
        pool: pool(&section.key("pool"), pools),
    };
    if matches!(config.handler, handler::Config::QueryCollection(_)) && section.key("parameters").is_absent() {
        config.parameters = search_parameters();
    }
    section.finish();
    config
}

pub(super) const INTERRUPTED: &[(&str, IfInterrupted)] =
    &[("rerun", IfInterrupted::Rerun), ("fail", IfInterrupted::Fail), ("hold", IfInterrupted::Hold)];

/// The schema of the arguments, which are always one object.
fn parameters(item: &Item) -> Value {
    let default = || json!({ "type": "object", "properties": {} });
    let Some(schema) = item.parse("must be a JSON Schema of an object", |v| v.is_object().then_some(v)) else {
        return default();
    };
    if schema.get("type").is_some_and(|kind| kind != "object") {
        item.error("type must be object: a call's arguments are one object");
    } else if let Err((place, what)) = Schema::compile(schema) {
        let at = place.replace('/', ".");
        let at = at.trim_start_matches('.');
        let what = if item.holds_expanded() { "is not a valid JSON Schema" } else { &what };
        let dot = if at.is_empty() || at.starts_with('[') { "" } else { "." };
        item.error_at(&format!("{dot}{at}"), what);
    }
    schema.clone()
}

fn allow(item: &Item) -> Option<Rule> {
    let text = item.text()?;
    Rule::compile(text).map_err(|why| item.error(&why)).ok()
}

fn redacted(item: &Item) -> Option<Path> {
    item.parse("must be a path such as $.card.number", |value| Path::parse(value.as_str()?))
}

fn metadata_key(item: &Item) -> Option<String> {
    item.some_text().map(String::from)
}

pub(super) fn platforms(item: &Item, known: &[platform::Config]) -> Vec<String> {
    let items = item.list();
    if item.value().is_some_and(|v| v.as_array().is_some_and(Vec::is_empty)) {
        item.error("must name a platform; leave the key out to answer all of them");
    }
    let name = |item: &Item| {
        let is_known = |name: &str| known.iter().any(|p| p.name == name);
        item.text_that("must be the name of a platform in platforms", is_known).map(String::from)
    };
    items.iter().filter_map(name).collect()
}

#[derive(Clone, Copy)]
enum Type {
    Http,
    Command,
    QueryCollection,
    Mcp,
    Echo,
    Rust,
}

fn handler(item: &Item, platforms: &[platform::Config], servers: &[mcp::Config]) -> handler::Config {
    let section = item.section();
    let kind = if item.is_absent() { None } else { handler_type(&section) };
    let config = match kind {
        Some(Type::Http) => handler::Config::Http(http(&section)),
        Some(Type::Command) => handler::Config::Command(command(&section)),
        Some(Type::QueryCollection) => handler::Config::QueryCollection(query_collection(&section, platforms)),
        Some(Type::Mcp) => handler::Config::Mcp(tool(&section, servers)),
        Some(Type::Echo) => handler::Config::Echo,
        Some(Type::Rust) => handler::Config::Rust,
        None => {
            section.leave_open();
            handler::Config::Echo
        }
    };
    section.finish();
    config
}

fn handler_type(section: &Section) -> Option<Type> {
    let kind =
        section.key("type").required("required; must be one of http, command, query_collection, mcp, echo, rust");
    kind.choice(&[
        ("http", Type::Http),
        ("command", Type::Command),
        ("query_collection", Type::QueryCollection),
        ("mcp", Type::Mcp),
        ("echo", Type::Echo),
        ("rust", Type::Rust),
    ])
}

fn tool(section: &Section, servers: &[mcp::Config]) -> McpConfig {
    let server = section.key("server").required("required; the name of one of mcp_servers");
    let is_known = |name: &str| servers.iter().any(|server| server.name == name);
    let tool = section.key("tool").required("required; the tool's name at its server");
    McpConfig {
        server: server.text_that("must be the name of a server in mcp_servers", is_known).unwrap_or_default().into(),
        tool: tool.some_text().unwrap_or_default().into(),
        timeout: section.key("timeout").duration(MOMENT..=24 * HOUR),
    }
}

fn http(section: &Section) -> HttpConfig {
    let url = section.key("url").required("required, such as https://orders.internal/agent");
    let bodies = [("protocol", Body::Protocol), ("arguments", Body::Arguments)];
    HttpConfig {
        url: url.url().unwrap_or_default().into(),
        headers: headers(&section.key("headers")),
        timeout: section.key("timeout").duration(MOMENT..=24 * HOUR).unwrap_or(10 * SECOND),
        body: section.key("body").choice(&bodies).unwrap_or(Body::Protocol),
        response: section.key("response").choice(RESPONSES).unwrap_or(Response::Text),
        max_response: section.key("max_response").size(1..=1 << 30).unwrap_or(1 << 20),
        sign: sign(&section.key("sign")),
    }
}

const RESPONSES: &[(&str, Response)] =
    &[("text", Response::Text), ("content", Response::Content), ("image", Response::Image)];

/// How a receiver can know that a request is ours.
pub(super) fn sign(item: &Item) -> Sign {
    let section = item.section();
    let (nonce, standard) = (section.key("nonce"), section.key("standard"));
    let sign = Sign { nonce: nonce.some_secret(), standard: signing_secret(&standard) };
    if !item.is_absent() && nonce.is_absent() && standard.is_absent() {
        item.error("must hold nonce: KEY or standard: whsec_…");
    }
    section.finish();
    sign
}

fn query_collection(section: &Section, platforms: &[platform::Config]) -> QueryCollectionConfig {
    let collection = section.key("collection").required("required; the id of the collection");
    let account = section.key("platform");
    QueryCollectionConfig {
        collection: collection.some_text().unwrap_or_default().into(),
        top: section.key("top").number(1..=128).map_or(DEFAULT_TOP, |n| n as u32),
        min: section.key("min").decimal(0.01..=0.99).unwrap_or(DEFAULT_MIN),
        references: section.key("references").bool().unwrap_or(false),
        reranker: section.key("reranker").some_text().unwrap_or(DEFAULT_RERANKER).into(),
        timeout: section.key("timeout").duration(MOMENT..=24 * HOUR).unwrap_or(10 * SECOND),
        account: query_account(&account, platforms).unwrap_or_else(|| {
            if account.is_absent() {
                account.error("required; the name of a platform of type aivax with an api_key");
            }
            QueryAccount { base_url: String::new(), api_key: SecretString::default() }
        }),
    }
}

/// The AIVAX account of that name that can be asked; where none is named, the only one.
pub(super) fn query_account(item: &Item, platforms: &[platform::Config]) -> Option<QueryAccount> {
    let accounts: Vec<_> = platforms.iter().filter_map(account).collect();
    if item.is_absent() {
        let [(_, account)] = accounts.as_slice() else { return None };
        return Some(account.clone());
    }
    let named = |name: &str| accounts.iter().find(|(known, _)| *known == name);
    item.parse("must be the name of a platform of type aivax with an api_key", |v| named(v.as_str()?))
        .map(|(_, account)| account.clone())
}

fn account(config: &platform::Config) -> Option<(&str, QueryAccount)> {
    let platform::Kind::Aivax(aivax) = &config.kind else { return None };
    let api_key = aivax.api_key.clone()?;
    Some((&config.name, QueryAccount { base_url: aivax.base_url.clone(), api_key }))
}

/// Headers that we set ourselves, or that belong to the connection.
const OURS: &[&str] = &[
    "content-type",
    "host",
    "content-length",
    "idempotency-key",
    "transfer-encoding",
    "connection",
    "traceparent",
    "x-request-nonce",
];

pub(super) fn headers(item: &Item) -> Vec<(String, SecretString)> {
    let mut seen = BTreeMap::new();
    let mut headers = Vec::new();
    for (name, item) in item.entries() {
        let lower = name.to_ascii_lowercase();
        let value = item.text();
        if HeaderName::from_bytes(name.as_bytes()).is_err() {
            item.error("is not the name of an HTTP header");
        } else if OURS.contains(&lower.as_str()) {
            item.error("is set by actiond; remove it");
        } else if let Some(other) = seen.insert(lower, name) {
            item.error(&format!("is the same header as {other}"));
        }
        let Some(value) = value else { continue };
        if HeaderValue::from_str(value).is_err() {
            item.error("must not hold a line feed or another control character");
        }
        headers.push((name.into(), value.into()));
    }
    headers
}

fn command(section: &Section) -> CommandConfig {
    let item = section.key("command").required("required; the program and its arguments as a list");
    CommandConfig {
        command: words(&item),
        env: environment(&section.key("env")),
        pass_env: section.key("pass_env").list().iter().filter_map(variable).collect(),
        cwd: section.key("cwd").some_text().map(String::from),
        timeout: section.key("timeout").duration(MOMENT..=24 * HOUR).unwrap_or(30 * SECOND),
        max_output: section.key("max_output").size(1..=1 << 30).unwrap_or(1 << 20),
        response: section.key("response").choice(RESPONSES).unwrap_or(Response::Text),
    }
}

/// A program and its arguments.
pub(super) fn words(item: &Item) -> Vec<String> {
    let command = item.list().iter().map(|item| argument(item).unwrap_or_default().into()).collect();
    if item.value().is_some_and(|v| v.as_array().is_some_and(|a| a.first().is_none_or(|first| first == ""))) {
        item.error("must begin with the program");
    }
    command
}

fn argument<'a>(item: &Item<'a>) -> Option<&'a str> {
    item.text_that("must not hold a NUL character", |text| !text.contains('\0'))
}

pub(super) fn environment(item: &Item) -> Vec<(String, SecretString)> {
    let entry = |(name, item): (&str, Item)| {
        if !is_variable(name) {
            item.error("is not the name of an environment variable");
        } else if name.starts_with("ACTIOND_") {
            item.error("names that begin with ACTIOND_ are set by actiond");
        }
        argument(&item).map(|value| (name.to_owned(), value.into()))
    };
    item.entries().into_iter().filter_map(entry).collect()
}

pub(super) fn variable(item: &Item) -> Option<String> {
    item.text_that("must be the name of an environment variable", is_variable).map(String::from)
}
