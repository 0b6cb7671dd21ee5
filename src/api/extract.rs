//! What a request says, read so that whatever is wrong with it is told as JSON.

use std::time::Duration;

use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
    http::{StatusCode, header::CONTENT_TYPE, request::Parts},
};
use serde::de::DeserializeOwned;

use super::Problem;
use crate::{config::units, operator, session::CallKey};

/// The call in the path.
pub(crate) struct Id(pub(crate) CallKey);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Name(id) = Name::from_request_parts(parts, state).await?;
        operator::decode(&id).map(Self).ok_or_else(|| Problem::not_found("there is no call with this id"))
    }
}

/// The one segment of the path that varies.
pub(crate) struct Name(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for Name {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let path: Result<Path<String>, _> = Path::from_request_parts(parts, state).await;
        path.map(|Path(name)| Self(name)).map_err(|_| Problem::invalid("the path is not UTF-8"))
    }
}

/// The parameters of the address.
pub(super) struct Params<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(Self(params)),
            Err(error) => Err(Problem::invalid(format!("query: {}", plain(&error.body_text())))),
        }
    }
}

/// A body of JSON. An empty one is an empty object.
pub(super) struct Body<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let kind = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let bytes = Bytes::from_request(request, state).await.map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => {
                Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "the body is too large")
            }
            _ => Problem::invalid("the body broke off"),
        })?;
        let is_json = |kind: &String| {
            kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
        };
        if !bytes.is_empty() && !kind.as_ref().is_some_and(is_json) {
            let what = "the body must be application/json";
            return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", what));
        }
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        serde_json::from_slice(text).map(Self).map_err(|error| Problem::invalid(format!("body: {error}")))
    }
}

/// The last line of what the parser says.
fn plain(text: &str) -> &str {
    text.rsplit_once(": ").map_or(text, |(_, last)| last)
}

/// A text that a database can be asked for.
pub(super) fn text(name: &str, value: Option<String>) -> Result<Option<String>, Problem> {
    match value {
        Some(value) if value.contains('\0') => Err(Problem::invalid(format!("{name} must not hold U+0000"))),
        value => Ok(value),
    }
}

/// A time such as `90s` or `24h`.
pub(super) fn age(name: &str, value: Option<&str>) -> Result<Option<Duration>, Problem> {
    let read = |value| {
        units::duration(value)
            .ok_or_else(|| Problem::invalid(format!("{name} must be a time such as 90s, 5m, 24h or 2d")))
    };
    value.map(read).transpose()
}

/// How many at most.
pub(super) fn limit(value: Option<u32>) -> Result<usize, Problem> {
    match value.unwrap_or(50) {
        limit @ 1..=1000 => Ok(limit as usize),
        _ => Err(Problem::invalid("limit must be from 1 to 1000")),
    }
}
