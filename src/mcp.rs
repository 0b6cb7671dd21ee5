//! Servers of the Model Context Protocol: one shared connection each, made when it is needed and again when it was lost.

mod connection;
mod import;
mod server;
mod sessions;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use secrecy::SecretString;
use serde_json::{Map, Value};

pub use self::{
    import::{Build, Importer},
    server::Server,
};
use crate::{function::Expected, http::Client, retry, session::IfInterrupted};

/// One of `mcp_servers` in the config.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: String,
    pub link: Link,
    /// How long one request may take; a function can override it.
    pub timeout: Duration,
    pub import: Option<Import>,
}

/// How a server is reached.
#[derive(Clone, Debug)]
pub enum Link {
    /// Streamable HTTP.
    Http {
        url: String,
        /// Sent with every request; values may be secret.
        headers: Vec<(String, SecretString)>,
    },
    /// A program of our own, spoken to over its standard input and output.
    Stdio {
        command: Vec<String>,
        env: Vec<(String, SecretString)>,
        /// Names of our own environment variables that it may see.
        pass_env: Vec<String>,
        cwd: Option<String>,
    },
}

/// Which tools of a server become functions, and how.
#[derive(Clone, Debug)]
pub struct Import {
    /// Put before the tool's name.
    pub prefix: String,
    /// Names of tools; all of them where empty.
    pub only: Vec<String>,
    /// Where nothing is said, a tool that calls itself read-only or idempotent is run again, and any other is not.
    pub if_interrupted: Option<IfInterrupted>,
    /// The pool of workers that alone asks for the tools and runs them.
    pub pool: Option<Arc<str>>,
    pub retry: retry::Policy,
}

/// A tool as its server lists it.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    pub name: String,
    pub description: String,
    pub input_schema: Map<String, Value>,
    /// The server says that a second call does no harm.
    pub repeatable: bool,
}

/// What became of a tool's call.
#[derive(Debug, PartialEq)]
pub enum Answer {
    Done(Done),
    /// The server goes on in a task of that id.
    Task {
        id: String,
        /// How long the server wants to be left alone.
        poll: Duration,
    },
    /// The tool wants to ask somebody, and nobody is here.
    InputRequired,
    /// A task that ended without a result; the server's words.
    Ended(String),
}

/// What a tool gave.
#[derive(Debug, Default, PartialEq)]
pub struct Done {
    pub parts: Vec<Content>,
    /// The JSON text of `structuredContent`.
    pub structured: Option<String>,
    pub is_error: bool,
}

#[derive(Debug, PartialEq)]
pub enum Content {
    Text(String),
    /// Base64 and its media type.
    Image {
        data: String,
        media_type: String,
    },
    /// Something that no result can hold.
    Other(&'static str),
}

/// Why a request had no answer, and what is known of it. The texts name no address and quote no body.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Error {
    /// It never reached the tool: asking again is safe.
    #[error("{detail}")]
    NotSent { detail: String, after: Option<Duration> },
    /// The server refuses us or the request for good.
    #[error("{detail}")]
    Refused { detail: String },
    /// The server knows no such tool or task, or finds the arguments wrong; its words.
    #[error("the server knows no such thing, or finds the arguments wrong")]
    Invalid { message: String },
    /// It may have run.
    #[error("{detail}")]
    Unknown { detail: String },
}

/// Every server by name.
#[derive(Clone, Default)]
pub struct Servers {
    servers: Arc<BTreeMap<String, Arc<Server>>>,
}

impl Servers {
    /// Connects to none of them yet. The error says where in the server's config, and what.
    pub fn new(configs: &[Config], client: &Client) -> Result<Self, (String, String)> {
        let server = |(at, config): (usize, &Config)| match Server::new(config.clone(), client.clone()) {
            Ok(server) => Ok((config.name.clone(), Arc::new(server))),
            Err((path, why)) => Err((format!("mcp_servers[{at}].{path}"), why)),
        };
        let servers: BTreeMap<_, _> = configs.iter().enumerate().map(server).collect::<Result<_, _>>()?;
        Ok(Self { servers: Arc::new(servers) })
    }

    pub fn get(&self, name: &str) -> Option<&Arc<Server>> {
        self.servers.get(name)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Arc<Server>> {
        self.servers.values()
    }

    /// The functions that importing will register.
    pub fn expected(&self) -> Vec<Expected> {
        let expected = |server: &Arc<Server>| {
            let Config { name, import, .. } = server.config();
            let Import { prefix, only, pool, .. } = import.clone()?;
            Some(Expected { by: name.clone(), prefix, only, pool, came: false })
        };
        self.servers.values().filter_map(expected).collect()
    }

    /// Ends every connection and every program that was started for one.
    pub async fn close(&self) {
        futures_util::future::join_all(self.servers.values().map(|server| server.close())).await;
    }
}
