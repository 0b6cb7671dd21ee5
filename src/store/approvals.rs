//! Calls that wait for a person: who was asked, what was decided. The statements are the same in both databases.

use std::{fmt, time::Duration};

use async_trait::async_trait;
use sqlx::{ColumnIndex, Database, Decode, Encode, QueryBuilder, Row, Type};

use super::{Due, Error, Result};
use crate::session::{CallKey, SessionKey};

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

    /// At most `limit` that come after `after`.
    async fn approvals(&self, filter: &ApprovalFilter, after: Option<&Approval>, limit: usize)
    -> Result<Vec<Approval>>;

    async fn open_approvals(&self) -> Result<Open>;

    /// Closes approvals that ended without a decision and forgets their arguments; function and end of each.
    async fn close_approvals(&self) -> Result<Vec<(String, Decision)>>;

    /// Takes at most `limit` approvals of which somebody is to be told now, and holds them for `hold`.
    async fn notices(&self, limit: usize, hold: Duration) -> Result<Vec<Approval>>;

    /// A notice was sent, or is to be sent again after this.
    async fn noticed(&self, approval: &Approval, again: Option<Duration>) -> Result<()>;
}

pub(super) const ASK_CALL: &str = "
    UPDATE calls SET state = 'waiting', approval = 'pending', attempt = attempt - 1, until_at = $7, updated_at = $6,
                     history = CASE WHEN length(history) > $9 THEN history ELSE history || '{\"at\":' || $6 || ',' || $8 END
    WHERE platform = $1 AND session = $2 AND turn = $3 AND call_id = $4 AND fence = $5 AND state = 'claimed'";

