//! The ledger in SQLite.

mod actions;
mod approvals;
mod batches;
mod database;
mod operator;
mod overview;
mod statements;

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{
    Row as _, SqliteConnection,
    migrate::{Migration, MigrationType, Migrator},
    sqlite::SqliteRow,
};
use statements as sql;

pub use self::database::Database;
use super::{
    Appointment, Arrival, Arrived, CallRow, Claim, ClaimRequest, Details, Due, Error, Filter, Note, Pause, Pruned,
    Reset, Result, Step, Store, Taken, Tally, Unfinished, history,
    judge::{Row, Verdict, in_millis, judge, judge_late},
};
use crate::session::{CallKey, SessionKey};

/// The ledger over a [`Database`].
pub struct Sqlite {
    database: Database,
}

impl Sqlite {
    pub fn new(database: Database) -> Self {
        Self { database }
    }
}

/// What makes the schema.
pub(super) fn migrator() -> Migrator {
    let first = Migration::new(
        1,
        "calls, due times and the embedded queue".into(),
        MigrationType::Simple,
        sqlx::SqlSafeStr::into_sql_str(include_str!("migrations/sqlite.sql")),
        false,
    );
    Migrator { migrations: vec![first].into(), ..Migrator::DEFAULT }
}

#[async_trait]
impl Store for Sqlite {
    async fn migrate(&self) -> Result<()> {
        migrator().run(&self.database.reads).await.map_err(Error::new)
    }

    async fn take(&self, steps: &[Step]) -> Result<Vec<bool>> {
        let steps = steps.to_vec();
        self.database.write(|db| Box::pin(async move { batches::take(db, &steps).await })).await
    }

    async fn contest(&self, request: &ClaimRequest) -> Result<Claim> {
        let request = request.clone();
        self.database.write(|db| Box::pin(async move { contest(db, &request).await })).await
    }

    async fn note(&self, note: &Note) -> Result<bool> {
        let note = note.clone();
        self.database
            .write(move |db| {
                Box::pin(async move {
                    let query = bind_key(sqlx::query(sql::NOTE), &note.key).bind(note.fence).bind(&note.text);
                    Ok(query.execute(db).await?.rows_affected() == 1)
                })
            })
            .await
    }

    async fn tell(&self, call: &CallKey, event: &str, detail: &str) -> Result<()> {
        let (call, entry) = (call.clone(), history::told(event, detail));
        self.database
            .write(move |db| {
                Box::pin(async move {
                    let now = clock(db).await?;
                    let query = bind_key(sqlx::query(sql::TELL), &call).bind(now).bind(entry).bind(history::MOST);
                    query.execute(db).await?;
                    Ok(())
                })
            })
            .await
    }

    async fn arrive(&self, arrival: &Arrival) -> Result<Arrived> {
        let arrival = arrival.clone();
        self.database.write(|db| Box::pin(async move { arrive(db, &arrival).await })).await
    }

    async fn secret(&self, name: &str, fresh: &[u8]) -> Result<Vec<u8>> {
        let (name, fresh) = (name.to_owned(), fresh.to_vec());
        self.database
            .write(|db| {
                Box::pin(async move {
                    sqlx::query(sql::NEW_SECRET).bind(&name).bind(fresh).execute(&mut *db).await?;
                    Ok(sqlx::query(sql::SECRET).bind(&name).fetch_one(db).await?.try_get(0)?)
                })
            })
            .await
    }

    async fn find(&self, call: &CallKey) -> Result<Option<Unfinished>> {
        let row = sqlx::query(sql::READ)
            .bind(&*call.session.platform)
            .bind(&*call.session.session)
            .bind(&*call.turn)
            .bind(&*call.call_id)
            .fetch_optional(&self.database.reads)
            .await?;
        row.map(|row| Ok(read_row(&row)?.unfinished(call.clone()))).transpose()
    }

