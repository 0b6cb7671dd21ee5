//! What dies, and what is not lost or doubled then.

use std::time::{Duration, Instant};

use actiond::sandbox::Rule;
use sqlx::{Connection as _, Row as _};

use crate::{
    over_every_pair,
    proxy::{self, Proxy},
    rig::{self, Pair, Reply, Rig, Setup},
    services,
};

over_every_pair!(
    a_worker_killed_before_it_submits_does_not_run_the_handler_again,
    a_worker_killed_while_its_handler_runs_is_made_up_for_at_once,
    a_function_that_must_not_run_twice_is_not_started_twice,
    a_handler_that_gives_no_answer_is_started_again_only_where_it_may_be,
    an_accepted_webhook_outlives_the_process,
    a_stop_lets_the_handler_finish,
    a_stop_past_the_grace_period_gives_the_call_back,
    refused_credentials_stop_the_hammering_and_show_in_readiness,
);

const OBJECT: &str = "parameters: { type: object }";

async fn a_worker_killed_before_it_submits_does_not_run_the_handler_again(pair: Pair) {
    let mut rig = Setup::new(pair).http("a", OBJECT).start().await;
    rig.faults(|f| f.submit_500 = Rule::ALWAYS);
    let id = rig.session("call a").await;
    rig.until(&id, |session| session.calls(None).any(|call| call.posts.faulted > 0)).await;
    rig.kill_worker().await;
    rig.faults(|f| f.submit_500 = Rule::OFF);
    rig.start_all().await;
    let session = rig.settled(&id).await;
    assert_eq!(session.calls(None).next().unwrap().posts.accepted, 1);
    assert_eq!(rig.handler.requests("a").len(), 1);
}

async fn a_worker_killed_while_its_handler_runs_is_made_up_for_at_once(pair: Pair) {
    let mut rig = Setup::new(pair).http("a", OBJECT).extra("worker: { lease: 1h }").start().await;
    rig.handler.hold();
    let id = rig.session("call a").await;
    rig.handler.arrived("a", 1).await;
    rig.kill_worker().await;
    rig.start_all().await;
    let requests = rig.handler.arrived("a", 2).await;
    assert_eq!(requests[0].key, requests[1].key, "the callee can tell that it is the same call");
    rig.handler.release();
    let session = rig.settled(&id).await;
    assert_eq!(session.calls(None).next().unwrap().posts.accepted, 1);
}

async fn a_function_that_must_not_run_twice_is_not_started_twice(pair: Pair) {
    let mut rig = Setup::new(pair).http("a", "if_interrupted: fail").extra("worker: { lease: 2s }").start().await;
    rig.handler.hold();
    let id = rig.session("call a").await;
    rig.handler.arrived("a", 1).await;
    rig.kill_worker().await;
    rig.start_all().await;
    let session = rig.settled(&id).await;
    let result = &session.calls(None).next().unwrap().result.as_ref().unwrap().result;
    assert!(!result.success && result.error.as_ref().unwrap().contains("interrupted"), "{result:?}");
    assert_eq!(rig.handler.requests("a").len(), 1);
}

async fn a_handler_that_gives_no_answer_is_started_again_only_where_it_may_be(pair: Pair) {
    let slow = "handler: { type: command, command: [sleep, '5'], timeout: 200ms }\nretry: { max_attempts: 2 }";
    let rig = Setup::new(pair)
        .function("once", &format!("{slow}\nif_interrupted: fail"))
        .function("again", slow)
        .start()
        .await;
    let session = rig.play("call once & call again").await;
    let error = |name| {
        let result = &session.calls(Some(name)).next().unwrap().result.as_ref().unwrap().result;
        result.error.clone().unwrap_or_else(|| panic!("{name}: {result:?}"))
    };
    assert!(error("once").contains("interrupted"), "{}", error("once"));
    assert!(error("again").contains("failed"), "{}", error("again"));
    let worker = rig.worker.as_ref().unwrap();
    let (_, metrics) = worker.admin("/metrics").await;
    let retried = |name: &str| {
        let labels = [format!("function=\"{name}\""), "outcome=\"retried\"".to_owned()];
        metrics.lines().any(|line| labels.iter().all(|label| line.contains(label.as_str())))
    };
    assert!(retried("again") && !retried("once"), "{metrics}");
}

