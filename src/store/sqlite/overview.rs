//! What an operator sees of the SQLite ledger as a whole, and the functions that are paused.

use std::time::Duration;

use super::{Database, clock};
use crate::store::{
    Appointment, Pause, Result, Tally,
    judge::in_millis,
    overview::{appointment, pause, tally as read_tally},
};

const TALLY: &str = "
    SELECT function, state, count(*) AS count FROM calls
    WHERE created_at >= CAST(unixepoch('subsec') * 1000 AS INTEGER) - ?1 GROUP BY function, state";

/// ?1 to ?3 are the last one of the page before. A sweep has no session.
const AGENDA: &str = "
    SELECT platform, session, at, tries, accepted_at FROM due
    WHERE session <> '' AND (at, platform, session) > (?1, ?2, ?3)
    ORDER BY at, platform, session LIMIT ?4";

const PAUSE: &str = "INSERT INTO paused (function, since) VALUES (?1, ?2) ON CONFLICT (function) DO NOTHING";
const RESUME: &str = "DELETE FROM paused WHERE function = ?1";

pub(super) async fn tally(database: &Database, within: Duration) -> Result<Vec<Tally>> {
    let rows = sqlx::query(TALLY).bind(in_millis(within)).fetch_all(&database.reads).await?;
    rows.iter().map(read_tally).collect()
}

pub(super) async fn agenda(database: &Database, after: Option<&Appointment>, limit: usize) -> Result<Vec<Appointment>> {
    let (at, platform, session) =
        after.map_or((i64::MIN, "", ""), |after| (after.at, &*after.session.platform, &*after.session.session));
    let rows = sqlx::query(AGENDA)
        .bind(at)
        .bind(platform)
        .bind(session)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(&database.reads)
        .await?;
    rows.iter().map(appointment).collect()
}

pub(super) async fn pauses(database: &Database) -> Result<Vec<Pause>> {
    let rows = sqlx::query("SELECT function, since FROM paused ORDER BY function").fetch_all(&database.reads).await?;
    rows.iter().map(pause).collect()
}

pub(super) async fn set_paused(database: &Database, function: &str, paused: bool) -> Result<bool> {
    let function = function.to_owned();
    database
        .write(move |db| {
            Box::pin(async move {
                let done = match paused {
                    true => {
                        let now = clock(db).await?;
                        sqlx::query(PAUSE).bind(function).bind(now).execute(db).await?
                    }
                    false => sqlx::query(RESUME).bind(function).execute(db).await?,
                };
                Ok(done.rows_affected() == 1)
            })
        })
        .await
}
