//! The queue over RabbitMQ: a connection that publishes, a connection that consumes, each replaced whenever it fails.

mod connection;
mod consumer;
mod dead;
mod health;
mod inspect;
mod lanes;
mod message;
mod publisher;
mod settling;
mod topology;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use tokio::{task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

pub use self::dead::RabbitMqDead;
use self::{
    consumer::{RabbitConsumer, Source},
    health::Health,
    lanes::Message,
    publisher::Publisher,
    topology::{Lane, Names},
};
use super::{Consumer, Inspection, PublishError, Queue, RabbitMqConfig, Waiting};
use crate::{metrics::Metrics, session::ActionRequired};

/// How long each of the two connections may take to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// The pools of workers, each with a queue of its own.
#[derive(Clone, Debug, Default)]
pub struct Pools {
    pub names: Vec<String>,
    /// Whose queue is consumed here; the common one where none.
    pub own: Option<String>,
}

/// Exchange and queues are `{prefix}`, `{prefix}.sessions`, `{prefix}.sessions.{pool}` and `{prefix}.dead`; the same on every
/// broker from 3.10 to 4.x.
pub struct RabbitMq {
    config: Arc<RabbitMqConfig>,
    names: Arc<Names>,
    publisher: Arc<Publisher>,
    health: Arc<Health>,
    consuming: Supervised,
    publishing: Supervised,
}

impl RabbitMq {
    /// Reads the body of a message. The error says where it is wrong, never what it holds.
    pub fn parse_message(body: &[u8]) -> Result<ActionRequired, String> {
        message::decode(body)
    }

    /// Looks once at the broker and at what of the topology is there; makes nothing.
    pub async fn inspect(config: &RabbitMqConfig, pools: &[String]) -> Result<Inspection, String> {
        // amqps needs one; whoever else installed theirs first is welcome.
        crate::http::use_ring();
        inspect::inspect(config, pools).await
    }

    /// Starts to connect, and returns without waiting for it. Needs a running tokio runtime; `ready` says how it goes.
    pub fn new(config: RabbitMqConfig, metrics: Metrics) -> Self {
        Self::with_pools(config, &Pools::default(), metrics)
    }

    /// The same, beside pools or in one.
    pub fn with_pools(config: RabbitMqConfig, pools: &Pools, metrics: Metrics) -> Self {
        // amqps needs one; whoever else installed theirs first is welcome.
        crate::http::use_ring();
        let config = Arc::new(config);
        let names = Arc::new(Names::new(&config.prefix, pools));
        let health = Arc::new(Health::new(metrics));
        let publisher = Arc::new(Publisher::new(config.clone(), names.clone(), health.clone()));
        let publishing = Supervised::default();
        publishing.spawn(publisher.clone().run(publishing.stop.clone()));
        Self { config, names, publisher, health, consuming: Supervised::default(), publishing }
    }
}

#[async_trait]
impl Queue for RabbitMq {
    async fn publish(&self, action: &ActionRequired) -> Result<(), PublishError> {
        self.send(action, &self.names.sessions).await
    }

    async fn hand_over(&self, action: &ActionRequired, pool: &str) -> Result<(), PublishError> {
        let found = self.names.pools.iter().find(|(name, _)| name == pool);
        let (_, lane) = found.ok_or_else(|| PublishError::new(format!("there is no pool {pool}")))?;
        self.send(action, lane).await
    }

    async fn count_pools(&self) -> Vec<Waiting> {
        let queues: Vec<_> = self.names.pools.iter().map(|(_, lane)| lane.queue.clone()).collect();
        let counts = self.publisher.count(&queues).await.unwrap_or_default();
        let waiting = self.names.pools.iter().zip(counts).map(|((pool, _), found)| Waiting {
            pool: pool.clone(),
            sessions: found.message_count().into(),
            workers: found.consumer_count().into(),
        });
        waiting.collect()
    }

    async fn consume(&self) -> Box<dyn Consumer> {
        let (consumer, out) = RabbitConsumer::new(self.health.clone());
        let source = Source {
            config: self.config.clone(),
            names: self.names.clone(),
            publisher: self.publisher.clone(),
            health: self.health.clone(),
            cancel: consumer.cancelled(),
            stop: self.consuming.stop.clone(),
        };
        self.consuming.spawn(source.run(out));
        Box::new(consumer)
    }

    fn ready(&self) -> Result<(), String> {
        self.health.ready()
    }

    async fn count_dead(&self) -> Option<u64> {
        let counts = self.publisher.count(std::slice::from_ref(&self.names.dead)).await?;
        counts.first().map(|found| found.message_count().into())
    }

    async fn depth(&self) -> Option<u64> {
        let pools = self.names.pools.iter().map(|(_, lane)| lane);
        let queues: Vec<_> =
            std::iter::once(&self.names.sessions).chain(pools).map(|lane| lane.queue.clone()).collect();
        let counts = self.publisher.count(&queues).await?;
        Some(counts.iter().map(|found| u64::from(found.message_count())).sum())
    }

    async fn close(&self) {
        self.consuming.end().await;
        self.publishing.end().await;
    }
}

impl RabbitMq {
    async fn send(&self, action: &ActionRequired, to: &Lane) -> Result<(), PublishError> {
        let body = message::encode(action).map_err(|error| PublishError::new(error.to_string()))?;
        let (exchange, routing_key) = (self.names.exchange.clone(), to.routing_key.clone());
        self.publisher.publish(Message { exchange, routing_key, body, properties: message::properties(action) }).await
    }
}

/// Tasks that keep a connection; dropped, they close it.
#[derive(Default)]
struct Supervised {
    stop: CancellationToken,
    tasks: Mutex<Vec<JoinHandle<()>>>,
}

impl Supervised {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner).push(tokio::spawn(task));
    }

    async fn end(&self) {
        self.stop.cancel();
        let tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        for task in tasks {
            if timeout(CLOSE_TIMEOUT, task).await.is_err() {
                tracing::warn!("the broker did not let us close the connection in time");
            }
        }
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}
