//! What happened in the sandbox, as it happens: for tests that wait and for a demo that tells.

use std::sync::Arc;

use super::session::{Status, TurnStatus};

/// One line of the journal.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Unix milliseconds.
    pub at: i64,
    pub session: Arc<str>,
    pub what: What,
}

#[derive(Clone, Debug, PartialEq)]
pub enum What {
    Created,
    Status(Status),
    /// A webhook delivery was answered, or not: `answer` is the status, or what went wrong.
    WebhookSent {
        webhook_id: String,
        event: &'static str,
        attempt: u32,
        answer: Result<u16, String>,
    },
    /// By fault switch: this event is never sent.
    WebhookDropped {
        event: &'static str,
    },
    /// After 72 hours.
    WebhookGivenUp {
        webhook_id: String,
    },
    Retrieved {
        status: u16,
    },
    /// A request with a result for this call was answered.
    Posted {
        turn_id: String,
        call_id: String,
        status: u16,
        outcome: Outcome,
    },
    TurnEnded {
        turn_id: String,
        status: TurnStatus,
    },
    Deleted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Accepted,
    Replayed,
    Refused,
    Faulted,
}

/// How often each thing happened, over all sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    pub sessions_created: u64,
    pub sessions_deleted: u64,
    pub retrieved: u64,
    /// Pages of the list of sessions.
    pub listed: u64,
    pub posts_accepted: u64,
    pub posts_replayed: u64,
    pub posts_refused: u64,
    pub posts_faulted: u64,
    pub turns_completed: u64,
    pub turns_failed: u64,
    pub turns_cancelled: u64,
    pub webhook_attempts: u64,
    pub webhooks_delivered: u64,
    pub webhooks_dropped: u64,
}

impl Counters {
    pub(super) fn count(&mut self, what: &What) {
        let counter = match what {
            What::Created => &mut self.sessions_created,
            What::Deleted => &mut self.sessions_deleted,
            What::Retrieved { .. } => &mut self.retrieved,
            What::Posted { outcome: Outcome::Accepted, .. } => &mut self.posts_accepted,
            What::Posted { outcome: Outcome::Replayed, .. } => &mut self.posts_replayed,
            What::Posted { outcome: Outcome::Refused, .. } => &mut self.posts_refused,
            What::Posted { outcome: Outcome::Faulted, .. } => &mut self.posts_faulted,
            What::TurnEnded { status: TurnStatus::Completed, .. } => &mut self.turns_completed,
            What::TurnEnded { status: TurnStatus::Failed, .. } => &mut self.turns_failed,
            What::TurnEnded { .. } => &mut self.turns_cancelled,
            What::WebhookDropped { .. } => &mut self.webhooks_dropped,
            What::WebhookSent { answer, .. } => {
                self.webhooks_delivered += u64::from(matches!(answer, Ok(200..=299)));
                &mut self.webhook_attempts
            }
            What::Status(_) | What::WebhookGivenUp { .. } => return,
        };
        *counter += 1;
    }
}
