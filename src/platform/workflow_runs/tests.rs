#![allow(clippy::unwrap_used)]

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::{
    platform::peer::{Answer, Peer},
    session::RequiredAction,
};

/// A date that every answer carries; the runs below wait an hour from then.
const DATE: &str = "Tue, 15 Sep 2026 12:00:00 GMT";
const NOON: i64 = 1_789_473_600;

fn runs(peer: &Peer) -> WorkflowRuns {
    let client = crate::http::client().unwrap();
    WorkflowRuns::new("rebyte.runs", &peer.base_url, &"rbk_case".into(), Flavor::Rebyte, client).unwrap()
}

fn key() -> SessionKey {
    SessionKey::new("rebyte.runs", "run_1")
}

fn answer(status: u16, body: &serde_json::Value) -> Answer {
    (status, &[("date", DATE)], body.to_string().into_bytes())
}

fn waiting(expires_at: &serde_json::Value) -> serde_json::Value {
    json!({
        "object": "workflow_agent.run", "id": "run_1", "agent_id": "wfa_1", "status": "requires_action", "input": {},
        "required_actions": [{ "type": "function_call", "call_id": "c1", "name": "f", "arguments": { "n": 1 } }],
        "expires_at": expires_at, "created_at": NOON - 90_000, "completed_at": null
    })
}

#[tokio::test]
async fn a_run_is_a_session_without_turns_that_says_how_long_it_waits() {
    let peer = Peer::start([answer(200, &waiting(&json!((NOON + 3600) * 1000 + 5)))]).await;
    let run = runs(&peer).retrieve(&key()).await.unwrap();
    assert_eq!(run.expires_in, Some(Duration::from_millis(3_599_005)), "by the platform's clock, not ours");
    let [RequiredAction::FunctionCall(call)] = &run.required_actions[..] else { panic!("{run:?}") };
    assert_eq!((&*call.key.turn, &*call.key.call_id, call.arguments.as_deref()), ("", "c1", Some(r#"{"n":1}"#)));
    let seen = &peer.seen()[0];
    assert_eq!(seen.line, "GET /v1/workflow-agents/runs/run_1");
    assert_eq!(seen.headers["authorization"], "Bearer rbk_case");
    assert!(!seen.headers.contains_key("openai-beta"));
}

#[tokio::test]
async fn a_wait_that_is_over_or_has_no_end_is_told_as_that() {
    for (expires_at, left) in [
        (json!((NOON - 1) * 1000), Some(Duration::ZERO)),
        (json!(-5), Some(Duration::ZERO)),
        (json!(null), None),
        (json!("soon"), None),
        (json!(1e300), None),
    ] {
        let peer = Peer::start([answer(200, &waiting(&expires_at))]).await;
        assert_eq!(runs(&peer).retrieve(&key()).await.unwrap().expires_in, left, "{expires_at}");
    }
}

#[tokio::test]
async fn a_result_is_posted_alone_as_raw_json_and_under_no_key() {
    let peer = Peer::start([answer(200, &waiting(&json!(null)))]).await;
    let runs = runs(&peer);
    let call = CallKey::new(key(), "", "c1");
    let content: Output = vec![Part::Text { text: "t".to_owned() }].into();
    for (result, body) in [
        (ToolResult::Success("shipped".into()), r#"{"call_id":"c1","success":true,"output":"shipped"}"#),
        (
            ToolResult::Success(r#"{"n": 1.50, "a":[1]}"#.into()),
            r#"{"call_id":"c1","success":true,"output":{"n": 1.50, "a":[1]}}"#,
        ),
        (ToolResult::Success("[1]\n".into()), r#"{"call_id":"c1","success":true,"output":[1]}"#),
        (ToolResult::Success("42".into()), r#"{"call_id":"c1","success":true,"output":"42"}"#),
        (ToolResult::Success("".into()), r#"{"call_id":"c1","success":true,"output":""}"#),
        (ToolResult::Success("[1] of 2".into()), r#"{"call_id":"c1","success":true,"output":"[1] of 2"}"#),
        (ToolResult::Success(r#"["\ud800"]"#.into()), r#"{"call_id":"c1","success":true,"output":"[\"\\ud800\"]"}"#),
        (
            ToolResult::Success(content),
            r#"{"call_id":"c1","success":true,"output":[{"type":"input_text","text":"t"}]}"#,
        ),
        (ToolResult::Error("no".to_owned()), r#"{"call_id":"c1","success":false,"error":"no"}"#),
    ] {
        let submission = runs.encode(&call, &result, 0);
        assert_eq!(String::from_utf8_lossy(&submission.body), body);
        assert_eq!(runs.submit(&call, &submission).await, Submitted::Accepted);
        let seen = peer.seen().pop().unwrap();
        assert_eq!(seen.line, "POST /v1/workflow-agents/runs/run_1/tool-results");
        assert_eq!(seen.body, body);
        assert!(!seen.headers.contains_key("idempotency-key"));
    }
}

#[tokio::test]
async fn what_a_refusal_means_is_told() {
    let call = CallKey::new(key(), "", "c1");
    for (status, wanted) in [
        (409, Submitted::Unclear { detail: "status 409".to_owned() }),
        (404, Submitted::Gone),
        (400, Submitted::Refused { detail: "status 400".to_owned() }),
        (403, Submitted::Unauthorized { detail: "status 403".to_owned() }),
        (503, Submitted::Retry { after: None, detail: "status 503".to_owned() }),
    ] {
        let peer = Peer::start([answer(status, &json!({}))]).await;
        let runs = runs(&peer);
        let submission = runs.encode(&call, &ToolResult::Error("e".to_owned()), 0);
        assert_eq!(runs.submit(&call, &submission).await, wanted);
    }
}

#[tokio::test]
async fn an_open_run_in_the_list_is_active_however_old_it_is() {
    let run = |id: &str, status: &str, completed_at: Option<i64>| json!({ "id": id, "status": status, "required_actions": [], "expires_at": null, "created_at": 5, "completed_at": completed_at });
    let mut first = waiting(&json!(7000));
    first["id"] = "a".into();
    let runs_listed = [
        first,
        run("b", "in_progress", None),
        run("c", "completed", Some(9)),
        run("d", "failed", None),
        run("e", "preparing", None),
    ];
    let peer = Peer::start([answer(200, &json!({ "data": runs_listed, "has_more": true }))]).await;
    let page = runs(&peer).list(Some("x y")).await.unwrap();
    let told: Vec<_> = page
        .sessions
        .iter()
        .map(|run| (&*run.key.session, run.last_active_at, run.waiting, run.running, run.version))
        .collect();
    assert_eq!(
        told,
        [
            ("a", None, true, false, Some(7000)),
            ("b", None, false, true, None),
            ("c", Some(9), false, false, Some(9)),
            ("d", Some(5), false, false, Some(5)),
            ("e", None, false, true, None),
        ]
    );
    assert_eq!(page.next.as_deref(), Some("e"));
    assert_eq!(peer.seen()[0].line, "GET /v1/workflow-agents/runs?limit=100&after=x%20y");
}
