//! What an operator reads and changes in PostgreSQL.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgPool, Postgres, Row as _, postgres::PgRow};

use super::{Keys, bind_key, clean};
use crate::{
    session::{CallKey, SessionKey},
    store::{
        CallRow, Details, Filter, Reset, Result, history,
        judge::{in_millis, millis},
        operator::{COLUMNS, Change, listing, read},
        prune::{self, Pruned},
    },
};

const NOW: &str = "(extract(epoch FROM statement_timestamp()) * 1000)::bigint";

/// $5 and $6 are fence and state as they were read: whoever came between makes this miss. A session is due only with it.
const RESET: &str = "
    WITH reset AS (
        UPDATE calls
        SET state = $7, fence = fence + 1, generation = $8, submissions = $9, until_at = now, updated_at = now,
            attempt = CASE WHEN $10::bigint IS NULL THEN attempt ELSE 0 END,
            deadline_at = coalesce(now + $10, deadline_at),
            success = CASE WHEN $11 THEN $12 ELSE success END, body = CASE WHEN $11 THEN $13 ELSE body END,
            note = CASE WHEN $11 AND body IS NOT NULL THEN NULL ELSE note END,
            approval = CASE WHEN approval = 'approved' THEN approval END,
            idempotency_key = $14, detail = coalesce($15, detail),
            history = history || '{\"at\":' || now || ',' || $16
        FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint AS now) AS clock
        WHERE platform = $1 AND session = $2 AND turn = $3 AND call_id = $4 AND fence = $5 AND state = $6
        RETURNING platform, session, now)
    INSERT INTO due AS d (platform, session, at, tries, accepted_at)
    SELECT platform, session, now, 1, now FROM reset
    ON CONFLICT (platform, session) DO UPDATE
    SET at = CASE WHEN d.held_until > 0 THEN excluded.at ELSE least(d.at, excluded.at) END, held_until = 0,
        tries = excluded.tries";

const REVIVE: &str = "
    UPDATE calls
    SET attempt = 0, deadline_at = greatest(deadline_at, (extract(epoch FROM clock_timestamp()) * 1000)::bigint + $3)
    WHERE platform = $1 AND session = $2 AND state IN ('claimed', 'retrying') AND body IS NULL";

/// A sweep's row was never accepted.
const OLDEST: &str =
    "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint - min(accepted_at) FROM due WHERE accepted_at > 0";

pub(super) async fn oldest_pending(pool: &PgPool) -> Result<Option<Duration>> {
    let age: Option<i64> = sqlx::query(OLDEST).fetch_one(pool).await?.try_get(0)?;
    Ok(age.map(millis))
}

pub(super) async fn calls(
    pool: &PgPool,
    filter: &Filter,
    after: Option<&CallRow>,
    limit: usize,
) -> Result<Vec<CallRow>> {
    let rows = listing::<Postgres>(NOW, filter, after, limit).build().fetch_all(pool).await?;
    rows.iter().map(row).collect()
}

pub(super) async fn call(pool: &PgPool, key: &CallKey) -> Result<Option<Details>> {
    let statement = format!(
        "SELECT {COLUMNS}, body, history FROM calls WHERE platform = $1 AND session = $2 AND turn = $3 AND call_id = $4"
    );
    let found = bind_key(sqlx::query(AssertSqlSafe(statement)), key).fetch_optional(pool).await?;
    let details = |found: PgRow| {
        let history = history::read(found.try_get("history")?);
        Ok(Details { row: row(&found)?, body: found.try_get("body")?, history })
    };
    found.map(details).transpose()
}

fn row(found: &PgRow) -> Result<CallRow> {
    read(found, found.try_get::<Option<i32>, _>("body_len")?.map(i64::from))
}

pub(super) async fn reset(pool: &PgPool, row: &CallRow, reset: &Reset, by: &str) -> Result<bool> {
    let change = Change::of(row, reset);
    let done = bind_key(sqlx::query(RESET), &row.key)
        .bind(row.fence)
        .bind(&row.state)
        .bind(change.state)
        .bind(change.generation)
        .bind(change.submissions)
        .bind(change.deadline)
        .bind(change.replaces)
        .bind(change.success)
        .bind(change.body)
        .bind(change.idempotency_key)
        .bind(change.detail.as_deref().map(clean))
        .bind(clean(history::reset(reset, by)))
        .execute(pool)
        .await?;
    Ok(done.rows_affected() == 1)
}

pub(super) async fn revive(pool: &PgPool, session: &SessionKey, deadline: Duration) -> Result<()> {
    let revive = sqlx::query(REVIVE).bind(&*session.platform).bind(&*session.session);
    revive.bind(in_millis(deadline)).execute(pool).await?;
    Ok(())
}

const CUTOFF: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint - $1";

const PRUNE: &str = "
    WITH gone AS (
        DELETE FROM calls AS c
        USING unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS given (platform, session, turn, call_id)
        WHERE c.platform = given.platform AND c.session = given.session AND c.turn = given.turn
          AND c.call_id = given.call_id AND c.state IN ('settled', 'obsolete', 'refused') AND c.updated_at < $5
        RETURNING c.platform, c.session, c.turn, c.call_id),
    approvals AS (
        DELETE FROM approvals AS a USING gone
        WHERE a.platform = gone.platform AND a.session = gone.session AND a.turn = gone.turn
          AND a.call_id = gone.call_id)
    SELECT count(*) FROM gone";

/// Deletes by key what was read, and judges it again then.
pub(super) async fn prune(pool: &PgPool, older: Duration, from: i64, limit: usize) -> Result<Pruned> {
    let before: i64 = sqlx::query(CUTOFF).bind(in_millis(older)).fetch_one(pool).await?.try_get(0)?;
    let old = sqlx::query(prune::OLD).bind(from).bind(before).bind(i64::try_from(limit).unwrap_or(i64::MAX));
    let old = old.fetch_all(pool).await?.iter().map(prune::read).collect::<Result<Vec<_>>>()?;
    let (ended, next) = prune::plan(old, from, limit);
    if ended.is_empty() {
        return Ok(Pruned { deleted: 0, next });
    }
    let keys = Keys::of(ended.iter());
    let delete = sqlx::query(PRUNE).bind(keys.platforms).bind(keys.sessions).bind(keys.turns).bind(keys.call_ids);
    let deleted: i64 = delete.bind(before).fetch_one(pool).await?.try_get(0)?;
    Ok(Pruned { deleted: u64::try_from(deleted).unwrap_or(0), next })
}
