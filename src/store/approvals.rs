//! Calls that wait for a person: who was asked, what was decided.

pub(super) mod sql;

use std::{fmt, time::Duration};

use async_trait::async_trait;

use super::{Due, Error, Result};
use crate::session::CallKey;

/// Puts a claimed call before a person: its handler is not started before somebody approves it.
#[derive(Clone, Debug)]
pub struct Ask {
    pub key: CallKey,
    pub fence: i64,
    pub function: String,
    /// Compact JSON, kept until somebody has decided.
    pub arguments: String,
    /// SHA-256 of the arguments: what is run must be what was approved.
    pub digest: Vec<u8>,
    /// How long somebody may decide.
    pub expires: Duration,
    /// Whether somebody is to be told.
    pub notify: bool,
}

/// How an approval ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    Approved,
    Denied,
    /// Nobody decided in time.
    Expired,
    /// The call ended otherwise: the platform no longer waits for it, or it was answered by hand.
    Withdrawn,
}

impl Decision {
    /// As it is stored and shown.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Approved => "approved",
            Self::Denied => "denied",
            Self::Expired => "expired",
            Self::Withdrawn => "withdrawn",
        }
    }

    fn read(text: &str) -> Result<Self> {
        let all = [Self::Approved, Self::Denied, Self::Expired, Self::Withdrawn];
        all.into_iter().find(|d| d.as_str() == text).ok_or_else(|| Error::new("approvals.decision holds no decision"))
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// What the store knows of an approval. Instants are Unix milliseconds by the database's clock.
#[derive(Clone, PartialEq)]
pub struct Approval {
    pub key: CallKey,
    pub function: String,
    /// Compact JSON; gone once it is decided.
    pub arguments: Option<String>,
    pub digest: Vec<u8>,
    pub asked_at: i64,
    pub expires_at: i64,
    /// `None` while somebody may still decide.
    pub decision: Option<Decision>,
    pub decided_by: Option<String>,
    pub decided_at: Option<i64>,
    pub reason: Option<String>,
    /// How often somebody was to be told of it.
    pub notices: u32,
}

impl Approval {
    /// Where a listing goes on behind it.
    pub fn place(&self) -> (i64, CallKey) {
        (self.asked_at, self.key.clone())
    }
}

/// Without the arguments: they are nobody's but the decider's.
impl fmt::Debug for Approval {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Approval({}, {}, {:?})", self.key, self.function, self.decision)
    }
}

/// Which approvals to list.
#[derive(Clone, Debug, Default)]
pub struct ApprovalFilter {
    /// The decided ones too, the newest first; else those that wait, the oldest first.
    pub all: bool,
    pub function: Option<String>,
}

/// A person's decision.
#[derive(Clone, Debug)]
pub struct Decide {
    pub key: CallKey,
    /// Only if it was asked for then; whichever there is where `None`.
    pub asked_at: Option<i64>,
    pub approve: bool,
    pub by: String,
    pub reason: Option<String>,
}

/// What became of a decision.
#[derive(Clone, Debug, PartialEq)]
pub enum Decided {
    /// It counts, and the session is due at once.
    Done(Approval),
    /// It was decided before, or ended otherwise: this one changes nothing.
    Already(Approval),
    /// Nobody was asked about that call.
    Unknown,
}

/// How things stand with what waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Open {
    /// Calls that somebody may decide now.
    pub pending: u64,
    /// Approvals that ended without a decision and are to be closed.
    pub ended: u64,
    /// Notices that are to be sent now.
    pub notices: u64,
}

/// The part of a store that keeps approvals.
#[async_trait]
pub trait Approvals: Send + Sync {
    /// The call waits from now on, as if it had not been started. `false` where somebody else holds it.
    async fn ask(&self, ask: &Ask) -> Result<bool>;

    /// Decides once, under a fresh fence; the call's session is due from the same commit on.
    async fn decide(&self, decide: &Decide) -> Result<Decided>;

    async fn approval(&self, key: &CallKey) -> Result<Option<Approval>>;

    /// At most `limit` that come after the one of that call, which was asked for then.
    async fn approvals(
        &self,
        filter: &ApprovalFilter,
        after: Option<&(i64, CallKey)>,
        limit: usize,
    ) -> Result<Vec<Approval>>;

    async fn open_approvals(&self) -> Result<Open>;

