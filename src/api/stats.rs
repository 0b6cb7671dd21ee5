//! `/api/stats` and `/api/sessions/due`: what waits, and the last hour of this process.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{Json, extract::State};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::Mutex;
use utoipa::{IntoParams, ToSchema};

use super::{
    Desk, Problem,
    error::ErrorBody,
    extract::{Params, limit},
};
use crate::{
    metrics::series,
    operator::{Operator, view},
    store::{self, Tally},
};

/// How far back calls are counted.
const WITHIN: Duration = Duration::from_secs(24 * 3600);
/// A count is good for this long at least, and for so many times what it took.
const FRESH: Duration = Duration::from_secs(2);
const RELAX: u32 = 20;

/// The counts of calls, taken once for all who look.
#[derive(Default)]
pub(crate) struct Cache(Mutex<Option<(Instant, Arc<Vec<Tally>>)>>);

impl Cache {
    pub(super) async fn read(&self, operator: &Operator) -> store::Result<Arc<Vec<Tally>>> {
        let mut cached = self.0.lock().await;
        if let Some((until, tally)) = &*cached
            && Instant::now() < *until
        {
            return Ok(tally.clone());
        }
        let asked = Instant::now();
        let tally = Arc::new(operator.store().tally(WITHIN).await?);
        *cached = Some((Instant::now() + FRESH.max(asked.elapsed() * RELAX), tally.clone()));
        Ok(tally)
    }
}

/// What is going on, and the last hour.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Stats {
    pub now: Now,
    /// Seconds that one point stands for.
    pub every: u64,
    /// The last hour of this process, the oldest first.
    pub points: Vec<Point>,
}

/// What is going on.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Now {
    /// all, worker or ingress.
    pub role: String,
    pub version: String,
    pub ready: bool,
    /// Why it is not ready.
    pub reasons: Vec<String>,
    /// Messages that wait for a worker; null where that cannot be told.
    pub queue_depth: Option<u64>,
    /// Messages that were put aside; null where that cannot be told.
    pub dead: Option<u64>,
    /// Sessions whose time to be looked at has come.
    pub sessions_due: u64,
    /// Seconds since the webhook of the oldest session that is to be looked at again.
    pub oldest_pending: Option<f64>,
    /// Calls first seen in the last 24 hours, by their state.
    pub calls: BTreeMap<String, u64>,
    /// Functions that an operator has paused.
    pub paused: Vec<String>,
}

/// Ten seconds of this process.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct Point {
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    pub webhooks: u32,
    pub succeeded: u32,
    /// Ended in an error result, or refused by the platform.
    pub failed: u32,
    pub retried: u32,
    /// Seconds that half of the handlers took at most.
    pub handler_p50: Option<f64>,
    pub handler_p95: Option<f64>,
    /// Seconds from a webhook to its accepted result.
    pub result_p50: Option<f64>,
    pub result_p95: Option<f64>,
    pub queue_depth: Option<u64>,
    pub oldest_pending: Option<f64>,
}

impl Desk {
    pub async fn stats(&self) -> Result<Stats, Problem> {
        let operator = self.operator()?;
        let tally = self.tally.read(operator).await?;
        let mut calls = BTreeMap::new();
        for Tally { state, count, .. } in tally.iter() {
            *calls.entry(state.clone()).or_insert(0) += count;
        }
        let reasons = self.readiness.reasons();
        let now = Now {
            role: format!("{:?}", self.role).to_lowercase(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ready: reasons.is_empty(),
            reasons,
            queue_depth: self.queue.depth().await,
            dead: self.queue.count_dead().await,
            sessions_due: operator.store().overdue().await?,
            oldest_pending: operator.store().oldest_pending().await?.map(|age| age.as_secs_f64()),
            calls,
            paused: operator.store().pauses().await?.into_iter().map(|pause| pause.function).collect(),
        };
        let points = self.metrics.points().into_iter().map(point).collect();
        Ok(Stats { now, every: series::STEP.as_secs(), points })
    }
}

fn point(point: series::Point) -> Point {
    let of = |percentiles: Option<[f64; 2]>, place: usize| percentiles.map(|percentiles| percentiles[place]);
    let ago = jiff::SignedDuration::try_from(point.age).unwrap_or_default();
    Point {
        at: Timestamp::now().checked_sub(ago).unwrap_or(Timestamp::UNIX_EPOCH),
        webhooks: point.webhooks,
        succeeded: point.succeeded,
        failed: point.failed,
        retried: point.retried,
        handler_p50: of(point.handler, 0),
        handler_p95: of(point.handler, 1),
        result_p50: of(point.result, 0),
        result_p95: of(point.result, 1),
        queue_depth: point.queue_depth,
        oldest_pending: point.oldest_pending,
    }
}

/// What waits now, and the last hour of this process
#[utoipa::path(get, path = "/api/stats", tag = "stats", responses(
    (status = 200, body = Stats),
    (status = "4XX", body = ErrorBody),
    (status = 503, description = "The store is away", body = ErrorBody),
))]
pub(super) async fn stats(State(desk): State<Arc<Desk>>) -> Result<Json<Stats>, Problem> {
    Ok(Json(desk.stats().await?))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DueQuery {
    /// `next` of the page before.
    cursor: Option<String>,
    /// Sessions at most.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// Sessions that are to be looked at again, the earliest first
#[utoipa::path(get, path = "/api/sessions/due", tag = "stats", params(DueQuery), responses(
    (status = 200, body = view::DueSessions),
    (status = "4XX", body = ErrorBody),
    (status = 503, description = "The store is away", body = ErrorBody),
))]
pub(super) async fn due(
    State(desk): State<Arc<Desk>>,
    Params(query): Params<DueQuery>,
) -> Result<Json<view::DueSessions>, Problem> {
    Ok(Json(desk.operator()?.due(query.cursor.as_deref(), limit(query.limit)?).await?))
}
