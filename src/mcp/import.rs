//! Tools of servers become functions: after the start, again when the server says so, and every few minutes.

use std::{sync::Arc, time::Duration};

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{Import, Server, Servers, Tool};
use crate::{
    function::{self, Function, IfInterrupted, Live},
    handler::{self, McpConfig},
    metrics::Metrics,
    retry::Policy,
};

const REFRESH: Duration = Duration::from_secs(600);
/// From a change to the next look, however often the server speaks of changes.
const SETTLE: Duration = Duration::from_millis(500);
/// How long a server may take to begin and to list its tools.
const PATIENCE: Duration = Duration::from_secs(70);
const BACKOFF: Policy = Policy {
    initial: Duration::from_millis(500),
    multiplier: 2.0,
    max: Duration::from_secs(60),
    max_attempts: u32::MAX,
};

/// Makes a function of its config; the error says why it cannot be one.
pub type Build = dyn Fn(&function::Config) -> Result<Function, String> + Send + Sync;

/// Keeps the imported functions of a registry as their servers have them.
pub struct Importer {
    pub servers: Servers,
    pub live: Arc<Live>,
    pub build: Box<Build>,
    pub metrics: Metrics,
}

impl Importer {
    /// Imports from every server that is to be imported from here, until `stop`. A server may be away as long as it likes:
    /// what was imported from it stays.
    pub async fn run(self, stop: CancellationToken) {
        let loops = self.servers.iter().filter_map(|server| {
            let import = server.config().import.as_ref()?;
            self.live.serves().has(import.pool.as_deref()).then(|| self.keep(server, import))
        });
        tokio::select! {
            _ = futures_util::future::join_all(loops.collect::<Vec<_>>()) => {}
            () = stop.cancelled() => {}
        }
    }

    /// Imports once from the servers whose tools may have this name as functions.
    pub async fn once(&self, name: &str) -> Result<(), String> {
        for server in self.servers.iter() {
            let Some(import) = server.config().import.as_ref().filter(|import| name.starts_with(&import.prefix)) else {
                continue;
            };
            let tools = server.tools(PATIENCE).await;
            let tools = tools.map_err(|error| format!("MCP server {}: {error}", server.config().name))?;
            self.apply(server, import, tools);
        }
        Ok(())
    }

    async fn keep(&self, server: &Arc<Server>, import: &Import) {
        let mut imported = Vec::new();
        let mut failures = 0;
        loop {
            match server.tools(PATIENCE).await {
                Ok(tools) => {
                    failures = 0;
                    let before = std::mem::take(&mut imported);
                    imported = self.apply(server, import, tools);
                    if imported != before {
                        let (server, functions) = (&server.config().name, imported.len());
                        tracing::info!(server, functions, "imported the tools of an MCP server");
                    }
                }
                Err(error) => {
                    failures += 1;
                    tracing::warn!(server = server.config().name, %error, failures, "cannot import tools: trying again");
                }
            }
            if failures > 0 {
                tokio::time::sleep(BACKOFF.backoff(failures, None, rand::random())).await;
            } else {
                let _ = tokio::time::timeout(REFRESH, server.tools_changed()).await;
                tokio::time::sleep(SETTLE).await;
            }
        }
    }

    /// Puts the tools in the place of what was imported before; the names of what is there now.
    fn apply(&self, server: &Arc<Server>, import: &Import, tools: Vec<Tool>) -> Vec<String> {
        let name = server.config().name.as_str();
        for missing in import.only.iter().filter(|only| !tools.iter().any(|tool| tool.name == **only)) {
            tracing::warn!(server = name, tool = missing, "the server has no such tool to import");
        }
        let wanted = tools.into_iter().filter(|tool| import.only.is_empty() || import.only.contains(&tool.name));
        let source: Arc<str> = format!("mcp {name}").into();
        let mut functions: Vec<Function> = Vec::new();
        for config in wanted.map(|tool| config(name, import, tool)) {
            if !function::is_name(&config.name) {
                self.refuse(name, &config.name, "name", "its name does not fit: 1 to 64 letters, digits, - or _");
            } else if functions.iter().any(|function| function.name == config.name) {
                self.refuse(name, &config.name, "clash", "the server lists two of that name");
            } else {
                match (self.build)(&config) {
                    Ok(function) => functions.push(Function { source: Some(source.clone()), ..function }),
                    Err(error) => self.refuse(name, &config.name, "schema", &error),
                }
            }
        }
        let names: Vec<String> = functions.iter().map(|function| function.name.clone()).collect();
        let clashes = self.live.import(&source, functions);
        for clash in &clashes {
            self.refuse(name, clash, "clash", "a function of that name is there already");
        }
        self.live.came(name);
        names.into_iter().filter(|name| !clashes.contains(name)).collect()
    }

    fn refuse(&self, server: &str, function: &str, reason: &'static str, why: &str) {
        self.metrics.import_refused(server, reason);
        tracing::warn!(server, function, why, "a tool was not imported");
    }
}

fn config(server: &str, import: &Import, tool: Tool) -> function::Config {
    let by_hint = if tool.repeatable { IfInterrupted::Rerun } else { IfInterrupted::Fail };
    let name = format!("{}{}", import.prefix, tool.name);
    function::Config {
        handler: handler::Config::Mcp(McpConfig { server: server.to_owned(), tool: tool.name, timeout: None }),
        if_interrupted: import.if_interrupted.unwrap_or(by_hint),
        retry: import.retry.clone(),
        pool: import.pool.clone(),
        ..function::Config::rust(name, tool.description, Value::Object(tool.input_schema))
    }
}
