//! The store seam: the ledger of calls, the due times of sessions, and the clock that judges both.
//!
//! Every write takes many rows, because commits are the largest cost of this job: [`Ledger`] groups what concurrent calls
//! write. Durations cross this boundary, never instants: the database's clock alone says what has run out.

mod actions;
mod approvals;
mod group;
mod history;
mod inspect;
mod judge;
mod ledger;
mod operator;
mod overview;
mod postgres;
mod prune;
mod sqlite;
mod step;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use secrecy::SecretString;

pub(crate) use self::group::Group;
pub use self::{
    actions::{Actions, Noticed},
    approvals::{Approval, ApprovalFilter, Approvals, Ask, Decide, Decided, Decision, Open},
    history::Origin,
    inspect::{Inspection, Schema, inspect},
    ledger::Ledger,
    operator::{CallRow, Details, Filter, Reset, STATES},
    overview::{Appointment, Pause, Tally},
    postgres::Postgres,
    prune::Pruned,
    sqlite::{Database, Sqlite},
    step::Step,
};
use crate::session::{CallKey, IfInterrupted, SessionKey, Submission};

/// `store` in the config.
#[derive(Clone, Debug)]
pub struct Config {
    /// `sqlite://file` or `postgres://…`; may hold a password.
    pub url: SecretString,
    /// Connections to PostgreSQL at most.
    pub max_connections: u32,
    /// How long one statement may take before the store counts as away.
    pub timeout: Duration,
    /// How long calls are kept that have ended; for good where there is none.
    pub retention: Option<Duration>,
}

/// The store could not answer: away, full, or out of time. Trying again later is right.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{detail}")]
pub struct Error {
    pub detail: Arc<str>,
}

impl Error {
    pub fn new(detail: impl std::fmt::Display) -> Self {
        Self { detail: detail.to_string().into() }
    }
}

pub type Result<T> = std::result::Result<T, Error>;

/// Asks for the right to run a call's handler.
#[derive(Clone, Debug)]
pub struct ClaimRequest {
    pub key: CallKey,
    pub function: String,
    /// How long the claim holds without being renewed.
    pub lease: Duration,
    /// How long the call may stay unanswered, counted from its first claim.
    pub deadline: Duration,
    pub if_interrupted: IfInterrupted,
    /// The last holder's connection died: a call that may be rerun is taken over before its lease ends.
    pub takeover: bool,
    pub origin: Origin,
}

/// The answer to a claim: what to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Claim {
    /// Run the handler.
    Run(Lease),
    /// A handler may have run and left no result; the function must not be run again: answer that.
    Interrupted(Lease),
    /// The call's deadline has passed without a result: answer that.
    Expired(Lease),
    /// A result is there: submit it.
    Stored(Stored),
    /// Somebody has it, or it is not due: look again after this time.
    Busy(Duration),
    /// An operator denied the call before its handler was started: answer that.
    Denied(Lease),
    /// Nobody approved it in time: answer that.
    Unapproved(Lease),
    /// It waits for somebody else (a result that comes later, an operator's decision), at most this long.
    Held(Duration),
    /// The platform refused its result for good.
    Refused,
}

/// The right to run a handler and to complete its call, until somebody holds a higher fence.
#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    pub key: CallKey,
    pub fence: i64,
    /// Starts of the handler, this one included.
    pub attempt: u32,
    /// What is left of the call's time.
    pub deadline: Duration,
    /// Of the result to come: more than 0 where an operator made another one void.
    pub generation: u32,
    /// What the handler kept in an attempt before.
    pub note: Option<String>,
    /// A person approved it.
    pub approved: bool,
}

/// A stored result: what is submitted, whoever submits it.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    pub key: CallKey,
    pub function: String,
    pub fence: i64,
    pub success: bool,
    pub submission: Submission,
    pub generation: u32,
    /// How often a submission of it was accepted.
    pub submissions: u32,
}

