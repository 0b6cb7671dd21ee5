//! `functions`: what the model may call, and what runs then.

use std::collections::BTreeMap;

use axum::http::{HeaderName, HeaderValue};
use secrecy::SecretString;
use serde_json::{Value, json};

use super::{
    expand::is_variable,
    reader::{Item, Section},
    sections::{HOUR, MOMENT, SECOND, retry},
};
use crate::{
    function::{Config, IfInterrupted},
    handler::{self, Body, CommandConfig, HttpConfig, Response},
    platform, retry as policy,
    schema::Schema,
};

pub(super) fn functions(item: &Item, base: &policy::Policy, platforms: &[platform::Config]) -> Vec<Config> {
    let mut functions: Vec<Config> = Vec::new();
    for item in item.list() {
        let function = function(&item, base, platforms);
        item.unique(&function.name, functions.iter().map(|f| f.name.as_str()));
        functions.push(function);
    }
    functions
}

fn function(item: &Item, base: &policy::Policy, known: &[platform::Config]) -> Config {
    let section = item.section();
    let name = section.key("name").required("required; the name that the model calls");
    let name = name.text_that("must be 1 to 64 letters, digits, dashes or underscores", is_name);
    let interrupted = [("rerun", IfInterrupted::Rerun), ("fail", IfInterrupted::Fail), ("hold", IfInterrupted::Hold)];
    let config = Config {
        name: name.unwrap_or_default().into(),
        description: section.key("description").text().unwrap_or_default().into(),
        parameters: parameters(&section.key("parameters")),
        handler: handler(&section.key("handler").required("required; what runs when the function is called")),
        if_interrupted: section.key("if_interrupted").choice(&interrupted).unwrap_or(IfInterrupted::Rerun),
        retry: retry(&section.key("retry"), base),
        concurrency: limits(&section.key("limits")),
        platforms: platforms(&section.key("platforms"), known),
    };
    section.finish();
    config
}

fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

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

fn limits(item: &Item) -> Option<usize> {
    let section = item.section();
    let concurrency = section.key("concurrency").number(1..=10_000).map(|n| n as usize);
    section.finish();
    concurrency
}

fn platforms(item: &Item, known: &[platform::Config]) -> Vec<String> {
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
    Echo,
}

fn handler(item: &Item) -> handler::Config {
    let section = item.section();
    let kind = if item.is_absent() { None } else { handler_type(&section) };
    let config = match kind {
        Some(Type::Http) => handler::Config::Http(http(&section)),
        Some(Type::Command) => handler::Config::Command(command(&section)),
        Some(Type::Echo) => handler::Config::Echo,
        None => {
            section.leave_open();
            handler::Config::Echo
        }
    };
    section.finish();
    config
}

fn handler_type(section: &Section) -> Option<Type> {
    let kind = section.key("type").required("required; must be one of http, command, echo");
    kind.choice(&[("http", Type::Http), ("command", Type::Command), ("echo", Type::Echo)])
}

fn http(section: &Section) -> HttpConfig {
    let url = section.key("url").required("required, such as https://orders.internal/agent");
    let bodies = [("protocol", Body::Protocol), ("arguments", Body::Arguments)];
    let responses = [("text", Response::Text), ("content", Response::Content)];
    HttpConfig {
        url: url.url().unwrap_or_default().into(),
        headers: headers(&section.key("headers")),
        timeout: section.key("timeout").duration(MOMENT..=24 * HOUR).unwrap_or(10 * SECOND),
        body: section.key("body").choice(&bodies).unwrap_or(Body::Protocol),
        response: section.key("response").choice(&responses).unwrap_or(Response::Text),
        max_response: section.key("max_response").size(1..=1 << 30).unwrap_or(1 << 20),
    }
}

/// Headers that we set ourselves, or that belong to the connection.
const OURS: &[&str] =
    &["content-type", "host", "content-length", "idempotency-key", "transfer-encoding", "connection", "traceparent"];

fn headers(item: &Item) -> Vec<(String, SecretString)> {
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
    let command: Vec<String> = item.list().iter().map(|item| argument(item).unwrap_or_default().into()).collect();
    if item.value().is_some_and(|v| v.as_array().is_some_and(|a| a.first().is_none_or(|first| first == ""))) {
        item.error("must begin with the program");
    }
    CommandConfig {
        command,
        env: environment(&section.key("env")),
        pass_env: section.key("pass_env").list().iter().filter_map(variable).collect(),
        cwd: section.key("cwd").some_text().map(String::from),
        timeout: section.key("timeout").duration(MOMENT..=24 * HOUR).unwrap_or(30 * SECOND),
        max_output: section.key("max_output").size(1..=1 << 30).unwrap_or(1 << 20),
    }
}

fn argument<'a>(item: &Item<'a>) -> Option<&'a str> {
    item.text_that("must not hold a NUL character", |text| !text.contains('\0'))
}

fn environment(item: &Item) -> Vec<(String, SecretString)> {
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

fn variable(item: &Item) -> Option<String> {
    item.text_that("must be the name of an environment variable", is_variable).map(String::from)
}
