//! What an operator sees of the ledger and may change there. The rules are pure: both databases ask here.

use std::time::Duration;

use serde_json::Value;
use sqlx::{ColumnIndex, Database, Decode, Encode, QueryBuilder, Row, Type};

use super::{Result, judge::in_millis};
use crate::session::{CallKey, SessionKey, Submission};

/// Every state a call can be in, as it is stored and shown.
pub const STATES: [&str; 9] =
    ["claimed", "waiting", "retrying", "interrupted", "completed", "submitted", "settled", "refused", "obsolete"];

/// Which calls to list; `None` is any.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pub state: Option<String>,
    pub function: Option<String>,
    pub platform: Option<String>,
    pub session: Option<String>,
    pub call_id: Option<String>,
    /// First claimed longer ago than this.
    pub older_than: Option<Duration>,
    /// First claimed less long ago than this.
    pub newer_than: Option<Duration>,
    /// First claimed then or later, Unix milliseconds.
    pub from: Option<i64>,
    /// First claimed before, Unix milliseconds.
    pub to: Option<i64>,
    /// Else the newest.
    pub oldest_first: bool,
}

/// A call as the ledger holds it, without its result's bytes. Instants are Unix milliseconds by the database's clock.
#[derive(Clone, Debug, PartialEq)]
pub struct CallRow {
    pub key: CallKey,
    pub function: String,
    /// One of [`STATES`].
    pub state: String,
    pub attempt: u32,
    pub fence: i64,
    pub generation: u32,
    pub submissions: u32,
    pub success: Option<bool>,
    /// What became of its approval: pending, approved, denied, expired; none where nobody was asked.
    pub approval: Option<String>,
    /// What a person should know of a failure.
    pub detail: Option<String>,
    pub idempotency_key: Option<String>,
    pub body_len: Option<u64>,
    pub created_at: i64,
    pub updated_at: i64,
    pub until_at: i64,
    pub deadline_at: i64,
}

/// Everything the ledger holds of a call.
#[derive(Clone, Debug, PartialEq)]
pub struct Details {
    pub row: CallRow,
    /// The bytes of its result.
    pub body: Option<Vec<u8>>,
    /// What has happened to it, the oldest first: objects with `at` (Unix milliseconds by the database's clock), `event`, and
    /// what is known of it.
    pub history: Vec<Value>,
}

/// What an operator does to a call. Its session is due at once then, so that a worker goes on with it.
#[derive(Clone, Debug, PartialEq)]
pub enum Reset {
    /// Run the handler again, with this much time and fresh attempts; a result that is stored is forgotten.
    Retry { deadline: Duration },
    /// Submit the stored bytes again, without the handler; under the next key where the platform may have kept the old one.
    Resubmit { new_key: bool },
    /// Answer with this result. Encoded for [`CallRow::next_generation`].
    Resolve { success: bool, submission: Submission, detail: String },
}

impl CallRow {
    /// A place in a listing, whether or not the call is still there.
    pub(crate) fn at(key: CallKey, created_at: i64) -> Self {
        Self {
            key,
            function: String::new(),
            state: String::new(),
            attempt: 0,
            fence: 0,
            generation: 0,
            submissions: 0,
            success: None,
            approval: None,
            detail: None,
            idempotency_key: None,
            body_len: None,
            created_at,
            updated_at: 0,
            until_at: 0,
            deadline_at: 0,
        }
    }

