//! One story over every queue: what a worker may rely on, whatever carries the sessions. One more queue is one more
//! module here, with a `Place` and a line `contract!(its place)`.

mod embedded;
mod rabbitmq;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use actiond::{
    queue::{Consumer, Dead, DeadLetters, Delivery, Fate, Queue, Review},
    session::{ActionRequired, SessionKey},
};
use async_trait::async_trait;
use tokio::time::timeout;

/// Where a queue lives, empty at first.
#[async_trait(?Send)]
trait Place {
    /// A queue of this place that is ready; each call stands for one more process.
    async fn open(&self) -> Arc<dyn Queue>;

    /// The dead letters of this place, as another process sees them.
    async fn letters(&self) -> Arc<dyn DeadLetters>;

    /// Takes what was put aside as dead: reason and action.
    async fn dead(&self) -> Vec<(String, ActionRequired)>;
}

/// Runs the whole contract over one kind of place.
macro_rules! contract {
    ($place:expr) => {
        crate::queue_contract::contract! { $place;
            a_published_action_is_delivered_as_it_was
            an_acknowledged_action_is_gone
            an_action_of_a_consumer_that_died_is_delivered_again
            a_dropped_delivery_is_delivered_again
            a_released_action_is_delivered_again
            a_rejected_action_is_put_aside_with_its_reason
            many_publish_at_once_and_nothing_is_lost
            a_cancelled_consumer_gives_back_what_it_prefetched
            a_closed_queue_refuses_to_publish
            every_death_of_a_holder_is_counted
            dead_messages_are_listed_in_order_as_often_as_somebody_looks
            a_redriven_message_is_live_again_as_if_it_were_new
            a_purged_message_is_gone_and_the_others_are_not
        }
    };
    ($place:expr; $($story:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $story() {
                crate::queue_contract::$story(&$place).await;
            }
        )*
    };
}
use contract;

async fn a_published_action_is_delivered_as_it_was(place: &impl Place) {
    let queue = place.open().await;
    let mut consumer = queue.consume().await;
    let sent = ActionRequired {
        session: SessionKey::new("openai", "sess_é/../1"),
        event: "wh_1".into(),
        accepted_at: 1_790_000_000_123,
        tries: 2,
        traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
    };
    queue.publish(&sent).await.unwrap();

    let delivery = next(&mut consumer).await;
    assert_eq!(delivery.action, sent);
    assert!(!delivery.redelivered);
    assert_eq!(delivery.deliveries, 0);
    assert_eq!(queue.ready(), Ok(()));
    delivery.ack().await;
    queue.close().await;
}

async fn an_acknowledged_action_is_gone(place: &impl Place) {
    let queue = place.open().await;
    let mut consumer = queue.consume().await;
    queue.publish(&action("first")).await.unwrap();
    next(&mut consumer).await.ack().await;
    consumer.cancel().await;
    queue.close().await;

    let queue = place.open().await;
    let mut consumer = queue.consume().await;
    queue.publish(&action("second")).await.unwrap();
    assert_eq!(next(&mut consumer).await.action, action("second"));
    queue.close().await;
}

async fn an_action_of_a_consumer_that_died_is_delivered_again(place: &impl Place) {
    let died = place.open().await;
    let mut consumer = died.consume().await;
    died.publish(&action("one")).await.unwrap();
    let held = next(&mut consumer).await;
    drop((died, consumer));

    let queue = place.open().await;
    let mut consumer = queue.consume().await;
    let again = next(&mut consumer).await;
    assert_eq!(again.action, action("one"));
    assert!(again.redelivered);
    assert!(again.deliveries >= 1);
    // The dead one's late word changes nothing.
    held.ack().await;
    again.ack().await;
    queue.close().await;
}

async fn a_dropped_delivery_is_delivered_again(place: &impl Place) {
    let queue = place.open().await;
    let mut consumer = queue.consume().await;
    queue.publish(&action("one")).await.unwrap();
    drop(next(&mut consumer).await);
    let again = next(&mut consumer).await;
    assert_eq!(again.action, action("one"));
    assert!(again.redelivered);
    again.ack().await;
    queue.close().await;
}