    async fn unfinished(&self, session: &SessionKey) -> Result<Vec<Unfinished>> {
        let rows = sqlx::query(sql::UNFINISHED)
            .bind(&*session.platform)
            .bind(&*session.session)
            .fetch_all(&self.database.reads)
            .await?;
        rows.iter()
            .map(|row| {
                let key =
                    CallKey::new(session.clone(), row.try_get::<&str, _>("turn")?, row.try_get::<&str, _>("call_id")?);
                Ok(read_row(row)?.unfinished(key))
            })
            .collect()
    }

    async fn stranded(
        &self,
        platform: &str,
        reach: Duration,
        quiet: Duration,
        limit: usize,
    ) -> Result<Vec<SessionKey>> {
        let now = clock(&mut *self.database.reads.acquire().await?).await?;
        let rows = sqlx::query(sql::STRANDED)
            .bind(platform)
            .bind(now.saturating_sub(in_millis(reach)))
            .bind(now.saturating_sub(in_millis(quiet)))
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
            .fetch_all(&self.database.reads)
            .await?;
        rows.iter().map(|row| Ok(SessionKey::new(platform, row.try_get::<&str, _>("session")?))).collect()
    }

    async fn in_hand(&self, sessions: &[SessionKey], within: Duration) -> Result<Vec<bool>> {
        let mut db = self.database.reads.acquire().await?;
        let now = clock(&mut db).await?;
        let mut held = Vec::with_capacity(sessions.len());
        for session in sessions {
            let row = sqlx::query(sql::IN_HAND)
                .bind(&*session.platform)
                .bind(&*session.session)
                .bind(now.saturating_add(in_millis(within)))
                .bind(now)
                .fetch_one(&mut *db)
                .await?;
            held.push(row.try_get(0)?);
        }
        Ok(held)
    }

    async fn postpone(&self, dues: &[Due]) -> Result<()> {
        let dues = dues.to_vec();
        self.database
            .write(|db| {
                Box::pin(async move {
                    let now = clock(db).await?;
                    for due in &dues {
                        postpone(db, due, now).await?;
                    }
                    Ok(())
                })
            })
            .await
    }

    async fn due(&self, limit: usize, hold: Duration) -> Result<Vec<Taken>> {
        if self.overdue().await? == 0 {
            return Ok(Vec::new());
        }
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        self.database
            .write(move |db| {
                Box::pin(async move {
                    let now = clock(db).await?;
                    let held = now.saturating_add(in_millis(hold));
                    let rows = sqlx::query(sql::DUE).bind(now).bind(held).bind(limit).fetch_all(&mut *db).await?;
                    rows.iter().map(|row| read_taken(row, held)).collect()
                })
            })
            .await
    }

    async fn forget(&self, taken: &[Taken]) -> Result<()> {
        let taken = taken.to_vec();
        self.database
            .write(|db| {
                Box::pin(async move {
                    for taken in &taken {
                        sqlx::query(sql::FORGET)
                            .bind(&*taken.due.session.platform)
                            .bind(&*taken.due.session.session)
                            .bind(taken.held_until)
                            .execute(&mut *db)
                            .await?;
                    }
                    Ok(())
                })
            })
            .await
    }

    async fn overdue(&self) -> Result<u64> {
        let count: i64 = sqlx::query(sql::OVERDUE).fetch_one(&self.database.reads).await?.try_get(0)?;
        Ok(u64::try_from(count).unwrap_or(0))
    }

    async fn oldest_pending(&self) -> Result<Option<Duration>> {
        operator::oldest_pending(&self.database).await
    }

    async fn calls(&self, filter: &Filter, after: Option<&CallRow>, limit: usize) -> Result<Vec<CallRow>> {
        operator::calls(&self.database, filter, after, limit).await
    }

    async fn call(&self, key: &CallKey) -> Result<Option<Details>> {
        operator::call(&self.database, key).await
    }

    async fn reset(&self, row: &CallRow, reset: &Reset, by: &str) -> Result<bool> {
        operator::reset(&self.database, row, reset, by).await
    }

    async fn revive(&self, session: &SessionKey, deadline: Duration) -> Result<()> {
        operator::revive(&self.database, session, deadline).await
    }