    /// Why the call cannot be changed so; `None` where it can.
    pub fn refuses(&self, reset: &Reset) -> Option<&'static str> {
        let (stored, state) = (self.body_len.is_some(), self.state.as_str());
        match (reset, state) {
            (_, "settled") => Some("it is settled: the platform has its result"),
            (Reset::Retry { .. }, "refused" | "interrupted" | "obsolete" | "retrying") => None,
            (Reset::Retry { .. }, "completed") if self.submissions == 0 => None,
            (Reset::Retry { .. }, "claimed") => Some("its handler may be running"),
            (Reset::Retry { .. }, "waiting") => Some("it waits for its result or a decision: resolve it instead"),
            (Reset::Retry { .. }, _) => Some("the platform accepted its result already"),
            (Reset::Resubmit { .. }, "refused" | "obsolete" | "completed" | "submitted") if stored => None,
            (Reset::Resubmit { .. }, _) => Some("it has no stored result: retry or resolve it instead"),
            (Reset::Resolve { .. }, "refused") => None,
            (Reset::Resolve { .. }, _) if stored => Some("it has a result already: resubmit sends it again"),
            (Reset::Resolve { .. }, _) => None,
        }
    }

    /// The generation of a result that comes after what is stored: other bytes need another key.
    pub fn next_generation(&self) -> u32 {
        self.generation + u32::from(self.body_len.is_some())
    }
}

/// The columns of a [`CallRow`], key first.
pub(super) const COLUMNS: &str = "platform, session, turn, call_id, function, state, attempt, fence, generation, \
    submissions, success, approval, detail, idempotency_key, length(body) AS body_len, created_at, updated_at, until_at, deadline_at";

/// Builds the listing: after `after` in its order. `now` is the expression of the database's clock.
pub(super) fn listing<DB: Database>(
    now: &str,
    filter: &Filter,
    after: Option<&CallRow>,
    limit: usize,
) -> QueryBuilder<DB>
where
    DB::Arguments: Default,
    for<'q> String: Encode<'q, DB> + Type<DB>,
    for<'q> i64: Encode<'q, DB> + Type<DB>,
{
    let mut query = QueryBuilder::new(format!("SELECT {COLUMNS} FROM calls WHERE true"));
    let texts = [
        ("state", &filter.state),
        ("function", &filter.function),
        ("platform", &filter.platform),
        ("session", &filter.session),
        ("call_id", &filter.call_id),
    ];
    for (column, wanted) in texts {
        if let Some(wanted) = wanted {
            query.push(format_args!(" AND {column} = ")).push_bind(wanted.clone());
        }
    }
    for (comparison, age) in [("<=", filter.older_than), (">=", filter.newer_than)] {
        if let Some(age) = age {
            query.push(format_args!(" AND created_at {comparison} {now} - ")).push_bind(in_millis(age));
        }
    }
    for (comparison, instant) in [(">=", filter.from), ("<", filter.to)] {
        if let Some(instant) = instant {
            query.push(format_args!(" AND created_at {comparison} ")).push_bind(instant);
        }
    }
    let (comparison, order) = if filter.oldest_first { (">", "ASC") } else { ("<", "DESC") };
    if let Some(CallRow { key, created_at, .. }) = after {
        query.push(format_args!(" AND (created_at, platform, session, turn, call_id) {comparison} ("));
        query.push_bind(*created_at);
        for part in [&key.session.platform, &key.session.session, &key.turn, &key.call_id] {
            query.push(", ").push_bind(part.to_string());
        }
        query.push(")");
    }
    let columns = ["created_at", "platform", "session", "turn", "call_id"].map(|column| format!("{column} {order}"));
    query.push(format_args!(" ORDER BY {} LIMIT ", columns.join(", ")));
    query.push_bind(i64::try_from(limit).unwrap_or(i64::MAX));
    query
}

/// Reads [`COLUMNS`]; `body_len` is an integer of another width in each database.
pub(super) fn read<R: Row>(row: &R, body_len: Option<i64>) -> Result<CallRow>
where
    for<'c> &'c str: ColumnIndex<R>,
    for<'r> String: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
    for<'r> bool: Decode<'r, R::Database> + Type<R::Database>,
{
    let text = |column: &str| row.try_get::<String, _>(column);
    let number = |column: &str| row.try_get::<i64, _>(column);
    let count = |column: &str| number(column).map(|n| u32::try_from(n).unwrap_or(u32::MAX));
    let session = SessionKey::new(text("platform")?, text("session")?);
    Ok(CallRow {
        key: CallKey::new(session, text("turn")?, text("call_id")?),
        function: text("function")?,
        state: text("state")?,
        attempt: count("attempt")?,
        fence: number("fence")?,
        generation: count("generation")?,
        submissions: count("submissions")?,
        success: row.try_get("success")?,
        approval: row.try_get("approval")?,
        detail: row.try_get("detail")?,
        idempotency_key: row.try_get("idempotency_key")?,
        body_len: body_len.and_then(|len| u64::try_from(len).ok()),
        created_at: number("created_at")?,
        updated_at: number("updated_at")?,
        until_at: number("until_at")?,
        deadline_at: number("deadline_at")?,
    })
}

