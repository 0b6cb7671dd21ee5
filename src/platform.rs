//! The platform seam: what an agent host says of a session, and how it takes a result.

mod agents_api;
mod api;
mod flavor;
#[cfg(test)]
mod peer;
mod stream;
mod wire;
mod workflow_runs;

use std::{ops::RangeInclusive, time::Duration};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use secrecy::SecretString;

pub use self::{agents_api::AgentsApi, flavor::Flavor, workflow_runs::WorkflowRuns};
pub use crate::session::Submission;
use crate::{
    handler::Sign,
    session::{CallKey, Session, SessionKey, ToolResult},
};

/// A configured account at an agent host.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: String,
    pub kind: Kind,
    /// How long a call may stay unanswered, from when it was first seen. Ends in an error result.
    pub call_deadline: Duration,
    pub intake: Intake,
    /// Where actions that are no function calls are told.
    pub forward: Option<ForwardConfig>,
}

/// How the sessions of an account that may wait are learned of. What escapes all of it is found by a sweep.
#[derive(Clone, Debug, Default)]
pub struct Intake {
    /// How its webhooks are authenticated; without it there are none.
    pub webhook: Option<WebhookConfig>,
    pub poll: Option<Poll>,
    /// Whether sessions may be watched, on demand, by their live stream.
    pub stream: bool,
}

/// How often an account's list of sessions is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Poll {
    /// While sessions run or wait.
    pub every: Duration,
    /// While there are none, growing up to this.
    pub max: Duration,
}

/// `forward_other_actions` in the config.
#[derive(Clone, Debug)]
pub struct ForwardConfig {
    pub url: String,
    pub sign: Sign,
}

impl Config {
    /// What may be declared and returned there.
    pub fn flavor(&self) -> Flavor {
        match &self.kind {
            Kind::AgentsApi { flavor, .. } | Kind::WorkflowRuns { flavor, .. } => *flavor,
            Kind::Aivax(_) => Flavor::Aivax,
        }
    }
}

/// What comes after the name of a platform in the name of its workflow runs. No platform that a config names can end so.
const RUNS: &str = ".runs";

/// The name under which a platform's workflow runs are an account of their own.
pub fn runs_of(platform: &str) -> String {
    format!("{platform}{RUNS}")
}

/// The name that the config gives a platform, or the one whose runs it stands for.
pub fn named(platform: &str) -> &str {
    platform.strip_suffix(RUNS).unwrap_or(platform)
}

/// Whether `listed`, a platform's name in the config, covers `platform`: itself, or its runs.
pub fn covers(listed: &str, platform: &str) -> bool {
    listed == platform || listed == named(platform)
}

/// Which adapter speaks to it; `type` in the config.
#[derive(Clone, Debug)]
pub enum Kind {
    /// OpenAI's Agents API and whoever speaks it.
    AgentsApi { base_url: String, api_key: SecretString, flavor: Flavor },
    /// The workflow runs of such an account, [`runs_of`] it.
    WorkflowRuns { base_url: String, api_key: SecretString, flavor: Flavor },
    /// AIVAX: it calls us for each function and waits for the answer. No webhooks, no sessions to read.
    Aivax(AivaxConfig),
}

/// An AIVAX account.
#[derive(Clone, Debug)]
pub struct AivaxConfig {
    /// The account's hook key; two while it is rotated.
    pub hook_keys: Vec<SecretString>,
    /// What a nonce may cost, as bcrypt counts.
    pub cost: RangeInclusive<u32>,
    /// Lets who knows it read the listing without a nonce, as `?key=`.
    pub listing_key: Option<SecretString>,
    /// Bearer tokens that callbacks must carry; the first is told in the listing.
    pub listing_secrets: Vec<SecretString>,
    /// How long a callback may take.
    pub budget: Duration,
    /// For searches in collections.
    pub api_key: Option<SecretString>,
    /// Of AIVAX's API.
    pub base_url: String,
}

