//! The handler seam: what runs when a function is called.

mod command;
mod echo;
mod http;

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use secrecy::SecretString;
use serde_json::{Map, Value};

pub use self::{command::Command, echo::Echo, http::Http};
use crate::{
    arguments::Arguments,
    session::{CallKey, Output},
};

/// Which handler a function has; `type` in the config.
#[derive(Clone, Debug)]
pub enum Config {
    Http(HttpConfig),
    Command(CommandConfig),
    Echo,
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
}

/// Why a handler gave no output, and what to do next. `detail` goes to log and store, never to the model.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Try again, not before `after` if the callee named a time.
    #[error("{detail}")]
    Retryable { detail: String, after: Option<Duration> },
    /// Never try again. The model reads `message`, or a fixed sentence where there is none.
    #[error("{detail}")]
    Final { detail: String, message: Option<String> },
}

impl Error {
    pub fn retryable(detail: impl Into<String>) -> Self {
        Self::Retryable { detail: detail.into(), after: None }
    }

    pub fn fatal(detail: impl Into<String>) -> Self {
        Self::Final { detail: detail.into(), message: None }
    }
}

#[async_trait]
pub trait Handler: Send + Sync {
    /// Runs the call. Dropping the future cancels it: nothing it started may outlive it.
    async fn call(&self, call: &Call) -> Result<Output, Error>;
}