async fn an_accepted_webhook_outlives_the_process(pair: Pair) {
    let mut rig = Setup::new(pair).http("a", OBJECT).start().await;
    rig.faults(|f| {
        f.webhook_drop = Rule::ALWAYS;
        f.retrieve_500 = Rule::Next(1);
    });
    let id = rig.session("call a").await;
    let (headers, body) = rig.signed(&id, "wh_1");
    assert_eq!(rig.post(&headers, body).await, 200);
    for daemon in [rig.ingress.take(), rig.worker.take()].into_iter().flatten() {
        daemon.kill().await;
    }
    rig.start_all().await;
    let session = rig.settled(&id).await;
    assert_eq!(session.answer(), Some("a: ok"));
    assert_eq!(rig.handler.requests("a").len(), 1);
}

async fn a_stop_lets_the_handler_finish(pair: Pair) {
    let mut rig = Setup::new(pair).http("a", OBJECT).start().await;
    rig.handler.hold();
    let id = rig.session("call a").await;
    rig.handler.arrived("a", 1).await;
    let mut worker = rig.worker.take().unwrap();
    worker.terminate();
    worker.readiness(503).await;
    rig.handler.release();
    assert!(worker.ended().await.success());
    let session = rig.settled(&id).await;
    assert_eq!(session.answer(), Some("a: ok"));
    rig.start_all().await;
    rig.play("call a").await;
    assert_eq!(rig.handler.requests("a").len(), 2, "one for each session");
}

async fn a_stop_past_the_grace_period_gives_the_call_back(pair: Pair) {
    let mut rig = Setup::new(pair).http("a", OBJECT).extra("worker: { lease: 1h, grace_period: 200ms }").start().await;
    rig.handler.hold();
    let id = rig.session("call a").await;
    rig.handler.arrived("a", 1).await;
    let mut worker = rig.worker.take().unwrap();
    worker.terminate();
    assert!(worker.ended().await.success());
    rig.start_all().await;
    let requests = rig.handler.arrived("a", 2).await;
    assert_eq!(requests[0].key, requests[1].key);
    rig.handler.release();
    rig.settled(&id).await;
}

async fn refused_credentials_stop_the_hammering_and_show_in_readiness(pair: Pair) {
    let rig = Setup::new(pair).http("a", OBJECT).start().await;
    rig.faults(|f| f.webhook_drop = Rule::ALWAYS);
    let id = rig.session("call a").await;
    rig.faults(|f| f.unauthorized = Rule::Next(1));
    for n in 0..10 {
        let (headers, body) = rig.signed(&id, &format!("wh_{n}"));
        assert_eq!(rig.post(&headers, body).await, 200);
    }
    let worker = rig.worker.as_ref().unwrap();
    let body = worker.readiness(503).await;
    assert!(body.contains("openai refuses our credentials") && !body.contains("sk-test"), "{body}");
    let reads = rig.sandbox.session(&id).unwrap().reads;
    assert_eq!(reads, 0, "nothing is asked during the pause");
    worker.ready().await;
    rig.settled(&id).await;
}

#[tokio::test]
async fn a_broker_that_is_away_costs_503_and_nothing_else() {
    let (proxy, url) = proxy::before(&services::variable("ACTIOND_TEST_AMQP_URL")).await;
    let rig = Setup::new(Pair::RabbitPostgres).http("a", OBJECT).queue_url(url).start().await;
    rig.play("call a").await;
    away_and_back(&rig, &proxy).await;
}

async fn away_and_back(rig: &Rig, proxy: &Proxy) {
    proxy.cut();
    rig.faults(|f| f.webhook_drop = Rule::ALWAYS);
    let id = rig.session("call a").await;
    let (headers, body) = rig.signed(&id, "wh_1");
    assert_eq!(rig.post(&headers, body.clone()).await, 503);
    rig.ingress.as_ref().unwrap().readiness(503).await;
    proxy.heal();
    for daemon in rig.ingress.iter().chain(&rig.worker) {
        daemon.ready().await;
    }
    assert_eq!(rig.post(&headers, body).await, 200);
    rig.settled(&id).await;
}

