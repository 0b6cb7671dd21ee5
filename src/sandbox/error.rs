//! The error envelope of the Agents API.

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};

use super::json::Object;

/// An answer that is no success.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ApiError {
    pub(super) status: StatusCode,
    pub(super) code: &'static str,
    pub(super) message: String,
    /// Seconds.
    pub(super) retry_after: Option<u32>,
}

impl ApiError {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), retry_after: None }
    }

    pub(super) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// The exact words are the platform's: the official SDKs look for them.
    pub(super) fn unknown_call(call_id: &str) -> Self {
        Self::invalid(format!("Unknown pending tool call: {call_id}"))
    }

    pub(super) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict_error", message)
    }

    pub(super) fn unprocessable() -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unprocessable_entity", "The result cannot be processed")
    }

    pub(super) fn not_found(what: &str, id: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found_error", format!("No {what} found with id {id:?}"))
    }

    pub(super) fn unauthorized() -> Self {
        Self::new(StatusCode::UNAUTHORIZED, "unauthorized", "Incorrect API key provided")
    }

    pub(super) fn rate_limited(retry_after: u32) -> Self {
        let error = Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded", "Rate limit reached");
        Self { retry_after: Some(retry_after), ..error }
    }

    pub(super) fn internal() -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", "The server had an error")
    }

    fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            429 => "rate_limit_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let error = Object::new()
            .text("type", self.kind())
            .text("code", self.code)
            .text("message", &self.message)
            .raw("param", "null")
            .end();
        let body = Object::new().raw("error", &error).end();
        let mut response = (self.status, [(header::CONTENT_TYPE, "application/json")], body).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
