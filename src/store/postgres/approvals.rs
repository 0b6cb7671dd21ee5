//! Approvals in PostgreSQL.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::{PgConnection, Row as _};

use super::{Postgres, bind_key, postpone};
use crate::{
    session::CallKey,
    store::approvals::{ApprovalFilter, Approvals, Decided, Open, over_connection},
};

over_connection!(PgConnection);

const NOW: &str = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint";

async fn clock(db: &mut PgConnection) -> Result<i64> {
    Ok(sqlx::query(NOW).fetch_one(db).await?.try_get(0)?)
}

#[async_trait]
impl Approvals for Postgres {
    async fn ask(&self, question: &Ask) -> Result<bool> {
        let mut transaction = self.pool.begin().await?;
        let now = clock(&mut transaction).await?;
        let asked = ask(&mut transaction, question, now).await?;
        transaction.commit().await?;
        Ok(asked)
    }

    async fn decide(&self, decision: &Decide) -> Result<Decided> {
        let mut transaction = self.pool.begin().await?;
        let now = clock(&mut transaction).await?;
        let counts = decide(&mut transaction, decision, now).await?;
        if counts {
            postpone(&mut *transaction, &[decision.due(now)]).await?;
        }
        let found = find(&mut transaction, &decision.key, now).await?;
        transaction.commit().await?;
        Ok(Decided::of(counts, found))
    }

    async fn approval(&self, key: &CallKey) -> Result<Option<Approval>> {
        let mut db = self.pool.acquire().await?;
        let now = clock(&mut db).await?;
        find(&mut db, key, now).await
    }

    async fn approvals(
        &self,
        filter: &ApprovalFilter,
        after: Option<&(i64, CallKey)>,
        limit: usize,
    ) -> Result<Vec<Approval>> {
        let mut db = self.pool.acquire().await?;
        let now = clock(&mut db).await?;
        let rows = sql::listing::<sqlx::Postgres>(now, filter, after, limit).build().fetch_all(&mut *db).await?;
        rows.iter().map(sql::read).collect()
    }

    async fn open_approvals(&self) -> Result<Open> {
        let mut db = self.pool.acquire().await?;
        let now = clock(&mut db).await?;
        sql::open(&sqlx::query(sql::OPEN).bind(now).fetch_one(&mut *db).await?)
    }

    async fn close_approvals(&self) -> Result<Vec<(String, Decision)>> {
        let mut db = self.pool.acquire().await?;
        let now = clock(&mut db).await?;
        close(&mut db, now).await
    }

    async fn notices(&self, limit: usize, hold: Duration) -> Result<Vec<Approval>> {
        let mut db = self.pool.acquire().await?;
        let now = clock(&mut db).await?;
        notices(&mut db, limit, hold, now).await
    }

    async fn noticed(&self, approval: &Approval, again: Option<Duration>) -> Result<()> {
        let mut db = self.pool.acquire().await?;
        let now = clock(&mut db).await?;
        noticed(&mut db, approval, again, now).await
    }
}
