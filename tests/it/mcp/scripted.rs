//! A small MCP server over streamable HTTP whose tools do what their names say.

use std::{
    collections::HashSet,
    convert::Infallible,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard},
};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{
        IntoResponse, Response,
        sse::{Event, Sse},
    },
    routing::post,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch};

const SESSION: &str = "mcp-session-id";

pub(super) struct Scripted {
    at: SocketAddr,
    state: Shared,
}

#[derive(Clone)]
struct Shared {
    facts: Arc<Mutex<Facts>>,
    changes: watch::Sender<u32>,
}

#[derive(Default)]
struct Facts {
    sessions: HashSet<String>,
    forgets_always: bool,
    initialized: usize,
    calls: Vec<(String, Value)>,
    tools: Vec<String>,
    listed: usize,
    listening: usize,
    polls: usize,
    finished: bool,
    cancelled: usize,
    stray: usize,
    /// Speaks the revision without sessions.
    modern: bool,
}

impl Scripted {
    pub(super) async fn start() -> Self {
        let facts = Facts { tools: vec!["ok".to_owned()], ..Facts::default() };
        let state = Shared { facts: Arc::new(Mutex::new(facts)), changes: watch::Sender::new(0) };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let router = Router::new().route("/mcp", post(answer).get(listen)).fallback(stray).with_state(state.clone());
        tokio::spawn(axum::serve(listener, router).into_future());
        Self { at, state }
    }

    pub(super) fn url(&self) -> String {
        format!("url: 'http://{}/mcp'", self.at)
    }

    /// Speaks the newest revision from now on.
    pub(super) fn modernize(&self) {
        self.state.facts().modern = true;
    }

    pub(super) fn forget(&self) {
        self.state.facts().sessions.clear();
    }

    pub(super) fn forget_always(&self) {
        self.state.facts().forgets_always = true;
    }

    pub(super) fn initialized(&self) -> usize {
        self.state.facts().initialized
    }

    /// The arguments of every call of that tool.
    pub(super) fn calls(&self, tool: &str) -> Vec<Value> {
        self.state.facts().calls.iter().filter(|call| call.0 == tool).map(|call| call.1.clone()).collect()
    }

    /// Requests to anything but the server's path.
    pub(super) fn stray(&self) -> usize {
        self.state.facts().stray
    }

    pub(super) fn listed(&self) -> usize {
        self.state.facts().listed
    }

    pub(super) fn cancelled(&self) -> usize {
        self.state.facts().cancelled
    }

    pub(super) fn polls(&self) -> usize {
        self.state.facts().polls
    }

    pub(super) fn finish_tasks(&self) {
        self.state.facts().finished = true;
    }

    /// Has other tools from now on, and says so once somebody listens.
    pub(super) async fn change_tools(&self, tools: &[&str]) {
        super::until("nobody listens", || self.state.facts().listening > 0).await;
        self.state.facts().tools = tools.iter().map(|&tool| tool.to_owned()).collect();
        self.state.changes.send_modify(|n| *n += 1);
    }
}

impl Shared {
    fn facts(&self) -> MutexGuard<'_, Facts> {
        self.facts.lock().unwrap()
    }

    fn knows(&self, headers: &HeaderMap) -> bool {
        let facts = self.facts();
        let session = headers.get(SESSION).and_then(|value| value.to_str().ok());
        facts.modern || !facts.forgets_always && session.is_some_and(|session| facts.sessions.contains(session))
    }
}

async fn stray(State(state): State<Shared>) -> StatusCode {
    state.facts().stray += 1;
    StatusCode::NOT_FOUND
}

/// The stream of what the server says by itself.
async fn listen(State(state): State<Shared>, headers: HeaderMap) -> Response {
    if !state.knows(&headers) {
        return StatusCode::NOT_FOUND.into_response();
    }
    state.facts().listening += 1;
    let mut changes = state.changes.subscribe();
    changes.mark_unchanged();
    let stream = futures_util::stream::unfold(changes, |mut changes| async move {
        changes.changed().await.ok()?;
        let event = json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" });
        Some((Ok::<_, Infallible>(Event::default().data(event.to_string())), changes))
    });
    Sse::new(stream).into_response()
}