/// Stores a result under its call. Only the holder of the highest fence can.
#[derive(Clone, Debug)]
pub struct Completion {
    pub stored: Stored,
    /// What a person should know of a failure; never what the model reads.
    pub detail: Option<String>,
    /// How long the handler ran, if it did.
    pub took: Option<Duration>,
}

/// Moves a call on. Only under the fence that the mover knows.
#[derive(Clone, Debug)]
pub struct Mark {
    pub key: CallKey,
    pub fence: i64,
    pub transition: Transition,
    pub detail: Option<String>,
    /// How long the handler ran, if it did.
    pub took: Option<Duration>,
}

impl Mark {
    pub fn new(key: CallKey, fence: i64, transition: Transition) -> Self {
        Self { key, fence, transition, detail: None, took: None }
    }
}

/// What a running handler keeps with its call. Only the holder of the highest fence can.
#[derive(Clone, Debug)]
pub struct Note {
    pub key: CallKey,
    pub fence: i64,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// The handler still runs: the claim holds this much longer.
    Renewed(Duration),
    /// The holder stops without a result: anybody may judge the call at once.
    Released,
    /// The handler said that its result comes later.
    Waiting,
    /// The handler could not be started for its limits: not before this time, and as if it had not been claimed.
    Postponed(Duration),
    /// The handler failed retryably: not before this time again.
    Retrying(Duration),
    /// Accepted, but still pending: submitted again unless it is gone by then.
    Submitted(Duration),
    /// Accepted, and no longer pending.
    Settled,
    /// Refused for good; kept for an operator.
    Refused,
    /// No longer pending although we did not settle it.
    Obsolete,
}

/// A result that came by itself, from somebody who holds no claim.
#[derive(Clone, Debug)]
pub struct Arrival {
    pub key: CallKey,
    pub success: bool,
    pub submission: Submission,
    /// When it came, Unix milliseconds; for the latency metric only.
    pub at: i64,
}

/// What became of an arrival.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// Stored, and the session is due at once.
    Stored { function: String },
    /// The same result was there already.
    Repeated,
    /// Another result is there, or the call has ended without one.
    Late,
    /// There is no such call.
    Unknown,
}

/// A call of a session that is neither settled nor refused nor obsolete.
#[derive(Clone, Debug, PartialEq)]
pub struct Unfinished {
    pub key: CallKey,
    pub function: String,
    pub fence: i64,
    /// The result, where there is one.
    pub stored: Option<Stored>,
}

/// "Look at this session again then."
#[derive(Clone, Debug, PartialEq)]
pub struct Due {
    pub session: SessionKey,
    pub after: Duration,
    /// How often it was postponed in a row.
    pub tries: u32,
    pub accepted_at: i64,
    pub traceparent: Option<String>,
}

/// A due session that the scheduler holds until it has published it.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    pub due: Due,
    /// Names this holding; whoever forgets must name it.
    pub held_until: i64,
}

/// Rows in, rows out: each answer stands at its question's place.
#[async_trait]
pub trait Store: Approvals + Actions {
    /// Creates or updates the schema. Needed once before anything else.
    async fn migrate(&self) -> Result<()>;

    /// Takes steps of different calls, all in one commit. `false` for a claim of a call that was claimed before, which must
    /// be contested; and where somebody else holds a higher fence by now, or the call is settled.
    async fn take(&self, steps: &[Step]) -> Result<Vec<bool>>;

    /// What a claim means for a call that was claimed before, and the right to it where it can be had.
    async fn contest(&self, request: &ClaimRequest) -> Result<Claim>;

    /// Keeps a text for the call's next attempt, which then counts as its continuation whatever its function says of
    /// interruptions. `false` where somebody else holds the call.
    async fn note(&self, note: &Note) -> Result<bool>;

    /// Adds to a call's history what does not move it, such as a submission that failed.
    async fn tell(&self, call: &CallKey, event: &str, detail: &str) -> Result<()>;

