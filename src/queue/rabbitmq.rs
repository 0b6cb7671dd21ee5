//! The queue over RabbitMQ: a connection that publishes, a connection that consumes, each replaced whenever it fails.

mod connection;
mod consumer;
mod dead;
mod health;
mod lanes;
mod message;
mod publisher;
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
    topology::Names,
};
use super::{Consumer, PublishError, Queue, RabbitMqConfig};
use crate::{metrics::Metrics, session::ActionRequired};

/// How long each of the two connections may take to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Exchange and queues are `{prefix}`, `{prefix}.sessions` and `{prefix}.dead`; the same on every broker from 3.10 to 4.x.
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

    /// Starts to connect, and returns without waiting for it. Needs a running tokio runtime; `ready` says how it goes.
    pub fn new(config: RabbitMqConfig, metrics: Metrics) -> Self {
        // amqps needs one; whoever else installed theirs first is welcome.
        crate::http::use_ring();
        let config = Arc::new(config);
        let names = Arc::new(Names::new(&config.prefix));
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
        let body = message::encode(action).map_err(|error| PublishError::new(error.to_string()))?;
        let exchange = self.names.exchange.clone();
        let routing_key = self.names.routing_key.clone();
        self.publisher.publish(Message { exchange, routing_key, body, properties: message::properties(action) }).await
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
        self.publisher.count(&self.names.dead).await
    }

    async fn depth(&self) -> Option<u64> {
        self.publisher.count(&self.names.sessions).await
    }

    async fn close(&self) {
        self.consuming.end().await;
        self.publishing.end().await;
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