async fn answer(State(state): State<Shared>, headers: HeaderMap, Json(request): Json<Value>) -> Response {
    let (id, method) = (request["id"].clone(), request["method"].as_str().unwrap_or_default());
    let result = match method {
        "server/discover" if state.facts().modern => {
            json!({ "resultType": "complete", "supportedVersions": ["2026-07-28"], "ttlMs": 0, "cacheScope": "private",
                    "capabilities": { "tools": { "listChanged": true }, "extensions": { "io.modelcontextprotocol/tasks": {} } },
                    "serverInfo": { "name": "scripted", "version": "2" } })
        }
        "server/discover" => return failure(&id, -32601, "no method server/discover"),
        "initialize" => {
            let mut facts = state.facts();
            facts.initialized += 1;
            let session = format!("session-{}", facts.initialized);
            facts.sessions.insert(session.clone());
            let result = json!({ "protocolVersion": "2025-11-25", "capabilities": { "tools": { "listChanged": true } },
                                 "serverInfo": { "name": "scripted", "version": "1" } });
            return ([(SESSION, session)], success(&id, result)).into_response();
        }
        "notifications/initialized" => return StatusCode::ACCEPTED.into_response(),
        _ if !state.knows(&headers) => return StatusCode::NOT_FOUND.into_response(),
        "notifications/cancelled" => {
            state.facts().cancelled += 1;
            return StatusCode::ACCEPTED.into_response();
        }
        "tools/list" => {
            let mut facts = state.facts();
            facts.listed += 1;
            let tool = |name: &String| json!({ "name": name, "inputSchema": { "type": "object" } });
            json!({ "tools": facts.tools.iter().map(tool).collect::<Vec<_>>() })
        }
        "tasks/get" => {
            let mut facts = state.facts();
            facts.polls += 1;
            match facts.finished {
                true => task("completed", json!({ "result": text("task done") })),
                false => task("working", json!({})),
            }
        }
        "tools/call" => {
            let tool = request["params"]["name"].as_str().unwrap_or_default().to_owned();
            state.facts().calls.push((tool.clone(), request["params"]["arguments"].clone()));
            match tool.as_str() {
                "ok" | "new" => text("done"),
                "broken" => json!({ "content": [{ "type": "text", "text": "no such order" }], "isError": true }),
                "structured" => {
                    let number: Value = serde_json::from_str(r#"{"n":12345678901234567890123}"#).unwrap();
                    json!({ "structuredContent": number, "content": [] })
                }
                "ask" => json!({ "resultType": "input_required", "inputRequests": {}, "requestState": "x" }),
                "task" => {
                    let mut created = task("working", json!({}));
                    created["resultType"] = "task".into();
                    created
                }
                "slow" => std::future::pending().await,
                other => return failure(&id, -32602, &format!("no tool {other}")),
            }
        }
        other => return failure(&id, -32601, &format!("no method {other}")),
    };
    success(&id, result)
}

fn task(status: &str, more: Value) -> Value {
    let mut task = json!({ "taskId": "task_1", "status": status, "createdAt": "2026-11-30T00:00:00Z",
                           "lastUpdatedAt": "2026-11-30T00:00:00Z", "ttlMs": 60000, "pollIntervalMs": 150 });
    for (key, value) in more.as_object().unwrap() {
        task[key] = value.clone();
    }
    task
}

fn text(text: &str) -> Value {
    json!({ "content": [{ "type": "text", "text": text }] })
}

fn success(id: &Value, result: Value) -> Response {
    Json(json!({ "jsonrpc": "2.0", "id": id, "result": result })).into_response()
}

fn failure(id: &Value, code: i32, message: &str) -> Response {
    Json(json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })).into_response()
}
