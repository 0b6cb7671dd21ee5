//! The queue as rows of the SQLite store: one process, durable, nothing beside it.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use sqlx::{Row, SqliteConnection};
use tokio::sync::Notify;

use super::{Consumer, Dead, DeadError, DeadLetters, Delivery, Fate, PublishError, Queue, Review, Settle};
use crate::{
    metrics::Metrics,
    session::ActionRequired,
    store::{Database, Error, Group, Result},
};

/// Rows taken at once.
const PREFETCH: i64 = 64;
/// An operator's command redrives from another process, which cannot wake us.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Messages or acknowledgements that share one statement at most.
const BATCH: usize = 128;
/// Of one write.
const TIMEOUT: Duration = Duration::from_secs(60);

/// ?1 is a JSON array of messages, in order.
const PUBLISH: &str = "INSERT INTO queue (message) SELECT value FROM json_each(?1) ORDER BY key";
const TAKE: &str = "
    UPDATE queue SET taken = 1, deliveries = deliveries + 1
    WHERE id IN (SELECT id FROM queue WHERE taken = 0 AND reason IS NULL ORDER BY id LIMIT ?1)
    RETURNING id, message, deliveries";
const RECOVER: &str = "UPDATE queue SET taken = 0 WHERE taken = 1";
const UNTAKE: &str = "UPDATE queue SET taken = 0, deliveries = deliveries - 1 WHERE id = ?1";
const RELEASE: &str = "UPDATE queue SET taken = 0 WHERE id = ?1";
/// ?1 is a JSON array of ids.
const ACK: &str = "DELETE FROM queue WHERE id IN (SELECT value FROM json_each(?1))";
const REJECT: &str = "
    UPDATE queue SET reason = ?2, dead_at = CAST(unixepoch('subsec') * 1000 AS INTEGER) WHERE id = ?1";
const DEAD: &str = "
    SELECT id, message, reason, dead_at, redriven FROM queue WHERE reason IS NOT NULL AND id > ?1 ORDER BY id LIMIT 1";
const COUNT_READY: &str = "SELECT count(*) FROM queue WHERE taken = 0 AND reason IS NULL";
const COUNT_DEAD: &str = "SELECT count(*) FROM queue WHERE reason IS NOT NULL";
/// A new row, so that it comes after what waits already.
const REDRIVE: &str = "
    INSERT INTO queue (message, redriven) SELECT message, redriven + 1 FROM queue WHERE id = ?1 AND reason IS NOT NULL";
const PURGE: &str = "DELETE FROM queue WHERE id = ?1 AND reason IS NOT NULL";

/// The embedded queue. Its tables belong to the store's schema: migrate the store first.
#[derive(Clone)]
pub struct Embedded {
    database: Database,
    publishes: Arc<Group<String, ()>>,
    acks: Arc<Group<Option<i64>, ()>>,
    published: Arc<Notify>,
    closed: Arc<AtomicBool>,
    metrics: Metrics,
}

impl Embedded {
    pub fn new(database: Database, metrics: Metrics) -> Self {
        let (publishing, acking) = (database.clone(), database.clone());
        let publishes = Group::spawn(BATCH, TIMEOUT, move |messages: Vec<String>| {
            let (database, count, all) = (publishing.clone(), messages.len(), serde_json::json!(messages).to_string());
            async move { write(&database, PUBLISH, all).await.map(|()| vec![(); count]) }
        });
        let acks = Group::spawn(BATCH, TIMEOUT, move |ids: Vec<Option<i64>>| {
            let (database, count) = (acking.clone(), ids.len());
            let all = serde_json::json!(ids.into_iter().flatten().collect::<Vec<_>>()).to_string();
            async move {
                let acked = write(&database, ACK, all).await.map(|()| vec![(); count]);
                acked.inspect_err(|error| tracing::warn!(%error, "cannot settle deliveries; they come again"))
            }
        });
        Self {
            database,
            publishes: Arc::new(publishes),
            acks: Arc::new(acks),
            published: Arc::default(),
            closed: Arc::default(),
            metrics,
        }
    }

    /// Takes back what an earlier process held when it ended. Only while no other process serves the file.
    pub async fn recover(&self) -> Result<()> {
        self.database.write(|db| Box::pin(run(db, RECOVER, None))).await
    }
}

