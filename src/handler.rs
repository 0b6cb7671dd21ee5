//! The handler seam: what runs when a function is called.

mod command;
mod echo;
mod forward;
mod http;
mod mcp;
pub(crate) mod output;
mod query_collection;
mod sign;

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use secrecy::SecretString;
use serde_json::{Map, Value};

pub(crate) use self::sign::{Signer, headers};
pub use self::{
    command::Command, echo::Echo, forward::Forward, http::Http, mcp::Mcp, query_collection::QueryCollection,
    sign::is_reserved,
};
use crate::{
    arguments::Arguments,
    http::Client,
    mcp::Servers,
    nonce::Minted,
    session::{CallKey, IfInterrupted, OtherAction, Output, SessionKey},
};

/// The handler of a config. The error says where in the handler's config, and what.
pub fn build(config: &Config, client: &Client, servers: &Servers) -> Result<Arc<dyn Handler>, (String, String)> {
    Ok(match config {
        Config::Http(config) => Arc::new(Http::new(config, client.clone())?),
        Config::Command(config) => Arc::new(Command::new(config)?),
        Config::QueryCollection(config) => Arc::new(QueryCollection::new(config, client.clone())?),
        Config::Mcp(config) => Arc::new(Mcp::new(config, servers)?),
        Config::Echo => Arc::new(Echo),
        Config::Rust => return Err(("type".into(), "rust needs code: App::builder(config).handler(name, …)".into())),
    })
}

/// The http handler of a definition that came from a source: with the source's client and nonce.
pub fn imported(
    config: &HttpConfig,
    client: &Client,
    nonce: Option<Arc<Minted>>,
) -> Result<Arc<dyn Handler>, (String, String)> {
    Ok(Arc::new(Http::new(config, client.clone())?.with_nonce(nonce)))
}

/// Which handler a function has; `type` in the config.
#[derive(Clone, Debug)]
pub enum Config {
    Http(HttpConfig),
    Command(CommandConfig),
    QueryCollection(QueryCollectionConfig),
    Mcp(McpConfig),
    Echo,
    /// Code of the program that embeds us.
    Rust,
}

#[derive(Clone, Debug)]
pub struct HttpConfig {
    pub url: String,
    /// Sent with every call; values may be secret.
    pub headers: Vec<(String, SecretString)>,
    pub timeout: Duration,
    pub body: Body,
    pub response: Response,
    /// Decoded bytes of an answer that are read at most.
    pub max_response: usize,
    pub sign: Sign,
}

/// How the callee can know that a call is ours.
#[derive(Clone, Debug, Default)]
pub struct Sign {
    /// Shared key whose bcrypt hash goes into `X-Request-Nonce`, as AIVAX does.
    pub nonce: Option<SecretString>,
    /// Secret of Standard Webhooks signatures, `whsec_…`.
    pub standard: Option<SecretString>,
}

/// A search in one AIVAX collection.
#[derive(Clone, Debug)]
pub struct QueryCollectionConfig {
    /// The collection's id.
    pub collection: String,
    /// Documents returned at most, 1 to 128.
    pub top: u32,
    /// Least similarity, 0.01 to 0.99.
    pub min: f64,
    /// Whether documents that a match refers to come along.
    pub references: bool,
    /// AIVAX's default changed three times, so one is always named.
    pub reranker: String,
    pub timeout: Duration,
    pub account: QueryAccount,
}

/// Who asks, and where.
#[derive(Clone, Debug)]
pub struct QueryAccount {
    /// Such as `https://inference.aivax.net/api/v1`.
    pub base_url: String,
    pub api_key: SecretString,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// The AIVAX envelope with our ids in `context`.
    Protocol,
    /// The bare arguments.
    Arguments,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    /// The body is the output text; `image/*` becomes an image part.
    Text,
    /// The body is a JSON content array.
    Content,
    /// The body is an image that says itself what it is.
    Image,
}

#[derive(Clone, Debug)]
pub struct CommandConfig {
    /// Program and arguments; no shell.
    pub command: Vec<String>,
    /// Extra environment, name and value.
    pub env: Vec<(String, SecretString)>,
    /// Names of our own environment variables that it may see.
    pub pass_env: Vec<String>,
    pub cwd: Option<String>,
    pub timeout: Duration,
    /// Bytes of standard output that are read at most.
    pub max_output: usize,
    pub response: Response,
}

#[derive(Clone, Debug)]
pub struct McpConfig {
    /// Name of one of `mcp_servers`.
    pub server: String,
    pub tool: String,
    /// How long one request may take; the server's where it says nothing.
    pub timeout: Option<Duration>,
}