    async fn tally(&self, within: Duration) -> Result<Vec<Tally>> {
        overview::tally(&self.database, within).await
    }

    async fn agenda(&self, after: Option<&Appointment>, limit: usize) -> Result<Vec<Appointment>> {
        overview::agenda(&self.database, after, limit).await
    }

    async fn pauses(&self) -> Result<Vec<Pause>> {
        overview::pauses(&self.database).await
    }

    async fn set_paused(&self, function: &str, paused: bool) -> Result<bool> {
        overview::set_paused(&self.database, function, paused).await
    }

    async fn prune(&self, older: Duration, from: i64, limit: usize) -> Result<Pruned> {
        operator::prune(&self.database, older, from, limit).await
    }
}

async fn clock(db: &mut SqliteConnection) -> Result<i64> {
    Ok(sqlx::query(sql::NOW).fetch_one(db).await?.try_get(0)?)
}

/// A claim of a row that was there already.
async fn contest(db: &mut SqliteConnection, request: &ClaimRequest) -> Result<Claim> {
    let now = clock(db).await?;
    let until = now.saturating_add(in_millis(request.lease));
    let row = read_row(&bind_key(sqlx::query(sql::READ), &request.key).fetch_one(&mut *db).await?)?;
    let (state, claim) = match judge(request, &row, now) {
        Verdict::Answer(claim) => return Ok(claim),
        Verdict::Take(claim) => ("claimed", claim),
        Verdict::Hold(claim) => ("interrupted", claim),
    };
    let take = bind_key(sqlx::query(sql::TAKE), &request.key).bind(state).bind(until).bind(now);
    take.bind(history::claimed(request, &claim)).bind(history::MOST).execute(db).await?;
    Ok(claim)
}

async fn postpone(db: &mut SqliteConnection, due: &Due, now: i64) -> Result<()> {
    sqlx::query(sql::POSTPONE)
        .bind(&*due.session.platform)
        .bind(&*due.session.session)
        .bind(now.saturating_add(in_millis(due.after)))
        .bind(i64::from(due.tries))
        .bind(due.accepted_at)
        .bind(due.traceparent.as_deref())
        .execute(db)
        .await?;
    Ok(())
}

async fn arrive(db: &mut SqliteConnection, arrival: &Arrival) -> Result<Arrived> {
    let now = clock(db).await?;
    let stored = bind_key(sqlx::query(sql::ARRIVE), &arrival.key)
        .bind(arrival.success)
        .bind(arrival.submission.body.as_slice())
        .bind(&arrival.submission.idempotency_key)
        .bind(now)
        .bind(history::arrived(arrival.success))
        .bind(history::MOST)
        .fetch_optional(&mut *db)
        .await?;
    if let Some(row) = stored {
        postpone(db, &arrival.due(), now).await?;
        return Ok(Arrived::Stored { function: row.try_get("function")? });
    }
    let row = bind_key(sqlx::query(sql::READ), &arrival.key).fetch_optional(db).await?;
    Ok(judge_late(arrival, row.as_ref().map(read_row).transpose()?.as_ref()))
}

type SqliteQuery<'q> = sqlx::query::Query<'q, sqlx::Sqlite, sqlx::sqlite::SqliteArguments>;

fn bind_key<'q>(query: SqliteQuery<'q>, key: &'q CallKey) -> SqliteQuery<'q> {
    query.bind(&*key.session.platform).bind(&*key.session.session).bind(&*key.turn).bind(&*key.call_id)
}

fn read_row(row: &SqliteRow) -> Result<Row> {
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

fn read_taken(row: &SqliteRow, held_until: i64) -> Result<Taken> {
    let due = Due {
        session: SessionKey::new(row.try_get::<&str, _>("platform")?, row.try_get::<&str, _>("session")?),
        after: Duration::ZERO,
        tries: u32::try_from(row.try_get::<i64, _>("tries")?).unwrap_or(u32::MAX),
        accepted_at: row.try_get("accepted_at")?,
        traceparent: row.try_get("traceparent")?,
    };
    Ok(Taken { due, held_until })
}
