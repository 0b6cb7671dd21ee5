//! What an operator sees of the PostgreSQL ledger as a whole, and the functions that are paused.

use std::time::Duration;

use sqlx::PgPool;

use crate::store::{
    Appointment, Pause, Result, Tally,
    judge::in_millis,
    overview::{appointment, pause, tally as read_tally},
};

const TALLY: &str = "
    SELECT function, state, count(*) AS count FROM calls
    WHERE created_at >= (extract(epoch FROM statement_timestamp()) * 1000)::bigint - $1 GROUP BY function, state";

/// $1 to $3 are the last one of the page before. A sweep has no session.
const AGENDA: &str = "
    SELECT platform, session, at, tries, accepted_at FROM due
    WHERE session <> '' AND (at, platform, session) > ($1, $2, $3)
    ORDER BY at, platform, session LIMIT $4";

const PAUSE: &str = "
    INSERT INTO paused (function, since) VALUES ($1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    ON CONFLICT (function) DO NOTHING";
const RESUME: &str = "DELETE FROM paused WHERE function = $1";

pub(super) async fn tally(pool: &PgPool, within: Duration) -> Result<Vec<Tally>> {
    let rows = sqlx::query(TALLY).bind(in_millis(within)).fetch_all(pool).await?;
    rows.iter().map(read_tally).collect()
}

pub(super) async fn agenda(pool: &PgPool, after: Option<&Appointment>, limit: usize) -> Result<Vec<Appointment>> {
    let (at, platform, session) =
        after.map_or((i64::MIN, "", ""), |after| (after.at, &*after.session.platform, &*after.session.session));
    let rows = sqlx::query(AGENDA)
        .bind(at)
        .bind(platform)
        .bind(session)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(pool)
        .await?;
    rows.iter().map(appointment).collect()
}

pub(super) async fn pauses(pool: &PgPool) -> Result<Vec<Pause>> {
    let rows = sqlx::query("SELECT function, since FROM paused ORDER BY function").fetch_all(pool).await?;
    rows.iter().map(pause).collect()
}

pub(super) async fn set_paused(pool: &PgPool, function: &str, paused: bool) -> Result<bool> {
    let statement = if paused { PAUSE } else { RESUME };
    Ok(sqlx::query(statement).bind(function).execute(pool).await?.rows_affected() == 1)
}
