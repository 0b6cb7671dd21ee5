//! Results that come later: 202, then `POST /results/{token}`.

use actiond::sandbox::TurnStatus;
use serde_json::{Value, json};

use crate::{
    over_every_pair,
    rig::{Pair, Reply, Rig, Setup},
};

over_every_pair!(
    a_result_that_comes_later_is_submitted_once,
    a_result_may_come_before_the_202,
    a_result_outlives_a_restart_of_every_process,
    a_call_whose_result_never_comes_ends_at_its_deadline,
);

/// Posts a result; status and body of the answer.
async fn post(url: &str, kind: &str, body: impl Into<Vec<u8>>) -> (u16, Value) {
    let client = actiond::http::client().unwrap();
    let response = client.post(url).header("content-type", kind).body(body.into()).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

async fn start(pair: Pair, extra: &str) -> Rig {
    let rig = Setup::new(pair).http("a", "parameters: { type: object }").extra(extra).start().await;
    rig.handler.reply("a", (0..9).map(|_| Reply::new(202, "")));
    rig
}

/// Waits until a worker has noted that the result comes later.
async fn waiting(rig: &Rig, calls: u64) {
    let line = format!("actiond_calls_total{{function=\"a\",outcome=\"waiting\",platform=\"openai\"}} {calls}");
    let wait = async {
        while !rig.worker.as_ref().unwrap().admin("/metrics").await.1.contains(&line) {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(crate::rig::PATIENCE, wait).await.unwrap_or_else(|_| panic!("nothing waits\n{}", rig.logs()));
}

async fn a_result_that_comes_later_is_submitted_once(pair: Pair) {
    let rig = start(pair, "").await;
    let id = rig.session("call a").await;
    let url = rig.handler.arrived("a", 1).await[0].result_url.clone();
    waiting(&rig, 1).await;

    let json = "application/json";
    let done = json!({ "success": true, "output": "done" }).to_string();
    assert_eq!(post(&url, json, "{}").await.0, 400);
    assert_eq!(post(&url, "application/pdf", done.clone()).await.0, 415);
    let large = actiond::http::client().unwrap().post(&url).body(vec![b' '; (4 << 20) + 1]).send().await;
    // Who is still sending when the answer comes may find the connection closed.
    assert!(large.is_err() || large.is_ok_and(|response| response.status() == 413));
    assert_eq!(post(&(url.clone() + "A"), json, done.clone()).await.0, 404);
    assert_eq!(post(&url.replace("/results/", "/results/x"), json, done.clone()).await.0, 404);
    assert_eq!(post(&url, json, done.clone()).await, (200, json!({ "status": "stored" })));
    let session = rig.settled(&id).await;
    assert_eq!(session.answer(), Some("a: done"));
    assert_eq!(post(&url, json, done).await.0, 200, "the same again");
    assert_eq!(post(&url, "text/plain", "done").await.0, 200, "the same in another form");
    assert_eq!(post(&url, "text/plain", "other").await.0, 409);
    let call = session.calls(None).next().unwrap();
    assert_eq!((call.posts.accepted, call.posts.refused), (1, 0));
    assert_eq!(rig.handler.requests("a").len(), 1);

    let id = rig.session("call a").await;
    let url = rig.handler.arrived("a", 2).await[1].result_url.clone();
    let failed = json!({ "success": false, "error": "out of stock" });
    assert_eq!(post(&url, json, failed.to_string()).await.0, 200);
    let session = rig.settled(&id).await;
    let result = session.calls(None).next().unwrap().result.clone().unwrap().result;
    assert_eq!((result.success, result.error.as_deref()), (false, Some("out of stock")));
}

async fn a_result_may_come_before_the_202(pair: Pair) {
    let rig = start(pair, "").await;
    rig.handler.hold();
    let id = rig.session("call a").await;
    let url = rig.handler.arrived("a", 1).await[0].result_url.clone();
    assert_eq!(post(&url, "text/plain", "early").await.0, 200);
    rig.handler.release();
    assert_eq!(rig.settled(&id).await.answer(), Some("a: early"));
    assert_eq!(rig.handler.requests("a").len(), 1);
    assert_eq!(post(&url, "text/plain", "early").await.0, 200);
}

async fn a_result_outlives_a_restart_of_every_process(pair: Pair) {
    let mut rig = start(pair, "").await;
    let id = rig.session("call a").await;
    let url = rig.handler.arrived("a", 1).await[0].result_url.clone();
    waiting(&rig, 1).await;
    for daemon in [rig.ingress.take(), rig.worker.take()].into_iter().flatten() {
        daemon.kill().await;
    }
    rig.start_all().await;
    assert_eq!(post(&url, "text/plain", "after all").await.0, 200);
    assert_eq!(rig.settled(&id).await.answer(), Some("a: after all"));
    assert_eq!(rig.handler.requests("a").len(), 1, "a call that waits is not run again");
}

async fn a_call_whose_result_never_comes_ends_at_its_deadline(pair: Pair) {
    let rig = Setup::new(pair).http("a", "").platform_key("call_deadline: 2s").start().await;
    rig.handler.reply("a", [Reply::new(202, "")]);
    let id = rig.session("call a").await;
    let session = rig.settled(&id).await;
    let result = session.calls(None).next().unwrap().result.clone().unwrap().result;
    assert!(!result.success && result.error.unwrap().contains("did not finish in time"));
    assert_eq!(session.turns[0].status, TurnStatus::Completed);
    let url = rig.handler.requests("a")[0].result_url.clone();
    assert_eq!(post(&url, "text/plain", "too late").await.0, 409);
}
