//! The statements, the same in both databases. $1 to $4 are the call's key where there is one; instants are Unix milliseconds.

use sqlx::{ColumnIndex, Database, Decode, Encode, QueryBuilder, Row, Type};

use super::{Approval, ApprovalFilter, Decision, Open};
use crate::{
    session::{CallKey, SessionKey},
    store::Result,
};

pub(in crate::store) const ASK_CALL: &str = "
    UPDATE calls SET state = 'waiting', approval = 'pending', attempt = attempt - 1, until_at = $7, updated_at = $6,
                     history = CASE WHEN length(history) > $9 THEN history ELSE history || '{\"at\":' || $6 || ',' || $8 END
    WHERE platform = $1 AND session = $2 AND turn = $3 AND call_id = $4 AND fence = $5 AND state = 'claimed'";

/// Who is asked again has not decided yet.
pub(in crate::store) const ASK: &str = "
    INSERT INTO approvals (platform, session, turn, call_id, function, arguments, digest, asked_at, expires_at, notify_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
    ON CONFLICT (platform, session, turn, call_id) DO UPDATE
    SET function = excluded.function, arguments = excluded.arguments, digest = excluded.digest,
        asked_at = excluded.asked_at, expires_at = excluded.expires_at, decision = NULL, decided_by = NULL,
        decided_at = NULL, reason = NULL, notify_at = excluded.notify_at, notify_tries = 0";

pub(in crate::store) const DECIDE_CALL: &str = "
    UPDATE calls AS c SET state = 'retrying', approval = $5, fence = fence + 1, until_at = $6, updated_at = $6,
                          history = history || '{\"at\":' || $6 || ',' || $8
    WHERE c.platform = $1 AND c.session = $2 AND c.turn = $3 AND c.call_id = $4
      AND c.state = 'waiting' AND c.approval = 'pending' AND c.until_at > $6
      AND EXISTS (SELECT 1 FROM approvals AS a
                  WHERE a.platform = c.platform AND a.session = c.session AND a.turn = c.turn AND a.call_id = c.call_id
                    AND a.decision IS NULL AND a.asked_at = coalesce($7, a.asked_at))";

pub(in crate::store) const DECIDE: &str = "
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

pub(in crate::store) fn find() -> String {
    format!("{SELECT} WHERE a.platform = $2 AND a.session = $3 AND a.turn = $4 AND a.call_id = $5")
}

pub(in crate::store) const OPEN: &str = "
    WITH undecided AS MATERIALIZED (
        SELECT a.notify_at,
               a.expires_at > $1 AND EXISTS (
                   SELECT 1 FROM calls AS c
                   WHERE c.platform = a.platform AND c.session = a.session AND c.turn = a.turn
                     AND c.call_id = a.call_id AND c.state = 'waiting' AND c.approval = 'pending') AS waits
        FROM approvals AS a WHERE a.decision IS NULL)
    SELECT count(CASE WHEN waits THEN 1 END) AS pending, count(CASE WHEN NOT waits THEN 1 END) AS ended,
           count(CASE WHEN waits AND notify_at <= $1 THEN 1 END) AS notices
    FROM undecided";

pub(in crate::store) const CLOSE: &str = "
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
pub(in crate::store) const NOTICES: &str = "
    UPDATE approvals SET notify_at = $2, notify_tries = notify_tries + 1
    WHERE decision IS NULL AND notify_at <= $1 AND expires_at > $1
      AND (platform, session, turn, call_id) IN (
          SELECT platform, session, turn, call_id FROM approvals
          WHERE decision IS NULL AND notify_at <= $1 ORDER BY asked_at LIMIT $3)
    RETURNING platform, session, turn, call_id, function, arguments, digest, asked_at, expires_at, decision, decided_by,
              decided_at, reason, notify_tries";

pub(in crate::store) const NOTICED: &str = "
    UPDATE approvals SET notify_at = $6
    WHERE platform = $1 AND session = $2 AND turn = $3 AND call_id = $4 AND asked_at = $5 AND decision IS NULL";

/// Builds the listing; `now` is the database's clock.
pub(in crate::store) fn listing<DB: Database>(
    now: i64,
    filter: &ApprovalFilter,
    after: Option<&(i64, CallKey)>,
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
    if let Some((asked_at, key)) = after {
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

pub(in crate::store) fn read<R: Row>(row: &R) -> Result<Approval>
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

pub(in crate::store) fn ended<R: Row>(row: &R) -> Result<(String, Decision)>
where
    for<'c> &'c str: ColumnIndex<R>,
    for<'r> String: Decode<'r, R::Database> + Type<R::Database>,
{
    Ok((row.try_get("function")?, Decision::read(&row.try_get::<String, _>("decision")?)?))
}

pub(in crate::store) fn open<R: Row>(row: &R) -> Result<Open>
where
    for<'c> &'c str: ColumnIndex<R>,
    for<'r> i64: Decode<'r, R::Database> + Type<R::Database>,
{
    let count = |column: &str| row.try_get::<i64, _>(column).map(|n| u64::try_from(n).unwrap_or(0));
    Ok(Open { pending: count("pending")?, ended: count("ended")?, notices: count("notices")? })
}
