//! What goes wrong, as `{"error":{"code","message"}}`. No message shows what is inside.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header::WWW_AUTHENTICATE},
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::ToSchema;

use super::Refused;
use crate::{operator, store};

/// An answer that is none.
#[derive(Debug)]
pub struct Problem {
    pub status: StatusCode,
    code: &'static str,
    pub message: String,
}

/// The body of every answer that is not 2xx.
#[derive(Serialize, ToSchema)]
pub(super) struct ErrorBody {
    error: ErrorDetail,
}

#[derive(Serialize, ToSchema)]
struct ErrorDetail {
    /// A word that stays the same.
    code: String,
    /// A sentence for a person.
    message: String,
}

impl Problem {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", message)
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid", message)
    }

    pub(super) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "conflict", message)
    }

    pub(super) fn no_store() -> Self {
        let why = "this process has no store: ask a worker, or one of --role all";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "no_store", why)
    }
}

impl From<operator::Error> for Problem {
    fn from(error: operator::Error) -> Self {
        match error {
            operator::Error::NotFound(message) => Self::not_found(message),
            operator::Error::Invalid(message) => Self::invalid(message),
            operator::Error::Conflict(message) => Self::conflict(message),
            operator::Error::Store(error) => error.into(),
            operator::Error::Dead(error) => {
                tracing::warn!(%error, "an operator cannot see the dead messages");
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "queue_away", "the dead messages cannot be reached now")
            }
            operator::Error::Server(message) => Self::new(StatusCode::BAD_GATEWAY, "server", message),
        }
    }
}

impl From<store::Error> for Problem {
    fn from(error: store::Error) -> Self {
        tracing::warn!(%error, "an operator cannot reach the store");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "store_away", "the store cannot be reached now")
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Unauthorized => {
                Self::new(StatusCode::UNAUTHORIZED, "unauthorized", "needs admin.token as Authorization: Bearer TOKEN")
            }
            Refused::Foreign => Self::new(
                StatusCode::FORBIDDEN,
                "forbidden",
                "a page of another site may not ask this, nor may anybody under a host name that is not this machine's",
            ),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let error = ErrorDetail { code: self.code.to_owned(), message: self.message };
        let mut response = (self.status, Json(ErrorBody { error })).into_response();
        if self.status == StatusCode::UNAUTHORIZED {
            let realm = HeaderValue::from_static("Bearer realm=\"actiond\"");
            response.headers_mut().insert(WWW_AUTHENTICATE, realm);
        }
        response
    }
}
