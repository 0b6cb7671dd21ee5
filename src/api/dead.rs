//! `/api/dead`

use std::{sync::Arc, time::Duration};

use axum::{Json, extract::State};
use serde::Deserialize;
use utoipa::{IntoParams, ToSchema};

use super::{
    Desk, Problem,
    error::ErrorBody,
    extract::{Body, Name, Params, age, limit, text},
};
use crate::operator::{Order, Pick, Way, view};

/// What one request settles at most; who has more asks again.
const MAX: u32 = 10_000;
/// Between two messages.
const MAX_PAUSE: Duration = Duration::from_secs(60);

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DeadQuery {
    /// Only messages of this platform.
    platform: Option<String>,
    /// Only messages whose session has a call of this function in the store.
    function: Option<String>,
    /// Only messages whose reason holds this text, in any case.
    reason: Option<String>,
    /// Only messages put aside longer ago, such as 1h.
    older_than: Option<String>,
    /// Only messages put aside since, such as 30m.
    newer_than: Option<String>,
    /// `next` of the page before.
    cursor: Option<String>,
    /// Messages at most.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<u32>,
}

/// List dead messages, the oldest first
#[utoipa::path(get, path = "/api/dead", tag = "dead", params(DeadQuery), responses(
    (status = 200, body = view::DeadMessages),
    (status = "4XX", body = ErrorBody),
    (status = 503, description = "The store or the broker is away", body = ErrorBody),
))]
pub(super) async fn list(
    State(desk): State<Arc<Desk>>,
    Params(query): Params<DeadQuery>,
) -> Result<Json<view::DeadMessages>, Problem> {
    let DeadQuery { platform, function, reason, older_than, newer_than, cursor, limit: most } = query;
    let pick = pick(platform, function, reason, older_than.as_deref(), newer_than.as_deref())?;
    Ok(Json(desk.operator()?.dead(&pick, cursor, limit(most)?).await?))
}

/// One dead message and its bytes, as text
#[utoipa::path(get, path = "/api/dead/{id}", tag = "dead", params(("id" = String, Path)), responses(
    (status = 200, body = view::DeadDetail),
    (status = "4XX", body = ErrorBody),
    (status = 503, description = "The store or the broker is away", body = ErrorBody),
))]
pub(super) async fn show(State(desk): State<Arc<Desk>>, Name(id): Name) -> Result<Json<view::DeadDetail>, Problem> {
    Ok(Json(desk.operator()?.dead_message(&id).await?))
}

/// Which messages to settle: by id, by a filter, or all.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Which {
    ids: Vec<String>,
    platform: Option<String>,
    function: Option<String>,
    /// Text that the reason holds, in any case.
    reason: Option<String>,
    /// Such as 1h.
    older_than: Option<String>,
    /// Such as 30m.
    newer_than: Option<String>,
    all: bool,
    /// Messages at most; 10 000 at most and by default.
    #[schema(minimum = 1, maximum = 10000)]
    max: Option<u32>,
    /// Only say what would be done.
    dry_run: bool,
    /// Redrive only: also what cannot be read, or came back so often that it seems to go in circles.
    force: Option<bool>,
    /// Redrive only: between two messages, such as 20ms.
    pause: Option<String>,
}

impl Which {
    fn order(self, way: Way) -> Result<Order, Problem> {
        let max = self.max.unwrap_or(MAX);
        if !(1..=MAX).contains(&max) {
            return Err(Problem::invalid("max must be from 1 to 10000"));
        }
        Ok(Order {
            way,
            ids: self.ids,
            pick: pick(
                self.platform,
                self.function,
                self.reason,
                self.older_than.as_deref(),
                self.newer_than.as_deref(),
            )?,
            all: self.all,
            max: Some(max),
            dry_run: self.dry_run,
        })
    }
}

fn pick(
    platform: Option<String>,
    function: Option<String>,
    reason: Option<String>,
    older_than: Option<&str>,
    newer_than: Option<&str>,
) -> Result<Pick, Problem> {
    Ok(Pick {
        platform: text("platform", platform)?,
        function: text("function", function)?,
        reason: text("reason", reason)?,
        older_than: age("older_than", older_than)?,
        newer_than: age("newer_than", newer_than)?,
    })
}

/// Give dead messages back to the workers
///
/// A request that is broken off stops; what was redriven by then stays so.
#[utoipa::path(post, path = "/api/dead/redrive", tag = "dead", request_body = Which, responses(
    (status = 200, body = view::Settled),
    (status = "4XX", body = ErrorBody),
    (status = 503, description = "The store or the broker is away", body = ErrorBody),
))]
pub(super) async fn redrive(
    State(desk): State<Arc<Desk>>,
    Body(which): Body<Which>,
) -> Result<Json<view::Settled>, Problem> {
    let pause = age("pause", which.pause.as_deref())?;
    if pause.is_some_and(|pause| pause > MAX_PAUSE) {
        return Err(Problem::invalid("pause must be at most 60s"));
    }
    let way = Way::Redrive { pause, force: which.force.unwrap_or(false) };
    Ok(Json(desk.operator()?.settle(which.order(way)?, &mut |_| ()).await?))
}

/// Delete dead messages for good
#[utoipa::path(post, path = "/api/dead/purge", tag = "dead", request_body = Which, responses(
    (status = 200, body = view::Settled),
    (status = "4XX", body = ErrorBody),
    (status = 503, description = "The store or the broker is away", body = ErrorBody),
))]
pub(super) async fn purge(
    State(desk): State<Arc<Desk>>,
    Body(which): Body<Which>,
) -> Result<Json<view::Settled>, Problem> {
    if which.force.is_some() || which.pause.is_some() {
        return Err(Problem::invalid("force and pause are for redrive"));
    }
    Ok(Json(desk.operator()?.settle(which.order(Way::Purge)?, &mut |_| ()).await?))
}
