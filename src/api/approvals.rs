//! `/api/approvals`: the calls that wait for a person, and what the person says.

use std::sync::Arc;

use axum::{Json, extract::State};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    Desk, Problem,
    error::ErrorBody,
    extract::{Body, Id, Params, text},
};
use crate::{
    approval,
    operator::{cursor as cursor_of, encode, read_cursor, view::instant},
    redact,
    session::CallKey,
    store::{ApprovalFilter, Decide, Decided},
};

/// How many are listed at once.
const PAGE: usize = 200;
/// Who decides, where nobody says so.
const WHO: &str = "api";

/// A call that waits for a person, or waited.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Approval {
    /// Names the call in this API.
    pub id: String,
    /// PLATFORM/SESSION/TURN/CALL_ID
    pub call: String,
    pub platform: String,
    pub session: String,
    pub function: String,
    /// pending, approved, denied, expired or withdrawn.
    pub state: String,
    #[schema(value_type = String, format = DateTime)]
    pub asked_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
    pub decided_by: Option<String>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub decided_at: Option<Timestamp>,
    pub reason: Option<String>,
    /// JSON, as long as nobody has decided; what the function's `redact` names is hidden.
    pub arguments: Option<String>,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Approvals {
    pub approvals: Vec<Approval>,
    /// `cursor` of the next page; null on the last.
    pub next: Option<String>,
}

impl Desk {
    /// Some approvals: those that wait, the oldest first, or all, the newest first.
    pub async fn approvals(&self, filter: &ApprovalFilter, cursor: Option<&str>) -> Result<Approvals, Problem> {
        let bad = || Problem::invalid("the cursor is none that was given out here");
        let after = cursor.map(|cursor| read_cursor(cursor).ok_or_else(bad)).transpose()?;
        let mut found = self.operator()?.store().approvals(filter, after.as_ref(), PAGE + 1).await?;
        let more = found.len() > PAGE;
        found.truncate(PAGE);
        let next = found.last().filter(|_| more).map(|last| cursor_of(last.asked_at, &last.key));
        Ok(Approvals { approvals: found.iter().map(|approval| self.describe(approval)).collect(), next })
    }

    pub async fn approval(&self, key: &CallKey) -> Result<Option<Approval>, Problem> {
        let found = self.operator()?.store().approval(key).await?;
        Ok(found.map(|approval| self.describe(&approval)))
    }

    /// `asked_at` names the question that was seen: another one is not decided by accident.
    pub async fn decide(&self, decide: Decide) -> Result<Approval, Problem> {
        match approval::decide(&**self.operator()?.store(), decide).await? {
            Decided::Done(approval) => Ok(self.describe(&approval)),
            Decided::Already(approval) => Err(Problem::conflict(approval::told(&approval))),
            Decided::Unknown => Err(Problem::not_found("nobody was asked about this call")),
        }
    }

    fn describe(&self, approval: &crate::store::Approval) -> Approval {
        let registry = self.functions.load();
        let arguments = approval.arguments.as_deref();
        let arguments = arguments.map(|arguments| match registry.by_name(&approval.function) {
            Some(function) => redact::show(&function.redact, arguments.as_bytes()),
            None => redact::HIDDEN.to_owned(),
        });
        Approval {
            id: encode(&approval.key),
            call: approval.key.to_string(),
            platform: approval.key.session.platform.to_string(),
            session: approval.key.session.session.to_string(),
            function: approval.function.clone(),
            state: approval.decision.map_or("pending", |decision| decision.as_str()).to_owned(),
            asked_at: instant(approval.asked_at),
            expires_at: instant(approval.expires_at),
            decided_by: approval.decided_by.clone(),
            decided_at: approval.decided_at.map(instant),
            reason: approval.reason.clone(),
            arguments,
        }
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ApprovalsQuery {
    /// The decided ones too, the newest first; else those that wait, the oldest first.
    #[serde(default)]
    all: bool,
    /// Only calls of this function.
    function: Option<String>,
    /// `next` of the page before.
    cursor: Option<String>,
}

/// Calls that wait for a person
#[utoipa::path(get, path = "/api/approvals", tag = "approvals", params(ApprovalsQuery), responses(
    (status = 200, body = Approvals),
    (status = "4XX", body = ErrorBody),
    (status = 503, description = "The store is away", body = ErrorBody),
))]
pub(super) async fn list(
    State(desk): State<Arc<Desk>>,
    Params(query): Params<ApprovalsQuery>,
) -> Result<Json<Approvals>, Problem> {
    let filter = ApprovalFilter { all: query.all, function: text("function", query.function)? };
    Ok(Json(desk.approvals(&filter, query.cursor.as_deref()).await?))
}

/// Who decides, and why.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Decision {
    /// Kept; `api` by default.
    by: Option<String>,
    /// Kept, and read by the agent after a denial.
    reason: Option<String>,
    /// Of the question that was seen: another one is not decided then.
    #[schema(value_type = Option<String>, format = DateTime)]
    asked_at: Option<Timestamp>,
}

/// Let the handler start
#[utoipa::path(post, path = "/api/approvals/{id}/approve", tag = "approvals", params(("id" = String, Path)),
    request_body = Option<Decision>, responses(
    (status = 200, body = Approval),
    (status = "4XX", body = ErrorBody),
    (status = 503, description = "The store is away", body = ErrorBody),
))]
pub(super) async fn approve(
    State(desk): State<Arc<Desk>>,
    Id(key): Id,
    Body(decision): Body<Decision>,
) -> Result<Json<Approval>, Problem> {
    decide(&desk, key, decision, true).await
}

/// Answer the call with an error; the agent reads the reason
#[utoipa::path(post, path = "/api/approvals/{id}/deny", tag = "approvals", params(("id" = String, Path)),
    request_body = Option<Decision>, responses(
    (status = 200, body = Approval),
    (status = "4XX", body = ErrorBody),
    (status = 503, description = "The store is away", body = ErrorBody),
))]
pub(super) async fn deny(
    State(desk): State<Arc<Desk>>,
    Id(key): Id,
    Body(decision): Body<Decision>,
) -> Result<Json<Approval>, Problem> {
    decide(&desk, key, decision, false).await
}

async fn decide(desk: &Desk, key: CallKey, decision: Decision, approve: bool) -> Result<Json<Approval>, Problem> {
    let Decision { by, reason, asked_at } = decision;
    let by = by.filter(|by| !by.trim().is_empty());
    let (asked_at, by) = (asked_at.map(Timestamp::as_millisecond), by.unwrap_or_else(|| WHO.to_owned()));
    Ok(Json(desk.decide(Decide { key, asked_at, approve, by, reason }).await?))
}
