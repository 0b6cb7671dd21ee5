//! The contract over RabbitMQ, and what only a broker can do to us.

use std::{
    collections::BTreeSet,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

use actiond::{
    metrics::Metrics,
    queue::{DeadLetters, Pools, PublishError, Queue, RabbitMq, RabbitMqConfig, RabbitMqDead, Topology, Waiting},
    session::ActionRequired,
};
use async_trait::async_trait;
use lapin::{
    BasicProperties, Channel, Connection, ConnectionProperties,
    options::{
        BasicAckOptions, BasicGetOptions, BasicPublishOptions, QueueDeclareOptions, QueueDeleteOptions,
        QueuePurgeOptions,
    },
    types::{AMQPValue, FieldTable},
};
use tokio::sync::{Mutex, MutexGuard};

use super::{Place, action, contract, next};

const CONFIRM_TIMEOUT: Duration = Duration::from_secs(5);

contract!(Broker::shared());

#[tokio::test]
async fn a_body_that_is_no_action_is_put_aside_and_the_consumer_goes_on() {
    let broker = Broker::shared();
    let queue = broker.open().await;
    let mut consumer = queue.consume().await;
    let raw = broker.channel().await;
    let options = BasicPublishOptions::default();
    let properties = BasicProperties::default().with_message_id("odd".into());
    let exchange = broker.prefix.as_str().into();
    raw.basic_publish(exchange, "sessions".into(), options, b"{\"top\":\"secret\"}", properties).await.unwrap();
    queue.publish(&action("good")).await.unwrap();

    let delivery = next(&mut consumer).await;
    assert_eq!(delivery.action, action("good"));
    delivery.ack().await;
    let (reason, body) = broker.dead_message().await;
    assert!(reason.contains("no action") && !reason.contains("secret"), "{reason}");
    assert_eq!(body, b"{\"top\":\"secret\"}");
    queue.close().await;
}

#[tokio::test]
async fn a_queue_with_other_arguments_is_named_by_ready() {
    let broker = Broker::shared();
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    let mut arguments = FieldTable::default();
    arguments.insert("x-max-length".into(), AMQPValue::LongInt(5));
    let sessions = format!("{}.sessions", broker.prefix);
    broker.channel().await.queue_declare(sessions.as_str().into(), durable, arguments).await.unwrap();

    let queue = broker.start(Topology::Manage);
    let reason = until(|| queue.ready().err().filter(|reason| reason.contains("inequivalent"))).await;
    assert!(reason.contains(&sessions) && reason.contains("arg '"), "{reason}");
    assert!(queue.publish(&action("one")).await.is_err());
    queue.close().await;
}

#[tokio::test]
async fn verify_wants_the_topology_and_makes_none() {
    let broker = Broker::shared();
    let verifying = broker.start(Topology::Verify);
    let reason = until(|| verifying.ready().err().filter(|reason| reason.contains("lacks"))).await;
    assert!(reason.contains(&broker.prefix), "{reason}");

    broker.open().await.close().await;
    until(|| verifying.ready().ok()).await;
    verifying.publish(&action("one")).await.unwrap();
    verifying.close().await;
}

#[tokio::test]
async fn a_pool_has_a_queue_of_its_own() {
    let broker = Broker::shared();
    let common = broker.pooled(Topology::Manage, None);
    let gpu = broker.pooled(Topology::Manage, Some("gpu"));
    until(|| common.ready().and(gpu.ready()).ok()).await;
    common.hand_over(&action("drawn"), "gpu").await.unwrap();
    common.publish(&action("common")).await.unwrap();
    assert!(common.hand_over(&action("lost"), "printer").await.unwrap_err().reason.contains("no pool printer"));
    let waiting = |pool: &str, sessions, workers| Waiting { pool: pool.to_owned(), sessions, workers };
    let counted = until_async(async || Some(common.count_pools().await).filter(|w| w.iter().any(|w| w.sessions > 0)));
    assert_eq!(counted.await, [waiting("gpu", 1, 0), waiting("web", 0, 0)]);

    let (mut ours, mut theirs) = (common.consume().await, gpu.consume().await);
    let (one, other) = (next(&mut ours).await, next(&mut theirs).await);
    assert_eq!((&one.action, &other.action), (&action("common"), &action("drawn")));
    one.ack().await;
    let counted = until_async(async || Some(common.count_pools().await).filter(|w| w.iter().all(|w| w.sessions == 0)));
    assert_eq!(counted.await, [waiting("gpu", 0, 1), waiting("web", 0, 0)]);

    // Dropped, it comes again to the pool, and as a redelivery.
    drop(other);
    let again = next(&mut theirs).await;
    assert!(again.redelivered && again.action == action("drawn"));
    again.reject("no").await;
    assert_eq!(broker.dead().await, [("no".to_owned(), action("drawn"))]);
    common.close().await;
    gpu.close().await;
}

#[tokio::test]
async fn verify_wants_the_queue_of_every_pool() {
    let broker = Broker::shared();
    broker.open().await.close().await;
    let verifying = broker.pooled(Topology::Verify, Some("gpu"));
    let reason = until(|| verifying.ready().err().filter(|reason| reason.contains("lacks"))).await;
    assert!(reason.contains(&format!("{}.sessions.gpu", broker.prefix)), "{reason}");

    let managing = broker.pooled(Topology::Manage, None);
    until(|| managing.ready().ok()).await;
    managing.close().await;
    until(|| verifying.ready().ok()).await;
    verifying.hand_over(&action("one"), "gpu").await.unwrap();
    let mut consumer = verifying.consume().await;
    assert_eq!(next(&mut consumer).await.action, action("one"));
    verifying.close().await;
}

#[tokio::test]
async fn a_message_without_a_queue_is_refused_and_the_queue_is_made_again() {
    let broker = Broker::shared();
    let queue = broker.open().await;
    queue.publish(&action("before")).await.unwrap();
    let sessions = format!("{}.sessions", broker.prefix);
    broker.channel().await.queue_delete(sessions.as_str().into(), QueueDeleteOptions::default()).await.unwrap();

    let publishes = (0..50).map(|_| {
        let queue = queue.clone();
        tokio::spawn(async move { queue.publish(&action("into the void")).await })
    });
    for publish in publishes.collect::<Vec<_>>() {
        publish.await.unwrap().unwrap_err();
    }
    until(|| queue.ready().ok()).await;
    queue.publish(&action("after")).await.unwrap();
    queue.close().await;
}

#[tokio::test]
async fn a_full_queue_refuses_and_the_connection_stays() {
    let broker = Broker::shared();
    let queue = broker.open().await;
    let pattern = format!("^{}.sessions$", broker.prefix);
    let limit = r#"{"max-length":1,"overflow":"reject-publish"}"#;
    broker.ctl(&["ctl", "set_policy", "--apply-to", "queues", &broker.prefix, &pattern, limit]);

    let error = until_async(async || queue.publish(&action("one")).await.err()).await;
    assert!(error.reason.contains("refused the message"), "{error}");
    assert_eq!(queue.ready(), Ok(()));

    let sessions = format!("{}.sessions", broker.prefix);
    broker.channel().await.queue_purge(sessions.as_str().into(), QueuePurgeOptions::default()).await.unwrap();
    until_async(async || queue.publish(&action("two")).await.ok()).await;
    broker.ctl(&["ctl", "clear_policy", &broker.prefix]);
    queue.close().await;
}

/// Every message that was confirmed is delivered, whatever happened between.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_down_and_up_again_loses_nothing_and_needs_no_restart() {
    let (broker, _alone) = Broker::private().await;
    // A broker that is killed seconds after it made a quorum queue may forget its log (rabbitmq-server issue 15725), but one
    // that is stopped in order does not.
    broker.open().await.close().await;
    broker.ctl(&["stop"]);
    // Absent at the start.
    let queue = broker.start(Topology::Manage);
    let mut consumer = queue.consume().await;
    refused_in_time(&queue).await;

    broker.ctl(&["start"]);
    until(|| queue.ready().ok()).await;
    queue.publish(&action("before")).await.unwrap();
    next(&mut consumer).await.ack().await;

    // Killed under load.
    let publishing = {
        let queue = queue.clone();
        tokio::spawn(async move {
            let (mut confirmed, mut refused) = (BTreeSet::new(), 0);
            for n in 0.. {
                let session = format!("sess_{n}");
                match timed(&queue, &action(&session)).await {
                    Ok(()) => drop(confirmed.insert(session)),
                    Err(_) => {
                        refused += 1;
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                }
                if refused > 0 && confirmed.len() > 500 && queue.ready().is_ok() {
                    break;
                }
            }
            confirmed
        })
    };
    let killer = broker.clone();
    let (first, mut seen) = (next(&mut consumer).await, BTreeSet::new());
    tokio::task::spawn_blocking(move || {
        killer.ctl(&["kill"]);
        killer.ctl(&["start"]);
    });
    seen.insert(first.action.session.session.to_string());
    first.ack().await;

    let collecting = async {
        loop {
            let delivery = next(&mut consumer).await;
            seen.insert(delivery.action.session.session.to_string());
            let last = &*delivery.action.session.session == "last";
            delivery.ack().await;
            if last {
                return seen;
            }
        }
    };
    let finishing = async {
        let confirmed = publishing.await.unwrap();
        until_async(async || queue.publish(&action("last")).await.ok()).await;
        confirmed
    };
    let (mut seen, confirmed) = tokio::join!(collecting, finishing);
    // A message that was confirmed before may be redelivered after the last one.
    while !confirmed.is_subset(&seen) {
        let delivery = next(&mut consumer).await;
        seen.insert(delivery.action.session.session.to_string());
        delivery.ack().await;
    }
    consumer.cancel().await;
    queue.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_down_by_its_memory_alarm_is_refused_at_once_and_passes() {
    let (broker, _alone) = Broker::private().await;
    let queue = broker.start(Topology::Manage);
    let mut consumer = queue.consume().await;
    until(|| queue.ready().ok()).await;

    broker.ctl(&["ctl", "set_vm_memory_high_watermark", "0.000001"]);
    // The broker tells a connection of the alarm when it publishes.
    until_async(async || timed(&queue, &action("during")).await.err()).await;
    until(|| queue.ready().err()).await;
    refused_in_time(&queue).await;

    broker.ctl(&["ctl", "set_vm_memory_high_watermark", "0.4"]);
    until(|| queue.ready().ok()).await;
    queue.publish(&action("after")).await.unwrap();
    while &*next_acked(&mut consumer).await != "after" {}
    queue.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_down_with_its_connections_open_is_noticed_and_passes() {
    let (broker, _alone) = Broker::private().await;
    let queue = broker.start(Topology::Manage);
    let mut consumer = queue.consume().await;
    until(|| queue.ready().ok()).await;

    broker.ctl(&["pause"]);
    timed(&queue, &action("during")).await.unwrap_err();
    until(|| queue.ready().err()).await;
    refused_in_time(&queue).await;

    broker.ctl(&["resume"]);
    until(|| queue.ready().ok()).await;
    queue.publish(&action("after")).await.unwrap();
    while &*next_acked(&mut consumer).await != "after" {}
    queue.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broker_down_for_one_connection_brings_the_held_delivery_again() {
    let (broker, _alone) = Broker::private().await;
    let queue = broker.start(Topology::Manage);
    let mut consumer = queue.consume().await;
    until(|| queue.ready().ok()).await;
    queue.publish(&action("held")).await.unwrap();
    let held = next(&mut consumer).await;
    broker.ctl(&["ctl", "close_all_connections", "test"]);

    let again = next(&mut consumer).await;
    assert_eq!(again.action, held.action);
    assert!(again.redelivered);
    held.ack().await;
    again.ack().await;
    queue.close().await;
}

async fn next_acked(consumer: &mut Box<dyn actiond::queue::Consumer>) -> Arc<str> {
    let delivery = next(consumer).await;
    let session = delivery.action.session.session.clone();
    delivery.ack().await;
    session
}

async fn refused_in_time(queue: &RabbitMq) {
    assert!(queue.ready().is_err());
    timed(queue, &action("refused")).await.unwrap_err();
}

/// Publishes, and insists on an answer within the time that the config promises.
async fn timed(queue: &RabbitMq, action: &ActionRequired) -> Result<(), PublishError> {
    let started = Instant::now();
    let result = queue.publish(action).await;
    assert!(started.elapsed() < CONFIRM_TIMEOUT + Duration::from_secs(1), "answered after {:?}", started.elapsed());
    result
}

/// A broker and a prefix of one test's own.
#[derive(Clone)]
struct Broker {
    url: String,
    prefix: String,
    /// Arguments of the control program that name the node.
    node: Vec<String>,
}

impl Broker {
    /// The node that all tests use.
    fn shared() -> Self {
        Self { url: environment("ACTIOND_TEST_AMQP_URL"), prefix: prefix(), node: Vec::new() }
    }

    /// A node for tests that stop it. One test at a time has it: nextest's group sees to that, and the lock without nextest.
    async fn private() -> (Self, MutexGuard<'static, ()>) {
        static ALONE: Mutex<()> = Mutex::const_new(());
        let alone = ALONE.lock().await;
        let mut broker = Self { url: String::new(), prefix: prefix(), node: vec!["-n".into(), "down".into()] };
        broker.ctl(&["start"]);
        broker.url = broker.ctl(&["url"]);
        (broker, alone)
    }

    fn ctl(&self, arguments: &[&str]) -> String {
        let program = environment("ACTIOND_TEST_AMQP_CTL");
        let output = Command::new(program).args(&self.node).args(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn config(&self, topology: Topology) -> RabbitMqConfig {
        RabbitMqConfig {
            url: self.url.clone().into(),
            prefix: self.prefix.clone(),
            prefetch: 16,
            topology,
            confirm_timeout: CONFIRM_TIMEOUT,
        }
    }

    fn start(&self, topology: Topology) -> Arc<RabbitMq> {
        Arc::new(RabbitMq::new(self.config(topology), Metrics::new()))
    }

    /// One of pools, or beside them.
    fn pooled(&self, topology: Topology, own: Option<&str>) -> Arc<RabbitMq> {
        let pools = Pools { names: vec!["gpu".to_owned(), "web".to_owned()], own: own.map(str::to_owned) };
        Arc::new(RabbitMq::with_pools(self.config(topology), &pools, Metrics::new()))
    }

    /// Beside the queue, as an operator's tool would.
    async fn channel(&self) -> Channel {
        let connection = Connection::connect(&self.url, ConnectionProperties::default()).await.unwrap();
        connection.create_channel().await.unwrap()
    }

    async fn dead_message(&self) -> (String, Vec<u8>) {
        let channel = self.channel().await;
        let dead = format!("{}.dead", self.prefix);
        let message =
            until_async(async || channel.basic_get(dead.as_str().into(), BasicGetOptions::default()).await.unwrap())
                .await;
        message.ack(BasicAckOptions::default()).await.unwrap();
        let headers = message.properties.headers().clone().unwrap();
        let Some(AMQPValue::LongString(reason)) = headers.inner().get("actiond-reason") else { panic!("no reason") };
        (reason.to_string(), message.delivery.data.clone())
    }
}

#[async_trait(?Send)]
impl Place for Broker {
    async fn open(&self) -> Arc<dyn Queue> {
        let queue = self.start(Topology::Manage);
        until(|| queue.ready().ok()).await;
        queue
    }

    async fn letters(&self) -> Arc<dyn DeadLetters> {
        Arc::new(RabbitMqDead::new(self.config(Topology::Manage)))
    }

    async fn dead(&self) -> Vec<(String, ActionRequired)> {
        let (reason, body) = self.dead_message().await;
        vec![(reason, serde_json::from_slice(&body).unwrap())]
    }
}

fn prefix() -> String {
    format!("test-{}", uuid::Uuid::now_v7())
}

fn environment(name: &str) -> String {
    std::env::var(name)
        .unwrap_or_else(|_| panic!("{name} is not set: run tests/run, or eval \"$(tests/services start)\""))
}

async fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    until_async(async || look()).await
}

async fn until_async<T>(mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let give_up = Instant::now() + Duration::from_secs(40);
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < give_up, "waited in vain");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
