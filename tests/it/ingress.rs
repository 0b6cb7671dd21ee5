//! What the webhook listener takes and what it refuses, from outside. Nothing that is refused reaches the platform.

use serde_json::json;

use crate::rig::{Pair, Rig, Setup, now};

async fn rig() -> Rig {
    Setup::new(Pair::EmbeddedSqlite).http("a", "").start().await
}

/// Reads of any session; a refused webhook must cause none.
fn reads(rig: &Rig) -> u64 {
    rig.sandbox.counters().retrieved
}

#[tokio::test]
async fn only_a_fresh_signature_of_a_known_key_is_taken() {
    let rig = rig().await;
    rig.faults(|f| f.webhook_drop = actiond::sandbox::Rule::ALWAYS);
    let session = rig.session("call a").await;
    let (good, body) = rig.signed(&session, "wh_1");
    let with = |name: &str, value: &str| {
        let mut headers = good.clone();
        headers.iter_mut().find(|(key, _)| *key == name).unwrap().1 = value.to_owned();
        headers
    };
    let without = |name: &str| good.iter().filter(|(key, _)| *key != name).cloned().collect::<Vec<_>>();
    let mut changed = body.clone();
    *changed.last_mut().unwrap() = b' ';
    changed.push(b'}');

    for (what, headers, body) in [
        ("another id", with("webhook-id", "wh_2"), &body),
        ("no id", without("webhook-id"), &body),
        ("no signature", without("webhook-signature"), &body),
        ("no timestamp", without("webhook-timestamp"), &body),
        ("an empty signature", with("webhook-signature", ""), &body),
        (
            "the signature of an empty key",
            with("webhook-signature", "v1,aAkU42Lzzp0jfBFwmOBoAtH6f5Q0EH6C3LWU5aqsK+Y="),
            &body,
        ),
        ("an old one", rig.sign("wh_1", now() - 301, &body), &body),
        ("a future one", rig.sign("wh_1", now() + 302, &body), &body),
        ("a changed body", good.clone(), &changed),
    ] {
        assert_eq!(rig.post(&headers, body.clone()).await, 401, "{what}");
    }
    assert_eq!(reads(&rig), 0);
    assert_eq!(rig.post(&good, body.clone()).await, 200);
    rig.settled(&session).await;
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_and_what_is_not_ours_is_taken_and_ignored() {
    let rig = rig().await;
    let signed = |body: &[u8]| (rig.sign("wh_1", now(), body), body.to_vec());
    let event = |kind: &str, data: serde_json::Value| json!({ "type": kind, "data": data }).to_string().into_bytes();
    let required = "agent.session.action_required";
    let cases = [
        (400, b"not json".to_vec()),
        (400, b"\xff\xfe".to_vec()),
        (400, b"[]".to_vec()),
        (400, event(required, json!({ "id": ".." }))),
        (400, event(required, json!({ "id": "" }))),
        (400, event(required, json!({}))),
        (200, event("response.completed", json!({ "id": "resp_1" }))),
        (200, event("agent.session.idle", json!({ "id": "sess_1" }))),
        (413, vec![b' '; 300 * 1024]),
    ];
    for (status, body) in cases {
        let (headers, body) = signed(&body);
        let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        assert_eq!(rig.post(&headers, body).await, status, "{shown}");
    }
    assert_eq!(reads(&rig), 0);
    let (_, metrics) = rig.worker.as_ref().unwrap().admin("/metrics").await;
    let count = |outcome: &str| {
        let label = format!("outcome=\"{outcome}\"");
        let line = metrics.lines().find(|line| line.starts_with("actiond_webhooks_total{") && line.contains(&label));
        line.unwrap_or_else(|| panic!("{outcome}: {metrics}")).rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!((count("ignored"), count("malformed"), count("too_large")), ("2".into(), "6".into(), "1".into()));
}

#[tokio::test]
async fn an_id_that_steers_the_path_reaches_one_session_only() {
    let rig = rig().await;
    for id in ["../../files", "sess_1/turns", "sess_1?x=1", "sess_1#f", "%2e%2e", "a b", "é"] {
        let (headers, body) = rig.signed(id, "wh_1");
        let status = rig.post(&headers, body).await;
        assert!(status == 200 || status == 400, "{id}: {status}");
    }
    let session = rig.play("call a").await;
    assert_eq!(session.answer(), Some("a: ok"), "the worker still works");
    assert_eq!(rig.sandbox.sessions().len(), 1);
}

#[tokio::test]
async fn a_rotated_secret_is_taken_beside_the_old_one() {
    let mut rig = Setup::new(Pair::EmbeddedSqlite).http("a", "").prepare().await;
    rig.replace(
        &format!("\"{}\"", rig.secret.clone()),
        &format!("\"whsec_{}\", \"{}\"", "B".repeat(32), rig.secret.clone()),
    );
    rig.start_all().await;
    rig.play("call a").await;
}