#[tokio::test]
async fn a_broker_that_is_absent_at_start_is_waited_for() {
    let (proxy, url) = proxy::before(&services::variable("ACTIOND_TEST_AMQP_URL")).await;
    proxy.cut();
    let mut rig = Setup::new(Pair::RabbitPostgres).http("a", OBJECT).queue_url(url).prepare().await;
    rig.ingress = Some(rig.daemon("ingress").await);
    rig.worker = Some(rig.daemon("worker").await);
    rig.worker.as_ref().unwrap().readiness(503).await;
    proxy.heal();
    rig.start_all().await;
    rig.play("call a").await;
}

#[tokio::test]
async fn a_database_that_goes_away_loses_no_result() {
    let (proxy, url) = proxy::before(&services::new_database().await).await;
    let mut rig = Setup::new(Pair::RabbitPostgres).http("a", OBJECT).store_url(url).prepare().await;
    proxy.cut();
    rig.ingress = Some(rig.daemon("ingress").await);
    rig.worker = Some(rig.daemon("worker").await);
    rig.worker.as_ref().unwrap().readiness(503).await;
    proxy.heal();
    rig.start_all().await;

    rig.handler.hold();
    let id = rig.session("call a").await;
    rig.handler.arrived("a", 1).await;
    proxy.cut();
    rig.handler.release();
    rig.worker.as_ref().unwrap().readiness(503).await;
    proxy.heal();
    let session = rig.settled(&id).await;
    assert_eq!(session.answer(), Some("a: ok"));
    assert_eq!(rig.handler.requests("a").len(), 1, "the result was held in memory");
}

#[tokio::test]
async fn a_result_that_was_accepted_while_the_database_was_away_is_settled() {
    let database = services::new_database().await;
    let (proxy, url) = proxy::before(&database).await;
    let rig = Setup::new(Pair::RabbitPostgres).http("a", OBJECT).store_url(url).start().await;
    // The result is accepted, and the read that confirms it takes its time.
    rig.faults(|f| f.answer_delay_ms = 500);
    let id = rig.session("call a").await;
    rig.until(&id, |session| session.calls(None).any(|call| call.posts.accepted == 1)).await;
    proxy.cut();
    until_said(&rig, "holding the session").await;
    rig.faults(|f| f.answer_delay_ms = 0);
    proxy.heal();

    let mut store = sqlx::PgConnection::connect(&database).await.unwrap();
    let settled = async {
        loop {
            let row = sqlx::query("SELECT state FROM calls").fetch_one(&mut store).await.unwrap();
            if row.get::<String, _>(0) == "settled" {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(rig::PATIENCE, settled).await.expect("the store never learns that the result was accepted");
    assert_eq!(rig.handler.requests("a").len(), 1);
}

#[tokio::test]
async fn what_is_due_while_the_broker_is_away_is_done_soon_after() {
    let (proxy, url) = proxy::before(&services::variable("ACTIOND_TEST_AMQP_URL")).await;
    let rig = Setup::new(Pair::RabbitPostgres).http("a", OBJECT).queue_url(url).start().await;
    rig.handler.hold();
    rig.handler.reply("a", [Reply::new(503, "")]);
    let id = rig.session("call a").await;
    rig.handler.arrived("a", 1).await;
    proxy.cut();
    rig.handler.release();
    until_said(&rig, "cannot publish a due session").await;
    proxy.heal();
    rig.worker.as_ref().unwrap().ready().await;
    let back = Instant::now();
    rig.settled(&id).await;
    // The worker's own redelivery may be what does it; neither waits for a scheduler's hold.
    assert!(back.elapsed() < Duration::from_secs(5), "{:?}", back.elapsed());
}

async fn until_said(rig: &Rig, words: &str) {
    let wait = async {
        while !rig.logs().contains(words) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    if tokio::time::timeout(rig::PATIENCE, wait).await.is_err() {
        panic!("nobody says {words:?}:\n{}", rig.logs());
    }
}

#[tokio::test]
async fn two_workers_share_the_sessions() {
    let mut rig = Setup::new(Pair::RabbitPostgres).http("a", OBJECT).extra("worker: { concurrency: 4 }").start().await;
    let second = rig.daemon("worker").await;
    second.ready().await;
    let mut ids = Vec::new();
    for _ in 0..40 {
        ids.push(rig.session("call a & call a").await);
    }
    rig.kill_worker().await;
    for id in ids {
        let session = tokio::time::timeout(Duration::from_secs(60), rig.settled(&id)).await.unwrap();
        assert!(session.calls(None).all(|call| call.posts.accepted == 1), "{session:#?}");
    }
}