    /// Closes approvals that ended without a decision and forgets their arguments; function and end of each.
    async fn close_approvals(&self) -> Result<Vec<(String, Decision)>>;

    /// Takes at most `limit` approvals of which somebody is to be told now, and holds them for `hold`.
    async fn notices(&self, limit: usize, hold: Duration) -> Result<Vec<Approval>>;

    /// A notice was sent, or is to be sent again after this.
    async fn noticed(&self, approval: &Approval, again: Option<Duration>) -> Result<()>;
}

impl Decided {
    pub(super) fn of(counts: bool, found: Option<Approval>) -> Self {
        match found {
            Some(approval) if counts => Self::Done(approval),
            Some(approval) => Self::Already(approval),
            None => Self::Unknown,
        }
    }
}

impl Decide {
    /// Its session is to be looked at now.
    pub(super) fn due(&self, now: i64) -> Due {
        Due { session: self.key.session.clone(), after: Duration::ZERO, tries: 1, accepted_at: now, traceparent: None }
    }

    pub(super) fn decision(&self) -> &'static str {
        if self.approve { "approved" } else { "denied" }
    }
}

/// The questions, over a connection of either driver.
macro_rules! over_connection {
    ($connection:ty) => {
        use crate::store::{
            Result,
            approvals::{Approval, Ask, Decide, Decision, sql},
            history,
            judge::in_millis,
        };

        async fn ask(db: &mut $connection, ask: &Ask, now: i64) -> Result<bool> {
            let expires_at = now.saturating_add(in_millis(ask.expires));
            let waits = bind_key(sqlx::query(sql::ASK_CALL), &ask.key).bind(ask.fence).bind(now).bind(expires_at);
            let waits = waits.bind(history::asked(ask)).bind(history::MOST);
            if waits.execute(&mut *db).await?.rows_affected() == 0 {
                return Ok(false);
            }
            bind_key(sqlx::query(sql::ASK), &ask.key)
                .bind(&ask.function)
                .bind(&ask.arguments)
                .bind(ask.digest.as_slice())
                .bind(now)
                .bind(expires_at)
                .bind(ask.notify.then_some(now))
                .execute(db)
                .await?;
            Ok(true)
        }

        /// Whether it counts.
        async fn decide(db: &mut $connection, decide: &Decide, now: i64) -> Result<bool> {
            let call = bind_key(sqlx::query(sql::DECIDE_CALL), &decide.key).bind(decide.decision()).bind(now);
            let call = call.bind(decide.asked_at).bind(history::decided(decide));
            if call.execute(&mut *db).await?.rows_affected() == 0 {
                return Ok(false);
            }
            bind_key(sqlx::query(sql::DECIDE), &decide.key)
                .bind(decide.decision())
                .bind(decide.by.replace('\0', "\u{fffd}"))
                .bind(now)
                .bind(decide.reason.as_ref().map(|reason| reason.replace('\0', "\u{fffd}")))
                .execute(db)
                .await?;
            Ok(true)
        }

        async fn find(db: &mut $connection, key: &crate::session::CallKey, now: i64) -> Result<Option<Approval>> {
            let query = sqlx::query(sqlx::AssertSqlSafe(sql::find())).bind(now);
            bind_key(query, key).fetch_optional(db).await?.as_ref().map(sql::read).transpose()
        }

        async fn close(db: &mut $connection, now: i64) -> Result<Vec<(String, Decision)>> {
            sqlx::query(sql::CLOSE).bind(now).fetch_all(db).await?.iter().map(sql::ended).collect()
        }

        async fn notices(
            db: &mut $connection,
            limit: usize,
            hold: std::time::Duration,
            now: i64,
        ) -> Result<Vec<Approval>> {
            let query = sqlx::query(sql::NOTICES).bind(now).bind(now.saturating_add(in_millis(hold)));
            query.bind(i64::try_from(limit).unwrap_or(i64::MAX)).fetch_all(db).await?.iter().map(sql::read).collect()
        }

        async fn noticed(
            db: &mut $connection,
            approval: &Approval,
            again: Option<std::time::Duration>,
            now: i64,
        ) -> Result<()> {
            let at = again.map(|again| now.saturating_add(in_millis(again)));
            let query = bind_key(sqlx::query(sql::NOTICED), &approval.key).bind(approval.asked_at).bind(at);
            query.execute(db).await?;
            Ok(())
        }
    };
}

pub(super) use over_connection;
