//! Approvals in SQLite.

use std::time::Duration;

use async_trait::async_trait;
use sqlx::SqliteConnection;

use super::{Sqlite, bind_key, clock, postpone};
use crate::{
    session::CallKey,
    store::approvals::{ApprovalFilter, Approvals, Decided, Open, over_connection},
};

over_connection!(SqliteConnection);

#[async_trait]
impl Approvals for Sqlite {
    async fn ask(&self, question: &Ask) -> Result<bool> {
        let question = question.clone();
        self.database
            .write(move |db| {
                Box::pin(async move {
                    let now = clock(db).await?;
                    ask(db, &question, now).await
                })
            })
            .await
    }

    async fn decide(&self, decision: &Decide) -> Result<Decided> {
        let decision = decision.clone();
        self.database
            .write(move |db| {
                Box::pin(async move {
                    let now = clock(db).await?;
                    let counts = decide(db, &decision, now).await?;
                    if counts {
                        postpone(db, &decision.due(now), now).await?;
                    }
                    Ok(Decided::of(counts, find(db, &decision.key, now).await?))
                })
            })
            .await
    }

    async fn approval(&self, key: &CallKey) -> Result<Option<Approval>> {
        let mut db = self.database.reads.acquire().await?;
        let now = clock(&mut db).await?;
        find(&mut db, key, now).await
    }

    async fn approvals(
        &self,
        filter: &ApprovalFilter,
        after: Option<&(i64, CallKey)>,
        limit: usize,
    ) -> Result<Vec<Approval>> {
        let mut db = self.database.reads.acquire().await?;
        let now = clock(&mut db).await?;
        let rows = sql::listing::<sqlx::Sqlite>(now, filter, after, limit).build().fetch_all(&mut *db).await?;
        rows.iter().map(sql::read).collect()
    }

    async fn open_approvals(&self) -> Result<Open> {
        let mut db = self.database.reads.acquire().await?;
        let now = clock(&mut db).await?;
        sql::open(&sqlx::query(sql::OPEN).bind(now).fetch_one(&mut *db).await?)
    }

    async fn close_approvals(&self) -> Result<Vec<(String, Decision)>> {
        self.database
            .write(move |db| {
                Box::pin(async move {
                    let now = clock(db).await?;
                    close(db, now).await
                })
            })
            .await
    }

    async fn notices(&self, limit: usize, hold: Duration) -> Result<Vec<Approval>> {
        self.database
            .write(move |db| {
                Box::pin(async move {
                    let now = clock(db).await?;
                    notices(db, limit, hold, now).await
                })
            })
            .await
    }

    async fn noticed(&self, approval: &Approval, again: Option<Duration>) -> Result<()> {
        let approval = approval.clone();
        self.database
            .write(move |db| {
                Box::pin(async move {
                    let now = clock(db).await?;
                    noticed(db, &approval, again, now).await
                })
            })
            .await
    }
}
