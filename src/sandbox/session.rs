//! What the sandbox knows of a session: plain data that a test can look at.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::broadcast;

use super::{script::Round, wire};

/// One conversation, as a test sees it: `Sandbox::session` hands out a copy.
#[derive(Clone, Debug)]
pub struct Session {
    pub id: Arc<str>,
    /// Unix seconds.
    pub created_at: i64,
    pub last_active_at: i64,
    pub metadata: BTreeMap<String, String>,
    pub status: Status,
    pub error: Option<String>,
    pub turns: Vec<Turn>,
    /// Everything the session ever asked for, in order.
    pub actions: Vec<Action>,
    pub items: Vec<Item>,
    /// How often it was read by GET.
    pub reads: u64,
    /// The resolved agent.
    pub(super) agent: Value,
    pub(super) environment: Value,
    /// What each Idempotency-Key was used for: the digest of the body.
    pub(super) keys: HashMap<String, [u8; 32]>,
    pub(super) stream: Option<broadcast::Sender<Arc<str>>>,
    /// What it is beside a session, where it is a workflow run.
    pub run: Option<RunOf>,
}

/// The workflow agent's run that a session stands for.
#[derive(Clone, Debug)]
pub struct RunOf {
    pub agent_id: String,
    pub input: Value,
    /// Until when the present wait lasts, Unix milliseconds; `None` outside of a wait.
    pub expires_at: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Idle,
    InProgress,
    RequiresAction,
    Failed,
}

#[derive(Clone, Debug)]
pub struct Turn {
    pub id: String,
    pub status: TurnStatus,
    pub created_at: i64,
    pub started_at: Option<i64>,
    pub completed_at: Option<i64>,
    pub error: Option<TurnError>,
    pub(super) rounds: VecDeque<Round>,
    /// What the model says when nothing was called.
    pub(super) echo: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnError {
    pub code: &'static str,
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TurnStatus {
    Queued,
    InProgress,
    Waiting,
    Completed,
    Failed,
    Cancelled,
}

/// A function call, or another required action.
#[derive(Clone, Debug)]
pub struct Action {
    pub turn_id: String,
    /// `call_id` of a function call, `request_id` or `environment_id` of another action.
    pub id: String,
    pub kind: ActionKind,
    /// The program that asked for it, if the model did not ask itself.
    pub program: Option<u32>,
    pub state: ActionState,
    /// The first accepted result.
    pub result: Option<Accepted>,
    pub posts: Posts,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ActionKind {
    FunctionCall { name: String, arguments: Option<String> },
    Other { kind: String },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActionState {
    Pending,
    /// Accepted, and still listed as required for so many reads.
    Lingering(u32),
    Applied,
    /// Its turn was cancelled, or its time was up.
    Dropped,
}

/// How often results for one call were posted, by what came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Posts {
    pub accepted: u32,
    /// The same result again.
    pub replayed: u32,
    /// 400 or 409 by the rules.
    pub refused: u32,
    /// Answered by a fault switch.
    pub faulted: u32,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Accepted {
    pub result: CallResult,
    /// The request body, byte for byte.
    pub body: Bytes,
    pub idempotency_key: Option<String>,
}

/// What a `tool_result` says.
#[derive(Clone, Debug, PartialEq)]
pub struct CallResult {
    pub success: bool,
    /// A string, an array of content parts, or null; any JSON in a workflow run.
    pub output: Value,
    pub error: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Item {
    pub id: String,
    pub turn_id: String,
    pub kind: ItemKind,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ItemKind {
    /// Content parts of a user's message.
    User {
        content: Value,
    },
    Assistant {
        text: String,
    },
    Call {
        call_id: String,
        name: String,
        arguments: Option<String>,
        status: &'static str,
    },
    Output {
        call_id: String,
        result: CallResult,
    },
}

impl Session {
    pub(super) fn new(
        id: Arc<str>,
        now: i64,
        metadata: BTreeMap<String, String>,
        agent: Value,
        environment: Value,
    ) -> Self {
        Self {
            id,
            created_at: now,
            last_active_at: now,
            metadata,
            status: Status::Idle,
            error: None,
            turns: Vec::new(),
            actions: Vec::new(),
            items: Vec::new(),
            reads: 0,
            agent,
            environment,
            keys: HashMap::new(),
            stream: None,
            run: None,
        }
    }

    /// What stands in required_actions.
    pub(super) fn pending(&self) -> impl Iterator<Item = &Action> {
        self.actions.iter().filter(|a| matches!(a.state, ActionState::Pending | ActionState::Lingering(_)))
    }

    /// Types of what stands in required_actions, in alphabetical order.
    pub fn pending_kinds(&self) -> Vec<String> {
        let mut kinds: Vec<_> = self.pending().map(|action| wire::action_type(&action.kind).to_owned()).collect();
        kinds.sort();
        kinds
    }

    /// The text of the last message the model wrote.
    pub fn answer(&self) -> Option<&str> {
        self.items.iter().rev().find_map(|item| match &item.kind {
            ItemKind::Assistant { text } => Some(text.as_str()),
            _ => None,
        })
    }

    /// The function calls with a given name, or all.
    pub fn calls(&self, name: Option<&str>) -> impl Iterator<Item = &Action> {
        self.actions.iter().filter(move |action| match &action.kind {
            ActionKind::FunctionCall { name: its, .. } => name.is_none_or(|name| name == its),
            ActionKind::Other { .. } => false,
        })
    }

    pub(super) fn running_turn(&self) -> Option<usize> {
        self.turns.iter().position(|turn| matches!(turn.status, TurnStatus::InProgress | TurnStatus::Waiting))
    }
}
