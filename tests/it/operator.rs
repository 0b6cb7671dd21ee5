//! What an operator can do from the shell while the program runs: calls that do not go on, and messages put aside.

use std::{process::Stdio, sync::Arc, time::Duration};

use actiond::{
    metrics::Metrics,
    queue::{self, Embedded, Queue, RabbitMq},
    sandbox::Rule,
    session::{ActionRequired, SessionKey},
    store::Database,
};
use serde_json::Value;
use tokio::process::Command;

use crate::{
    over_every_pair,
    rig::{PATIENCE, Pair, Rig, Setup},
};

over_every_pair!(
    a_held_call_is_resolved_by_hand,
    a_refused_result_is_resubmitted_without_the_handler,
    a_refused_result_is_answered_anew_by_the_handler,
    a_message_of_an_unknown_platform_is_put_aside_and_does_not_go_in_circles,
    a_message_that_killed_its_workers_is_put_aside_and_redriven,
    dead_messages_are_filtered_and_purged,
);

const OBJECT: &str = "parameters: { type: object }";

/// How a command ended.
pub(crate) struct Ended {
    pub(crate) status: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ended {
    pub(crate) fn lines(&self) -> Vec<Value> {
        assert_eq!(self.status, 0, "{}{}", self.out, self.err);
        self.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Runs `actiond` with words that are separated by blanks, and `last` as it is.
pub(crate) async fn actiond_with(rig: &Rig, words: &str, last: &[&str]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_actiond"));
    command.args(words.split(' ')).args(last).args(["--config", &rig.config_file()]);
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    let output = tokio::time::timeout(PATIENCE, command.output()).await.unwrap().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ended { status: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

pub(crate) async fn actiond(rig: &Rig, words: &str) -> Ended {
    actiond_with(rig, words, &[]).await
}

/// Repeats a listing until it has so many lines.
pub(crate) async fn listed(rig: &Rig, words: &str, count: usize) -> Vec<Value> {
    let wait = async {
        loop {
            let lines = actiond(rig, words).await.lines();
            if lines.len() == count {
                return lines;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    match tokio::time::timeout(PATIENCE, wait).await {
        Ok(lines) => lines,
        Err(_) => panic!("{words}: not {count} lines:\n{}\n{}", actiond(rig, words).await.out, rig.logs()),
    }
}

async fn a_held_call_is_resolved_by_hand(pair: Pair) {
    let keys = "if_interrupted: hold\nparameters: { type: object }";
    let mut rig = Setup::new(pair).http("a", keys).extra("worker: { lease: 2s }").start().await;
    rig.handler.hold();
    let id = rig.session("call a").await;
    rig.handler.arrived("a", 1).await;
    rig.worker.take().unwrap().kill().await;
    rig.start_all().await;

    let held = listed(&rig, "calls list --state interrupted --json", 1).await.remove(0);
    assert_eq!((held["session"].as_str(), held["function"].as_str()), (Some(&*id), Some("a")));
    let call = held["call"].as_str().unwrap();
    assert_eq!(call, format!("openai/{id}/{}/{}", held["turn"].as_str().unwrap(), held["call_id"].as_str().unwrap()));
    let refused = actiond(&rig, &format!("calls resubmit {call}")).await;
    assert_eq!(refused.status, 1);
    assert!(refused.err.contains("is interrupted: it has no stored result"), "{}", refused.err);

    let call_id = held["call_id"].as_str().unwrap();
    let resolved = actiond_with(&rig, &format!("calls resolve {call_id} --output"), &["refunded, \u{e9}"]).await;
    assert_eq!(resolved.status, 0, "{}", resolved.err);
    let session = rig.settled(&id).await;
    assert_eq!(session.answer(), Some("a: refunded, \u{e9}"));
    assert_eq!(rig.handler.requests("a").len(), 1, "the handler is not started twice");
    rig.handler.release();

    let settled = listed(&rig, "calls list --state settled --json", 1).await.remove(0);
    assert_eq!(settled["detail"], "resolved by an operator");
    let again = actiond(&rig, &format!("calls resolve {call} --error no")).await;
    assert_eq!(again.status, 1);
    assert!(again.err.contains("it is settled"), "{}", again.err);
}

/// A session whose one result the platform has refused for good.
pub(crate) async fn refused(rig: &Rig) -> (String, String) {
    rig.faults(|f| f.submit_422 = Rule::Next(1));
    let id = rig.session("call a").await;
    let lines = listed(rig, "calls list --state refused --function a --json", 1).await;
    (id, lines[0]["call"].as_str().unwrap().to_owned())
}

async fn a_refused_result_is_resubmitted_without_the_handler(pair: Pair) {
    let rig = Setup::new(pair).http("a", OBJECT).start().await;
    let (id, call) = refused(&rig).await;
    let shown = actiond(&rig, &format!("calls show {call} --body")).await;
    assert!(shown.out.contains("refused") && shown.out.contains("\"output\":\"ok\""), "{}", shown.out);
    assert!(!actiond(&rig, &format!("calls show {call}")).await.out.contains("output"));
    let human = actiond(&rig, "calls list").await;
    assert!(human.out.starts_with("CALL ") && human.out.contains(&call), "{}", human.out);

    assert_eq!(actiond(&rig, &format!("calls resubmit {call}")).await.status, 0);
    let session = rig.settled(&id).await;
    assert_eq!(session.answer(), Some("a: ok"));
    assert_eq!(rig.handler.requests("a").len(), 1);
    assert_eq!(session.calls(None).next().unwrap().posts.accepted, 1);
}

async fn a_refused_result_is_answered_anew_by_the_handler(pair: Pair) {
    let rig = Setup::new(pair).http("a", OBJECT).start().await;
    let (id, call) = refused(&rig).await;
    let many = actiond_with(&rig, "calls retry --json", &[&call, "none"]).await;
    assert_eq!(many.status, 1, "one of the two is not there");
    assert!(
        many.err.contains("there is no call none") && many.out.contains("\"retrying\""),
        "{}{}",
        many.out,
        many.err
    );
    let session = rig.settled(&id).await;
    assert_eq!(rig.handler.requests("a").len(), 2);
    let posted = session.calls(None).next().unwrap().result.as_ref().unwrap().idempotency_key.clone().unwrap();
    assert!(posted.ends_with("-1"), "the refused bytes had another key: {posted}");
}

/// The queue of the program's config, as a second process beside it.
pub(crate) async fn beside(rig: &Rig) -> Arc<dyn Queue> {
    let config = actiond::config::load(rig.config_file().as_ref()).unwrap().config;
    match config.queue {
        queue::Config::Embedded => {
            let database = Database::open(&config.store).await.unwrap();
            Arc::new(Embedded::new(database, Metrics::new()))
        }
        queue::Config::RabbitMq(rabbitmq) => {
            let queue = RabbitMq::new(rabbitmq, Metrics::new());
            while queue.ready().is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Arc::new(queue)
        }
    }
}

pub(crate) fn action(platform: &str, session: &str) -> ActionRequired {
    ActionRequired {
        session: SessionKey::new(platform, session),
        event: "wh_1".into(),
        accepted_at: crate::rig::now() * 1000,
        tries: 0,
        traceparent: None,
    }
}

async fn a_message_of_an_unknown_platform_is_put_aside_and_does_not_go_in_circles(pair: Pair) {
    let rig = Setup::new(pair).http("a", OBJECT).start().await;
    let queue = beside(&rig).await;
    queue.publish(&action("elsewhere", "sess_1")).await.unwrap();
    for times in 0..5 {
        let dead = listed(&rig, "dead list --json", 1).await.remove(0);
        assert_eq!(
            (dead["reason"].as_str(), dead["redriven"].as_u64()),
            (Some("platform elsewhere is not configured"), Some(times))
        );
        let redriven = actiond(&rig, "dead redrive --all --json").await.lines().remove(0);
        assert_eq!((&redriven["id"], redriven["outcome"].as_str()), (&dead["id"], Some("redriven")));
        redied(&rig, &dead["id"]).await;
    }
    let stopped = actiond(&rig, "dead redrive --all").await;
    assert_eq!(stopped.status, 1);
    assert!(stopped.out.contains("refused: it came back 5 times: --force"), "{}", stopped.out);
    let id = listed(&rig, "dead list --json", 1).await.remove(0)["id"].clone();
    assert_eq!(actiond(&rig, "dead redrive --all --force").await.status, 0);
    redied(&rig, &id).await;
    let metrics = async {
        while !rig.worker.as_ref().unwrap().admin("/metrics").await.1.contains("\nactiond_dead 1") {
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::time::timeout(PATIENCE, metrics).await.unwrap();
    queue.close().await;
}

/// Waits until the one message is dead again, under another name than before.
async fn redied(rig: &Rig, before: &Value) {
    let wait = async {
        loop {
            let lines = actiond(rig, "dead list --json").await.lines();
            if lines.len() == 1 && lines[0]["id"] != *before {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
}

/// A session whose message killed three workers, which is as many as it may; the program runs again.
pub(crate) async fn put_aside(rig: &mut Rig) -> String {
    rig.faults(|f| f.webhook_drop = Rule::ALWAYS);
    let id = rig.session("call a").await;
    rig.worker.take().unwrap().kill().await;
    let queue = beside(rig).await;
    queue.publish(&action("openai", &id)).await.unwrap();
    queue.close().await;
    drop(queue);
    loop {
        let queue = beside(rig).await;
        let mut consumer = queue.consume().await;
        let delivery = consumer.next().await.unwrap();
        let deaths = delivery.deliveries + 1;
        // A process that dies with what it holds.
        drop((queue, consumer));
        drop(delivery);
        if deaths >= 3 {
            break;
        }
    }
    rig.start_all().await;
    id
}

async fn a_message_that_killed_its_workers_is_put_aside_and_redriven(pair: Pair) {
    let mut rig = Setup::new(pair).http("a", OBJECT).extra("worker: { max_deliveries: 3 }").start().await;
    let id = put_aside(&mut rig).await;
    let dead = listed(&rig, "dead list --platform openai --reason without --json", 1).await.remove(0);
    assert_eq!(dead["session"].as_str(), Some(&*id));
    assert!(rig.handler.requests("a").is_empty());
    let name = dead["id"].as_str().unwrap();
    let shown = actiond(&rig, &format!("dead show {name} --body")).await;
    assert!(shown.out.contains("delivered ") && shown.out.contains("accepted_at"), "{}", shown.out);

    let dry = actiond(&rig, &format!("dead redrive {name} --dry-run")).await;
    assert!(dry.status == 0 && dry.out.contains("would be redriven"), "{}{}", dry.out, dry.err);
    listed(&rig, "dead list --json", 1).await;
    let redriven = actiond(&rig, &format!("dead redrive {name} --rate 50/s")).await;
    assert!(redriven.status == 0 && redriven.err.contains("1 redriven"), "{}{}", redriven.out, redriven.err);
    let session = rig.settled(&id).await;
    assert_eq!(session.answer(), Some("a: ok"));
    assert_eq!(rig.handler.requests("a").len(), 1);
    let gone = actiond(&rig, &format!("dead redrive {name}")).await;
    assert!(gone.status == 1 && gone.err.contains("there is no dead message"), "{}", gone.err);
}

async fn dead_messages_are_filtered_and_purged(pair: Pair) {
    let rig = Setup::new(pair).http("a", OBJECT).start().await;
    let queue = beside(&rig).await;
    for (platform, session) in [("one", "sess_1"), ("one", "sess_2"), ("two", "sess_3")] {
        queue.publish(&action(platform, session)).await.unwrap();
    }
    queue.close().await;
    let dead = listed(&rig, "dead list --json", 3).await;
    let first = listed(&rig, "dead list --limit 1 --json", 1).await.remove(0);
    assert_eq!(first, dead[0]);
    let rest = listed(&rig, &format!("dead list --json --after {}", dead[0]["id"].as_str().unwrap()), 2).await;
    assert_eq!(rest, dead[1..]);
    let human = actiond(&rig, "dead list --platform two").await;
    assert!(human.out.contains("two/sess_3"), "{}{}", human.out, human.err);
    assert_eq!(actiond(&rig, "dead list --function a --json").await.lines().len(), 0);
    assert_eq!(actiond(&rig, "dead list --older-than 1h --json").await.lines().len(), 0);
    assert_eq!(actiond(&rig, "dead list --newer-than 1h --json").await.lines().len(), 3);

    for (words, complaint) in [
        ("dead purge --platform one", "--yes"),
        ("dead purge --yes", "say which"),
        ("dead redrive", "say which"),
        ("dead redrive --all --rate fast", "must be a count per time"),
        ("dead list --older-than yesterday", "must be a time"),
        ("calls list --state dead", "possible values"),
    ] {
        let refused = actiond(&rig, words).await;
        assert_eq!(refused.status, 2, "{words}: {}", refused.err);
        assert!(refused.err.contains(complaint), "{words}: {}", refused.err);
    }
    let dry = actiond(&rig, "dead purge --platform one --dry-run").await;
    assert_eq!((dry.status, dry.out.lines().count()), (0, 2));
    let purged = actiond(&rig, "dead purge --platform one --max 1 --yes").await;
    assert_eq!((purged.status, purged.out.lines().count()), (0, 1));
    let left = listed(&rig, "dead list --json", 2).await;
    // The broker may give back what it was asked for in another order.
    let mut platforms: Vec<_> = left.iter().map(|dead| dead["platform"].as_str().unwrap()).collect();
    platforms.sort_unstable();
    assert_eq!(platforms, ["one", "two"]);
    assert_eq!(actiond(&rig, "dead purge --all --yes").await.status, 0);
    listed(&rig, "dead list --json", 0).await;
}
