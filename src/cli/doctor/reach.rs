//! Whether handlers are there: a connection to each host, no call; a program that can be started, not started.

use std::{
    collections::BTreeMap,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use axum::http::Uri;
use futures_util::future::join_all;
use secrecy::{ExposeSecret as _, SecretString};
use tokio::{net::TcpStream, time::timeout};

use super::{Finding, Level};
use crate::{
    config::Config,
    handler,
    mcp::{self, Link},
    process,
};

const PATIENCE: Duration = Duration::from_secs(5);
const PROXIES: [&str; 6] = ["HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];

/// What is looked at once, however many functions need it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    /// The host and port of a URL.
    Host(String),
    /// A program and where it is looked for.
    Program { program: String, path: String, cwd: Option<String> },
}

/// Who needs it.
#[derive(Default)]
struct Needs {
    who: Vec<String>,
    /// All who need it run elsewhere.
    elsewhere: bool,
}

pub(super) async fn handlers(config: &Config) -> Vec<Finding> {
    let mut targets: BTreeMap<Target, Needs> = BTreeMap::new();
    let mut need = |target: Option<Target>, who: String, pinned: bool| {
        let Some(target) = target else { return };
        let needs = targets.entry(target).or_insert_with(|| Needs { who: Vec::new(), elsewhere: true });
        needs.who.push(who);
        needs.elsewhere &= pinned;
    };
    for function in &config.functions {
        need(target(&function.handler), function.name.clone(), function.pool.is_some());
    }
    for server in &config.mcp_servers {
        need(server_target(server), format!("MCP server {}", server.name), is_pinned(config, server));
    }
    for (place, source) in config.function_sources.iter().enumerate() {
        need(host(&source.url), format!("function_sources[{place}]"), false);
    }
    let looks = targets.into_iter().map(|(target, needs)| async move {
        let found = look(&target).await;
        finding(&target, &needs, found)
    });
    join_all(looks).await
}

fn is_pinned(config: &Config, server: &mcp::Config) -> bool {
    let uses = |handler: &handler::Config| matches!(handler, handler::Config::Mcp(tool) if tool.server == server.name);
    let mut users = config.functions.iter().filter(|function| uses(&function.handler)).peekable();
    let imported = server.import.as_ref().map(|import| import.pool.is_some());
    imported.unwrap_or(users.peek().is_some()) && users.all(|function| function.pool.is_some())
}

fn target(handler: &handler::Config) -> Option<Target> {
    match handler {
        handler::Config::Http(http) => host(&http.url),
        handler::Config::Command(c) => Some(program(&c.command, &c.env, &c.pass_env, c.cwd.as_deref())),
        handler::Config::QueryCollection(query) => host(&query.account.base_url),
        // Its server is looked at by itself.
        handler::Config::Mcp(_) => None,
        handler::Config::Echo | handler::Config::Rust => None,
    }
}

fn server_target(server: &mcp::Config) -> Option<Target> {
    match &server.link {
        Link::Http { url, .. } => host(url),
        Link::Stdio { command, env, pass_env, cwd } => Some(program(command, env, pass_env, cwd.as_deref())),
    }
}

fn host(url: &str) -> Option<Target> {
    let uri: Uri = url.parse().ok()?;
    let port = uri.port_u16().unwrap_or(if uri.scheme_str() == Some("https") { 443 } else { 80 });
    Some(Target::Host(format!("{}:{port}", uri.host()?)))
}

/// As the program itself would be looked for, in the environment that it would have.
fn program(command: &[String], env: &[(String, SecretString)], pass_env: &[String], cwd: Option<&str>) -> Target {
    let own = env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.expose_secret().to_owned());
    let passed = pass_env.iter().find(|name| *name == "PATH").and_then(|_| std::env::var("PATH").ok());
    Target::Program {
        program: command.first().cloned().unwrap_or_default(),
        path: own.or(passed).unwrap_or_else(|| process::PATH.to_owned()),
        cwd: cwd.map(str::to_owned),
    }
}

