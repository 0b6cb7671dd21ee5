//! `mcp_servers`: whose tools may be called, and which of them become functions.

use super::{
    functions::{INTERRUPTED, environment, headers, variable, words},
    reader::{Item, Section},
    sections::{HOUR, MOMENT, SECOND, pool},
};
use crate::{
    function,
    mcp::{Config, Import, Link},
    retry::Policy,
};

pub(super) fn servers(item: &Item, retry: &Policy, pools: &[String]) -> Vec<Config> {
    let mut servers: Vec<Config> = Vec::new();
    for item in item.list() {
        let server = server(&item, retry, pools);
        keeps_to_its_pool(&item, &server, &servers);
        item.unique(&server.name, servers.iter().map(|s| s.name.as_str()));
        servers.push(server);
    }
    servers
}

/// Calls of functions that are imported elsewhere are told apart by name alone.
fn keeps_to_its_pool(item: &Item, server: &Config, before: &[Config]) {
    let Some(import) = &server.import else { return };
    let clashes = |other: &&Config| match &other.import {
        Some(other) => other.pool != import.pool && may_share_a_name(import, other),
        None => false,
    };
    if let Some(other) = before.iter().find(clashes) {
        let what =
            format!("may give the same names as server {}, which is in another pool: use another prefix", other.name);
        item.error_at(".import.prefix", &what);
    }
}

fn may_share_a_name(one: &Import, other: &Import) -> bool {
    let gives = |import: &Import, name: &str| match name.strip_prefix(&import.prefix) {
        Some(rest) => import.only.is_empty() || import.only.iter().any(|only| only == rest),
        None => false,
    };
    let names = |import: &Import| import.only.iter().map(|only| format!("{}{only}", import.prefix)).collect::<Vec<_>>();
    match (one.only.is_empty(), other.only.is_empty()) {
        (true, true) => one.prefix.starts_with(&other.prefix) || other.prefix.starts_with(&one.prefix),
        (false, _) => names(one).iter().any(|name| gives(other, name)),
        (true, false) => names(other).iter().any(|name| gives(one, name)),
    }
}

fn server(item: &Item, retry: &Policy, pools: &[String]) -> Config {
    let section = item.section();
    let name = section.key("name").required("required; the name that handlers know it by");
    let name = name.text_that("must be 1 to 64 letters, digits, dashes or underscores", function::is_name);
    let config = Config {
        name: name.unwrap_or_default().into(),
        link: link(item, &section),
        timeout: section.key("timeout").duration(MOMENT..=24 * HOUR).unwrap_or(30 * SECOND),
        import: import(&section.key("import"), retry, pools),
    };
    section.finish();
    config
}

fn link(item: &Item, section: &Section) -> Link {
    let (url, command) = (section.key("url"), section.key("command"));
    match (url.is_absent(), command.is_absent()) {
        (true, true) => item.error("needs a url (streamable HTTP) or a command (stdio)"),
        (false, false) => command.error("a server has either a url or a command"),
        _ => {}
    }
    if !url.is_absent() {
        return Link::Http { url: url.url().unwrap_or_default().into(), headers: mcp_headers(&section.key("headers")) };
    }
    Link::Stdio {
        command: words(&command),
        env: environment(&section.key("env")),
        pass_env: section.key("pass_env").list().iter().filter_map(variable).collect(),
        cwd: section.key("cwd").some_text().map(String::from),
    }
}

/// Headers that the protocol sets itself.
const OURS: [&str; 3] = ["accept", "mcp-session-id", "last-event-id"];

fn mcp_headers(item: &Item) -> Vec<(String, secrecy::SecretString)> {
    let headers = headers(item);
    for (name, _) in &headers {
        if OURS.iter().any(|ours| name.eq_ignore_ascii_case(ours)) || name.to_ascii_lowercase().starts_with("mcp-") {
            item.error_at(&format!(".{name}"), "is set by actiond; remove it");
        }
    }
    headers
}

fn import(item: &Item, retry: &Policy, pools: &[String]) -> Option<Import> {
    let section = item.section();
    let is_prefix = |text: &str| text.is_empty() || function::is_name(text);
    let only = section.key("only");
    if only.value().is_some_and(|v| v.as_array().is_some_and(Vec::is_empty)) {
        only.error("must name a tool; leave the key out to import all of them");
    }
    let prefix = section.key("prefix").text_that("must be letters, digits, dashes or underscores", is_prefix);
    let import = Import {
        prefix: prefix.unwrap_or_default().into(),
        only: only.list().iter().filter_map(|item| item.some_text().map(String::from)).collect(),
        if_interrupted: section.key("if_interrupted").choice(INTERRUPTED),
        pool: pool(&section.key("pool"), pools),
        retry: retry.clone(),
    };
    section.finish();
    (!item.is_absent()).then_some(import)
}