#[async_trait]
impl Queue for Embedded {
    async fn publish(&self, action: &ActionRequired) -> std::result::Result<(), PublishError> {
        if self.closed.load(Ordering::Acquire) {
            return Err(PublishError::new("the queue is closed"));
        }
        let message = serde_json::to_string(action).map_err(|e| PublishError::new(e.to_string()))?;
        self.publishes.ask(message).await.map_err(|e| PublishError::new(e.to_string()))?;
        self.published.notify_one();
        Ok(())
    }

    async fn consume(&self) -> Box<dyn Consumer> {
        Box::new(Rows { queue: self.clone(), buffered: VecDeque::new(), cancelled: false })
    }

    fn ready(&self) -> std::result::Result<(), String> {
        Ok(())
    }

    async fn count_dead(&self) -> Option<u64> {
        let row = sqlx::query(COUNT_DEAD).fetch_one(&self.database.reads).await.ok()?;
        row.try_get::<i64, _>(0).ok().and_then(|count| u64::try_from(count).ok())
    }

    async fn depth(&self) -> Option<u64> {
        let row = sqlx::query(COUNT_READY).fetch_one(&self.database.reads).await.ok()?;
        row.try_get::<i64, _>(0).ok().and_then(|count| u64::try_from(count).ok())
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // Writes are done in order: when these are, every acknowledgement before them is.
        let _ = self.acks.ask(None).await;
        let _ = self.database.write(|_| Box::pin(async { Ok(()) })).await;
    }
}

#[async_trait]
impl DeadLetters for Embedded {
    async fn review(&self, review: &mut dyn Review) -> std::result::Result<(), DeadError> {
        // What dies meanwhile has a higher id and is left alone.
        let away = |error: Error| DeadError::new(error.to_string());
        let last: i64 = sqlx::query("SELECT coalesce(max(id), 0) FROM queue WHERE reason IS NOT NULL")
            .fetch_one(&self.database.reads)
            .await
            .and_then(|row| row.try_get(0))
            .map_err(|error| away(error.into()))?;
        let mut seen = 0;
        while let Some((id, dead)) = self.dead_after(seen).await.map_err(away)?.filter(|(id, _)| *id <= last) {
            seen = id;
            let fate = review.judge(&dead).await;
            let settled = match fate {
                Fate::Keep => false,
                Fate::Stop => break,
                Fate::Redrive => self.leave(id, true).await.map_err(away)?,
                Fate::Purge => self.leave(id, false).await.map_err(away)?,
            };
            if settled {
                review.settled(&dead, fate);
            }
        }
        Ok(())
    }
}

impl Embedded {
    async fn dead_after(&self, id: i64) -> Result<Option<(i64, Dead)>> {
        let Some(row) = sqlx::query(DEAD).bind(id).fetch_optional(&self.database.reads).await? else {
            return Ok(None);
        };
        let (id, message): (i64, String) = (row.try_get("id")?, row.try_get("message")?);
        let dead = Dead {
            id: id.to_string(),
            reason: row.try_get("reason")?,
            action: serde_json::from_str(&message).ok(),
            at: row.try_get("dead_at")?,
            redriven: u32::try_from(row.try_get::<i64, _>("redriven")?).unwrap_or(u32::MAX),
            bytes: message.into_bytes(),
        };
        Ok(Some((id, dead)))
    }

    /// Takes a row out of the dead ones, in one commit. `false`: somebody else did.
    async fn leave(&self, id: i64, redrive: bool) -> Result<bool> {
        let left = self
            .database
            .write(move |db| {
                Box::pin(async move {
                    if redrive {
                        sqlx::query(REDRIVE).bind(id).execute(&mut *db).await?;
                    }
                    Ok(sqlx::query(PURGE).bind(id).execute(db).await?.rows_affected() == 1)
                })
            })
            .await?;
        self.published.notify_one();
        Ok(left)
    }
}

/// The one consumer.
struct Rows {
    queue: Embedded,
    buffered: VecDeque<Taken>,
    cancelled: bool,
}

struct Taken {
    id: i64,
    message: String,
    deliveries: u32,
}

