//! Actions that are no function calls, in SQLite.

use async_trait::async_trait;
use sqlx::{Row as _, Sqlite, query::Query, sqlite::SqliteArguments};

use super::clock;
use crate::{
    session::ActionKey,
    store::{
        Result,
        actions::{Actions, KEPT, Noticed},
        judge::in_millis,
    },
};

const NEW: &str = "
    INSERT INTO actions (platform, session, turn, kind, id, seen_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
    ON CONFLICT (platform, session, turn, kind, id) DO NOTHING";

const READ: &str = "
    SELECT forwarded_at IS NOT NULL FROM actions
    WHERE platform = ?1 AND session = ?2 AND turn = ?3 AND kind = ?4 AND id = ?5";

const PRUNE: &str = "DELETE FROM actions WHERE seen_at < ?1";

const FORWARDED: &str = "
    UPDATE actions SET forwarded_at = ?6
    WHERE platform = ?1 AND session = ?2 AND turn = ?3 AND kind = ?4 AND id = ?5";

#[async_trait]
impl Actions for super::Sqlite {
    async fn notice(&self, action: &ActionKey) -> Result<Noticed> {
        if let Some(row) = bind(sqlx::query(READ), action).fetch_optional(&self.database.reads).await? {
            return Ok(Noticed { is_new: false, is_forwarded: row.try_get(0)? });
        }
        let action = action.clone();
        self.database
            .write(move |db| {
                Box::pin(async move {
                    let now = clock(db).await?;
                    let new = bind(sqlx::query(NEW), &action).bind(now).execute(&mut *db).await?;
                    sqlx::query(PRUNE).bind(now.saturating_sub(in_millis(KEPT))).execute(&mut *db).await?;
                    let row = bind(sqlx::query(READ), &action).fetch_one(&mut *db).await?;
                    Ok(Noticed { is_new: new.rows_affected() == 1, is_forwarded: row.try_get(0)? })
                })
            })
            .await
    }

    async fn forwarded(&self, action: &ActionKey) -> Result<()> {
        let action = action.clone();
        self.database
            .write(move |db| {
                Box::pin(async move {
                    let now = clock(db).await?;
                    bind(sqlx::query(FORWARDED), &action).bind(now).execute(db).await?;
                    Ok(())
                })
            })
            .await
    }
}

type Asked<'q> = Query<'q, Sqlite, SqliteArguments>;

fn bind<'q>(query: Asked<'q>, action: &'q ActionKey) -> Asked<'q> {
    let query = query.bind(&*action.session.platform).bind(&*action.session.session);
    query.bind(&*action.turn).bind(&action.kind).bind(&*action.id)
}
