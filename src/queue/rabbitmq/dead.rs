//! The dead letters on the broker, over a connection of their own that lasts for one review.

use std::time::Duration;

use async_trait::async_trait;
use lapin::{
    Channel, Connection,
    message::BasicGetMessage,
    options::{BasicAckOptions, BasicGetOptions, BasicNackOptions, BasicPublishOptions, ConfirmSelectOptions},
};

use super::{
    super::{DeadError, DeadLetters, Fate, RabbitMqConfig, Review, Topology},
    Pools,
    connection::{Failure, RPC_TIMEOUT, close, connect, short, within},
    lanes::outcome,
    message,
    topology::{self, Names},
};

/// The dead queue as an operator's command sees it.
pub struct RabbitMqDead {
    config: RabbitMqConfig,
    names: Names,
}

impl RabbitMqDead {
    /// Does not connect yet.
    pub fn new(config: RabbitMqConfig) -> Self {
        // amqps needs one; whoever else installed theirs first is welcome.
        crate::http::use_ring();
        let names = Names::new(&config.prefix, &Pools::default());
        Self { config, names }
    }

    /// Messages that are kept stay unacknowledged until the end, so that the next `get` brings another one. Even after a
    /// stop all are taken once: the broker puts what comes back behind the others, so only a whole round keeps their order.
    async fn go_through(&self, connection: &Connection, review: &mut dyn Review) -> Result<(), Failure> {
        let open = async {
            let channel = connection.create_channel().await?;
            channel.confirm_select(ConfirmSelectOptions::default()).await?;
            let found = topology::look(&channel, &self.names.dead).await;
            Ok((channel, found))
        };
        let (channel, found) = within(RPC_TIMEOUT, "opening a channel", open).await?;
        // What dies meanwhile comes after these.
        let count = found.map_err(|error| self.explain(error))?.message_count();
        let (mut kept, mut stopped, mut removed) = (false, false, 0);
        for _ in 0..count {
            let get = channel.basic_get(self.names.dead.clone(), BasicGetOptions::default());
            let Some(message) = within(RPC_TIMEOUT, "a dead message", get).await? else { break };
            if stopped {
                continue;
            }
            let BasicGetMessage { delivery, .. } = message;
            let dead = message::read_dead(&delivery.properties, &delivery.data);
            let fate = review.judge(&dead).await;
            match fate {
                Fate::Keep => kept = true,
                Fate::Stop => (kept, stopped) = (true, true),
                Fate::Redrive | Fate::Purge => {
                    if fate == Fate::Redrive {
                        self.publish(&channel, &delivery.properties, &delivery.data).await?;
                    }
                    let ack = delivery.acker.ack(BasicAckOptions::default());
                    within(RPC_TIMEOUT, "an acknowledgement", ack).await?;
                    removed += 1;
                    review.settled(&dead, fate);
                }
            }
        }
        if kept {
            let all = BasicNackOptions { multiple: true, requeue: true };
            within(RPC_TIMEOUT, "giving messages back", channel.basic_nack(0, all)).await?;
            self.returned(&channel, count - removed).await?;
        }
        // The broker answers after it has dealt with every acknowledgement; the connection's end could overtake them.
        within(RPC_TIMEOUT, "closing", channel.close(200, short("done"))).await
    }

    /// Waits, not for long, until the messages stand in the queue again: the broker gives them back at its leisure, and who
    /// looks next would miss them.
    async fn returned(&self, channel: &Channel, count: u32) -> Result<(), Failure> {
        for _ in 0..40 {
            let look = topology::look(channel, &self.names.dead);
            if within(RPC_TIMEOUT, "counting dead messages", look).await?.message_count() >= count {
                break;
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        Ok(())
    }

    fn explain(&self, error: lapin::Error) -> Failure {
        match topology::explain(error, Topology::Verify) {
            Failure { operator: true, .. } => Failure::operator(format!(
                "the broker has no queue {}: nothing has run with this queue.prefix yet",
                self.names.dead
            )),
            failure => failure,
        }
    }

    async fn publish(
        &self,
        channel: &Channel,
        properties: &lapin::BasicProperties,
        body: &[u8],
    ) -> Result<(), Failure> {
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let (exchange, key) = (self.names.exchange.clone(), self.names.sessions.routing_key.clone());
        let properties = message::redriven(properties);
        let publish = async { channel.basic_publish(exchange, key, options, body, properties).await?.await };
        let confirmed = within(self.config.confirm_timeout, "a confirm", publish).await?;
        outcome(Ok(confirmed)).map_err(|unconfirmed| Failure::away(unconfirmed.to_string()))
    }
}

#[async_trait]
impl DeadLetters for RabbitMqDead {
    async fn review(&self, review: &mut dyn Review) -> Result<(), DeadError> {
        let away = |failure: Failure| DeadError::new(failure.reason);
        let connection = connect(&self.config.url, "dead letters").await.map_err(away)?;
        let gone_through = self.go_through(&connection, review).await;
        // Whatever is still unacknowledged goes back to its place with the connection.
        close(&connection).await;
        gone_through.map_err(away)
    }
}
