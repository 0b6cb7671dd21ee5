//! The switches and gauges for whoever drives the sandbox from another process.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::State,
    http::{StatusCode, Uri},
};

use super::{
    Sandbox,
    error::ApiError,
    faults::Faults,
    json::{Object, array},
    query::Query,
    routes::{Answer, json, read},
    session::{Action, ActionKind, ActionState, Session},
    wire,
};

/// `GET /sandbox/faults`: the switches as they stand; counts run down.
pub(super) async fn faults(State(sandbox): State<Arc<Sandbox>>) -> Answer {
    shown(&sandbox.faults())
}

/// `POST /sandbox/faults`: replaces all switches; what is not named is off.
pub(super) async fn set_faults(State(sandbox): State<Arc<Sandbox>>, body: Body) -> Answer {
    let faults: Faults =
        serde_json::from_slice(&read(body).await?).map_err(|error| ApiError::invalid(format!("faults: {error}")))?;
    sandbox.set_faults(faults.clone());
    shown(&faults)
}

fn shown(faults: &Faults) -> Answer {
    Ok(json(StatusCode::OK, serde_json::to_string(faults).map_err(|_| ApiError::internal())?))
}

/// `GET /sandbox/stats`: counters over all, and each session's calls; `?sessions=false` leaves those out.
pub(super) async fn stats(State(sandbox): State<Arc<Sandbox>>, uri: Uri) -> Answer {
    let brief = Query::parse(&uri).pairs.iter().any(|(name, value)| name == "sessions" && value == "false");
    let state = sandbox.state();
    let counters = serde_json::to_string(&state.counters).map_err(|_| ApiError::internal())?;
    let sessions = state.order.iter().filter(|_| !brief).filter_map(|id| state.sessions.get(id)).map(session);
    Ok(json(StatusCode::OK, Object::new().raw("counters", &counters).raw("sessions", &array(sessions)).end()))
}

fn session(session: &Session) -> String {
    Object::new()
        .text("id", &session.id)
        .text("status", wire::status(session.status))
        .number("reads", session.reads as i64)
        .raw("calls", &array(session.calls(None).map(call)))
        .maybe_text("answer", session.answer())
        .end()
}

fn call(action: &Action) -> String {
    let name = match &action.kind {
        ActionKind::FunctionCall { name, .. } => name,
        ActionKind::Other { kind } => kind,
    };
    let state = match action.state {
        ActionState::Pending => "pending",
        ActionState::Lingering(_) => "lingering",
        ActionState::Applied => "applied",
        ActionState::Dropped => "dropped",
    };
    let key = action.result.as_ref().and_then(|accepted| accepted.idempotency_key.as_deref());
    Object::new()
        .text("turn_id", &action.turn_id)
        .text("call_id", &action.id)
        .text("name", name)
        .text("state", state)
        .number("accepted", action.posts.accepted.into())
        .number("replayed", action.posts.replayed.into())
        .number("refused", action.posts.refused.into())
        .number("faulted", action.posts.faulted.into())
        .maybe_text("idempotency_key", key)
        .end()
}
