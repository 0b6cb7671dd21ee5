//! Consuming: one channel on a connection of its own, replaced when it fails or falls silent.

use std::{pin::pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use futures_util::{FutureExt, StreamExt};
use lapin::{
    Acker, BasicProperties, Channel, Connection,
    message::Delivery as Raw,
    options::{BasicCancelOptions, BasicConsumeOptions, BasicQosOptions},
    types::{DeliveryTag, FieldTable},
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    time::{Instant, MissedTickBehavior, interval_at, sleep},
};
use tokio_util::sync::CancellationToken;

use super::{
    super::{Consumer, Delivery, RabbitMqConfig, Settle},
    connection::{Failure, RPC_TIMEOUT, Retries, close, connect, lost, short, within},
    health::Health,
    lanes::Message,
    message,
    publisher::Publisher,
    settling::{Settling, Verdict, Verdicts, give_back},
    topology::{self, Names},
};

/// How often the broker is asked whether the queue still has a consumer.
const PROBE_EVERY: Duration = Duration::from_secs(15);

/// The worker's end: hands out what the source has fetched.
pub(super) struct RabbitConsumer {
    /// The broker's prefetch bounds it.
    fetched: UnboundedReceiver<(Delivery, Acker)>,
    cancel: CancellationToken,
    health: Arc<Health>,
}

impl RabbitConsumer {
    pub(super) fn new(health: Arc<Health>) -> (Self, UnboundedSender<(Delivery, Acker)>) {
        let (out, fetched) = unbounded_channel();
        (Self { fetched, cancel: CancellationToken::new(), health }, out)
    }

    /// Tells the source that nothing more is wanted.
    pub(super) fn cancelled(&self) -> CancellationToken {
        self.cancel.clone()
    }
}

#[async_trait]
impl Consumer for RabbitConsumer {
    async fn next(&mut self) -> Option<Delivery> {
        loop {
            let (delivery, acker) = self.fetched.recv().await?;
            // What was fetched over a connection that is gone comes again over the next.
            if acker.usable() && !self.cancel.is_cancelled() {
                self.health.metrics.delivered();
                return Some(delivery);
            }
        }
    }

    async fn cancel(&mut self) {
        self.cancel.cancel();
        while let Some((delivery, _)) = self.fetched.recv().await {
            delivery.release().await;
        }
    }
}

impl Drop for RabbitConsumer {
    fn drop(&mut self) {
        self.cancel.cancel();
    }
}

/// The broker's end.
pub(super) struct Source {
    pub(super) config: Arc<RabbitMqConfig>,
    pub(super) names: Arc<Names>,
    pub(super) publisher: Arc<Publisher>,
    pub(super) health: Arc<Health>,
    /// No more deliveries; those handed out can still be settled.
    pub(super) cancel: CancellationToken,
    /// Close the connection.
    pub(super) stop: CancellationToken,
}

struct Subscription {
    connection: Connection,
    channel: Channel,
    messages: lapin::Consumer,
    settling: Settling,
}

impl Source {
    /// Keeps a consumer until `cancel`, and its connection until `stop`.
    pub(super) async fn run(self, out: UnboundedSender<(Delivery, Acker)>) {
        self.health.consumer(Some(Err(Failure::away("not consuming yet"))));
        let mut retries = Retries::new();
        let last = loop {
            let started = Instant::now();
            let subscription = tokio::select! {
                () = self.done() => break None,
                subscription = self.subscribe() => subscription,
            };
            let failure = match subscription {
                Ok(mut subscription) => {
                    self.health.consumer(Some(Ok(())));
                    match self.fetch(&mut subscription, &out).await {
                        Some(failure) => failure,
                        None => break Some(subscription),
                    }
                }
                Err(failure) => failure,
            };
            self.health.consumer(Some(Err(failure)));
            tokio::select! {
                () = self.done() => break None,
                () = sleep(retries.delay(started.elapsed(), rand::random())) => {}
            }
        };
        self.health.consumer(None);
        if let Some(subscription) = last {
            self.finish(subscription, out).await;
        }
    }

    async fn done(&self) {
        tokio::select! {
            () = self.cancel.cancelled() => {}
            () = self.stop.cancelled() => {}
        }
    }

    async fn subscribe(&self) -> Result<Subscription, Failure> {
        let connection = connect(&self.config.url, "consumer").await?;
        topology::prepare(&connection, &self.names, self.config.topology).await?;
        let start = async {
            let channel = connection.create_channel().await?;
            channel.basic_qos(self.config.prefetch.max(1), BasicQosOptions::default()).await?;
            let tag = short(&format!("actiond-{}", uuid::Uuid::now_v7()));
            let (options, arguments) = (BasicConsumeOptions::default(), FieldTable::default());
            let messages = channel.basic_consume(self.names.own.clone(), tag, options, arguments).await?;
            Ok((channel, messages))
        };
        let (channel, messages) = within(RPC_TIMEOUT, "starting to consume", start).await?;
        Ok(Subscription { connection, settling: Settling::new(channel.clone()), channel, messages })
    }

    /// Hands on what comes and settles what is done, until it fails; `None` when nothing more is wanted. A broker that answers
    /// but lost our consumer counts as failed too.
    async fn fetch(&self, from: &mut Subscription, out: &UnboundedSender<(Delivery, Acker)>) -> Option<Failure> {
        let mut lost = pin!(lost(&from.connection, |_| {}));
        let mut probe = interval_at(Instant::now() + PROBE_EVERY, PROBE_EVERY);
        probe.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.done() => return None,
                message = from.messages.next() => match message {
                    Some(Ok(message)) => self.hand_on(message, &mut from.settling, out),
                    Some(Err(error)) => return Some(error.into()),
                    None => return Some(Failure::away("the broker cancelled the consumer")),
                },
                // To its end once it is begun: half of it would leave messages held for ever.
                () = from.settling.wait() => match from.settling.flush().await {
                    Ok(()) => {}
                    Err(failure) => return Some(failure),
                },
                failure = &mut lost => return Some(failure),
                _ = probe.tick() => tokio::select! {
                    () = self.done() => return None,
                    looked = self.look(&from.channel) => match looked {
                        Ok(()) => {}
                        Err(failure) => return Some(failure),
                    },
                },
            }
        }
    }

    async fn look(&self, channel: &Channel) -> Result<(), Failure> {
        match within(RPC_TIMEOUT, "a sign of life", topology::look(channel, &self.names.own)).await?.consumer_count() {
            0 => Err(Failure::away("the broker lost the consumer")),
            _ => Ok(()),
        }
    }

    fn hand_on(&self, message: Raw, settling: &mut Settling, out: &UnboundedSender<(Delivery, Acker)>) {
        let Raw { delivery_tag: tag, redelivered, properties, data, acker, .. } = message;
        let deliveries = message::deliveries(&properties);
        let decoded = message::decode(&data);
        let held = Held {
            tag,
            verdicts: Some(settling.hold(tag)),
            body: data,
            properties,
            names: self.names.clone(),
            publisher: self.publisher.clone(),
        };
        match decoded {
            // A receiver that is gone drops the delivery, and that gives it back.
            Ok(action) => drop(out.send((Delivery::new(action, redelivered, deliveries, Box::new(held)), acker))),
            // Beside the stream: it waits for a confirm.
            Err(reason) => drop(tokio::spawn(Box::new(held).reject_for(reason))),
        }
    }

    /// Settles what is handed out, until `stop`. An error where the connection is gone before.
    async fn settle_the_rest(&self, from: &mut Subscription) -> Result<(), Failure> {
        let mut lost = pin!(lost(&from.connection, |_| {}));
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return from.settling.flush().await,
                () = from.settling.wait() => from.settling.flush().await?,
                failure = &mut lost => return Err(failure),
            }
        }
    }

    /// Stops the deliveries, gives back what was fetched, and keeps the channel for what is handed out.
    async fn finish(&self, mut from: Subscription, out: UnboundedSender<(Delivery, Acker)>) {
        let cancel = from.channel.basic_cancel(from.messages.tag(), BasicCancelOptions::default());
        let cancelled = within(RPC_TIMEOUT, "cancelling the consumer", cancel).await;
        if let Err(failure) = &cancelled {
            tracing::debug!(reason = failure.reason, "the consumer was not cancelled in order");
        }
        while let Some(Some(Ok(message))) = from.messages.next().now_or_never() {
            if let Err(failure) = give_back(&from.channel, message.delivery_tag).await {
                tracing::debug!(reason = failure.reason, "a message was not given back, the broker delivers it again");
            }
        }
        // The worker's end sees that this was all.
        drop(out);
        if self.settle_the_rest(&mut from).await.is_err() {
            return;
        }
        // The broker answers after it has dealt with every acknowledgement.
        if let Err(failure) = within(RPC_TIMEOUT, "closing", from.channel.close(200, short("closing"))).await {
            tracing::debug!(reason = failure.reason, "the channel did not close in order");
        }
        close(&from.connection).await;
    }
}