/// Who is asked again has not decided yet.
pub(super) const ASK: &str = "
    INSERT INTO approvals (platform, session, turn, call_id, function, arguments, digest, asked_at, expires_at, notify_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
    ON CONFLICT (platform, session, turn, call_id) DO UPDATE
    SET function = excluded.function, arguments = excluded.arguments, digest = excluded.digest,
        asked_at = excluded.asked_at, expires_at = excluded.expires_at, decision = NULL, decided_by = NULL,
        decided_at = NULL, reason = NULL, notify_at = excluded.notify_at, notify_tries = 0";

pub(super) const DECIDE_CALL: &str = "
    UPDATE calls AS c SET state = 'retrying', approval = $5, fence = fence + 1, until_at = $6, updated_at = $6,
                          history = history || '{\"at\":' || $6 || ',' || $8
    WHERE c.platform = $1 AND c.session = $2 AND c.turn = $3 AND c.call_id = $4
      AND c.state = 'waiting' AND c.approval = 'pending' AND c.until_at > $6
      AND EXISTS (SELECT 1 FROM approvals AS a
                  WHERE a.platform = c.platform AND a.session = c.session AND a.turn = c.turn AND a.call_id = c.call_id
                    AND a.decision IS NULL AND a.asked_at = coalesce($7, a.asked_at))";

pub(super) const DECIDE: &str = "
    UPDATE approvals
    SET decision = $5, decided_by = $6, decided_at = $7, reason = $8, arguments = NULL, notify_at = NULL
    WHERE platform = $1 AND session = $2 AND turn = $3 AND call_id = $4";

/// Whether it is open is for the call's row to say. $1 is now.
const SELECT: &str = "
    SELECT a.platform, a.session, a.turn, a.call_id, a.function, a.digest, a.asked_at, a.expires_at, a.decided_by,
           a.decided_at, a.reason, a.notify_tries,
           CASE WHEN a.decision IS NULL AND c.approval = 'pending' AND c.state = 'waiting' AND a.expires_at > $1
                THEN a.arguments END AS arguments,
           CASE WHEN a.decision IS NOT NULL THEN a.decision
                WHEN a.expires_at <= $1 THEN 'expired'
                WHEN c.approval = 'pending' AND c.state = 'waiting' THEN NULL
                ELSE 'withdrawn' END AS decision
    FROM approvals AS a
    LEFT JOIN calls AS c ON c.platform = a.platform AND c.session = a.session AND c.turn = a.turn AND c.call_id = a.call_id";

pub(super) fn find() -> String {
    format!("{SELECT} WHERE a.platform = $2 AND a.session = $3 AND a.turn = $4 AND a.call_id = $5")
}

pub(super) const OPEN: &str = "
    SELECT count(CASE WHEN waits THEN 1 END) AS pending, count(CASE WHEN NOT waits THEN 1 END) AS ended,
           count(CASE WHEN waits AND notify_at <= $1 THEN 1 END) AS notices
    FROM (SELECT a.notify_at,
                 a.expires_at > $1 AND EXISTS (
                     SELECT 1 FROM calls AS c
                     WHERE c.platform = a.platform AND c.session = a.session AND c.turn = a.turn
                       AND c.call_id = a.call_id AND c.state = 'waiting' AND c.approval = 'pending') AS waits
          FROM approvals AS a WHERE a.decision IS NULL) AS undecided";

pub(super) const CLOSE: &str = "
    UPDATE approvals AS a
    SET decision = CASE WHEN a.expires_at <= $1 THEN 'expired' ELSE 'withdrawn' END, decided_at = $1,
        arguments = NULL, notify_at = NULL
    WHERE a.decision IS NULL
      AND (a.expires_at <= $1
           OR NOT EXISTS (SELECT 1 FROM calls AS c
                          WHERE c.platform = a.platform AND c.session = a.session AND c.turn = a.turn
                            AND c.call_id = a.call_id AND c.state = 'waiting' AND c.approval = 'pending'))
    RETURNING function, decision";

/// $1 now, $2 held until, $3 limit.
pub(super) const NOTICES: &str = "
    UPDATE approvals SET notify_at = $2, notify_tries = notify_tries + 1
    WHERE decision IS NULL AND notify_at <= $1 AND expires_at > $1
      AND (platform, session, turn, call_id) IN (
          SELECT platform, session, turn, call_id FROM approvals
          WHERE decision IS NULL AND notify_at <= $1 ORDER BY asked_at LIMIT $3)
    RETURNING platform, session, turn, call_id, function, arguments, digest, asked_at, expires_at, decision, decided_by,
              decided_at, reason, notify_tries";

pub(super) const NOTICED: &str = "
    UPDATE approvals SET notify_at = $6
    WHERE platform = $1 AND session = $2 AND turn = $3 AND call_id = $4 AND asked_at = $5 AND decision IS NULL";

/// Builds the listing; `now` is the database's clock.
pub(super) fn listing<DB: Database>(
    now: i64,
    filter: &ApprovalFilter,
    after: Option<&Approval>,
    limit: usize,
) -> QueryBuilder<DB>
where
    DB::Arguments: Default,
    for<'q> String: Encode<'q, DB> + Type<DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB>,
{
    // The builder numbers what it binds itself.
    let mut parts = SELECT.split("$1");
    let mut query = QueryBuilder::new(parts.next().unwrap_or_default());
    for part in parts {
        query.push_bind(now).push(part);
    }
    query.push(" WHERE true");
    if !filter.all {
        query.push(" AND a.decision IS NULL AND c.state = 'waiting' AND c.approval = 'pending' AND a.expires_at > ");
        query.push_bind(now);
    }
    if let Some(function) = &filter.function {
        query.push(" AND a.function = ").push_bind(function.clone());
    }
    let (comparison, order) = if filter.all { ("<", "DESC") } else { (">", "ASC") };
    if let Some(Approval { key, asked_at, .. }) = after {
        query.push(format_args!(" AND (a.asked_at, a.platform, a.session, a.turn, a.call_id) {comparison} ("));
        query.push_bind(*asked_at);
        for part in [&key.session.platform, &key.session.session, &key.turn, &key.call_id] {
            query.push(", ").push_bind(part.to_string());
        }
        query.push(")");
    }
    let columns = ["asked_at", "platform", "session", "turn", "call_id"];
    let columns: Vec<String> = columns.iter().map(|column| format!("a.{column} {order}")).collect();
    query.push(format_args!(" ORDER BY {} LIMIT ", columns.join(", ")));
    query.push_bind(i64::try_from(limit).unwrap_or(i64::MAX));
    query
}

pub(super) fn read<R: Row>(row: &R) -> Result<Approval>
where
    for<'c> &'c str: ColumnIndex<R>,
    for<'r> String: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> Vec<u8>: Decode<'r, R::Database> + Type<R::Database>,
{
    let text = |column: &str| row.try_get::<String, _>(column);
    let session = SessionKey::new(text("platform")?, text("session")?);
    Ok(Approval {
        key: CallKey::new(session, text("turn")?, text("call_id")?),
        function: text("function")?,
        arguments: row.try_get("arguments")?,
        digest: row.try_get("digest")?,
        asked_at: row.try_get("asked_at")?,
        expires_at: row.try_get("expires_at")?,
        decision: row.try_get::<Option<String>, _>("decision")?.as_deref().map(Decision::read).transpose()?,
        decided_by: row.try_get("decided_by")?,
        decided_at: row.try_get("decided_at")?,
        reason: row.try_get("reason")?,
        notices: u32::try_from(row.try_get::<i64, _>("notify_tries")?).unwrap_or(u32::MAX),
    })
}

pub(super) fn ended<R: Row>(row: &R) -> Result<(String, Decision)>
where
    for<'c> &'c str: ColumnIndex<R>,
    for<'r> String: Decode<'r, R::Database> + Type<R::Database>,
{
    Ok((row.try_get("function")?, Decision::read(&row.try_get::<String, _>("decision")?)?))
}

pub(super) fn open<R: Row>(row: &R) -> Result<Open>
where
    for<'c> &'c str: ColumnIndex<R>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
{
    let count = |column: &str| row.try_get::<i64, _>(column).map(|n| u64::try_from(n).unwrap_or(0));
    Ok(Open { pending: count("pending")?, ended: count("ended")?, notices: count("notices")? })
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
            approvals::{self as sql, Approval, Ask, Decide},
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

        async fn close(db: &mut $connection, now: i64) -> Result<Vec<(String, sql::Decision)>> {
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