async fn a_released_action_is_delivered_again(place: &impl Place) {
    let queue = place.open().await;
    let mut consumer = queue.consume().await;
    queue.publish(&action("one")).await.unwrap();
    next(&mut consumer).await.release().await;
    let again = next(&mut consumer).await;
    assert_eq!(again.action, action("one"));
    again.ack().await;
    queue.close().await;
}

async fn a_rejected_action_is_put_aside_with_its_reason(place: &impl Place) {
    let queue = place.open().await;
    let mut consumer = queue.consume().await;
    queue.publish(&action("bad")).await.unwrap();
    next(&mut consumer).await.reject("no such platform").await;
    assert_eq!(place.dead().await, [("no such platform".into(), action("bad"))]);

    queue.publish(&action("good")).await.unwrap();
    let delivery = next(&mut consumer).await;
    assert_eq!(delivery.action, action("good"));
    delivery.ack().await;
    queue.close().await;
}

async fn many_publish_at_once_and_nothing_is_lost(place: &impl Place) {
    const MANY: usize = 500;
    let queue = place.open().await;
    let mut consumer = queue.consume().await;
    let publishes: Vec<_> = (0..MANY)
        .map(|n| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.publish(&action(&format!("sess_{n}"))).await.unwrap() })
        })
        .collect();
    let mut seen = BTreeSet::new();
    while seen.len() < MANY {
        let delivery = next(&mut consumer).await;
        seen.insert(delivery.action.session.clone());
        delivery.ack().await;
    }
    for publish in publishes {
        publish.await.unwrap();
    }
    queue.close().await;
}

async fn a_cancelled_consumer_gives_back_what_it_prefetched(place: &impl Place) {
    let first = place.open().await;
    let mut consumer = first.consume().await;
    for name in ["one", "two", "three", "four"] {
        first.publish(&action(name)).await.unwrap();
    }
    let held = next(&mut consumer).await;
    consumer.cancel().await;
    assert!(consumer.next().await.is_none());

    let second = place.open().await;
    let mut others = second.consume().await;
    let mut seen = BTreeSet::new();
    for _ in 0..3 {
        let delivery = next(&mut others).await;
        seen.insert(delivery.action.session.session.to_string());
        delivery.ack().await;
    }
    // What was handed out before is still its holder's to settle.
    let handed_out = held.action.session.session.to_string();
    held.ack().await;
    first.close().await;
    assert!(seen.insert(handed_out));
    assert_eq!(seen, ["one", "two", "three", "four"].map(String::from).into());

    second.publish(&action("last")).await.unwrap();
    assert_eq!(next(&mut others).await.action, action("last"));
    second.close().await;
}

async fn a_closed_queue_refuses_to_publish(place: &impl Place) {
    let queue = place.open().await;
    queue.close().await;
    assert!(queue.publish(&action("late")).await.is_err());
}

async fn every_death_of_a_holder_is_counted(place: &impl Place) {
    let first = place.open().await;
    first.publish(&action("poison")).await.unwrap();
    first.close().await;
    drop(first);
    for before in 0..4 {
        let queue = place.open().await;
        let mut consumer = queue.consume().await;
        let delivery = next(&mut consumer).await;
        // A consumer that dies may be sent it once more before the broker knows.
        assert!(delivery.deliveries >= before, "{} {before}", delivery.deliveries);
        assert_eq!(delivery.redelivered, before > 0);
        // The process dies with what it holds.
        drop((queue, consumer));
        drop(delivery);
    }
}

/// Puts messages aside, and waits until they are there.
async fn put_aside(place: &impl Place, sessions: &[&str]) -> Arc<dyn Queue> {
    let queue = place.open().await;
    let mut consumer = queue.consume().await;
    for session in sessions {
        queue.publish(&action(session)).await.unwrap();
        next(&mut consumer).await.reject(&format!("reason of {session}")).await;
    }
    consumer.cancel().await;
    drop(consumer);
    counted(&queue, sessions.len() as u64).await;
    queue
}

