//! Actions that are no function calls: told to whoever is configured, never answered.

use actiond::sandbox::{Status, generate_secret};
use serde_json::Value;

use crate::{
    over_every_pair,
    rig::{Pair, Reply, Rig, Setup},
};

over_every_pair!(actions_that_are_not_ours_are_forwarded_once_and_never_answered);

async fn telling(pair: Pair) -> Rig {
    let secret = generate_secret();
    let forward =
        format!("forward_other_actions: {{ url: \"http://HANDLER/told\", sign: {{ standard: \"{secret}\" }} }}");
    let mut rig = Setup::new(pair)
        .http("a", "parameters: { type: object }")
        .platform_key(&forward)
        .extra("sweep: { every: 1s }")
        .prepare()
        .await;
    rig.replace("HANDLER", &rig.handler_at.to_string());
    rig
}

async fn actions_that_are_not_ours_are_forwarded_once_and_never_answered(pair: Pair) {
    let mut rig = telling(pair).await;
    rig.start_all().await;
    rig.handler.reply("told", [Reply::new(503, "")]);
    let id = rig.session("await approval & await browser & call a & await environment").await;
    let told = rig.handler.arrived("told", 4).await;
    let mut keys: Vec<_> = told.iter().map(|request| request.key.clone()).collect();
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 3, "one of them twice, under its own key");
    let kinds = |told: &[crate::rig::Request]| {
        let mut kinds: Vec<_> = told
            .iter()
            .map(|request| {
                let body: Value = serde_json::from_slice(&request.body).unwrap();
                assert_eq!((&body["platform"], &body["session_id"]), (&"openai".into(), &id.as_str().into()));
                body["action"]["type"].as_str().unwrap().to_owned()
            })
            .collect();
        kinds.sort();
        kinds.dedup();
        kinds
    };
    let wanted = ["computer_use_approval_request", "environment_connection", "mcp_approval_request"];
    assert_eq!(kinds(&told), wanted);
    rig.until(&id, |session| session.calls(None).all(|call| call.result.is_some())).await;

    let worker = rig.worker.as_ref().unwrap();
    for kind in wanted {
        let label = format!("kind=\"{kind}\",outcome=\"forwarded\"");
        worker.metric("actiond_other_actions_total", &label, "1").await;
    }

    // Another worker, more webhooks and a few sweeps tell nobody again.
    rig.kill_worker().await;
    rig.start_all().await;
    let (headers, body) = rig.signed(&id, "wh_again");
    let (reads, pages) = (rig.sandbox.session(&id).unwrap().reads, rig.sandbox.counters().listed);
    assert_eq!(rig.post(&headers, body).await, 200);
    rig.until(&id, |session| session.reads > reads && rig.sandbox.counters().listed >= pages + 3).await;
    assert_eq!(rig.handler.requests("told").len(), 4);
    let session = rig.sandbox.session(&id).unwrap();
    assert_eq!((session.status, session.pending_kinds()), (Status::RequiresAction, wanted.map(str::to_owned).to_vec()));
    assert!(!rig.logs().contains("do webhooks arrive?"), "{}", rig.logs());
}

#[tokio::test]
async fn a_webhook_that_names_an_approval_is_looked_at() {
    let mut rig = telling(Pair::EmbeddedSqlite).await;
    rig.replace("sweep: { every: 1s }", "sweep: { enabled: false }");
    rig.start_all().await;
    rig.session("await approval").await;
    let told = rig.handler.arrived("told", 1).await;
    assert!(told[0].key.starts_with("action-"), "{}", told[0].key);
    let worker = rig.worker.as_ref().unwrap();
    worker.metric("actiond_other_actions_total", "outcome=\"forwarded\"", "1").await;
    worker.metric("actiond_other_actions_total", "outcome=\"seen\"", "1").await;
}

#[tokio::test]
async fn an_approval_hides_no_call() {
    let rig = Setup::new(Pair::EmbeddedSqlite)
        .http("a", "parameters: { type: object }")
        .extra("sweep: { enabled: false }")
        .start()
        .await;
    // The one webhook of this round names the approval, which comes first.
    let id = rig.session("await approval & call a").await;
    rig.until(&id, |session| session.calls(None).all(|call| call.posts.accepted == 1)).await;
}
