//! The operator's API on the admin listener: JSON under `/api`, described by `/api/openapi.json`.

mod approvals;
mod calls;
mod dead;
mod document;
mod error;
mod extract;
mod functions;
mod gate;
mod platforms;
mod stats;

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use utoipa::OpenApi as _;

pub use self::{
    approvals::{Approval, Approvals},
    error::Problem,
    functions::{Function, Functions},
    gate::{Gate, Refused},
    platforms::{Health, Platform, Platforms},
    stats::{Now, Point, Stats},
};
pub(crate) use self::{
    extract::{Id, Name},
    stats::Cache,
};
use crate::{
    admin::Readiness, app::Role, function::Live, metrics::Metrics, operator::Operator, platform, queue::SharedQueue,
};

/// A result by hand may be as large as a platform takes it.
const MAX_BODY: usize = 4 << 20;

/// What the routes work with, and the dashboard's.
pub struct Desk {
    pub gate: Gate,
    /// Missing where the process has no store.
    pub operator: Option<Operator>,
    pub functions: Arc<Live>,
    pub platforms: Vec<platform::Config>,
    pub metrics: Metrics,
    pub queue: SharedQueue,
    pub readiness: Readiness,
    pub role: Role,
    pub(crate) tally: Cache,
}

impl Desk {
    /// The operator, or the answer that there is none.
    pub fn operator(&self) -> Result<&Operator, Problem> {
        self.operator.as_ref().ok_or_else(Problem::no_store)
    }
}

/// `/api`, for who shows the token.
pub fn router(desk: Arc<Desk>) -> Router {
    let api = Router::new()
        .route("/openapi.json", get(|| async { Json(document::Document::openapi()) }))
        .route("/calls", get(calls::list))
        .route("/calls/{id}", get(calls::show))
        .route("/calls/{id}/retry", post(calls::retry))
        .route("/calls/{id}/resubmit", post(calls::resubmit))
        .route("/calls/{id}/resolve", post(calls::resolve))
        .route("/calls/{id}/cancel", post(calls::cancel))
        .route("/approvals", get(approvals::list))
        .route("/approvals/{id}/approve", post(approvals::approve))
        .route("/approvals/{id}/deny", post(approvals::deny))
        .route("/dead", get(dead::list))
        .route("/dead/redrive", post(dead::redrive))
        .route("/dead/purge", post(dead::purge))
        .route("/dead/{id}", get(dead::show))
        .route("/functions", get(functions::list))
        .route("/functions/{name}/pause", post(functions::pause))
        .route("/functions/{name}/resume", post(functions::resume))
        .route("/platforms", get(platforms::list))
        .route("/sessions/due", get(stats::due))
        .route("/stats", get(stats::stats))
        .fallback(|| async { Problem::not_found("there is no such route: see /api/openapi.json") })
        .method_not_allowed_fallback(|| async {
            Problem::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "this route takes another method")
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn_with_state(desk.clone(), guard))
        .with_state(desk);
    Router::new().nest("/api", api)
}

/// Further routes, for who shows the token.
pub fn guarded(routes: Router, desk: Arc<Desk>) -> Router {
    routes.layer(middleware::from_fn_with_state(desk, guard))
}

/// Nobody gets further without the token, not even to learn which routes there are.
async fn guard(State(desk): State<Arc<Desk>>, request: Request, next: Next) -> Response {
    if let Err(refused) = desk.gate.judge(request.method(), request.headers()) {
        return Problem::from(refused).into_response();
    }
    let mut response = next.run(request).await;
    response.headers_mut().insert("cache-control", axum::http::HeaderValue::from_static("no-store"));
    response
}
