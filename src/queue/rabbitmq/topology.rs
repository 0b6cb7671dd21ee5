//! Exchanges and queues: made by us, or only looked at.

use std::time::Duration;

use lapin::{
    Channel, Connection, ErrorKind, ExchangeKind, Queue,
    options::{ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions},
    types::{AMQPValue, FieldTable, ShortString},
};

use tokio::time::timeout;

use super::{
    super::Topology,
    Pools,
    connection::{Failure, short},
};

const TOPOLOGY_TIMEOUT: Duration = Duration::from_secs(10);
/// Explicit and high: brokers differ in their default, and giving up on a session is the store's business.
const DELIVERY_LIMIT: i32 = 1_000;
/// An operator may look at dead messages as often as he likes.
const DEAD_DELIVERY_LIMIT: i32 = 1_000_000;

const PRECONDITION_FAILED: u16 = 406;
const NOT_FOUND: u16 = 404;

/// What everything is called on the broker.
pub(super) struct Names {
    pub(super) exchange: ShortString,
    /// Where every session comes first.
    pub(super) sessions: Lane,
    /// By the pool's name.
    pub(super) pools: Vec<(String, Lane)>,
    /// The queue that is consumed here.
    pub(super) own: ShortString,
    pub(super) dead_exchange: ShortString,
    pub(super) dead: ShortString,
}

/// A queue of sessions, and what leads to it.
pub(super) struct Lane {
    pub(super) queue: ShortString,
    pub(super) routing_key: ShortString,
}

impl Names {
    pub(super) fn new(prefix: &str, pools: &Pools) -> Self {
        let lane = |key: String| Lane { queue: short(&format!("{prefix}.{key}")), routing_key: short(&key) };
        let pool_key = |pool: &String| format!("sessions.{pool}");
        let sessions = lane("sessions".to_owned());
        let dead = short(&format!("{prefix}.dead"));
        Self {
            exchange: short(prefix),
            own: pools.own.as_ref().map_or_else(|| sessions.queue.clone(), |own| lane(pool_key(own)).queue),
            sessions,
            pools: pools.names.iter().map(|pool| (pool.clone(), lane(pool_key(pool)))).collect(),
            dead_exchange: dead.clone(),
            dead,
        }
    }

    fn lanes(&self) -> impl Iterator<Item = &Lane> {
        std::iter::once(&self.sessions).chain(self.pools.iter().map(|(_, lane)| lane))
    }
}

/// After this the topology is there, or the failure says which part is not and why.
pub(super) async fn prepare(connection: &Connection, names: &Names, topology: Topology) -> Result<(), Failure> {
    let work = async {
        let channel = connection.create_channel().await?;
        match topology {
            Topology::Manage => manage(&channel, names).await?,
            Topology::Verify => verify(&channel, names).await?,
        }
        channel.close(200, short("done")).await
    };
    timeout(TOPOLOGY_TIMEOUT, work)
        .await
        .map_err(|_| Failure::away("looking at the queues took too long"))?
        .map_err(|error| explain(error, topology))
}

/// The dead-letter exchange comes first: nothing may be dead-lettered into the void.
async fn manage(channel: &Channel, names: &Names) -> lapin::Result<()> {
    let exchange = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
    let queue = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let bind = QueueBindOptions::default();
    let none = FieldTable::default;

    channel.exchange_declare(names.dead_exchange.clone(), ExchangeKind::Fanout, exchange, none()).await?;
    channel.queue_declare(names.dead.clone(), queue, dead_arguments()).await?;
    channel.queue_bind(names.dead.clone(), names.dead_exchange.clone(), short(""), bind, none()).await?;

    channel.exchange_declare(names.exchange.clone(), ExchangeKind::Direct, exchange, none()).await?;
    for Lane { queue: name, routing_key } in names.lanes() {
        channel.queue_declare(name.clone(), queue, sessions_arguments(names)).await?;
        channel.queue_bind(name.clone(), names.exchange.clone(), routing_key.clone(), bind, none()).await?;
    }
    Ok(())
}

async fn verify(channel: &Channel, names: &Names) -> lapin::Result<()> {
    let exchange = ExchangeDeclareOptions { passive: true, ..ExchangeDeclareOptions::default() };
    for name in [&names.exchange, &names.dead_exchange] {
        channel.exchange_declare(name.clone(), ExchangeKind::Direct, exchange, FieldTable::default()).await?;
    }
    for name in names.lanes().map(|lane| &lane.queue).chain([&names.dead]) {
        look(channel, name).await?;
    }
    Ok(())
}

/// What a queue has now: messages that are ready, and consumers.
pub(super) async fn look(channel: &Channel, queue: &ShortString) -> lapin::Result<Queue> {
    let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.clone(), options, FieldTable::default()).await
}

fn sessions_arguments(names: &Names) -> FieldTable {
    table([
        ("x-queue-type", text("quorum")),
        ("x-dead-letter-exchange", text(names.dead_exchange.as_str())),
        ("x-dead-letter-strategy", text("at-least-once")),
        ("x-overflow", text("reject-publish")),
        ("x-delivery-limit", AMQPValue::LongInt(DELIVERY_LIMIT)),
    ])
}

fn dead_arguments() -> FieldTable {
    table([("x-queue-type", text("quorum")), ("x-delivery-limit", AMQPValue::LongInt(DEAD_DELIVERY_LIMIT))])
}

fn table<const N: usize>(arguments: [(&str, AMQPValue); N]) -> FieldTable {
    let mut table = FieldTable::default();
    for (name, value) in arguments {
        table.insert(short(name), value);
    }
    table
}

fn text(text: &str) -> AMQPValue {
    AMQPValue::LongString(text.into())
}

/// The broker's text names the queue, and the argument that differs.
pub(super) fn explain(error: lapin::Error, topology: Topology) -> Failure {
    let ErrorKind::ProtocolError(said) = error.kind() else { return error.into() };
    let text = said.get_message();
    match (said.get_id(), topology) {
        (PRECONDITION_FAILED, _) => Failure::operator(format!(
            "the broker has one of our queues with other arguments: {text}; delete it, or keep it and set queue.topology: verify"
        )),
        (NOT_FOUND, Topology::Verify) => Failure::operator(format!(
            "the broker lacks a part of the topology: {text}; declare it, or set queue.topology: manage"
        )),
        _ => error.into(),
    }
}
