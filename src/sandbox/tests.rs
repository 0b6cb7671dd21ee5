//! The sandbox over HTTP: what clients and webhook receivers see.
#![allow(clippy::unwrap_used)]

use axum::{
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use reqwest::{Client, RequestBuilder};
use serde_json::json;
use tokio::{sync::mpsc, task::JoinHandle};

use super::*;

struct Server {
    sandbox: Arc<Sandbox>,
    client: Client,
    base: String,
    stop: CancellationToken,
    ended: JoinHandle<io::Result<()>>,
}

impl Server {
    async fn start(config: Config) -> Self {
        crate::http::use_ring();
        let sandbox = Sandbox::new(config).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        let ended = tokio::spawn(sandbox.clone().serve(listener, stop.clone().cancelled_owned()));
        Self { sandbox, client: Client::builder().no_proxy().build().unwrap(), base, stop, ended }
    }

    fn get(&self, path: &str) -> RequestBuilder {
        self.client.get(format!("{}{path}", self.base)).bearer_auth("sk-sandbox").header("openai-beta", "agents=v1")
    }

    fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> RequestBuilder {
        let request = self.client.post(format!("{}{path}", self.base)).body(body);
        request.bearer_auth("sk-sandbox").header("openai-beta", "agents=v1")
    }

    /// The id of a new session with this input.
    async fn session(&self, input: &str) -> String {
        let body = json!({"agent": {"model": "scripted"}, "input": input}).to_string();
        let answer = self.post("/v1/agents/sessions", body).send().await.unwrap();
        let answer = answer.error_for_status().unwrap().text().await.unwrap();
        // Not read as JSON: what is pasted into it may be none.
        answer.strip_prefix(r#"{"id":""#).unwrap().split_once('"').unwrap().0.to_owned()
    }
}

async fn code(request: RequestBuilder) -> (u16, String) {
    let response = request.send().await.unwrap();
    let (status, body) = (response.status().as_u16(), response.text().await.unwrap());
    let body: Value = serde_json::from_str(&body).unwrap_or_default();
    (status, body["error"]["code"].as_str().unwrap_or_default().to_owned())
}

/// A receiver that answers with the given statuses, then 200, and passes on what it got.
async fn receiver(answers: Vec<u16>) -> (String, mpsc::UnboundedReceiver<(HeaderMap, Bytes)>) {
    type Shared = Arc<(Mutex<std::vec::IntoIter<u16>>, mpsc::UnboundedSender<(HeaderMap, Bytes)>)>;
    async fn take(State(shared): State<Shared>, headers: HeaderMap, body: Bytes) -> StatusCode {
        let _ = shared.1.send((headers, body));
        let answer = shared.0.lock().unwrap().next().unwrap_or(200);
        StatusCode::from_u16(answer).unwrap()
    }
    let (sender, received) = mpsc::unbounded_channel();
    let shared: Shared = Arc::new((Mutex::new(answers.into_iter()), sender));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/hook", listener.local_addr().unwrap());
    let router = Router::new().route("/hook", post(take)).with_state(shared);
    tokio::spawn(async move { axum::serve(listener, router).await });
    (url, received)
}

fn hooked(url: String, secret: &str, faults: Faults) -> Config {
    let mut webhook = Webhook::new(url, secret);
    webhook.retry.initial = Duration::from_millis(1);
    Config { webhook: Some(webhook), faults, ..Config::default() }
}

#[tokio::test]
async fn the_gate_wants_key_and_beta_header() {
    let server = Server::start(Config::default()).await;
    let url = format!("{}/v1/agents/sessions", server.base);
    assert_eq!(code(server.client.get(&url)).await, (401, "unauthorized".to_owned()));
    assert_eq!(code(server.client.get(&url).bearer_auth("sk-other")).await, (401, "unauthorized".to_owned()));
    assert_eq!(code(server.client.get(&url).bearer_auth("sk-sandbox")).await, (400, "invalid_beta".to_owned()));
    assert_eq!(code(server.get("/v1/agents/sessions/sess_0")).await, (404, "not_found_error".to_owned()));
    assert_eq!(code(server.get("/v1/nowhere")).await, (404, "not_found_error".to_owned()));
    assert_eq!(code(server.get("/v1/agents/sessions?limit=0")).await, (400, "invalid_request_error".to_owned()));
    let response = server.get("/v1/agents/sessions").send().await.unwrap();
    assert!(response.status().is_success() && response.headers().contains_key("x-request-id"));
}

#[tokio::test]
async fn a_body_over_4_mib_is_refused() {
    let server = Server::start(Config::default()).await;
    let id = server.session("f {}").await;
    let path = format!("/v1/agents/sessions/{id}/events");
    assert_eq!(code(server.post(&path, vec![b' '; 4 * 1024 * 1024 + 1])).await.0, 413);
    assert_eq!(code(server.post(&path, vec![b' '; 4 * 1024 * 1024])).await.0, 400);
}

#[tokio::test]
async fn arguments_come_out_byte_for_byte() {
    let server = Server::start(Config::default()).await;
    for arguments in [r#"{"a":1e400,"a": 2}"#, r#"{"s":"\ud800"}"#, "{\"n\":\n100000000000000000000000001}"] {
        let id = server.session(&format!("f {arguments}")).await;
        let session = server.get(&format!("/v1/agents/sessions/{id}")).send().await.unwrap().text().await.unwrap();
        assert!(session.contains(&format!("\"arguments\":{arguments}}}")), "{session}");
    }
    let body = json!({"agent": {"model": "scripted"}, "input": r#"f raw "{\"a\":1}{""#}).to_string();
    let session = server.post("/v1/agents/sessions", body).send().await.unwrap().text().await.unwrap();
    assert!(session.contains(r#""arguments":{"a":1}{}]"#), "{session}");
}

#[tokio::test]
async fn a_webhook_is_signed_and_retried_under_one_id() {
    let secret = generate_secret();
    let (url, mut received) = receiver(vec![500, 302]).await;
    let server = Server::start(hooked(url, &secret, Faults::default())).await;
    let id = server.session("f {} & g {}").await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let (headers, body) = received.recv().await.unwrap();
        standardwebhooks::Webhook::new(&secret).unwrap().verify(&body, &headers).unwrap();
        let event: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(event["type"], "agent.session.action_required");
        assert_eq!(event["data"], json!({"id": id, "required_action": {"type": "function_call"}}));
        assert!(headers["user-agent"].to_str().unwrap().starts_with("OpenAI/1.0"));
        ids.push(headers["webhook-id"].clone());
    }
    assert!(ids.iter().all(|other| *other == ids[0]));
}

#[tokio::test]
async fn webhooks_are_dropped_and_doubled_by_switch() {
    let (url, mut received) = receiver(Vec::new()).await;
    let faults = Faults { webhook_drop: Rule::Next(1), webhook_duplicate: Rule::Next(1), ..Faults::default() };
    let server = Server::start(hooked(url, &generate_secret(), faults)).await;
    server.session("dropped {}").await;
    let id = server.session("doubled {}").await;
    let (first, _) = received.recv().await.unwrap();
    let (second, body) = received.recv().await.unwrap();
    assert_eq!(first["webhook-id"], second["webhook-id"]);
    assert_eq!(serde_json::from_slice::<Value>(&body).unwrap()["data"]["id"], id.as_str());
    assert_eq!(server.sandbox.counters().webhooks_dropped, 1);
}

#[tokio::test]
async fn another_process_can_switch_faults_and_read_what_was_posted() {
    let server = Server::start(Config::default()).await;
    assert_eq!(code(server.post("/sandbox/faults", r#"{"submit_429":1,"retry_after":7}"#)).await.0, 200);
    assert_eq!(code(server.post("/sandbox/faults", r#"{"submit_42":1}"#)).await.0, 400);
    let id = server.session("f#call_0 {}").await;
    let turn = server.sandbox.session(&id).unwrap().turns[0].id.clone();
    let event = json!({"type": "agent.session.input.tool_result", "turn_id": turn, "call_id": "call_0", "success": false, "error": "no stock"});
    let submit = || server.post(&format!("/v1/agents/sessions/{id}/events"), json!({"events": [event]}).to_string());
    let throttled = submit().send().await.unwrap();
    assert_eq!((throttled.status().as_u16(), &throttled.headers()["retry-after"]), (429, &"7".parse().unwrap()));
    let accepted = submit().header("idempotency-key", "k").send().await.unwrap();
    assert_eq!((accepted.status().as_u16(), accepted.text().await.unwrap()), (202, String::new()));
    let stats = server.get("/sandbox/stats").send().await.unwrap().text().await.unwrap();
    let stats: Value = serde_json::from_str(&stats).unwrap();
    let call = &stats["sessions"][0]["calls"][0];
    assert_eq!((&call["accepted"], &call["faulted"], &call["idempotency_key"]), (&json!(1), &json!(1), &json!("k")));
    assert_eq!(stats["sessions"][0]["answer"], "f failed: no stock");
}

#[tokio::test]
async fn a_slow_model_answers_in_its_time() {
    let faults = Faults { think_ms: 1, ..Faults::default() };
    let server = Server::start(Config { faults, ..Config::default() }).await;
    let id = server.session("hello").await;
    let session = server.sandbox.settled(&id).await.unwrap();
    assert_eq!(session.answer(), Some("You said: hello"));
}

#[tokio::test]
async fn calls_that_nobody_answers_expire() {
    let faults = Faults { expire_ms: 1, ..Faults::default() };
    let server = Server::start(Config { faults, ..Config::default() }).await;
    let id = server.session("f {}").await;
    let session = server.sandbox.settled(&id).await.unwrap();
    assert_eq!((session.status, session.actions[0].state), (Status::Failed, ActionState::Dropped));
    assert_eq!(session.turns[0].error.as_ref().unwrap().code, "request_timeout");
}

#[tokio::test]
async fn the_server_ends_although_a_stream_is_open() {
    let server = Server::start(Config::default()).await;
    let id = server.session("f {}").await;
    let stream = server.get(&format!("/v1/agents/sessions/{id}/events")).send().await.unwrap();
    server.stop.cancel();
    stream.text().await.unwrap();
    server.ended.await.unwrap().unwrap();
}

/// What a run answers a result with.
async fn post_result(server: &Server, run: &str, body: &str) -> u16 {
    code(server.post(&format!("/v1/workflow-agents/runs/{run}/tool-results"), body.to_owned())).await.0
}

async fn start_run(server: &Server, script: &str) -> Value {
    let body = json!({ "input": script }).to_string();
    let answer = server.client.post(format!("{}/v1/workflow-agents/wfa_1/runs", server.base)).body(body);
    let answer = answer.bearer_auth("sk-sandbox").send().await.unwrap();
    assert_eq!(answer.status(), 201, "no beta header is needed");
    serde_json::from_str(&answer.text().await.unwrap()).unwrap()
}

#[tokio::test]
async fn a_run_takes_a_result_twice_while_it_is_open_and_no_other() {
    let server = Server::start(Config::of(Flavor::Rebyte)).await;
    let before = unix_millis();
    let run = start_run(&server, r#"f#c1 {"a":1} then f#c2 {}"#).await;
    let id = run["id"].as_str().unwrap();
    assert_eq!(run["status"], "requires_action");
    let wanted = json!([{ "type": "function_call", "call_id": "c1", "name": "f", "arguments": { "a": 1 } }]);
    assert_eq!(run["required_actions"], wanted);
    let waits = run["expires_at"].as_i64().unwrap() - before;
    assert!((86_400_000..86_410_000).contains(&waits), "{waits}");

    let first = r#"{"call_id":"c1","success":true,"output":{"n":1}}"#;
    assert_eq!(post_result(&server, id, r#"{"call_id":"c9","success":true,"output":1}"#).await, 409);
    for wrong in [r#"{"call_id":"c1","success":true}"#, r#"{"call_id":"c1","success":false,"output":1}"#, "[]"] {
        assert_eq!(post_result(&server, id, wrong).await, 400, "{wrong}");
    }
    assert_eq!(post_result(&server, id, first).await, 200);
    assert_eq!(post_result(&server, id, first).await, 200);
    assert_eq!(post_result(&server, id, r#"{"call_id":"c1","success":true,"output":{"n":2}}"#).await, 409);
    assert_eq!(post_result(&server, id, r#"{"call_id":"c2","success":true,"output":null}"#).await, 200);
    let ended = server.get(&format!("/v1/workflow-agents/runs/{id}")).send().await.unwrap();
    let ended: Value = serde_json::from_str(&ended.text().await.unwrap()).unwrap();
    assert_eq!((&ended["status"], &ended["expires_at"]), (&json!("completed"), &Value::Null));
    assert_eq!(post_result(&server, id, first).await, 409, "it is closed");
}

#[tokio::test]
async fn a_run_ends_by_a_failure_by_cancelling_and_by_its_time() {
    let faults = Faults { expire_ms: 50, ..Faults::default() };
    let server = Server::start(Config { faults, ..Config::of(Flavor::Rebyte) }).await;
    let late = start_run(&server, "f#c1 {}").await;
    let late = server.sandbox.settled(late["id"].as_str().unwrap()).await.unwrap();
    assert_eq!((late.status, late.turns[0].error.as_ref().unwrap().code), (Status::Failed, "request_timeout"));
    server.sandbox.set_faults(Faults::default());
    let failed = start_run(&server, "f#c1 {} & g {} then h {}").await;
    let id = failed["id"].as_str().unwrap();
    assert_eq!(post_result(&server, id, r#"{"call_id":"c1","success":false,"error":"no stock"}"#).await, 200);
    let failed = server.sandbox.session(id).unwrap();
    assert_eq!(
        (failed.status, failed.error.as_deref(), failed.pending().count()),
        (Status::Failed, Some("no stock"), 0)
    );
    let run = start_run(&server, "f#c1 {}").await;
    let path = format!("/v1/workflow-agents/runs/{}", run["id"].as_str().unwrap());
    let delete = || {
        server.get(&path).build().map(|mut request| {
            *request.method_mut() = reqwest::Method::DELETE;
            server.client.execute(request)
        })
    };
    assert_eq!(delete().unwrap().await.unwrap().status(), 409);
    assert_eq!(code(server.post(&format!("{path}/cancel"), "{}")).await.0, 200);
    assert_eq!(
        post_result(&server, run["id"].as_str().unwrap(), r#"{"call_id":"c1","success":false,"error":"e"}"#).await,
        409
    );
    assert_eq!(delete().unwrap().await.unwrap().status(), 200);
    let listed = server.get("/v1/workflow-agents/runs").send().await.unwrap().text().await.unwrap();
    let listed: Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["data"].as_array().unwrap().len(), 2);
    assert_eq!(listed["data"][0]["id"], id, "the newest first");
}

#[tokio::test]
async fn each_flavor_has_its_rules() {
    let openai = Server::start(Config::default()).await;
    assert_eq!(code(openai.get("/v1/workflow-agents/runs")).await.0, 404);
    let rebyte = Server::start(Config::of(Flavor::Rebyte)).await;
    assert_eq!(code(rebyte.get("/v1/workflow-agents/runs")).await.0, 200);
    let agent = |name: &str| {
        json!({"model": "scripted", "tools": [{"type": "function", "name": name, "parameters": {}}]}).to_string()
    };
    for (name, openai_takes, rebyte_takes) in [("f", 200, 200), ("run_code", 200, 400), ("rebyte_f", 200, 400)] {
        assert_eq!(code(openai.post("/v1/agents", agent(name))).await.0, openai_takes, "{name}");
        assert_eq!(code(rebyte.post("/v1/agents", agent(name))).await.0, rebyte_takes, "{name}");
    }
    for (server, accepted, large) in [(&openai, 202, 202), (&rebyte, 204, 400)] {
        let id = server.session("f#c1 {} & f#c2 {}").await;
        let turn = server.sandbox.session(&id).unwrap().turns[0].id.clone();
        let post = |call: &str, output: Value| {
            let event = json!({"type": "agent.session.input.tool_result", "turn_id": turn, "call_id": call, "success": true, "output": output});
            server.post(&format!("/v1/agents/sessions/{id}/events"), json!({"events": [event]}).to_string())
        };
        let image = format!("data:image/png;base64,{}", "A".repeat(1_000_000));
        let image = json!([{"type": "input_image", "image_url": image}]);
        assert_eq!(code(post("c1", image).header("idempotency-key", "k1")).await.0, large);
        assert_eq!(code(post("c2", "x".into())).await.0, if accepted == 204 { 400 } else { accepted });
        if accepted == 204 {
            assert_eq!(code(post("c2", "x".into()).header("idempotency-key", "k2")).await.0, 204);
        }
    }
}

#[tokio::test]
async fn a_program_s_call_is_answered_alone_and_its_failure_ends_the_program_only() {
    let server = Server::start(Config::of(Flavor::Rebyte)).await;
    let id = server.session("program f#c1 {} & f#c2 {} then g {}\nh#c3 {}").await;
    let turn = server.sandbox.session(&id).unwrap().turns[0].id.clone();
    let event = |call: &str, success: bool| {
        let mut event =
            json!({"type": "agent.session.input.tool_result", "turn_id": turn, "call_id": call, "success": success});
        event[if success { "output" } else { "error" }] = "x".into();
        event
    };
    let post = |key: &str, events: Vec<Value>| {
        let request = server.post(&format!("/v1/agents/sessions/{id}/events"), json!({"events": events}).to_string());
        request.header("idempotency-key", key)
    };
    assert_eq!(code(post("k0", vec![event("c1", true), event("c2", true)])).await.0, 400);
    assert_eq!(code(post("k1", vec![event("c1", false)])).await.0, 204);
    assert_eq!(code(post("k2", vec![event("c2", true)])).await.0, 204);
    let pending: Vec<_> = server.sandbox.session(&id).unwrap().pending().map(|call| call.id.clone()).collect();
    assert_eq!(pending, ["c3"], "g was not asked for");
}
