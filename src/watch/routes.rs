//! `/api/sessions/{platform}/{session}/watch` on the admin listener.

use std::sync::Arc;

use axum::{
    Json, Router,
    extract::{Path, Request, State},
    http::{HeaderMap, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::post,
};
use secrecy::{ExposeSecret as _, SecretString};
use serde_json::json;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

use super::{Refused, Watches};
use crate::{ingress::event::is_session_id, session::SessionKey};

/// `POST` watches a session, `DELETE` ends it; for who shows the token.
pub fn router(watches: Watches, token: Option<&SecretString>) -> Router {
    let token: Option<Arc<[u8]>> = token.map(|token| Sha256::digest(token.expose_secret()).as_slice().into());
    Router::new()
        .route("/api/sessions/{platform}/{session}/watch", post(watch).delete(end))
        .layer(middleware::from_fn_with_state(token, guard))
        .with_state(watches)
}

/// Without a token the listener is loopback; even then no page in a browser may ask.
async fn guard(State(token): State<Option<Arc<[u8]>>>, request: Request, next: Next) -> Response {
    let headers = request.headers();
    match &token {
        Some(token) if !shows(headers, token) => {
            let mut refused = problem(StatusCode::UNAUTHORIZED, "unauthorized", "show admin.token as a bearer token");
            refused.headers_mut().insert(header::WWW_AUTHENTICATE, header::HeaderValue::from_static("Bearer"));
            refused
        }
        None if headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site") => {
            problem(StatusCode::FORBIDDEN, "forbidden", "pages in a browser may not ask this")
        }
        _ => next.run(request).await,
    }
}

fn shows(headers: &HeaderMap, token: &[u8]) -> bool {
    let shown = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let shown =
        shown.and_then(|value| value.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    shown.is_some_and(|(_, shown)| Sha256::digest(shown.trim()).as_slice().ct_eq(token).into())
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
