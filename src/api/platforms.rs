//! `/api/platforms`: the accounts, and how they answer this process.

use std::{sync::Arc, time::SystemTime};

use axum::{Json, extract::State};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::{Desk, Problem, error::ErrorBody};
use crate::platform::Kind;

/// A platform of the config.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Platform {
    pub name: String,
    /// agents_api, workflow_runs or aivax.
    pub kind: String,
    /// Seconds in which a call must be answered.
    pub call_deadline: u64,
    pub health: Health,
    /// What it said when it failed last, as far as it still does.
    pub detail: Option<String>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_answer_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub last_failure_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// Its last answer was one.
    Ok,
    /// It throttles, errs or cannot be reached.
    Failing,
    /// It refuses our credentials, and is left alone for a while.
    Refused,
    /// This process has not asked it yet.
    Unknown,
}

#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Platforms {
    pub platforms: Vec<Platform>,
}

impl Desk {
    pub fn platforms(&self) -> Platforms {
        let accounts = self.operator.as_ref().map(|operator| operator.accounts());
        let platform = |config: &crate::platform::Config| {
            let account = accounts.and_then(|accounts| accounts.get(config.name.as_str()));
            let last = account.map(|account| account.last()).unwrap_or_default();
            let failed = last.failed.filter(|(at, _)| last.answered.is_none_or(|answered| answered < *at));
            let health = match (&last.answered, &failed) {
                _ if account.is_some_and(|account| account.ready().is_err()) => Health::Refused,
                (_, Some(_)) => Health::Failing,
                (Some(_), None) => Health::Ok,
                (None, None) => Health::Unknown,
            };
            let at = |time: SystemTime| Timestamp::try_from(time).ok();
            Platform {
                name: config.name.clone(),
                kind: match config.kind {
                    Kind::AgentsApi { .. } => "agents_api",
                    Kind::WorkflowRuns { .. } => "workflow_runs",
                    Kind::Aivax(_) => "aivax",
                }
                .to_owned(),
                call_deadline: config.call_deadline.as_secs(),
                health,
                last_answer_at: last.answered.and_then(at),
                last_failure_at: failed.as_ref().and_then(|(time, _)| at(*time)),
                detail: failed.map(|(_, detail)| detail),
            }
        };
        Platforms { platforms: self.platforms.iter().map(platform).collect() }
    }
}

/// Every platform, and how it answers this process
#[utoipa::path(get, path = "/api/platforms", tag = "platforms", responses(
    (status = 200, body = Platforms),
    (status = "4XX", body = ErrorBody),
    (status = 503, description = "This process has no store", body = ErrorBody),
))]
pub(super) async fn list(State(desk): State<Arc<Desk>>) -> Result<Json<Platforms>, Problem> {
    desk.operator()?;
    Ok(Json(desk.platforms()))
}
