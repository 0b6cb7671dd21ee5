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
