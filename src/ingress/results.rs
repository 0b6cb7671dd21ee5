//! `POST /results/{token}`: the result of a handler that answered 202.

use std::{sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Path, Request, State, rejection::PathRejection},
    http::{HeaderMap, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::post,
};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tokio::{sync::Semaphore, time::timeout};

use super::{Rejected, error, later, read};
use crate::{
    handler::output,
    later::Results,
    session::{Output, ToolResult},
    store::Arrived,
};

/// Bytes of a result that are read at most: what OpenAI takes in one request.
const MAX_RESULT: usize = 4 << 20;
/// Results read at once: with `MAX_RESULT` it bounds their memory.
const MAX_IN_FLIGHT: usize = 32;
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

struct Route {
    results: Results,
    slots: Semaphore,
}

/// The route, to be merged into the listener's.
pub fn router(results: Results) -> Router {
    let route = Route { results, slots: Semaphore::new(MAX_IN_FLIGHT) };
    let other = async || error(StatusCode::METHOD_NOT_ALLOWED, "use post");
    Router::new().route("/results/{token}", post(result).fallback(other)).with_state(Arc::new(route))
}

/// A token is a secret: neither it nor the path is logged.
async fn result(
    State(route): State<Arc<Route>>,
    token: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    match token {
        Ok(Path(token)) => take(&route, &token, request).await.unwrap_or_else(|response| response),
        Err(_) => unknown(),
    }
}

/// Nothing of the body is read before the token is known to be ours.
async fn take(route: &Route, token: &str, request: Request) -> Result<Response, Response> {
    let away = |error: crate::store::Error| {
        tracing::warn!(%error, "a result cannot be stored now");
        later("the store is not available")
    };
    let call = route.results.call(token).await.map_err(away)?.ok_or_else(unknown)?;
    let _slot = route.slots.try_acquire().map_err(|_| later("too many results at once"))?;
    let (head, body) = request.into_parts();
    let body = timeout(BODY_TIMEOUT, read(body, MAX_RESULT)).await.map_err(|_| Rejected::TooSlow);
    let body = body.and_then(|body| body).map_err(|rejected| super::refuse(&rejected).1)?;
    let result = tool_result(&head.headers, body).map_err(|(status, why)| error(status, why))?;
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let at = i64::try_from(now.as_millis()).unwrap_or(i64::MAX);
    let id = call.call_id.clone();
    let arrived = route.results.take(call, result, at).await.map_err(away)?;
    tracing::info!(call.id = %id, outcome = ?arrived, "a result arrived");
    Ok(match arrived {
        Arrived::Stored { .. } | Arrived::Repeated => Json(json!({ "status": "stored" })).into_response(),
        Arrived::Late => error(StatusCode::CONFLICT, "the call has ended, or has another result"),
        Arrived::Unknown => unknown(),
    })
}

fn unknown() -> Response {
    error(StatusCode::NOT_FOUND, "no such call")
}

/// `{"success":true,"output":…}` or `{"success":false,"error":"…"}`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Posted<'a> {
    success: bool,
    #[serde(borrow)]
    output: Option<&'a RawValue>,
    error: Option<String>,
}

fn tool_result(headers: &HeaderMap, body: Vec<u8>) -> Result<ToolResult, (StatusCode, &'static str)> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.as_str() {
        "application/json" => posted(&body).map_err(|why| (StatusCode::BAD_REQUEST, why)),
        "text/plain" => Ok(ToolResult::Success(Output::Text(String::from_utf8_lossy(&body).into_owned()))),
        image if image.starts_with("image/") => Ok(ToolResult::Success(output::image(image, &body))),
        _ => Err((
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "send application/json with success and output or error, text/plain, or an image",
        )),
    }
}

fn posted(body: &[u8]) -> Result<ToolResult, &'static str> {
    const SHAPE: &str = "send {\"success\":true,\"output\":…} or {\"success\":false,\"error\":\"…\"}";
    let posted: Posted = serde_json::from_slice(body).map_err(|_| SHAPE)?;
    match (posted.success, posted.output, posted.error) {
        (true, Some(output), None) => {
            const OUTPUT: &str = "output must be text, or an array of input_text and input_image parts";
            match serde_json::from_str(output.get()) {
                Ok(Value::String(text)) => Ok(ToolResult::Success(Output::Text(text))),
                _ => Ok(ToolResult::Success(output::content(output.get().as_bytes()).map_err(|_| OUTPUT)?)),
            }
        }
        (false, None, Some(sentence)) => Ok(ToolResult::Error(sentence)),
        _ => Err(SHAPE),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::collections::HashMap;

    use axum::{body::Body, http::header::RETRY_AFTER};
    use tower::ServiceExt as _;

    use super::*;
    use crate::{
        later::Addresses,
        metrics::Metrics,
        store::{Config, Ledger, Postgres},
    };

    #[tokio::test]
    async fn while_the_store_is_away_the_sender_is_told_to_come_again() {
        let timeout = Duration::from_millis(200);
        let config =
            Config { url: "postgres://nobody@127.0.0.1:1/none".into(), max_connections: 1, timeout, retention: None };
        let ledger = Ledger::new(Arc::new(Postgres::new(&config).unwrap()), timeout);
        let addresses = Arc::new(Addresses::new(ledger.clone(), "http://h"));
        let results = Results { addresses, ledger, platforms: HashMap::new(), metrics: Metrics::new() };
        let request = Request::post("/results/token").body(Body::from("x")).unwrap();
        let response = router(results).oneshot(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response.headers()[RETRY_AFTER], "5");
    }

    fn read(kind: &str, body: &str) -> Result<ToolResult, StatusCode> {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, kind.parse().unwrap());
        tool_result(&headers, body.into()).map_err(|(status, _)| status)
    }

    #[test]
    fn a_result_is_read_by_its_type() {
        let text = |text: &str| Ok(ToolResult::Success(Output::Text(text.into())));
        assert_eq!(read("text/plain; charset=utf-8", "done\n"), text("done\n"));
        assert_eq!(read("Application/JSON", r#"{"success":true,"output":""}"#), text(""));
        let error = read("application/json", r#"{"success":false,"error":"out of stock"}"#);
        assert_eq!(error, Ok(ToolResult::Error("out of stock".into())));
        let parts = r#"{"success":true,"output":[{"type":"input_text","text":"x"}]}"#;
        assert!(
            matches!(read("application/json", parts), Ok(ToolResult::Success(Output::Content(parts))) if parts.len() == 1)
        );
        assert!(matches!(read("image/png", "x"), Ok(ToolResult::Success(Output::Content(_)))));
        assert_eq!(read("application/octet-stream", "x"), Err(StatusCode::UNSUPPORTED_MEDIA_TYPE));
    }

    #[test]
    fn what_is_no_result_is_refused() {
        for body in [
            "",
            "[]",
            "{}",
            r#"{"success":true}"#,
            r#"{"success":true,"output":5}"#,
            r#"{"success":true,"output":{"a":1}}"#,
            r#"{"success":true,"output":"a","error":"b"}"#,
            r#"{"success":false,"output":"a"}"#,
            r#"{"success":"yes","output":"a"}"#,
            r#"{"success":true,"output":"a","extra":1}"#,
            r#"{"success":true,"output":[{"type":"input_image","image_url":"http://plain"}]}"#,
        ] {
            assert_eq!(read("application/json", body), Err(StatusCode::BAD_REQUEST), "{body}");
        }
    }
}