    /// Stores a result that nobody here computed, whoever holds the call: their later writes find a higher fence. Its
    /// session is due from the same commit on.
    async fn arrive(&self, arrival: &Arrival) -> Result<Arrived>;

    /// The secret of that name, the same for everybody who shares the store: `fresh` if there was none yet.
    async fn secret(&self, name: &str, fresh: &[u8]) -> Result<Vec<u8>>;

    /// What the ledger holds of one call, in whatever state.
    async fn find(&self, call: &CallKey) -> Result<Option<Unfinished>>;

    /// What the ledger holds of a session's business that has not ended.
    async fn unfinished(&self, session: &SessionKey) -> Result<Vec<Unfinished>>;

    /// Sessions of a platform with business that has not ended and that nothing will come back to: no due time, and at
    /// least `quiet` since a claim ran out or anything was written. Only calls first seen within `reach`; `limit` sessions
    /// at most.
    async fn stranded(&self, platform: &str, reach: Duration, quiet: Duration, limit: usize)
    -> Result<Vec<SessionKey>>;

    /// Which of the sessions are in hand: one of their handlers runs under a claim, one of their calls waits for somebody
    /// else, or they are due `within` this time.
    async fn in_hand(&self, sessions: &[SessionKey], within: Duration) -> Result<Vec<bool>>;

    /// Notes when sessions are due; an earlier time that stands already is kept.
    async fn postpone(&self, dues: &[Due]) -> Result<()>;

    /// Takes at most `limit` sessions that are due and holds them for `hold`, so that several schedulers share them.
    async fn due(&self, limit: usize, hold: Duration) -> Result<Vec<Taken>>;

    /// Removes taken sessions once they are published, unless they were postponed anew.
    async fn forget(&self, taken: &[Taken]) -> Result<()>;

    /// How many sessions have a due time that has passed.
    async fn overdue(&self) -> Result<u64>;

    /// How long the oldest of the sessions that are to be looked at again has waited since its webhook.
    async fn oldest_pending(&self) -> Result<Option<Duration>>;

    /// At most `limit` calls, the newest first, that come after the call `after`.
    async fn calls(&self, filter: &Filter, after: Option<&CallRow>, limit: usize) -> Result<Vec<CallRow>>;

    /// One call, with the bytes of its result and its history.
    async fn call(&self, key: &CallKey) -> Result<Option<Details>>;

    /// Changes a call under a fresh fence and makes its session due, in one step. Asks nobody whether the row allows it
    /// ([`CallRow::refuses`]). `by` names who does it, for the history. `false`: it is no longer as it was read.
    async fn reset(&self, row: &CallRow, reset: &Reset, by: &str) -> Result<bool>;

    /// Gives a session's calls without a result fresh attempts and, if less is left, this much time. Whether they may run is
    /// judged as before.
    async fn revive(&self, session: &SessionKey, deadline: Duration) -> Result<()>;

    /// How many calls of each function are in each state, of those first seen within this time.
    async fn tally(&self, within: Duration) -> Result<Vec<Tally>>;

    /// At most `limit` sessions that are to be looked at again, the earliest first, that come after `after`. No sweeps.
    async fn agenda(&self, after: Option<&Appointment>, limit: usize) -> Result<Vec<Appointment>>;

    /// The functions that are paused.
    async fn pauses(&self) -> Result<Vec<Pause>>;

    /// Pauses a function, or resumes it, in every worker of this store. `false`: it was so already.
    async fn set_paused(&self, function: &str, paused: bool) -> Result<bool>;

    /// Looks at `limit` calls that were first seen `older` ago, from the instant `from` on (Unix milliseconds, 0 for the
    /// oldest), and deletes those that have ended and that nothing has touched since.
    async fn prune(&self, older: Duration, from: i64, limit: usize) -> Result<Pruned>;
}