/// How its webhooks are authenticated.
#[derive(Clone, Debug)]
pub enum WebhookConfig {
    /// Standard Webhooks v1: any of the secrets may have signed.
    Standard { secrets: Vec<SecretString>, tolerance: Duration },
    /// A pre-shared value in a header, for platforms that sign nothing.
    SharedSecret { header: String, secrets: Vec<SecretString> },
    /// `insecure: true`: anybody may wake a session. Warns at every start.
    Insecure,
}

/// What became of a submission.
#[derive(Clone, Debug, PartialEq)]
pub enum Submitted {
    /// 2xx. Accepted is not applied: the call may linger in the pending list.
    Accepted,
    /// 409: answered already, or in conflict. Only reading the session again tells.
    Unclear { detail: String },
    /// The platform knows no such pending call, even a second after it listed it: ended, or very slow to register.
    Unknown { detail: String },
    /// Try again: throttled, server fault, no connection.
    Retry { after: Option<Duration>, detail: String },
    /// Our credentials are refused (401, 403): stop asking, readiness turns red.
    Unauthorized { detail: String },
    /// Too large (413, or more than the platform's known cap): answer with something smaller.
    TooLarge { detail: String },
    /// Refused for good.
    Refused { detail: String },
    /// The session is deleted.
    Gone,
}

impl Submitted {
    /// Why it was not accepted, where the platform said so.
    pub fn detail(&self) -> Option<&str> {
        match self {
            Self::Accepted | Self::Gone => None,
            Self::Unclear { detail }
            | Self::Unknown { detail }
            | Self::Retry { detail, .. }
            | Self::Unauthorized { detail }
            | Self::TooLarge { detail }
            | Self::Refused { detail } => Some(detail),
        }
    }
}

/// Why a session could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Deleted, or never existed (a test webhook): nothing to do.
    #[error("the session is gone")]
    Gone,
    /// Our credentials are refused (401, 403).
    #[error("{detail}")]
    Unauthorized { detail: String },
    /// Throttled, server fault, no connection, an answer that is no session.
    #[error("{detail}")]
    Retryable { after: Option<Duration>, detail: String },
}

/// Some sessions of an account, newest first.
#[derive(Clone, Debug, PartialEq)]
pub struct Page {
    pub sessions: Vec<Listed>,
    /// What to ask the following page with; `None` on the last.
    pub next: Option<String>,
}

/// What a list says of a session. Like a webhook a hint: only [`Platform::retrieve`] tells what is pending.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    pub key: SessionKey,
    /// Unix seconds; `None` where the list does not tell.
    pub last_active_at: Option<i64>,
    /// A function call seems to be pending.
    pub waiting: bool,
    /// Something else is pending.
    pub asking: bool,
    /// It may wait before long.
    pub running: bool,
    /// Differs between two waits of one session, as far as the list tells them apart.
    pub version: Option<i64>,
}

/// The ids of live events that say that a session waits; empty where an event has none. Ends when the connection does.
pub type Waits = BoxStream<'static, String>;

#[async_trait]
pub trait Platform: Send + Sync {
    /// The session with its pending list. The only authority on what is to be done.
    async fn retrieve(&self, session: &SessionKey) -> Result<Session, Error>;

    /// The account's sessions, newest first, those that follow `after`. [`Error::Gone`]: the platform has no such list.
    async fn list(&self, after: Option<&str>) -> Result<Page, Error>;

    /// Follows the session's live events from now on; what came before is not repeated. `None`: it has no such stream.
    async fn follow(&self, _session: &SessionKey) -> Result<Option<Waits>, Error> {
        Ok(None)
    }

    /// The result as the platform takes it: itself, or an error that tells the model why it cannot be returned.
    fn fitting(&self, result: ToolResult) -> ToolResult {
        result
    }

    /// The result in the platform's form; `generation` grows when a stored result must be replaced.
    fn encode(&self, call: &CallKey, result: &ToolResult, generation: u32) -> Submission;

    /// Posts one stored result. Safe to repeat with the same bytes and key.
    async fn submit(&self, call: &CallKey, submission: &Submission) -> Submitted;
}
