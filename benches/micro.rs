//! The steps of a job that are ours alone, one by one:  cargo bench --bench micro
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use actiond::{
    arguments::Arguments,
    ingress::{event, signature},
    platform::{AgentsApi, Platform as _, WebhookConfig},
    schema::Schema,
    session::{CallKey, SessionKey, ToolResult},
};
use axum::http::HeaderMap;
use divan::{Bencher, black_box};
use serde_json::{Value, json};

const SECRET: &str = "whsec_YmVuY2gtc2VjcmV0LW9mLTI0LWJ5dGVz";
const NOW: i64 = 1_796_000_000;
const EVENT: &str = r#"{"id":"evt_1","object":"event","created_at":1796000000,"type":"agent.session.action_required","data":{"id":"sess_1","required_action":{"type":"function_call"}}}"#;
const ARGUMENTS: &str =
    r#""{\"order_id\":\"4711\",\"items\":[{\"sku\":\"a-1\",\"count\":3},{\"sku\":\"b-2\",\"count\":1}]}""#;

fn main() {
    divan::main();
}

#[divan::bench]
fn verify_a_signature(bencher: Bencher) {
    let webhook = WebhookConfig::Standard { secrets: vec![SECRET.into()], tolerance: Duration::from_secs(300) };
    let verifier = signature::Verifier::new(&webhook).unwrap();
    let key = signature::decode_key(SECRET).unwrap();
    let mut headers = HeaderMap::new();
    headers.insert("webhook-id", "wh_1".parse().unwrap());
    headers.insert("webhook-timestamp", NOW.into());
    headers.insert("webhook-signature", signature::sign(&key, "wh_1", NOW, EVENT.as_bytes()).parse().unwrap());
    bencher.bench(|| verifier.verify(black_box(&headers), EVENT.as_bytes(), NOW).unwrap());
}

#[divan::bench]
fn parse_an_event() -> event::Event {
    event::parse(black_box(EVENT).as_bytes()).unwrap()
}

#[divan::bench(args = [1, 16])]
fn parse_a_session(bencher: Bencher, calls: usize) {
    let call = |n| json!({ "type": "function_call", "turn_id": "turn_1", "call_id": format!("call_{n}"), "name": "lookup", "arguments": ARGUMENTS });
    let session = json!({
        "id": "sess_1", "object": "agent.session", "status": "requires_action", "metadata": { "customer": "17" },
        "required_actions": (0..calls).map(call).collect::<Vec<Value>>(),
    });
    let (key, text) = (SessionKey::new("openai", "sess_1"), session.to_string());
    bencher.bench(|| AgentsApi::parse_session(black_box(&key), text.as_bytes()).unwrap());
}

#[divan::bench]
fn read_arguments() -> Arguments {
    Arguments::parse(Some(black_box(ARGUMENTS))).unwrap()
}

#[divan::bench]
fn validate_arguments(bencher: Bencher) {
    let schema = Schema::compile(&json!({
        "type": "object",
        "properties": {
            "order_id": { "type": "string", "minLength": 1 },
            "items": { "type": "array", "items": {
                "type": "object", "required": ["sku", "count"],
                "properties": { "sku": { "type": "string", "pattern": "^[a-z]-[0-9]+$" }, "count": { "type": "integer", "minimum": 1 } },
            } },
        },
        "required": ["order_id"], "additionalProperties": false,
    }))
    .unwrap();
    let arguments = Arguments::parse(Some(ARGUMENTS)).unwrap();
    bencher.bench(|| schema.check(black_box(&arguments)).unwrap());
}

#[divan::bench]
fn encode_a_result(bencher: Bencher) {
    let client = actiond::http::client().unwrap();
    let platform = AgentsApi::new("openai", "http://127.0.0.1:9/v1", &"key".into(), client).unwrap();
    let call = CallKey::new(SessionKey::new("openai", "sess_1"), "turn_1", "call_1");
    let result = ToolResult::Success("shipped on Monday, arrives on Wednesday".into());
    bencher.bench(|| platform.encode(black_box(&call), &result, 0));
}
