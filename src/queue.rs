//! The queue seam: distributes "look at this session" over the workers, durably. It carries ids, never truth.

mod dead;
mod embedded;
mod rabbitmq;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use secrecy::SecretString;

pub use self::{
    dead::{Dead, DeadError, DeadLetters, Fate, Review},
    embedded::Embedded,
    rabbitmq::{Pools, RabbitMq, RabbitMqDead},
};
use crate::session::ActionRequired;

/// Where a queue lives.
#[derive(Clone, Debug)]
pub enum Config {
    /// Rows in the SQLite store: one process, nothing beside it.
    Embedded,
    RabbitMq(RabbitMqConfig),
}

#[derive(Clone, Debug)]
pub struct RabbitMqConfig {
    /// `amqp://` or `amqps://`, with credentials and vhost.
    pub url: SecretString,
    /// Names of exchange and queues begin with it.
    pub prefix: String,
    /// Unacknowledged deliveries a worker holds.
    pub prefetch: u16,
    pub topology: Topology,
    /// How long a publish may wait for its confirm before the webhook is answered 503.
    pub confirm_timeout: Duration,
}

/// Whether we declare exchange and queues, or only check that they are there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    Manage,
    Verify,
}

/// What stands before the workers of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub pool: String,
    /// Messages that nobody has taken yet.
    pub sessions: u64,
    /// Workers that take them.
    pub workers: u64,
}

/// What an operator finds at the broker.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// Where the broker tells it.
    pub version: Option<String>,
    /// What each part of the topology is called, and what it has; or why it is not there.
    pub parts: Vec<(String, Result<Found, String>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Those that nobody has taken; of queues only.
    pub messages: Option<u64>,
    pub consumers: Option<u64>,
}

/// A publish that is not known to be durable. The caller refuses the webhook (503), so that it is sent again.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct PublishError {
    pub reason: String,
}

impl PublishError {
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

#[async_trait]
pub trait Queue: Send + Sync {
    /// Returns when the message is durable: confirmed by a quorum, or committed. Many callers publish at once.
    async fn publish(&self, action: &ActionRequired) -> Result<(), PublishError>;

    /// The same, to the workers of a pool. A queue within one process has no pools.
    async fn hand_over(&self, _action: &ActionRequired, pool: &str) -> Result<(), PublishError> {
        Err(PublishError::new(format!("this queue has no pool {pool}")))
    }

    /// What stands before the workers of each pool; empty where there are none, or it cannot be told now.
    async fn count_pools(&self) -> Vec<Waiting> {
        Vec::new()
    }

    /// Starts to consume. One consumer a process; it survives the loss of the broker by itself.
    async fn consume(&self) -> Box<dyn Consumer>;

    /// `Ok` when a publish is likely to work now and, if this process consumes, its consumer is alive.
    fn ready(&self) -> Result<(), String>;

    /// How many messages are dead, over what is connected anyway; `None` when that cannot be told now.
    async fn count_dead(&self) -> Option<u64> {
        None
    }

    /// How many messages wait for a worker, over what is connected anyway; `None` when that cannot be told now.
    async fn depth(&self) -> Option<u64> {
        None
    }

    /// Flushes acknowledgements and closes. Called last, after every delivery was settled or given up.
    async fn close(&self);
}

#[async_trait]
pub trait Consumer: Send {
    /// The next delivery; waits without end while the queue is empty or away. `None` only after `cancel`.
    async fn next(&mut self) -> Option<Delivery>;

    /// Stops new deliveries; what was prefetched and not handed out goes back to the queue.
    async fn cancel(&mut self);
}

/// One message, held until it is settled. Dropped unsettled (a panic, a crash), it is delivered again.
pub struct Delivery {
    pub action: ActionRequired,
    /// Its last holder may have died while it worked on the session.
    pub redelivered: bool,
    /// How often it was delivered before, as far as the queue knows.
    pub deliveries: u32,
    settle: Box<dyn Settle>,
}

impl Delivery {
    pub fn new(action: ActionRequired, redelivered: bool, deliveries: u32, settle: Box<dyn Settle>) -> Self {
        Self { action, redelivered, deliveries, settle }
    }

    /// Done: the session needs nothing, or a due row says when it does.
    pub async fn ack(self) {
        self.settle.ack().await;
    }

    /// Give it back for another worker, at shutdown.
    pub async fn release(self) {
        self.settle.release().await;
    }

    /// Keep it aside with a reason, for an operator: durable in the dead queue before the source is acknowledged.
    pub async fn reject(self, reason: &str) {
        self.settle.reject(reason).await;
    }
}

/// How a queue settles one delivery. Failures are logged by the adapter: the broker then delivers again.
#[async_trait]
pub trait Settle: Send + Sync {
    async fn ack(self: Box<Self>);
    async fn release(self: Box<Self>);
    async fn reject(self: Box<Self>, reason: &str);
}

/// A queue shared by ingress, worker and scheduler.
pub type SharedQueue = Arc<dyn Queue>;
