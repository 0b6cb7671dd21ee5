//! The ledger in PostgreSQL: every batch is one statement over arrays, planned by key.

use std::{str::FromStr, time::Duration};

use async_trait::async_trait;
use secrecy::ExposeSecret;
use sqlx::{
    PgPool, Row as _,
    migrate::{Migration, MigrationType, Migrator},
    postgres::{PgConnectOptions, PgPoolOptions, PgRow},
};

use super::{
    Appointment, Arrival, Arrived, CallRow, Claim, ClaimRequest, Config, Details, Due, Error, Filter, Note, Pause,
    Pruned, Reset, Result, Step, Store, Taken, Tally, Unfinished, history,
    judge::{Row, Verdict, in_millis, judge, judge_late},
};
use crate::session::{CallKey, SessionKey};

mod actions;
mod approvals;
mod lane;
mod operator;
mod overview;
mod statements;
mod steps;
use lane::Lane;
use statements as sql;

/// Connections beside the pool.
const LANES: u32 = 2;

pub struct Postgres {
    pool: PgPool,
    steps: Lane,
    /// For steps that may be lost: their commit does not wait for the disk.
    hasty: Lane,
}

impl Postgres {
    /// Does not connect yet; every statement connects again when the database was away.
    pub fn new(config: &Config) -> Result<Self> {
        let options = PgConnectOptions::from_str(config.url.expose_secret())
            .map_err(|_| Error::new("store.url: not a postgres:// URL"))?
            .application_name("actiond")
            // A new table has no statistics, and a batch joined by scan or hash reads all of it: only plans by key.
            .options([
                ("enable_seqscan", "off".to_owned()),
                ("enable_hashjoin", "off".to_owned()),
                ("enable_mergejoin", "off".to_owned()),
                // There is only that plan, so it need not be made anew each time.
                ("plan_cache_mode", "force_generic_plan".to_owned()),
                ("statement_timeout", in_millis(config.timeout).to_string()),
            ]);
        let steps = Lane::new(options.clone(), config.timeout);
        let hasty = Lane::new(options.clone().options([("synchronous_commit", "off")]), config.timeout);
        let pool = PgPoolOptions::new()
            .max_connections(config.max_connections.saturating_sub(LANES).max(1))
            .acquire_timeout(config.timeout)
            .connect_lazy_with(options);
        Ok(Self { pool, steps, hasty })
    }
}

/// What makes the schema.
pub(super) fn migrator() -> Migrator {
    let first = Migration::new(
        1,
        "calls and due times".into(),
        MigrationType::Simple,
        sqlx::SqlSafeStr::into_sql_str(include_str!("migrations/postgres.sql")),
        false,
    );
    Migrator { migrations: vec![first].into(), ..Migrator::DEFAULT }
}

#[async_trait]
impl Store for Postgres {
    async fn migrate(&self) -> Result<()> {
        migrator().run(&self.pool).await.map_err(Error::new)
    }

    async fn take(&self, steps: &[Step]) -> Result<Vec<bool>> {
        let lane = if steps.iter().all(Step::may_be_lost) { &self.hasty } else { &self.steps };
        lane.run(async |db| steps::run(db, steps).await).await
    }

    /// Reads, judges, and takes under the fence that was read.
    async fn contest(&self, request: &ClaimRequest) -> Result<Claim> {
        let mut db = self.pool.acquire().await?;
        let found = bind_key(sqlx::query(sql::READ), &request.key).fetch_optional(&mut *db).await?;
        let Some(found) = found else {
            return Ok(Claim::Busy(Duration::from_millis(100)));
        };
        let row = read_row(&found)?;
        let (verdict, claim) = match judge(request, &row, found.try_get("now")?) {
            Verdict::Answer(claim) => return Ok(claim),
            Verdict::Take(claim) => ("claimed", claim),
            Verdict::Hold(claim) => ("interrupted", claim),
        };
        let taken = bind_key(sqlx::query(sql::TAKE), &request.key)
            .bind(row.fence)
            .bind(&row.state)
            .bind(verdict)
            .bind(in_millis(request.lease))
            .bind(clean(history::claimed(request, &claim)))
            .bind(history::MOST)
            .execute(&mut *db)
            .await?;
        Ok(if taken.rows_affected() == 1 { claim } else { Claim::Busy(Duration::from_millis(100)) })
    }

    async fn note(&self, note: &Note) -> Result<bool> {
        let query = bind_key(sqlx::query(sql::NOTE), &note.key).bind(note.fence).bind(clean(&note.text));
        Ok(query.execute(&self.pool).await?.rows_affected() == 1)
    }

    async fn tell(&self, call: &CallKey, event: &str, detail: &str) -> Result<()> {
        let query = bind_key(sqlx::query(sql::TELL), call).bind(clean(history::told(event, detail)));
        query.bind(history::MOST).execute(&self.pool).await?;
        Ok(())
    }