async fn look(target: &Target) -> Result<String, String> {
    match target {
        Target::Host(host) if is_proxied(host) => Ok("is reached through a proxy and was not tried".to_owned()),
        Target::Host(host) => open(host).await.map(|()| "takes connections".to_owned()),
        Target::Program { program, path, cwd } => find(program, path, cwd.as_deref()),
    }
}

/// A connection to the host of a URL that is closed at once.
pub(super) async fn connect(url: &str) -> Result<(), String> {
    match host(url) {
        Some(Target::Host(host)) if !is_proxied(&host) => open(&host).await,
        Some(_) => Ok(()),
        None => Err("that is no URL with a host".to_owned()),
    }
}

async fn open(host: &str) -> Result<(), String> {
    match timeout(PATIENCE, TcpStream::connect(host)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) if error.raw_os_error().is_none() => Err("the name cannot be resolved".to_owned()),
        Ok(Err(error)) => Err(error.kind().to_string()),
        Err(_) => Err("no answer in time".to_owned()),
    }
}

/// Whether the HTTP client would go through a proxy; this machine's own addresses it may reach either way.
fn is_proxied(host: &str) -> bool {
    let is_local = ["127.", "localhost:", "[::1]:"].iter().any(|local| host.starts_with(local));
    !is_local && PROXIES.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()))
}

fn find(program: &str, path: &str, cwd: Option<&str>) -> Result<String, String> {
    let cwd = Path::new(cwd.unwrap_or("."));
    if !cwd.is_dir() {
        return Err(format!("its cwd {} is no folder", cwd.display()));
    }
    let places: Vec<PathBuf> = match program.contains('/') {
        true => vec![cwd.join(program)],
        false => std::env::split_paths(path).map(|folder| folder.join(program)).collect(),
    };
    let runs = |file: &Path| file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    match (places.iter().any(|place| runs(place)), places.iter().any(|place| place.is_file())) {
        (true, _) => Ok("is there".to_owned()),
        (false, true) => Err("is there, but cannot be executed".to_owned()),
        (false, false) => Err("is not there".to_owned()),
    }
}

fn finding(target: &Target, needs: &Needs, found: Result<String, String>) -> Finding {
    let who = needs.who.join(", ");
    let name = match target {
        Target::Host(host) => host,
        Target::Program { program, .. } => program,
    };
    let why = match found {
        Ok(how) => return Finding::ok("handlers", format!("{name} {how} ({who})")),
        Err(why) => why,
    };
    let remedy = match target {
        Target::Host(_) => "start the service, or look at name, port and firewall; calls are tried again meanwhile",
        Target::Program { .. } => {
            "install it, or write the whole path in command; its PATH is what env or pass_env say"
        }
    };
    let failed = match target {
        Target::Host(_) => format!("{name} cannot be reached: {why} ({who})"),
        Target::Program { .. } => format!("{name} {why} ({who})"),
    };
    match needs.elsewhere {
        true => Finding {
            level: Level::Warn,
            remedy: Some("it is pinned to a pool: look from a machine of that pool".to_owned()),
            ..Finding::fail("handlers", failed, "")
        },
        false => Finding::fail("handlers", failed, remedy),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_a_url_has_its_port() {
        for (url, expected) in [
            ("https://a.example/x?y", "a.example:443"),
            ("http://a.example", "a.example:80"),
            ("http://[::1]:8080/", "[::1]:8080"),
            ("https://user:password@a.example/", "a.example:443"),
        ] {
            assert_eq!(host(url), Some(Target::Host(expected.into())), "{url}");
        }
        assert_eq!(host("not a url"), None);
    }

    #[test]
    fn a_program_is_looked_for_where_it_would_be() {
        assert!(find("sh", process::PATH, None).is_ok());
        assert!(find("sh", "/nowhere", None).is_err());
        assert!(find("/bin/sh", "/nowhere", None).is_ok());
        assert!(find("bin/sh", "", Some("/")).is_ok());
        assert!(find("/etc/passwd", "", None).is_err_and(|why| why.contains("cannot be executed")));
        assert!(find("sh", process::PATH, Some("/nowhere")).is_err_and(|why| why.contains("cwd")));
    }
}