/// A reset in columns. `None` keeps what is there.
pub(super) struct Change {
    pub(super) state: &'static str,
    pub(super) generation: i64,
    pub(super) submissions: i64,
    /// Milliseconds from now, with fresh attempts.
    pub(super) deadline: Option<i64>,
    /// Whether success and body are replaced, be it by nothing.
    pub(super) replaces: bool,
    pub(super) success: Option<bool>,
    pub(super) body: Option<Vec<u8>>,
    pub(super) idempotency_key: Option<String>,
    pub(super) detail: Option<String>,
}

impl Change {
    pub(super) fn of(row: &CallRow, reset: &Reset) -> Self {
        let none = Self {
            state: "completed",
            generation: i64::from(row.next_generation()),
            submissions: 0,
            deadline: None,
            replaces: true,
            success: None,
            body: None,
            idempotency_key: None,
            detail: None,
        };
        match reset {
            Reset::Retry { deadline } => Self { state: "retrying", deadline: Some(in_millis(*deadline)), ..none },
            Reset::Resubmit { new_key } => {
                let generation = if *new_key { row.next_generation() } else { row.generation };
                let key = if *new_key {
                    Some(row.key.submission_idempotency_key(generation))
                } else {
                    row.idempotency_key.clone()
                };
                // What was accepted once and is no longer pending is settled without another post.
                let submissions = if row.state == "submitted" { i64::from(row.submissions) } else { 0 };
                Self { generation: i64::from(generation), submissions, replaces: false, idempotency_key: key, ..none }
            }
            Reset::Resolve { success, submission, detail } => Self {
                success: Some(*success),
                body: Some(submission.body.clone()),
                idempotency_key: Some(submission.idempotency_key.clone()),
                detail: Some(detail.clone()),
                ..none
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(state: &str, body_len: Option<u64>, submissions: u32) -> CallRow {
        CallRow {
            key: CallKey::new(SessionKey::new("openai", "sess_1"), "turn_1", "call_1"),
            function: "f".to_owned(),
            state: state.to_owned(),
            attempt: 1,
            fence: 1,
            generation: 0,
            submissions,
            success: None,
            approval: None,
            detail: None,
            idempotency_key: None,
            body_len,
            created_at: 0,
            updated_at: 0,
            until_at: 0,
            deadline_at: 0,
        }
    }

    #[test]
    fn each_state_allows_what_makes_sense_in_it() {
        let resets = [
            Reset::Retry { deadline: Duration::ZERO },
            Reset::Resubmit { new_key: false },
            Reset::Resolve {
                success: true,
                submission: Submission { body: vec![], idempotency_key: String::new() },
                detail: String::new(),
            },
        ];
        for (state, body, submissions, allowed) in [
            ("claimed", None, 0, [false, false, true]),
            ("waiting", None, 0, [false, false, true]),
            ("retrying", None, 0, [true, false, true]),
            ("interrupted", None, 0, [true, false, true]),
            ("completed", Some(2), 0, [true, true, false]),
            ("completed", Some(2), 1, [false, true, false]),
            ("submitted", Some(2), 1, [false, true, false]),
            ("settled", Some(2), 1, [false, false, false]),
            ("refused", Some(2), 0, [true, true, true]),
            ("obsolete", None, 0, [true, false, true]),
            ("obsolete", Some(2), 0, [true, true, false]),
        ] {
            let row = row(state, body, submissions);
            assert_eq!(resets.each_ref().map(|reset| row.refuses(reset).is_none()), allowed, "{state} {body:?}");
        }
    }
}