#[async_trait]
impl Consumer for Rows {
    async fn next(&mut self) -> Option<Delivery> {
        while !self.cancelled {
            if let Some(taken) = self.buffered.pop_front() {
                match self.deliver(taken).await {
                    Some(delivery) => return Some(delivery),
                    None => continue,
                }
            }
            match self.queue.database.write(|db| Box::pin(take(db))).await {
                Ok(rows) if rows.is_empty() => {
                    let _ = tokio::time::timeout(LOOK_EVERY, self.queue.published.notified()).await;
                }
                Ok(rows) => self.buffered.extend(rows),
                Err(error) => {
                    tracing::error!(%error, "cannot read the queue");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
        None
    }

    async fn cancel(&mut self) {
        self.cancelled = true;
        for taken in self.buffered.drain(..) {
            settle(&self.queue.database, UNTAKE, taken.id, None).await;
        }
    }
}

impl Rows {
    async fn deliver(&self, taken: Taken) -> Option<Delivery> {
        let settle = Box::new(Held { queue: self.queue.clone(), id: taken.id, settled: false });
        let before = taken.deliveries.saturating_sub(1);
        match serde_json::from_str(&taken.message) {
            Ok(action) => {
                self.queue.metrics.delivered();
                Some(Delivery::new(action, before > 0, before, settle))
            }
            Err(error) => {
                tracing::error!(queue.row = taken.id, %error, "set aside a message that cannot be read");
                settle.reject("undecodable").await;
                None
            }
        }
    }
}

async fn take(db: &mut SqliteConnection) -> Result<Vec<Taken>> {
    let rows = sqlx::query(TAKE).bind(PREFETCH).fetch_all(db).await?;
    let mut taken = rows
        .iter()
        .map(|row| {
            Ok(Taken {
                id: row.try_get("id")?,
                message: row.try_get("message")?,
                deliveries: u32::try_from(row.try_get::<i64, _>("deliveries")?).unwrap_or(u32::MAX),
            })
        })
        .collect::<Result<Vec<_>>>()?;
    taken.sort_by_key(|row| row.id);
    Ok(taken)
}

/// A taken row.
struct Held {
    queue: Embedded,
    id: i64,
    settled: bool,
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (queue, id) = (self.queue.clone(), self.id);
            runtime.spawn(async move {
                settle(&queue.database, RELEASE, id, None).await;
                queue.published.notify_one();
            });
        }
    }
}

#[async_trait]
impl Settle for Held {
    async fn ack(mut self: Box<Self>) {
        self.settled = true;
        // Nobody waits for the commit: an acknowledgement that is lost with the process is a redelivery.
        let _ = self.queue.acks.tell(Some(self.id)).await;
    }

    async fn release(mut self: Box<Self>) {
        self.settled = true;
        settle(&self.queue.database, RELEASE, self.id, None).await;
        self.queue.published.notify_one();
    }

    async fn reject(mut self: Box<Self>, reason: &str) {
        self.settled = true;
        settle(&self.queue.database, REJECT, self.id, Some(reason.to_owned())).await;
    }
}

/// Nobody waits for the commit: a settlement that is lost with the process is a redelivery.
async fn settle(database: &Database, statement: &'static str, id: i64, reason: Option<String>) {
    let settled = database.write_later(move |db| Box::pin(run(db, statement, Some((id, reason))))).await;
    if let Err(error) = settled {
        tracing::warn!(queue.row = id, %error, "cannot settle a delivery; it comes again");
    }
}

/// A statement over a JSON array.
async fn write(database: &Database, statement: &'static str, all: String) -> Result<()> {
    database
        .write(move |db| {
            Box::pin(async move {
                sqlx::query(statement).bind(all).execute(db).await?;
                Ok(())
            })
        })
        .await
}

async fn run(
    db: &mut SqliteConnection,
    statement: &'static str,
    row: Option<(i64, Option<String>)>,
) -> std::result::Result<(), Error> {
    let mut query = sqlx::query(statement);
    if let Some((id, reason)) = row {
        query = query.bind(id);
        if let Some(reason) = reason {
            query = query.bind(reason);
        }
    }
    query.execute(db).await?;
    Ok(())
}
