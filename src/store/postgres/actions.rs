//! Actions that are no function calls, in PostgreSQL.

use async_trait::async_trait;
use sqlx::{Postgres, Row as _, postgres::PgArguments, query::Query};

use crate::{
    session::ActionKey,
    store::{
        Result,
        actions::{Actions, KEPT, Noticed},
        judge::in_millis,
    },
};

const NEW: &str = "
    INSERT INTO actions (platform, session, turn, kind, id, seen_at)
    VALUES ($1, $2, $3, $4, $5, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    ON CONFLICT (platform, session, turn, kind, id) DO NOTHING";

const READ: &str = "
    SELECT forwarded_at IS NOT NULL FROM actions
    WHERE platform = $1 AND session = $2 AND turn = $3 AND kind = $4 AND id = $5";

const PRUNE: &str =
    "DELETE FROM actions WHERE seen_at < (extract(epoch FROM statement_timestamp()) * 1000)::bigint - $1";

const FORWARDED: &str = "
    UPDATE actions SET forwarded_at = (extract(epoch FROM clock_timestamp()) * 1000)::bigint
    WHERE platform = $1 AND session = $2 AND turn = $3 AND kind = $4 AND id = $5";

#[async_trait]
impl Actions for super::Postgres {
    async fn notice(&self, action: &ActionKey) -> Result<Noticed> {
        if let Some(row) = bind(sqlx::query(READ), action).fetch_optional(&self.pool).await? {
            return Ok(Noticed { is_new: false, is_forwarded: row.try_get(0)? });
        }
        let new = bind(sqlx::query(NEW), action).execute(&self.pool).await?;
        sqlx::query(PRUNE).bind(in_millis(KEPT)).execute(&self.pool).await?;
        Ok(Noticed { is_new: new.rows_affected() == 1, is_forwarded: false })
    }

    async fn forwarded(&self, action: &ActionKey) -> Result<()> {
        bind(sqlx::query(FORWARDED), action).execute(&self.pool).await?;
        Ok(())
    }
}

type Asked<'q> = Query<'q, Postgres, PgArguments>;

fn bind<'q>(query: Asked<'q>, action: &'q ActionKey) -> Asked<'q> {
    let query = query.bind(&*action.session.platform).bind(&*action.session.session);
    query.bind(&*action.turn).bind(&action.kind).bind(&*action.id)
}
