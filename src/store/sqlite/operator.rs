//! What an operator reads and changes in SQLite, also beside a process that serves the file.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Row as _, Sqlite, sqlite::SqliteRow};

use super::{Database, bind_key, clock, sql};
use crate::{
    session::{CallKey, SessionKey},
    store::{
        CallRow, Details, Filter, Reset, Result, history,
        judge::{in_millis, millis},
        operator::{COLUMNS, Change, listing, read},
        prune::{self, Pruned},
    },
};

const NOW: &str = "CAST(unixepoch('subsec') * 1000 AS INTEGER)";

/// ?5 and ?6 are fence and state as they were read: whoever came between makes this miss.
const RESET: &str = "
    UPDATE calls
    SET state = ?7, fence = fence + 1, generation = ?8, submissions = ?9, until_at = ?10, updated_at = ?10,
        attempt = CASE WHEN ?11 IS NULL THEN attempt ELSE 0 END, deadline_at = coalesce(?10 + ?11, deadline_at),
        success = CASE WHEN ?12 THEN ?13 ELSE success END, body = CASE WHEN ?12 THEN ?14 ELSE body END,
        note = CASE WHEN ?12 AND body IS NOT NULL THEN NULL ELSE note END,
        approval = CASE WHEN approval = 'approved' THEN approval END,
        idempotency_key = ?15, detail = coalesce(?16, detail), history = history || '{\"at\":' || ?10 || ',' || ?17
    WHERE platform = ?1 AND session = ?2 AND turn = ?3 AND call_id = ?4 AND fence = ?5 AND state = ?6";

const REVIVE: &str = "
    UPDATE calls SET attempt = 0, deadline_at = max(deadline_at, ?3 + ?4)
    WHERE platform = ?1 AND session = ?2 AND state IN ('claimed', 'retrying') AND body IS NULL";

/// A sweep's row was never accepted.
const OLDEST: &str =
    "SELECT CAST(unixepoch('subsec') * 1000 AS INTEGER) - min(accepted_at) FROM due WHERE accepted_at > 0";

pub(super) async fn oldest_pending(database: &Database) -> Result<Option<Duration>> {
    let age: Option<i64> = sqlx::query(OLDEST).fetch_one(&database.reads).await?.try_get(0)?;
    Ok(age.map(millis))
}

pub(super) async fn calls(
    database: &Database,
    filter: &Filter,
    after: Option<&CallRow>,
    limit: usize,
) -> Result<Vec<CallRow>> {
    let rows = listing::<Sqlite>(NOW, filter, after, limit).build().fetch_all(&database.reads).await?;
    rows.iter().map(row).collect()
}

pub(super) async fn call(database: &Database, key: &CallKey) -> Result<Option<Details>> {
    let statement = format!(
        "SELECT {COLUMNS}, body, history FROM calls WHERE platform = ?1 AND session = ?2 AND turn = ?3 AND call_id = ?4"
    );
    let found = bind_key(sqlx::query(AssertSqlSafe(statement)), key).fetch_optional(&database.reads).await?;
    let details = |found: SqliteRow| {
        let history = history::read(found.try_get("history")?);
        Ok(Details { row: row(&found)?, body: found.try_get("body")?, history })
    };
    found.map(details).transpose()
}

fn row(found: &SqliteRow) -> Result<CallRow> {
    read(found, found.try_get("body_len")?)
}

pub(super) async fn reset(database: &Database, row: &CallRow, reset: &Reset, by: &str) -> Result<bool> {
    let (change, entry) = (Change::of(row, reset), history::reset(reset, by));
    let row = row.clone();
    database
        .write(move |db| {
            Box::pin(async move {
                let now = clock(db).await?;
                let done = bind_key(sqlx::query(RESET), &row.key)
                    .bind(row.fence)
                    .bind(&row.state)
                    .bind(change.state)
                    .bind(change.generation)
                    .bind(change.submissions)
                    .bind(now)
                    .bind(change.deadline)
                    .bind(change.replaces)
                    .bind(change.success)
                    .bind(change.body)
                    .bind(change.idempotency_key)
                    .bind(change.detail)
                    .bind(entry)
                    .execute(&mut *db)
                    .await?;
                if done.rows_affected() == 0 {
                    return Ok(false);
                }
                let due = sqlx::query(sql::POSTPONE)
                    .bind(&*row.key.session.platform)
                    .bind(&*row.key.session.session)
                    .bind(now);
                due.bind(1).bind(now).bind(None::<&str>).execute(&mut *db).await?;
                Ok(true)
            })
        })
        .await
}

pub(super) async fn revive(database: &Database, session: &SessionKey, deadline: Duration) -> Result<()> {
    let session = session.clone();
    database
        .write(move |db| {
            Box::pin(async move {
                let now = clock(db).await?;
                let revive = sqlx::query(REVIVE).bind(&*session.platform).bind(&*session.session);
                revive.bind(now).bind(in_millis(deadline)).execute(db).await?;
                Ok(())
            })
        })
        .await
}

const PRUNE: &str = "
    DELETE FROM calls
    WHERE platform = ?1 AND session = ?2 AND turn = ?3 AND call_id = ?4
      AND state IN ('settled', 'obsolete', 'refused') AND updated_at < ?5";

const PRUNE_APPROVAL: &str =
    "DELETE FROM approvals WHERE platform = ?1 AND session = ?2 AND turn = ?3 AND call_id = ?4";

/// Reads beside the writer and takes its turn only for what is to go, which is judged again then.
pub(super) async fn prune(database: &Database, older: Duration, from: i64, limit: usize) -> Result<Pruned> {
    let mut db = database.reads.acquire().await?;
    let before = clock(&mut db).await?.saturating_sub(in_millis(older));
    let old = sqlx::query(prune::OLD).bind(from).bind(before).bind(i64::try_from(limit).unwrap_or(i64::MAX));
    let old = old.fetch_all(&mut *db).await?.iter().map(prune::read).collect::<Result<Vec<_>>>()?;
    drop(db);
    let (ended, next) = prune::plan(old, from, limit);
    if ended.is_empty() {
        return Ok(Pruned { deleted: 0, next });
    }
    let deleted = database.write(move |db| {
        Box::pin(async move {
            let mut deleted = 0;
            for key in &ended {
                let gone = bind_key(sqlx::query(PRUNE), key).bind(before).execute(&mut *db).await?.rows_affected();
                if gone > 0 {
                    bind_key(sqlx::query(PRUNE_APPROVAL), key).execute(&mut *db).await?;
                }
                deleted += gone;
            }
            Ok(deleted)
        })
    });
    Ok(Pruned { deleted: deleted.await?, next })
}
