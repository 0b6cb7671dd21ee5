//! Sessions whose webhook never came, and calls that were left behind.

use std::time::{Duration, Instant};

use actiond::sandbox::{Rule, TurnStatus};

use crate::{
    over_every_pair,
    rig::{PATIENCE, Pair, Rig, Setup},
};

over_every_pair!(sessions_whose_webhooks_are_all_lost_are_answered);

const OFTEN: &str = "sweep: { every: 1s }";

async fn sessions_whose_webhooks_are_all_lost_are_answered(pair: Pair) {
    let rig = Setup::new(pair).http("a", "parameters: { type: object }").extra(OFTEN).start().await;
    rig.faults(|f| f.webhook_drop = Rule::ALWAYS);
    let lost = [rig.session("call a & call a then call a").await, rig.session("call a").await];
    for id in lost {
        let session = rig.settled(&id).await;
        assert!(session.calls(None).all(|call| call.posts.accepted == 1 && call.posts.refused == 0), "{session:#?}");
    }
    assert_eq!(rig.handler.requests("a").len(), 4);
    assert_eq!(rig.sandbox.counters().webhooks_delivered, 0);
    assert!(swept(&rig).await >= 2);
}

#[tokio::test]
async fn a_long_list_is_read_to_its_end_and_old_sessions_are_left_alone() {
    let mut rig =
        Setup::new(Pair::EmbeddedSqlite).function("a", "handler: { type: echo }").extra(OFTEN).prepare().await;
    rig.faults(|f| f.webhook_drop = Rule::ALWAYS);
    let old = rig.session("call a").await;
    rig.sandbox.age(&old, Duration::from_secs(25 * 3600));
    let mut ids = Vec::new();
    for _ in 0..130 {
        ids.push(rig.session("call a").await);
    }
    rig.start_all().await;
    for id in &ids {
        rig.settled(id).await;
    }
    let pages = rig.sandbox.counters().listed;
    until(|| rig.sandbox.counters().listed >= pages + 4).await;
    assert_eq!(rig.sandbox.session(&old).unwrap().reads, 0);
    assert!(swept(&rig).await >= 130);
}

#[tokio::test]
async fn an_idle_session_or_one_in_work_is_not_woken() {
    let rig = Setup::new(Pair::EmbeddedSqlite).http("a", "parameters: { type: object }").extra(OFTEN).start().await;
    rig.play("call a").await;
    rig.session("await approval").await;
    rig.handler.hold();
    let held = rig.session("call a").await;
    rig.handler.arrived("a", 2).await;
    rig.sandbox.age(&held, Duration::from_secs(60));
    let (pages, found) = (rig.sandbox.counters().listed, swept(&rig).await);
    until(|| rig.sandbox.counters().listed >= pages + 3).await;
    assert_eq!(swept(&rig).await, found);
    rig.handler.release();
    rig.settled(&held).await;
}

#[tokio::test]
async fn a_sweep_that_is_refused_leaves_it_to_the_next() {
    let mut rig =
        Setup::new(Pair::EmbeddedSqlite).function("a", "handler: { type: echo }").extra(OFTEN).prepare().await;
    rig.faults(|f| f.webhook_drop = Rule::ALWAYS);
    let id = rig.session("call a").await;
    // Nothing but sweeps asks the platform.
    rig.faults(|f| f.unauthorized = Rule::Next(2));
    rig.start_all().await;
    rig.settled(&id).await;
    assert_eq!(rig.logs().matches("a sweep broke off").count(), 2, "{}", rig.logs());
    rig.worker.as_ref().unwrap().ready().await;
}

#[tokio::test]
async fn workers_share_the_sweeps() {
    let rig = Setup::new(Pair::RabbitPostgres).function("a", "handler: { type: echo }").extra(OFTEN).start().await;
    let others = [rig.daemon("worker").await, rig.daemon("worker").await];
    for other in &others {
        other.ready().await;
    }
    let (pages, started) = (rig.sandbox.counters().listed, Instant::now());
    until(|| rig.sandbox.counters().listed >= pages + 7).await;
    // At most one of the seven came early for a worker that started, and one at once.
    assert!(started.elapsed() > Duration::from_millis(4500), "{:?}", started.elapsed());
}

#[tokio::test]
async fn a_call_that_was_left_behind_is_ended() {
    let setup = Setup::new(Pair::EmbeddedSqlite).http("a", "parameters: { type: object }");
    let short = format!("{OFTEN}\nworker: {{ lease: 500ms, confirm_after: 500ms }}");
    let mut rig = setup.extra(&short).start().await;
    rig.handler.hold();
    let id = rig.session("call a").await;
    rig.handler.arrived("a", 1).await;
    rig.worker.take().unwrap().kill().await;
    // What no crash of ours does: the message is gone, and the platform has nothing pending.
    rig.sql("DELETE FROM queue").await;
    rig.cancel(&id).await;
    assert_eq!(rig.settled(&id).await.turns[0].status, TurnStatus::Cancelled);
    rig.start_all().await;
    let state = async || rig.sql("SELECT state FROM calls").await;
    let begun = Instant::now();
    while state().await != ["obsolete"] {
        assert!(begun.elapsed() < PATIENCE, "{:?}\n{}", state().await, rig.logs());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_sweep_can_be_turned_off() {
    let rig = Setup::new(Pair::EmbeddedSqlite)
        .function("a", "handler: { type: echo }")
        .extra("sweep: { enabled: false, every: 1s }")
        .start()
        .await;
    // A row that an earlier process left.
    rig.sql("INSERT INTO due (platform, session, at, tries, accepted_at) VALUES ('openai', '', 0, 0, 0)").await;
    let begun = Instant::now();
    while !rig.sql("SELECT platform FROM due WHERE platform <> ''").await.is_empty() {
        assert!(begun.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    rig.play("call a").await;
    assert_eq!(rig.sandbox.counters().listed, 0);
}

async fn until(wanted: impl Fn() -> bool) {
    let wait = async {
        while !wanted() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("it does not come to that");
}

/// The worker's count of sessions that a sweep found.
async fn swept(rig: &Rig) -> u64 {
    let (_, metrics) = rig.worker.as_ref().unwrap().admin("/metrics").await;
    let value =
        metrics.lines().find_map(|line| line.strip_prefix("actiond_swept_sessions_total{platform=\"openai\"} "));
    value.map_or(0, |value| value.parse().unwrap())
}
