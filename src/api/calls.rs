//! `/api/calls`

use std::sync::Arc;

use axum::{Json, extract::State};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use super::{
    Desk, Problem,
    error::ErrorBody,
    extract::{Body, Id, Params, age, limit, text},
};
use crate::{
    operator::{Act, ListCalls, view},
    session::{Output, Part, ToolResult},
    store::{Filter, STATES},
};

/// Who an operator is in a call's history.
const WHO: &str = "api";

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct CallsQuery {
    /// Only calls in this state: claimed, waiting, retrying, interrupted, completed, submitted, settled, refused or obsolete.
    state: Option<String>,
    /// Only calls of this function.
    function: Option<String>,
    /// Only calls of this platform.
    platform: Option<String>,
    /// Only calls of this session.
    session: Option<String>,
    /// Only calls first seen longer ago, such as 1h.
    older_than: Option<String>,
    /// Only calls first seen since, such as 30m.
    newer_than: Option<String>,
    /// Only calls first seen then or later.
    #[param(value_type = Option<String>, format = DateTime)]
    since: Option<Timestamp>,
    /// Only calls first seen before.
    #[param(value_type = Option<String>, format = DateTime)]
    until: Option<Timestamp>,
    /// Else the newest come first.
    #[serde(default)]
    oldest_first: bool,
    /// Only what a person calls so: PLATFORM/SESSION/TURN/CALL_ID, or a call id. Other filters do not count then.
    call: Option<String>,
    /// Only calls behind the one that is called so.
    after: Option<String>,
    /// `next` of the page before.
    cursor: Option<String>,
    /// Calls at most.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

impl CallsQuery {
    fn read(self) -> Result<ListCalls, Problem> {
        if self.state.as_deref().is_some_and(|state| !STATES.contains(&state)) {
            return Err(Problem::invalid(format!("state must be one of {}", STATES.join(", "))));
        }
        let filter = Filter {
            state: self.state,
            function: text("function", self.function)?,
            platform: text("platform", self.platform)?,
            session: text("session", self.session)?,
            older_than: age("older_than", self.older_than.as_deref())?,
            newer_than: age("newer_than", self.newer_than.as_deref())?,
            from: self.since.map(Timestamp::as_millisecond),
            to: self.until.map(Timestamp::as_millisecond),
            oldest_first: self.oldest_first,
            ..Filter::default()
        };
        Ok(ListCalls {
            filter,
            name: text("call", self.call)?,
            after: text("after", self.after)?,
            cursor: self.cursor,
            limit: limit(self.limit)?,
        })
    }
}

/// List calls, page by page
#[utoipa::path(get, path = "/api/calls", tag = "calls", params(CallsQuery), responses(
    (status = 200, body = view::Calls),
    (status = "4XX", body = ErrorBody),
    (status = 503, description = "The store is away", body = ErrorBody),
))]
pub(super) async fn list(
    State(desk): State<Arc<Desk>>,
    Params(query): Params<CallsQuery>,
) -> Result<Json<view::Calls>, Problem> {
    Ok(Json(desk.operator()?.calls(&query.read()?).await?))
}

/// One call with its result, masked, and what happened to it
#[utoipa::path(get, path = "/api/calls/{id}", tag = "calls", params(("id" = String, Path)), responses(
    (status = 200, body = view::CallDetail),
    (status = "4XX", body = ErrorBody),
    (status = 503, description = "The store is away", body = ErrorBody),
))]
pub(super) async fn show(State(desk): State<Arc<Desk>>, Id(key): Id) -> Result<Json<view::CallDetail>, Problem> {
    Ok(Json(desk.operator()?.call(&key).await?))
}

/// Run the handler again; a result that the platform did not accept is forgotten
#[utoipa::path(post, path = "/api/calls/{id}/retry", tag = "calls", params(("id" = String, Path)), responses(
    (status = 200, body = view::Done),
    (status = "4XX", body = ErrorBody),
    (status = 503, description = "The store is away", body = ErrorBody),
))]
pub(super) async fn retry(
    State(desk): State<Arc<Desk>>,
    Id(key): Id,
    Body(Nothing {}): Body<Nothing>,
) -> Result<Json<view::Done>, Problem> {
    Ok(Json(desk.operator()?.act(&key, &Act::Retry, WHO).await?))
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
pub(super) struct Resubmit {
    /// Under the next idempotency key: for a platform that repeats its old answer to the old key.
    new_key: bool,
}

/// Submit the stored result again: same bytes, the handler does not run
#[utoipa::path(post, path = "/api/calls/{id}/resubmit", tag = "calls", params(("id" = String, Path)),
    request_body = Option<Resubmit>, responses(
    (status = 200, body = view::Done),
    (status = "4XX", body = ErrorBody),
    (status = 503, description = "The store is away", body = ErrorBody),
))]
pub(super) async fn resubmit(
    State(desk): State<Arc<Desk>>,
    Id(key): Id,
    Body(Resubmit { new_key }): Body<Resubmit>,
) -> Result<Json<view::Done>, Problem> {
    Ok(Json(desk.operator()?.act(&key, &Act::Resubmit { new_key }, WHO).await?))
}

/// Exactly one of the two.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Resolve {
    /// The function's output: text, or a list of content parts.
    output: Option<Value>,
    /// An error for the model: what is wrong and what to change.
    error: Option<String>,
}

impl Resolve {
    fn read(self) -> Result<Act, Problem> {
        let result = match (self.output, self.error) {
            (Some(Value::String(text)), None) => ToolResult::Success(Output::Text(text)),
            (Some(parts @ Value::Array(_)), None) => {
                let parts: Result<Vec<Part>, _> = serde_json::from_value(parts);
                let parts = parts.map_err(|_| Problem::invalid("output: not a list of content parts"))?;
                ToolResult::Success(Output::Content(parts))
            }
            (Some(_), None) => return Err(Problem::invalid("output must be text or a list of content parts")),
            (None, Some(error)) => ToolResult::Error(error),
            _ => return Err(Problem::invalid("needs output or error, and not both")),
        };
        Ok(Act::Resolve(result))
    }
}

/// Answer a call that has no result, such as one that is held
#[utoipa::path(post, path = "/api/calls/{id}/resolve", tag = "calls", params(("id" = String, Path)),
    request_body = Resolve, responses(
    (status = 200, body = view::Done),
    (status = "4XX", body = ErrorBody),
    (status = 503, description = "The store is away", body = ErrorBody),
))]
pub(super) async fn resolve(
    State(desk): State<Arc<Desk>>,
    Id(key): Id,
    Body(body): Body<Resolve>,
) -> Result<Json<view::Done>, Problem> {
    Ok(Json(desk.operator()?.act(&key, &body.read()?, WHO).await?))
}

#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Cancel {
    /// Told to the agent.
    reason: Option<String>,
}

/// Answer a call with an error that says so
///
/// Its agent goes on without the result; a handler that runs for it loses its claim and is stopped.
#[utoipa::path(post, path = "/api/calls/{id}/cancel", tag = "calls", params(("id" = String, Path)),
    request_body = Option<Cancel>, responses(
    (status = 200, body = view::Done),
    (status = "4XX", body = ErrorBody),
    (status = 503, description = "The store is away", body = ErrorBody),
))]
pub(super) async fn cancel(
    State(desk): State<Arc<Desk>>,
    Id(key): Id,
    Body(Cancel { reason }): Body<Cancel>,
) -> Result<Json<view::Done>, Problem> {
    Ok(Json(desk.operator()?.act(&key, &Act::Cancel { reason }, WHO).await?))
}
