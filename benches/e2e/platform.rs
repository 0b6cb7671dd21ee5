//! The other side: an Agents API whose every session waits for one call, and the handler of that call.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    routing::{get, post},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::oneshot};

pub(crate) struct Platform {
    pub(crate) address: SocketAddr,
    /// Who waits for the result of a session.
    waiting: Mutex<HashMap<String, oneshot::Sender<Instant>>>,
    /// Calls of the handler so far.
    handled: AtomicU64,
}

impl Platform {
    pub(crate) async fn start() -> Arc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let platform = Arc::new(Self {
            address: listener.local_addr().unwrap(),
            waiting: Mutex::default(),
            handled: AtomicU64::new(0),
        });
        let router = Router::new()
            .route("/v1/agents/sessions/{id}", get(session))
            .route("/v1/agents/sessions/{id}/events", post(result))
            .route("/handler", post(handle))
            .with_state(platform.clone());
        tokio::spawn(axum::serve(listener, router).into_future());
        platform
    }

    pub(crate) fn handled(&self) -> u64 {
        self.handled.load(Ordering::Relaxed)
    }

    /// Makes the session wait for its call; the answer is when its result came.
    pub(crate) fn open(&self, session: &str) -> oneshot::Receiver<Instant> {
        let (sender, result) = oneshot::channel();
        self.waiting.lock().unwrap().insert(session.to_owned(), sender);
        result
    }
}

async fn session(State(platform): State<Arc<Platform>>, Path(id): Path<String>) -> Json<Value> {
    let pending = platform.waiting.lock().unwrap().contains_key(&id);
    let call = json!({
        "type": "function_call", "turn_id": format!("turn_{id}"), "call_id": format!("call_{id}"), "name": "lookup",
        "arguments": "{\"order_id\":\"4711\"}",
    });
    Json(json!({
        "id": id, "object": "agent.session", "status": if pending { "requires_action" } else { "idle" },
        "metadata": { "customer": "17" }, "required_actions": if pending { vec![call] } else { vec![] },
    }))
}

async fn handle(State(platform): State<Arc<Platform>>) -> &'static str {
    platform.handled.fetch_add(1, Ordering::Relaxed);
    "shipped on Monday"
}

async fn result(State(platform): State<Arc<Platform>>, Path(id): Path<String>) -> StatusCode {
    if let Some(waiter) = platform.waiting.lock().unwrap().remove(&id) {
        let _ = waiter.send(Instant::now());
    }
    StatusCode::ACCEPTED
}