async fn counted(queue: &Arc<dyn Queue>, wanted: u64) {
    let wait = async {
        while queue.count_dead().await != Some(wanted) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(Duration::from_secs(30), wait).await.expect("another count of dead messages");
}

/// Says the same of every message, or of that of one session alone.
struct Same {
    fate: Fate,
    only: Option<&'static str>,
    seen: Vec<Dead>,
    settled: usize,
}

impl Same {
    async fn review(place: &impl Place, fate: Fate, only: Option<&'static str>) -> Self {
        let mut same = Self { fate, only, seen: Vec::new(), settled: 0 };
        place.letters().await.review(&mut same).await.unwrap();
        same
    }

    fn sessions(&self) -> Vec<&str> {
        self.seen.iter().map(|dead| &*dead.action.as_ref().unwrap().session.session).collect()
    }
}

#[async_trait]
impl Review for Same {
    async fn judge(&mut self, dead: &Dead) -> Fate {
        self.seen.push(dead.clone());
        let session = &*dead.action.as_ref().unwrap().session.session;
        if self.only.is_none_or(|only| only == session) { self.fate } else { Fate::Keep }
    }

    fn settled(&mut self, _: &Dead, fate: Fate) {
        assert_eq!(fate, self.fate);
        self.settled += 1;
    }
}

async fn dead_messages_are_listed_in_order_as_often_as_somebody_looks(place: &impl Place) {
    let queue = put_aside(place, &["one", "two", "three"]).await;
    let first = Same::review(place, Fate::Keep, None).await;
    assert_eq!(first.sessions(), ["one", "two", "three"]);
    for dead in &first.seen {
        assert_eq!(dead.reason, format!("reason of {}", dead.action.as_ref().unwrap().session.session));
        assert_eq!((dead.redriven, dead.at.is_some()), (0, true));
        assert_eq!(serde_json::from_slice::<ActionRequired>(&dead.bytes).unwrap(), *dead.action.as_ref().unwrap());
    }
    let ids: BTreeSet<_> = first.seen.iter().map(|dead| &dead.id).collect();
    assert_eq!(ids.len(), 3);
    counted(&queue, 3).await;
    assert_eq!(Same::review(place, Fate::Stop, Some("two")).await.sessions(), ["one", "two"]);
    counted(&queue, 3).await;
    assert_eq!(Same::review(place, Fate::Keep, None).await.seen, first.seen);
    queue.close().await;
}

async fn a_redriven_message_is_live_again_as_if_it_were_new(place: &impl Place) {
    let queue = put_aside(place, &["one", "two"]).await;
    let mut consumer = queue.consume().await;
    for times in 0..3 {
        let review = Same::review(place, Fate::Redrive, Some("two")).await;
        assert_eq!((review.seen.len(), review.settled), (2, 1));
        let redriven = review.seen.iter().find(|dead| *dead.action.as_ref().unwrap() == action("two")).unwrap();
        assert_eq!(redriven.redriven, times);
        counted(&queue, 1).await;
        let delivery = next(&mut consumer).await;
        assert_eq!((delivery.action.clone(), delivery.deliveries), (action("two"), 0));
        assert!(!delivery.redelivered);
        delivery.reject("again").await;
        counted(&queue, 2).await;
    }
    queue.close().await;
}

async fn a_purged_message_is_gone_and_the_others_are_not(place: &impl Place) {
    let queue = put_aside(place, &["one", "two", "three"]).await;
    assert_eq!(Same::review(place, Fate::Purge, Some("two")).await.settled, 1);
    assert_eq!(Same::review(place, Fate::Keep, None).await.sessions(), ["one", "three"]);
    assert_eq!(Same::review(place, Fate::Purge, None).await.settled, 2);
    counted(&queue, 0).await;
    assert!(Same::review(place, Fate::Keep, None).await.seen.is_empty());
    queue.close().await;
}

fn action(session: &str) -> ActionRequired {
    ActionRequired {
        session: SessionKey::new("openai", session),
        event: format!("event of {session}"),
        accepted_at: 1_790_000_000_000,
        tries: 0,
        traceparent: None,
    }
}

async fn next(consumer: &mut Box<dyn Consumer>) -> Delivery {
    timeout(Duration::from_secs(30), consumer.next()).await.expect("no delivery in time").expect("the consumer ended")
}
