//! Publishing: a message is accepted when the broker confirmed it and did not return it.

use std::sync::{Arc, PoisonError, RwLock};

use lapin::{Connection, Queue, types::ShortString};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::{
    super::{PublishError, RabbitMqConfig},
    connection::{Failure, RPC_TIMEOUT, Retries, close, connect, lost, short, within},
    health::Health,
    lanes::{Lanes, Message, Unconfirmed},
    topology::{self, Names},
};

pub(super) struct Publisher {
    config: Arc<RabbitMqConfig>,
    names: Arc<Names>,
    health: Arc<Health>,
    line: RwLock<Line>,
}

#[derive(Clone)]
enum Line {
    Up(Arc<Lanes>),
    /// Refuses at once: a webhook's sender should not wait for a broker that is not there.
    Away(String),
}

impl Publisher {
    pub(super) fn new(config: Arc<RabbitMqConfig>, names: Arc<Names>, health: Arc<Health>) -> Self {
        Self { config, names, health, line: RwLock::new(Line::Away("not connected yet".into())) }
    }

    /// Returns within `confirm_timeout`, whatever happens.
    pub(super) async fn publish(&self, message: Message) -> Result<(), PublishError> {
        let lanes = match self.line() {
            Line::Up(lanes) => lanes,
            Line::Away(reason) => return Err(PublishError::new(format!("broker is away: {reason}"))),
        };
        let limit = self.config.confirm_timeout;
        match timeout(limit, lanes.send(message)).await {
            Ok(result) => result.map_err(|unconfirmed| PublishError::new(unconfirmed.to_string())),
            Err(_) => {
                lanes.suspected.cancel();
                Err(PublishError::new(Unconfirmed::Late(limit).to_string()))
            }
        }
    }

    /// What queues hold; `None` while the broker is away.
    pub(super) async fn count(&self, queues: &[ShortString]) -> Option<Vec<Queue>> {
        let Line::Up(lanes) = self.line() else { return None };
        let look = async {
            let channel = lanes.connection.create_channel().await?;
            let mut found = Vec::with_capacity(queues.len());
            for queue in queues {
                found.push(topology::look(&channel, queue).await?);
            }
            channel.close(200, short("counted")).await?;
            Ok(found)
        };
        within(RPC_TIMEOUT, "counting", look).await.ok()
    }

    /// Keeps a connection until `stop`.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut retries = Retries::new();
        loop {
            let started = Instant::now();
            tokio::select! {
                () = stop.cancelled() => break,
                failure = self.session() => self.away(failure),
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = sleep(retries.delay(started.elapsed(), rand::random())) => {}
            }
        }
        if let Line::Up(lanes) = self.set(Line::Away("the queue is closed".into())) {
            close(&lanes.connection).await;
        }
    }

    /// One connection, from its making to its loss.
    async fn session(&self) -> Failure {
        let connection = match connect(&self.config.url, "publisher").await {
            Ok(connection) => Arc::new(connection),
            Err(failure) => return failure,
        };
        if let Err(failure) = topology::prepare(&connection, &self.names, self.config.topology).await {
            close(&connection).await;
            return failure;
        }
        let suspected = CancellationToken::new();
        let mut lanes = self.up(&connection, &suspected);
        let blocked = |alarm: Option<String>| match alarm {
            Some(reason) => {
                lanes.refused.cancel();
                self.away(Failure::away(format!("the broker takes no messages now: {reason}")));
            }
            None => lanes = self.up(&connection, &suspected),
        };
        tokio::select! {
            failure = lost(&connection, blocked) => failure,
            () = suspected.cancelled() => Failure::away("a message was not confirmed, a fresh connection is made"),
        }
    }

    fn up(&self, connection: &Arc<Connection>, suspected: &CancellationToken) -> Arc<Lanes> {
        let lanes = Arc::new(Lanes::new(connection.clone(), suspected.clone(), self.config.confirm_timeout));
        self.set(Line::Up(lanes.clone()));
        self.health.publisher(Ok(()));
        lanes
    }

    fn away(&self, failure: Failure) {
        self.set(Line::Away(failure.reason.clone()));
        self.health.publisher(Err(failure));
    }

    fn line(&self) -> Line {
        self.line.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, line: Line) -> Line {
        std::mem::replace(&mut *self.line.write().unwrap_or_else(PoisonError::into_inner), line)
    }
}
