//! The demo's http handler: an order service that answers 503 to the first request for an order ending in 2.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError},
};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use serde_json::Value;
use tokio::{net::TcpListener, sync::broadcast};

/// One request that arrived.
#[derive(Clone, Debug)]
pub(super) struct Event {
    pub(super) order_id: String,
    pub(super) idempotency_key: String,
    pub(super) status: u16,
}

/// A cheap handle on the service.
#[derive(Clone)]
pub(super) struct Orders {
    attempts: Arc<Mutex<Vec<Event>>>,
    events: broadcast::Sender<Event>,
}

impl Orders {
    pub(super) fn new() -> Self {
        Self { attempts: Arc::default(), events: broadcast::channel(64).0 }
    }

    pub(super) fn events(&self) -> broadcast::Receiver<Event> {
        self.events.subscribe()
    }

    /// Every request so far.
    pub(super) fn attempts(&self) -> Vec<Event> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) async fn serve(
        self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let router = Router::new().route("/orders", post(lookup)).with_state(self);
        axum::serve(listener, router).with_graceful_shutdown(stop).await
    }
}

async fn lookup(
    State(orders): State<Orders>,
    headers: HeaderMap,
    Json(arguments): Json<Value>,
) -> (StatusCode, String) {
    let order_id = arguments["order_id"].as_str().unwrap_or_default().to_owned();
    let idempotency_key =
        headers.get("idempotency-key").and_then(|key| key.to_str().ok()).unwrap_or_default().to_owned();
    let mut attempts = orders.attempts.lock().unwrap_or_else(PoisonError::into_inner);
    let first = !attempts.iter().any(|attempt| attempt.order_id == order_id);
    let (status, text) = match first && order_id.ends_with('2') {
        true => (StatusCode::SERVICE_UNAVAILABLE, String::new()),
        false => (StatusCode::OK, format!("Order {order_id}: shipped, arrives on Friday.")),
    };
    let event = Event { order_id, idempotency_key, status: status.as_u16() };
    attempts.push(event.clone());
    let _ = orders.events.send(event);
    (status, text)
}
