//! The queue as rows of the SQLite store: one process, durable, nothing beside it.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use async_trait::async_trait;
use sqlx::{Row, SqliteConnection};
use tokio::sync::Notify;

use super::{Consumer, Delivery, PublishError, Queue, Settle};
use crate::{
    metrics::Metrics,
    session::ActionRequired,
    store::{Database, Error, Result},
};

/// Rows taken at once.
const PREFETCH: i64 = 64;

const PUBLISH: &str = "INSERT INTO queue (message) VALUES (?1)";
const TAKE: &str = "
    UPDATE queue SET taken = 1, deliveries = deliveries + 1
    WHERE id IN (SELECT id FROM queue WHERE taken = 0 AND reason IS NULL ORDER BY id LIMIT ?1)
    RETURNING id, message, deliveries";
const RECOVER: &str = "UPDATE queue SET taken = 0 WHERE taken = 1";
const UNTAKE: &str = "UPDATE queue SET taken = 0, deliveries = deliveries - 1 WHERE id = ?1";
const RELEASE: &str = "UPDATE queue SET taken = 0 WHERE id = ?1";
const ACK: &str = "DELETE FROM queue WHERE id = ?1";
const REJECT: &str = "UPDATE queue SET reason = ?2 WHERE id = ?1";

/// The embedded queue. Its tables belong to the store's schema: migrate the store first.
#[derive(Clone)]
pub struct Embedded {
    database: Database,
    published: Arc<Notify>,
    closed: Arc<AtomicBool>,
    metrics: Metrics,
}

impl Embedded {
    pub fn new(database: Database, metrics: Metrics) -> Self {
        Self { database, published: Arc::default(), closed: Arc::default(), metrics }
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
        self.database
            .write(|db| {
                Box::pin(async move {
                    sqlx::query(PUBLISH).bind(message).execute(db).await?;
                    Ok(())
                })
            })
            .await
            .map_err(|e| PublishError::new(e.to_string()))?;
        self.published.notify_one();
        Ok(())
    }

    async fn consume(&self) -> Box<dyn Consumer> {
        Box::new(Rows { queue: self.clone(), buffered: VecDeque::new(), cancelled: false })
    }

    fn ready(&self) -> std::result::Result<(), String> {
        Ok(())
    }

    async fn close(&self) {
        self.closed.store(true, Ordering::Release);
        // Writes are done in order: when this one is, every acknowledgement before it is.
        let _ = self.database.write(|_| Box::pin(async { Ok(()) })).await;
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
                Ok(rows) if rows.is_empty() => self.queue.published.notified().await,
                Ok(rows) => self.buffered.extend(rows),
                Err(error) => {
                    tracing::error!(%error, "cannot read the queue");
                    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
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
        settle(&self.queue.database, ACK, self.id, None).await;
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
