//! The vocabulary: what a platform's session waits for, and what goes back to it. Plain data, no behaviour of a seam.

use std::{fmt, fmt::Write as _, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

/// One session at one configured platform: the unit of work.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SessionKey {
    /// Name of the platform in the config.
    pub platform: Arc<str>,
    /// The platform's id of the session. Comes from outside: never part of a path before it is escaped.
    pub session: Arc<str>,
}

impl SessionKey {
    pub fn new(platform: impl Into<Arc<str>>, session: impl Into<Arc<str>>) -> Self {
        Self { platform: platform.into(), session: session.into() }
    }
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.platform, self.session)
    }
}

/// "This session may have pending calls": what the queue carries. A hint, never the truth.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionRequired {
    pub session: SessionKey,
    /// The delivery's `webhook-id`, or what else started this look at the session (`scheduler`, `cli`…).
    pub event: String,
    /// When the webhook was accepted, Unix milliseconds; for the latency metric only.
    pub accepted_at: i64,
    /// 0 for a webhook; else how often in a row the platform was away when this session was looked at, for the backoff.
    #[serde(default)]
    pub tries: u32,
    /// W3C `traceparent` of the webhook's span.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
}

/// The whole key of a call. Models repeat bare call ids (`call_0`), so the call id alone names nothing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallKey {
    pub session: SessionKey,
    /// Empty where the platform has no turns.
    pub turn: Arc<str>,
    pub call_id: Arc<str>,
}

impl CallKey {
    pub fn new(session: SessionKey, turn: impl Into<Arc<str>>, call_id: impl Into<Arc<str>>) -> Self {
        Self { session, turn: turn.into(), call_id: call_id.into() }
    }

    /// The key a handler may deduplicate on: the same for every attempt of one call, ASCII, 37 bytes.
    pub fn handler_idempotency_key(&self) -> String {
        format!("call-{}", self.digest())
    }

    /// The key of a submission; `generation` grows when a result had to change after it was sent.
    pub fn submission_idempotency_key(&self, generation: u32) -> String {
        match generation {
            0 => format!("result-{}", self.digest()),
            n => format!("result-{}-{n}", self.digest()),
        }
    }

    /// The key of the notice that somebody is asked about this call since then.
    pub fn approval_idempotency_key(&self, asked_at: i64) -> String {
        format!("approval-{}-{asked_at}", self.digest())
    }

    fn digest(&self) -> String {
        digest(&[&self.session.platform, &self.session.session, &self.turn, &self.call_id])
    }
}

/// 128 bits of SHA-256 over the length-prefixed parts.
fn digest(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hex(&hash.finalize()[..16])
}

/// The bytes in lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl fmt::Display for CallKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.session, self.turn, self.call_id)
    }
}

/// The whole key of an action that is no function call.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ActionKey {
    pub session: SessionKey,
    /// Empty where the action belongs to no turn.
    pub turn: Arc<str>,
    pub kind: String,
    pub id: Arc<str>,
}

impl ActionKey {
    /// The key a receiver may deduplicate on: ASCII, 39 bytes.
    pub fn idempotency_key(&self) -> String {
        let Self { session, turn, kind, id } = self;
        format!("action-{}", digest(&[&session.platform, &session.session, turn, kind, id]))
    }
}

/// What the platform says of a session.
#[derive(Clone, Debug)]
pub struct Session {
    pub key: SessionKey,
    /// `requires_action`, `idle`, … or a word that did not exist when this was written. Informative only.
    pub status: String,
    pub metadata: Arc<Map<String, Value>>,
    /// How much longer the platform waits for what is pending, where it tells.
    pub expires_in: Option<Duration>,
    /// The authoritative pending list, looked at in every status.
    pub required_actions: Vec<RequiredAction>,
}

/// One thing a session waits for.
#[derive(Clone, Debug)]
pub enum RequiredAction {
    FunctionCall(FunctionCall),
    /// An approval, an environment connection, a type of tomorrow, or an item that cannot be read: not ours to run.
    Other(OtherAction),
}

/// A required action that is no function call. Somebody else settles it.
#[derive(Clone, Debug, PartialEq)]
pub struct OtherAction {
    /// Its kind is its type, fit for a log and a metric, or [`OtherAction::UNREADABLE`]; its id the platform's, or a digest
    /// of the whole.
    pub key: ActionKey,
    /// As the platform lists it.
    pub json: Arc<str>,
}

impl OtherAction {
    /// The kind of what is no action that could be named.
    pub const UNREADABLE: &str = "unreadable";
}

/// A call the platform lists as pending.
#[derive(Clone, Debug)]
pub struct FunctionCall {
    pub key: CallKey,
    pub name: String,
    /// The raw JSON text of `arguments`, an object or a string that holds one. Read by `arguments::Arguments::parse`,
    /// so that what one call carries cannot hurt the reading of its session. `None` where the field is missing.
    pub arguments: Option<Arc<str>>,
}

/// What a call ends in: goes back to the platform whatever it is.
#[derive(Clone, Debug, PartialEq)]
pub enum ToolResult {
    Success(Output),
    /// A sentence for the model: what is wrong and what to change.
    Error(String),
}

/// A successful handler's output.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    Text(String),
    Content(Vec<Part>),
}

impl From<String> for Output {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<&str> for Output {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<Vec<Part>> for Output {
    fn from(parts: Vec<Part>) -> Self {
        Self::Content(parts)
    }
}

/// One part of a content array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum Part {
    #[serde(rename = "input_text")]
    Text { text: String },
    /// An `https:` or `data:image/…;base64,` URL.
    #[serde(rename = "input_image")]
    Image { image_url: String },
}

/// A result in the exact bytes that are stored before they are sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Submission {
    pub body: Vec<u8>,
    pub idempotency_key: String,
}

/// What happens to a call whose handler may have run but left no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IfInterrupted {
    /// Run it again; the handler sees the same idempotency key.
    Rerun,
    /// Tell the agent that the outcome is unknown.
    Fail,
    /// Wait for an operator.
    Hold,
}
