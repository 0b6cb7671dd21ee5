//! The private listener: health and metrics. The API and the dashboard stand beside them.

use std::{
    net::SocketAddr,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use axum::{
    Json, Router,
    extract::State,
    http::{StatusCode, header::CONTENT_TYPE},
    response::IntoResponse,
    routing::get,
};
use secrecy::SecretString;
use serde_json::json;

use crate::metrics::Metrics;

/// `admin` in the config.
#[derive(Clone, Debug)]
pub struct Config {
    pub listen: SocketAddr,
    /// Bearer token of the operator API; needed where the listener is not loopback.
    pub token: Option<SecretString>,
}

/// One thing that must be well; the error says what is not. Asked at every request: it must not wait.
pub type Check = Box<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Something to know that does not make the process unready; told where there is any.
pub type Note = Box<dyn Fn() -> Vec<String> + Send + Sync>;

/// A cheap clone of what `/health/ready` tells.
#[derive(Clone, Default)]
pub struct Readiness {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    draining: AtomicBool,
    checks: RwLock<Vec<(&'static str, Check)>>,
    notes: RwLock<Vec<(&'static str, Note)>>,
}

impl Readiness {
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check under a name that its reason is shown with.
    pub fn register(&self, name: &'static str, check: Check) {
        self.inner.checks.write().unwrap_or_else(PoisonError::into_inner).push((name, check));
    }

    /// Adds something to know, under its name in the answer.
    pub fn note(&self, name: &'static str, note: Note) {
        self.inner.notes.write().unwrap_or_else(PoisonError::into_inner).push((name, note));
    }

    /// Not ready from now on: no new work shall come.
    pub fn set_draining(&self) {
        self.inner.draining.store(true, Ordering::Relaxed);
    }

    /// Why the process is not ready; empty when it is.
    pub fn reasons(&self) -> Vec<String> {
        let draining = self.inner.draining.load(Ordering::Relaxed).then(|| "draining".to_owned());
        let checks = self.inner.checks.read().unwrap_or_else(PoisonError::into_inner);
        let failed = checks.iter().filter_map(|(name, check)| Some(format!("{name}: {}", check().err()?)));
        draining.into_iter().chain(failed).collect()
    }
}

/// `/health/live`, `/health/ready` and `/metrics`.
pub fn router(readiness: Readiness, metrics: Metrics) -> Router {
    Router::new()
        .route("/health/live", get(|| async { "live" }))
        .route("/health/ready", get(ready).with_state(readiness))
        .route("/metrics", get(text).with_state(metrics))
}

async fn ready(State(readiness): State<Readiness>) -> impl IntoResponse {
    let reasons = readiness.reasons();
    let (status, mut body) = match reasons.is_empty() {
        true => (StatusCode::OK, json!({ "ready": true })),
        false => (StatusCode::SERVICE_UNAVAILABLE, json!({ "ready": false, "reasons": reasons })),
    };
    for (name, note) in readiness.inner.notes.read().unwrap_or_else(PoisonError::into_inner).iter() {
        let told = note();
        if !told.is_empty() {
            body[name] = json!(told);
        }
    }
    (status, Json(body))
}

async fn text(State(metrics): State<Metrics>) -> impl IntoResponse {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], metrics.render())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::AtomicU32;

    use axum::{
        body::{Body, to_bytes},
        http::Request,
    };
    use tower::ServiceExt;

    use super::*;

    async fn get(router: &Router, path: &str) -> (u16, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn ready_follows_its_checks_and_live_does_not() {
        let readiness = Readiness::new();
        let router = router(readiness.clone(), Metrics::new());
        assert_eq!(get(&router, "/health/ready").await, (200, r#"{"ready":true}"#.into()));

        let down = Arc::new(AtomicU32::new(1));
        let seen = Arc::clone(&down);
        let check = move || if seen.load(Ordering::Relaxed) == 1 { Err("no connection".into()) } else { Ok(()) };
        readiness.register("queue", Box::new(check));
        readiness.register("store", Box::new(|| Ok(())));
        let not_ready = r#"{"ready":false,"reasons":["queue: no connection"]}"#;
        assert_eq!(get(&router, "/health/ready").await, (503, not_ready.into()));
        assert_eq!(get(&router, "/health/live").await.0, 200);

        down.store(0, Ordering::Relaxed);
        assert_eq!(get(&router, "/health/ready").await.0, 200);

        readiness.note("nothing", Box::new(Vec::new));
        readiness.note("paused", Box::new(|| vec!["f".into()]));
        assert_eq!(get(&router, "/health/ready").await, (200, r#"{"paused":["f"],"ready":true}"#.into()));

        readiness.set_draining();
        assert_eq!(
            get(&router, "/health/ready").await,
            (503, r#"{"paused":["f"],"ready":false,"reasons":["draining"]}"#.into())
        );
    }

    #[tokio::test]
    async fn metrics_are_prometheus_text() {
        let metrics = Metrics::new();
        let router = router(Readiness::new(), metrics.clone());
        metrics.webhook("openai", "queued");
        let request = Request::get("/metrics").body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        assert_eq!(response.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
        let (status, body) = get(&router, "/metrics").await;
        assert!(status == 200 && body.contains("actiond_webhooks_total{"), "{body}");
    }

    #[tokio::test]
    async fn nothing_else_is_there() {
        let router = router(Readiness::new(), Metrics::new());
        for path in ["/", "/health", "/api/calls"] {
            assert_eq!(get(&router, path).await.0, 404, "{path}");
        }
        let post = Request::post("/metrics").body(Body::empty()).unwrap();
        assert_eq!(router.oneshot(post).await.unwrap().status(), 405);
    }
}