/// One call as a handler sees it.
#[derive(Clone, Debug)]
pub struct Call {
    pub key: CallKey,
    /// The function's name.
    pub function: String,
    pub arguments: Arguments,
    /// 1 for the first start.
    pub attempt: u32,
    pub deadline: Option<SystemTime>,
    /// The session's metadata, as the platform gave it. Untrusted.
    pub metadata: Arc<Map<String, Value>>,
    /// W3C `traceparent` to hand on.
    pub traceparent: Option<String>,
    /// Where the result may be posted if it comes later; as secret as the result.
    pub result_url: Option<String>,
    /// What is to happen if the outcome of this call is unknown.
    pub if_interrupted: IfInterrupted,
    /// What the handler kept in an attempt before: go on from there, start nothing anew.
    pub note: Option<String>,
    /// Keeps a note; `None` where nothing outlives the call.
    pub keep: Option<Arc<dyn Keep>>,
}

/// Keeps a text with a call, for the attempt that follows a crash.
#[async_trait]
pub trait Keep: fmt::Debug + Send + Sync {
    /// Whether it is kept.
    async fn keep(&self, note: &str) -> bool;
}

impl Call {
    /// A first attempt with made-up ids and without arguments.
    pub fn trial(platform: &str, function: &str) -> Self {
        let id = uuid::Uuid::now_v7().simple();
        let session = SessionKey::new(platform, format!("trial_{id}"));
        Self {
            key: CallKey::new(session, "turn_trial", format!("call_{id}")),
            function: function.to_owned(),
            arguments: Arguments::from_object(Map::new()),
            attempt: 1,
            deadline: None,
            metadata: Arc::default(),
            traceparent: None,
            result_url: None,
            if_interrupted: IfInterrupted::Rerun,
            note: None,
            keep: None,
        }
    }

    /// `limit`, or less where the call's deadline comes first.
    pub fn time_left(&self, limit: Duration, now: SystemTime) -> Duration {
        self.deadline.map_or(limit, |deadline| deadline.duration_since(now).unwrap_or_default().min(limit))
    }
}

/// Why a handler gave no output, and what to do next. `detail` goes to log and store, never to the model.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Try again, not before `after` if the callee named a time.
    #[error("{detail}")]
    Retryable { detail: String, after: Option<Duration> },
    /// The same, because the callee has too much to do.
    #[error("{detail}")]
    Overloaded { detail: String, after: Option<Duration> },
    /// It may have run, and gave no answer: a timeout, a broken connection, a crash. Started again only where the function
    /// says `if_interrupted: rerun`; else it counts as interrupted.
    #[error("{detail}")]
    Unknown { detail: String },
    /// Never try again. The model reads `message`, or a fixed sentence where there is none.
    #[error("{detail}")]
    Final { detail: String, message: Option<String> },
    /// The callee took the call and posts its result to `result_url` when it has one.
    #[error("the result comes later")]
    Later,
}

impl Error {
    pub fn retryable(detail: impl Into<String>) -> Self {
        Self::Retryable { detail: detail.into(), after: None }
    }

    pub fn unknown(detail: impl Into<String>) -> Self {
        Self::Unknown { detail: detail.into() }
    }

    pub fn fatal(detail: impl Into<String>) -> Self {
        Self::Final { detail: detail.into(), message: None }
    }

    /// The output passed `cap` bytes; the model may ask for less.
    pub fn too_large(cap: usize) -> Self {
        Self::Final {
            detail: format!("the output is larger than {cap} bytes"),
            message: Some(format!("the result is too large (more than {cap} bytes). ask for less at once.")),
        }
    }
}

/// Takes required actions that are no function calls. Whoever is told settles them; we never do.
#[async_trait]
pub trait Receiver: Send + Sync {
    /// The error, fit for a log: it is told again later.
    async fn tell(&self, action: &OtherAction) -> Result<(), String>;
}

#[async_trait]
pub trait Handler: Send + Sync {
    /// Runs the call. Dropping the future cancels it: nothing it started may outlive it.
    async fn call(&self, call: &Call) -> Result<Output, Error>;
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use super::*;

    /// A first attempt of `lookup_order` in session `sess_1`.
    pub(crate) fn call(arguments: &str) -> Call {
        Call {
            key: CallKey::new(SessionKey::new("openai", "sess_1"), "turn_1", "call_0"),
            arguments: Arguments::parse(Some(arguments)).unwrap(),
            ..Call::trial("openai", "lookup_order")
        }
    }

    #[test]
    fn the_time_left_ends_at_the_deadline() {
        let mut call = call("{}");
        let (now, limit) = (SystemTime::now(), Duration::from_secs(10));
        assert_eq!(call.time_left(limit, now), limit);
        call.deadline = Some(now + Duration::from_secs(60));
        assert_eq!(call.time_left(limit, now), limit);
        call.deadline = Some(now + Duration::from_secs(3));
        assert_eq!(call.time_left(limit, now), Duration::from_secs(3));
        call.deadline = Some(now - Duration::from_secs(3));
        assert_eq!(call.time_left(limit, now), Duration::ZERO);
    }
}
