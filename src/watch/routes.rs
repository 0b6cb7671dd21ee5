//! `/api/sessions/{platform}/{session}/watch` on the admin listener.

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use serde_json::json;

use super::{Refused, Watches};
use crate::{ingress::event::is_session_id, session::SessionKey};

/// `POST` watches a session, `DELETE` ends it. Whoever serves it asks for the token before.
pub fn router(watches: Watches) -> Router {
    Router::new().route("/api/sessions/{platform}/{session}/watch", post(watch).delete(end)).with_state(watches)
}

async fn watch(State(watches): State<Watches>, Path((platform, session)): Path<(String, String)>) -> Response {
    if !is_session_id(&session) {
        return problem(StatusCode::BAD_REQUEST, "bad_request", "that is not the id of a session");
    }
    match watches.watch(SessionKey::new(platform, session)) {
        Ok(true) => (StatusCode::ACCEPTED, Json(json!({ "status": "watching" }))).into_response(),
        Ok(false) => Json(json!({ "status": "watching" })).into_response(),
        Err(Refused::UnknownPlatform) => problem(StatusCode::NOT_FOUND, "not_found", "there is no such platform"),
        Err(Refused::NoStream) => {
            problem(StatusCode::CONFLICT, "conflict", "its sessions are not watched: add stream to its intake")
        }
        Err(Refused::Full) => {
            problem(StatusCode::SERVICE_UNAVAILABLE, "full", "this process watches as many sessions as it can")
        }
    }
}

async fn end(State(watches): State<Watches>, Path((platform, session)): Path<(String, String)>) -> Response {
    match watches.end(&SessionKey::new(platform, session)) {
        true => StatusCode::NO_CONTENT.into_response(),
        false => problem(StatusCode::NOT_FOUND, "not_found", "that session is not watched here"),
    }
}

fn problem(status: StatusCode, code: &str, message: &str) -> Response {
    (status, Json(json!({ "error": { "code": code, "message": message } }))).into_response()
}