/// One message of ours on the broker, until it is settled. Dropped before, it goes back.
struct Held {
    tag: DeliveryTag,
    /// None once it is settled.
    verdicts: Option<Verdicts>,
    body: Vec<u8>,
    properties: BasicProperties,
    names: Arc<Names>,
    publisher: Arc<Publisher>,
}

#[async_trait]
impl Settle for Held {
    async fn ack(mut self: Box<Self>) {
        self.say(Verdict::Acknowledge);
    }

    async fn release(mut self: Box<Self>) {
        self.say(Verdict::GiveBack);
    }

    async fn reject(self: Box<Self>, reason: &str) {
        self.reject_for(reason.to_owned()).await;
    }
}

impl Held {
    async fn reject_for(mut self: Box<Self>, reason: String) {
        let dead = Message {
            exchange: self.names.dead_exchange.clone(),
            routing_key: self.names.sessions.routing_key.clone(),
            body: self.body.clone(),
            properties: message::dead(&self.properties, &reason, message::Death::now()),
        };
        match self.publisher.publish(dead).await {
            Ok(()) => {
                tracing::warn!(reason, "a message was put aside as dead");
                self.say(Verdict::Acknowledge);
            }
            Err(error) => {
                tracing::warn!(reason, %error, "a message could not be put aside, and goes back to the queue");
                self.say(Verdict::GiveBack);
            }
        }
    }

    /// An acknowledgement that gets lost is a redelivery, and the store knows what was done.
    fn say(&mut self, verdict: Verdict) {
        if let Some(verdicts) = self.verdicts.take()
            && verdicts.send((self.tag, verdict)).is_err()
        {
            tracing::debug!("the delivery's connection is gone, the broker delivers again");
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.say(Verdict::GiveBack);
    }
}