    async fn arrive(&self, arrival: &Arrival) -> Result<Arrived> {
        let mut transaction = self.pool.begin().await?;
        let stored = bind_key(sqlx::query(sql::ARRIVE), &arrival.key)
            .bind(arrival.success)
            .bind(arrival.submission.body.as_slice())
            .bind(&arrival.submission.idempotency_key)
            .bind(history::arrived(arrival.success))
            .bind(history::MOST)
            .fetch_optional(&mut *transaction)
            .await?;
        if let Some(row) = stored {
            postpone(&mut *transaction, &[arrival.due()]).await?;
            transaction.commit().await?;
            return Ok(Arrived::Stored { function: row.try_get("function")? });
        }
        let row = bind_key(sqlx::query(sql::READ), &arrival.key).fetch_optional(&mut *transaction).await?;
        Ok(judge_late(arrival, row.as_ref().map(read_row).transpose()?.as_ref()))
    }

    async fn secret(&self, name: &str, fresh: &[u8]) -> Result<Vec<u8>> {
        sqlx::query(sql::NEW_SECRET).bind(name).bind(fresh).execute(&self.pool).await?;
        Ok(sqlx::query(sql::SECRET).bind(name).fetch_one(&self.pool).await?.try_get(0)?)
    }

    async fn find(&self, call: &CallKey) -> Result<Option<Unfinished>> {
        let row = sqlx::query(sql::READ)
            .bind(&*call.session.platform)
            .bind(&*call.session.session)
            .bind(&*call.turn)
            .bind(&*call.call_id)
            .fetch_optional(&self.pool)
            .await?;
        row.map(|row| Ok(read_row(&row)?.unfinished(call.clone()))).transpose()
    }

    async fn unfinished(&self, session: &SessionKey) -> Result<Vec<Unfinished>> {
        let rows =
            sqlx::query(sql::UNFINISHED).bind(&*session.platform).bind(&*session.session).fetch_all(&self.pool).await?;
        rows.iter().map(|row| Ok(read_row(row)?.unfinished(read_key(row)?))).collect()
    }

    async fn stranded(
        &self,
        platform: &str,
        reach: Duration,
        quiet: Duration,
        limit: usize,
    ) -> Result<Vec<SessionKey>> {
        let rows = sqlx::query(sql::STRANDED)
            .bind(platform)
            .bind(in_millis(reach))
            .bind(in_millis(quiet))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(&self.pool)
            .await?;
        rows.iter().map(|row| Ok(SessionKey::new(platform, row.try_get::<&str, _>("session")?))).collect()
    }

    async fn in_hand(&self, sessions: &[SessionKey], within: Duration) -> Result<Vec<bool>> {
        let held = sqlx::query(sql::IN_HAND)
            .bind(sessions.iter().map(|s| &*s.platform).collect::<Vec<_>>())
            .bind(sessions.iter().map(|s| &*s.session).collect::<Vec<_>>())
            .bind(in_millis(within))
            .fetch_all(&self.pool)
            .await?;
        places(&held, sessions.len())
    }

    async fn postpone(&self, dues: &[Due]) -> Result<()> {
        postpone(&self.pool, dues).await
    }

    async fn due(&self, limit: usize, hold: Duration) -> Result<Vec<Taken>> {
        let rows = sqlx::query(sql::DUE)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .bind(in_millis(hold))
            .fetch_all(&self.pool)
            .await?;
        rows.iter()
            .map(|row| {
                let due = Due {
                    session: SessionKey::new(row.try_get::<&str, _>("platform")?, row.try_get::<&str, _>("session")?),
                    after: Duration::ZERO,
                    tries: u32::try_from(row.try_get::<i64, _>("tries")?).unwrap_or(u32::MAX),
                    accepted_at: row.try_get("accepted_at")?,
                    traceparent: row.try_get("traceparent")?,
                };
                Ok(Taken { due, held_until: row.try_get("held_until")? })
            })
            .collect()
    }

    async fn forget(&self, taken: &[Taken]) -> Result<()> {
        sqlx::query(sql::FORGET)
            .bind(taken.iter().map(|t| &*t.due.session.platform).collect::<Vec<_>>())
            .bind(taken.iter().map(|t| &*t.due.session.session).collect::<Vec<_>>())
            .bind(taken.iter().map(|t| t.held_until).collect::<Vec<_>>())
            .execute(&self.pool)
            .await?;
        Ok(())
    }

