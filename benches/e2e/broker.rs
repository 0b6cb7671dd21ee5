//! What the broker alone takes: publishes with confirm to a quorum queue.

use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use lapin::{
    BasicProperties, Connection, ConnectionProperties,
    options::{BasicPublishOptions, ConfirmSelectOptions, QueueDeclareOptions, QueueDeleteOptions},
    types::{AMQPValue, FieldTable},
};

/// Messages of 300 bytes a second, with `window` of them in flight.
pub(crate) async fn confirmed(url: &str, window: usize, time: Duration) -> f64 {
    let connection = Connection::connect(url, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
    let queue = format!("bench-{}", std::process::id());
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.as_str().into(), durable, arguments).await.unwrap();

    let publish = async || {
        let properties = BasicProperties::default().with_delivery_mode(2);
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let confirm =
            channel.basic_publish("".into(), queue.as_str().into(), options, &[b'x'; 300], properties).await.unwrap();
        confirm.await.unwrap();
    };
    let (began, mut count) = (Instant::now(), 0_u64);
    let mut flying = FuturesUnordered::from_iter((0..window).map(|_| publish()));
    while began.elapsed() < time && flying.next().await.is_some() {
        count += 1;
        flying.push(publish());
    }
    let rate = count as f64 / began.elapsed().as_secs_f64();
    while flying.next().await.is_some() {}
    channel.queue_delete(queue.as_str().into(), QueueDeleteOptions::default()).await.unwrap();
    rate
}
