//! `/api/functions`: what is registered in this process, its limits, and what runs now.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use axum::{Json, extract::State};
use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use super::{
    Desk, Problem,
    error::ErrorBody,
    extract::{Body, Name},
};
use crate::{config::units, function, operator::view::instant, session::IfInterrupted};

use super::calls::Nothing;

/// A function that is registered.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Function {
    pub name: String,
    pub description: String,
    /// Where it was imported from; null where the config says it.
    pub source: Option<String>,
    /// Platforms it answers; all of them where empty.
    pub platforms: Vec<String>,
    /// rerun, fail or hold.
    pub if_interrupted: String,
    pub max_attempts: u32,
    /// Calls that may run at once in one process; null without a limit.
    pub concurrency: Option<usize>,
    /// Calls that may start, such as 50/s; null without a limit.
    pub rate: Option<String>,
    pub adaptive: bool,
    /// Calls whose handler runs in this process now.
    pub running: usize,
    /// How many may run now, where `adaptive` has cut it; null without a limit.
    pub allowed: Option<usize>,
    /// Milliseconds in which nothing starts because the callee asked for it.
    pub backing_off_ms: u64,
    /// Whether an operator has paused it, in every worker.
    pub paused: bool,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub paused_since: Option<Timestamp>,
    /// Calls first seen in the last 24 hours, by their state.
    pub calls: BTreeMap<String, u64>,
}

/// Every function that is registered in this process.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Functions {
    pub functions: Vec<Function>,
}

impl Desk {
    pub async fn functions(&self) -> Result<Functions, Problem> {
        let operator = self.operator()?;
        let tally = self.tally.read(operator).await?;
        let pauses = operator.store().pauses().await?;
        let registry = self.functions.load();
        let mut names: Vec<&str> = registry.names().collect();
        names.sort_unstable();
        let functions = names.into_iter().filter_map(|name| registry.by_name(name)).map(|function| {
            let since = pauses.iter().find(|pause| pause.function == function.name).map(|pause| pause.since);
            let of = tally.iter().filter(|tally| tally.function == function.name);
            let calls = of.map(|tally| (tally.state.clone(), tally.count)).collect();
            describe(function, since, calls)
        });
        Ok(Functions { functions: functions.collect() })
    }

    /// `false`: it was so already.
    pub async fn set_paused(&self, name: &str, paused: bool) -> Result<bool, Problem> {
        let operator = self.operator()?;
        if paused && self.functions.load().by_name(name).is_none() {
            return Err(Problem::not_found("there is no such function here"));
        }
        if !function::is_name(name) {
            return Err(Problem::not_found("there is no such function here"));
        }
        let changed = operator.store().set_paused(name, paused).await?;
        if changed {
            tracing::warn!(function = name, paused, "an operator changed whether a function is started");
        }
        Ok(changed)
    }
}

fn describe(function: &function::Function, since: Option<i64>, calls: BTreeMap<String, u64>) -> Function {
    let limits = function.limits.config();
    let figures = function.limits.figures(Instant::now());
    Function {
        name: function.name.clone(),
        description: function.description.clone(),
        source: function.source.as_deref().map(str::to_owned),
        platforms: function.platforms.clone(),
        if_interrupted: match function.if_interrupted {
            IfInterrupted::Rerun => "rerun",
            IfInterrupted::Fail => "fail",
            IfInterrupted::Hold => "hold",
        }
        .to_owned(),
        max_attempts: function.retry.max_attempts,
        concurrency: limits.concurrency,
        rate: limits.rate.map(|rate| format!("{}/{}", rate.count, units::show(rate.per).trim_start_matches('1'))),
        adaptive: limits.adaptive,
        running: figures.running,
        allowed: figures.allowed,
        backing_off_ms: u64::try_from(figures.paused.as_millis()).unwrap_or(u64::MAX),
        paused: since.is_some(),
        paused_since: since.map(instant),
        calls,
    }
}

/// Every function with its limits and live figures
#[utoipa::path(get, path = "/api/functions", tag = "functions", responses(
    (status = 200, body = Functions),
    (status = "4XX", body = ErrorBody),
    (status = 503, description = "The store is away", body = ErrorBody),
))]
pub(super) async fn list(State(desk): State<Arc<Desk>>) -> Result<Json<Functions>, Problem> {
    Ok(Json(desk.functions().await?))
}

/// Whether a function is started.
#[derive(Serialize, ToSchema)]
pub(super) struct Paused {
    function: String,
    paused: bool,
    /// Whether it was the other way before.
    changed: bool,
}

/// Start no more calls of a function, in every worker of the store
///
/// Within seconds. Calls that run go on; those that come wait, at most until their deadline.
#[utoipa::path(post, path = "/api/functions/{name}/pause", tag = "functions", params(("name" = String, Path)), responses(
    (status = 200, body = Paused),
    (status = "4XX", body = ErrorBody),
    (status = 503, description = "The store is away", body = ErrorBody),
))]
pub(super) async fn pause(
    State(desk): State<Arc<Desk>>,
    Name(name): Name,
    Body(Nothing {}): Body<Nothing>,
) -> Result<Json<Paused>, Problem> {
    let changed = desk.set_paused(&name, true).await?;
    Ok(Json(Paused { function: name, paused: true, changed }))
}

/// Start calls of a function again; those that wait go on within seconds
#[utoipa::path(post, path = "/api/functions/{name}/resume", tag = "functions", params(("name" = String, Path)), responses(
    (status = 200, body = Paused),
    (status = "4XX", body = ErrorBody),
    (status = 503, description = "The store is away", body = ErrorBody),
))]
pub(super) async fn resume(
    State(desk): State<Arc<Desk>>,
    Name(name): Name,
    Body(Nothing {}): Body<Nothing>,
) -> Result<Json<Paused>, Problem> {
    let changed = desk.set_paused(&name, false).await?;
    Ok(Json(Paused { function: name, paused: false, changed }))
}