    async fn overdue(&self) -> Result<u64> {
        let count: i64 = sqlx::query(sql::OVERDUE).fetch_one(&self.pool).await?.try_get(0)?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    async fn oldest_pending(&self) -> Result<Option<Duration>> {
        operator::oldest_pending(&self.pool).await
    }

    async fn calls(&self, filter: &Filter, after: Option<&CallRow>, limit: usize) -> Result<Vec<CallRow>> {
        operator::calls(&self.pool, filter, after, limit).await
    }

    async fn call(&self, key: &CallKey) -> Result<Option<Details>> {
        operator::call(&self.pool, key).await
    }

    async fn reset(&self, row: &CallRow, reset: &Reset, by: &str) -> Result<bool> {
        operator::reset(&self.pool, row, reset, by).await
    }

    async fn revive(&self, session: &SessionKey, deadline: Duration) -> Result<()> {
        operator::revive(&self.pool, session, deadline).await
    }

    async fn tally(&self, within: Duration) -> Result<Vec<Tally>> {
        overview::tally(&self.pool, within).await
    }

    async fn agenda(&self, after: Option<&Appointment>, limit: usize) -> Result<Vec<Appointment>> {
        overview::agenda(&self.pool, after, limit).await
    }

    async fn pauses(&self) -> Result<Vec<Pause>> {
        overview::pauses(&self.pool).await
    }

    async fn set_paused(&self, function: &str, paused: bool) -> Result<bool> {
        overview::set_paused(&self.pool, function, paused).await
    }

    async fn prune(&self, older: Duration, from: i64, limit: usize) -> Result<Pruned> {
        operator::prune(&self.pool, older, from, limit).await
    }
}

async fn postpone(db: impl sqlx::PgExecutor<'_>, dues: &[Due]) -> Result<()> {
    let mut sorted: Vec<&Due> = dues.iter().collect();
    sorted.sort_by(|a, b| (&a.session, a.after).cmp(&(&b.session, b.after)));
    sorted.dedup_by(|a, b| a.session == b.session);
    sqlx::query(sql::POSTPONE)
        .bind(sorted.iter().map(|d| &*d.session.platform).collect::<Vec<_>>())
        .bind(sorted.iter().map(|d| &*d.session.session).collect::<Vec<_>>())
        .bind(sorted.iter().map(|d| in_millis(d.after)).collect::<Vec<_>>())
        .bind(sorted.iter().map(|d| i64::from(d.tries)).collect::<Vec<_>>())
        .bind(sorted.iter().map(|d| d.accepted_at).collect::<Vec<_>>())
        .bind(sorted.iter().map(|d| d.traceparent.as_deref()).collect::<Vec<_>>())
        .execute(db)
        .await?;
    Ok(())
}

/// The four key columns of a batch.
struct Keys<'a> {
    platforms: Vec<&'a str>,
    sessions: Vec<&'a str>,
    turns: Vec<&'a str>,
    call_ids: Vec<&'a str>,
}

impl<'a> Keys<'a> {
    fn of(keys: impl Iterator<Item = &'a CallKey>) -> Self {
        let mut columns = Self { platforms: vec![], sessions: vec![], turns: vec![], call_ids: vec![] };
        for key in keys {
            columns.platforms.push(&key.session.platform);
            columns.sessions.push(&key.session.session);
            columns.turns.push(&key.turn);
            columns.call_ids.push(&key.call_id);
        }
        columns
    }

    fn bind<'q>(self, query: PgQuery<'q>) -> PgQuery<'q>
    where
        'a: 'q,
    {
        query.bind(self.platforms).bind(self.sessions).bind(self.turns).bind(self.call_ids)
    }
}

type PgQuery<'q> = sqlx::query::Query<'q, sqlx::Postgres, sqlx::postgres::PgArguments>;

fn bind_key<'q>(query: PgQuery<'q>, key: &'q CallKey) -> PgQuery<'q> {
    query.bind(&*key.session.platform).bind(&*key.session.session).bind(&*key.turn).bind(&*key.call_id)
}

/// Which of `count` places (1-based column `place`) the statement touched.
fn places(rows: &[PgRow], count: usize) -> Result<Vec<bool>> {
    let mut touched = vec![false; count];
    for row in rows {
        let place: i64 = row.try_get("place")?;
        if let Some(flag) = usize::try_from(place - 1).ok().and_then(|i| touched.get_mut(i)) {
            *flag = true;
        }
    }
    Ok(touched)
}

fn read_key(row: &PgRow) -> Result<CallKey> {
    let session = SessionKey::new(row.try_get::<&str, _>("platform")?, row.try_get::<&str, _>("session")?);
    Ok(CallKey::new(session, row.try_get::<&str, _>("turn")?, row.try_get::<&str, _>("call_id")?))
}

fn read_row(row: &PgRow) -> Result<Row> {
    Ok(Row {
        state: row.try_get("state")?,
        function: row.try_get("function")?,
        attempt: row.try_get("attempt")?,
        fence: row.try_get("fence")?,
        until_at: row.try_get("until_at")?,
        deadline_at: row.try_get("deadline_at")?,
        success: row.try_get("success")?,
        body: row.try_get("body")?,
        idempotency_key: row.try_get("idempotency_key")?,
        generation: row.try_get("generation")?,
        submissions: row.try_get("submissions")?,
        note: row.try_get("note")?,
        approval: row.try_get("approval")?,
    })
}

/// PostgreSQL keeps no U+0000 in text.
fn clean(text: impl Into<String>) -> String {
    let text = text.into();
    if text.contains('\0') { text.replace('\0', "\u{fffd}") } else { text }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        Self::new(error)
    }
}
