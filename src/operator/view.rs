//! What an operator gets to see, as JSON: the API answers it, and the commands print it.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::id;
use crate::{
    queue,
    store::{Appointment, CallRow},
};

/// A call as the ledger holds it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Call {
    /// Names it in this API.
    pub id: String,
    /// PLATFORM/SESSION/TURN/CALL_ID: names it for people and commands.
    pub call: String,
    pub platform: String,
    pub session: String,
    /// Empty where the platform has no turns.
    pub turn: String,
    pub call_id: String,
    pub function: String,
    /// claimed, waiting, retrying, interrupted, completed, submitted, settled, refused or obsolete.
    pub state: String,
    /// Starts of the handler.
    pub attempt: u32,
    pub fence: i64,
    pub generation: u32,
    /// How often a submission of its result was accepted.
    pub submissions: u32,
    /// Whether its result is one; null without a result.
    pub success: Option<bool>,
    /// What became of its approval: pending, approved, denied, expired or withdrawn; null where nobody was asked.
    pub approval: Option<String>,
    /// What a person should know of a failure.
    pub detail: Option<String>,
    pub idempotency_key: Option<String>,
    /// Bytes of the stored result.
    pub body_len: Option<u64>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
    /// Until when it is left alone, where its state has such a time.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub until_at: Option<Timestamp>,
    #[schema(value_type = String, format = DateTime)]
    pub deadline_at: Timestamp,
}

/// States in which a call is left alone until a time.
const WAITS: [&str; 4] = ["claimed", "waiting", "retrying", "submitted"];

impl Call {
    pub fn of(row: &CallRow) -> Self {
        Self {
            id: id::encode(&row.key),
            call: row.key.to_string(),
            platform: row.key.session.platform.to_string(),
            session: row.key.session.session.to_string(),
            turn: row.key.turn.to_string(),
            call_id: row.key.call_id.to_string(),
            function: row.function.clone(),
            state: row.state.clone(),
            attempt: row.attempt,
            fence: row.fence,
            generation: row.generation,
            submissions: row.submissions,
            success: row.success,
            approval: row.approval.clone(),
            detail: row.detail.clone(),
            idempotency_key: row.idempotency_key.clone(),
            body_len: row.body_len,
            created_at: instant(row.created_at),
            updated_at: instant(row.updated_at),
            until_at: WAITS.contains(&row.state.as_str()).then(|| instant(row.until_at)),
            deadline_at: instant(row.deadline_at),
        }
    }
}

/// Unix milliseconds.
pub fn instant(ms: i64) -> Timestamp {
    Timestamp::from_millisecond(ms).unwrap_or(if ms < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

/// Some calls, the newest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Calls {
    pub calls: Vec<Call>,
    /// `cursor` of the next page; null on the last.
    pub next: Option<String>,
}

/// One call with its result and what happened to it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CallDetail {
    pub call: Call,
    /// The stored result as text; what the function's `redact` names is hidden.
    pub result: Option<String>,
    /// What happened, the oldest first.
    #[schema(value_type = Vec<Object>)]
    pub history: Vec<Value>,
    /// What can be done to it now: retry, resubmit, resolve, cancel.
    pub possible: Vec<String>,
}

/// What was done to a call.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Done {
    pub call: String,
    /// retrying, resubmitted, resolved or cancelled.
    pub outcome: String,
}

/// A message that was put aside.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Dead {
    /// Names it as long as it is dead.
    pub id: String,
    /// Why it was put aside.
    pub reason: String,
    pub platform: Option<String>,
    pub session: Option<String>,
    pub event: Option<String>,
    /// Functions that its session called; null where the store could not be asked.
    pub functions: Option<Vec<String>>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub accepted_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub dead_at: Option<Timestamp>,
    /// How often it was given back before.
    pub redriven: u32,
    /// Whether a worker could read it.
    pub readable: bool,
    /// Bytes.
    pub size: u64,
}

impl Dead {
    pub(super) fn of(dead: &queue::Dead, functions: Option<Vec<String>>) -> Self {
        let action = dead.action.as_ref();
        Self {
            id: dead.id.clone(),
            reason: dead.reason.clone(),
            platform: action.map(|action| action.session.platform.to_string()),
            session: action.map(|action| action.session.session.to_string()),
            event: action.map(|action| action.event.clone()),
            functions,
            accepted_at: action.map(|action| instant(action.accepted_at)),
            dead_at: dead.at.map(instant),
            redriven: dead.redriven,
            readable: action.is_some(),
            size: dead.bytes.len() as u64,
        }
    }

    /// `PLATFORM/SESSION`, where the message could be read.
    pub fn session_key(&self) -> Option<String> {
        Some(format!("{}/{}", self.platform.as_ref()?, self.session.as_ref()?))
    }
}

/// Some dead messages, the oldest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeadMessages {
    pub messages: Vec<Dead>,
    /// `cursor` of the next page; null on the last.
    pub next: Option<String>,
}

/// One dead message and its bytes, as text.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DeadDetail {
    pub message: Dead,
    pub body: String,
}

/// What became of one dead message.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct SettledMessage {
    pub id: String,
    pub platform: Option<String>,
    pub session: Option<String>,
    /// redriven, purged, would be redriven, would be purged or refused.
    pub outcome: String,
    /// Why it was refused.
    pub why: Option<String>,
}

/// What became of the dead messages that were asked for.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Settled {
    pub done: u32,
    pub refused: u32,
    /// Asked for by id and not there.
    pub missing: Vec<String>,
    /// Whether it stopped at `max`: there may be more.
    pub full: bool,
    /// Set where the work ended before its end; what is counted was done.
    pub broke_off: Option<String>,
    pub messages: Vec<SettledMessage>,
}

/// A session that is to be looked at again.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DueSession {
    pub platform: String,
    pub session: String,
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// How often it was postponed in a row.
    pub tries: u32,
    /// When the webhook came that it goes back to.
    #[schema(value_type = String, format = DateTime)]
    pub accepted_at: Timestamp,
}

impl DueSession {
    pub(super) fn of(due: &Appointment) -> Self {
        Self {
            platform: due.session.platform.to_string(),
            session: due.session.session.to_string(),
            at: instant(due.at),
            tries: due.tries,
            accepted_at: instant(due.accepted_at),
        }
    }
}

/// Some sessions that are to be looked at again, the earliest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DueSessions {
    pub sessions: Vec<DueSession>,
    /// `cursor` of the next page; null on the last.
    pub next: Option<String>,
}
