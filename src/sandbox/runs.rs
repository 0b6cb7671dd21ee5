//! Rebyte's workflow runs: a run is a session of one turn, whose script is the program that it executes.

use std::sync::Arc;

use axum::{
    Router,
    body::Body,
    extract::{Path, State},
    http::{StatusCode, Uri},
    routing::{get, post},
};
use serde_json::Value;

use super::{
    Flavor, Sandbox,
    error::ApiError,
    faults::SubmitFault,
    input::Input,
    journal::{Outcome, What},
    json::{Object, array},
    model::Effect,
    query::Query,
    routes::{self, Answer, json as answer, read_by_get, read_json},
    script::{Round, Script, Step},
    session::{ActionKind, CallResult, RunOf, Session, Status, TurnStatus},
    submission::Submission,
};

/// Empty for a platform without runs.
pub(super) fn router(flavor: Flavor) -> Router<Arc<Sandbox>> {
    match flavor {
        Flavor::Openai => Router::new(),
        Flavor::Rebyte => Router::new()
            .route("/workflow-agents/{agent}/runs", post(create))
            .route("/workflow-agents/runs", get(list))
            .route("/workflow-agents/runs/{run}", get(retrieve).delete(delete))
            .route("/workflow-agents/runs/{run}/tool-results", post(submit))
            .route("/workflow-agents/runs/{run}/cancel", post(cancel)),
    }
}

/// `input` is the script itself, or an object that holds it as `script`. Every workflow agent is there.
async fn create(State(sandbox): State<Arc<Sandbox>>, Path(agent_id): Path<String>, body: Body) -> Answer {
    let request = read_json(body).await?;
    let input = request.get("input").cloned().ok_or_else(|| ApiError::invalid("input: is needed"))?;
    let script = input.as_str().or_else(|| input["script"].as_str()).unwrap_or_default().to_owned();
    let is_call = |step: &Step| matches!(step, Step::Call { .. });
    let calls_only = |round: &Round| match round {
        Round::Act(steps) | Round::Nested(_, steps) => steps.iter().all(is_call),
        Round::Fail(_) => true,
    };
    if !Script::parse(&script).rounds.iter().all(calls_only) {
        return Err(ApiError::invalid("input: a run waits for functions only"));
    }
    let state = &mut *sandbox.state();
    let id: Arc<str> = state.ids.next("run").into();
    let mut run = Session::new(id.clone(), super::unix_millis() / 1000, Default::default(), Value::Null, Value::Null);
    run.run = Some(RunOf { agent_id, input, expires_at: None });
    state.sessions.insert(id.clone(), run);
    state.order.push(id.clone());
    sandbox.change(state, &id, |run, cx| {
        cx.effects.push(Effect::Journal(What::Created));
        run.say(&script, Value::Null, cx);
    })?;
    shown(state, &id, StatusCode::CREATED)
}

async fn list(State(sandbox): State<Arc<Sandbox>>, uri: Uri) -> Answer {
    let query = Query::parse(&uri);
    let mut state = sandbox.state();
    state.counters.listed += 1;
    let runs = state.order.iter().filter_map(|id| state.sessions.get(id)).filter(|session| {
        let Some(run) = &session.run else { return false };
        query.pairs.iter().all(|(name, value)| name != "agent_id" || run.agent_id == *value)
    });
    Ok(answer(StatusCode::OK, query.page(runs, |run| run.id.to_string(), show)?))
}

async fn retrieve(State(sandbox): State<Arc<Sandbox>>, Path(id): Path<String>) -> Answer {
    read_by_get(&sandbox, &mut sandbox.state(), &id, true, show)
}

async fn cancel(State(sandbox): State<Arc<Sandbox>>, Path(id): Path<String>) -> Answer {
    let state = &mut *sandbox.state();
    find(state, &id)?;
    sandbox.change(state, &id, |run, cx| run.cancel(cx))?;
    shown(state, &id, StatusCode::OK)
}

async fn delete(State(sandbox): State<Arc<Sandbox>>, Path(id): Path<String>) -> Answer {
    find(&sandbox.state(), &id)?;
    routes::remove(&sandbox, &id, "workflow_agent.run.deleted")
}

/// One result. The same one again is accepted while the run is open; another, an unknown call and a closed run are conflicts.
async fn submit(State(sandbox): State<Arc<Sandbox>>, Path(id): Path<String>, body: Body) -> Answer {
    let body = routes::read(body).await?;
    let (call_id, result) = read_result(&body)?;
    let state = &mut *sandbox.state();
    let turn_id = find(state, &id)?.turns.first().map(|turn| turn.id.clone()).unwrap_or_default();
    let inputs = vec![Input::ToolResult { turn_id, call_id: call_id.clone(), result }];
    sandbox.config.flavor.check_images(&inputs[0])?;
    let submission = Submission { inputs, key: None, body };
    let fault = match state.faults.on_submit(&mut state.random) {
        // A run has no such answer.
        Some(SubmitFault::Race) => Some(SubmitFault::Conflict),
        fault => fault,
    };
    let switches = (state.faults.linger, state.faults.retry_after);
    let submitted = sandbox.change(state, &id, |run, cx| {
        let is_known = run.calls(None).any(|call| call.id == call_id);
        if fault.is_none() && (!is_known || run.running_turn().is_none()) {
            run.count(&submission, StatusCode::CONFLICT, |_| Outcome::Refused, cx);
            return Err(ApiError::conflict(format!("Run does not wait for {call_id}")));
        }
        run.submit(&submission, fault, switches, cx)
    });
    submitted??;
    shown(state, &id, StatusCode::OK)
}

fn read_result(body: &[u8]) -> Result<(String, CallResult), ApiError> {
    let body: Value =
        serde_json::from_slice(body).map_err(|error| ApiError::invalid(format!("Invalid JSON: {error}")))?;
    let call_id = body["call_id"].as_str().filter(|id| !id.is_empty());
    let call_id = call_id.ok_or_else(|| ApiError::invalid("call_id: must be a string that is not empty"))?.to_owned();
    let wrong = "success: must be true with an output, or false with an error";
    let known = ["call_id", "success", "output", "error"];
    let unknown = body.as_object().into_iter().flatten().find(|(name, _)| !known.contains(&name.as_str()));
    if let Some((name, _)) = unknown {
        return Err(ApiError::invalid(format!("{name}: unknown field")));
    }
    match (&body["success"], body.get("output"), body.get("error")) {
        (Value::Bool(true), Some(output), None) => {
            Ok((call_id, CallResult { success: true, output: output.clone(), error: None }))
        }
        (Value::Bool(false), None, Some(Value::String(error))) => {
            Ok((call_id, CallResult { success: false, output: Value::Null, error: Some(error.clone()) }))
        }
        _ => Err(ApiError::invalid(wrong)),
    }
}

fn find<'a>(state: &'a super::State, id: &str) -> Result<&'a Session, ApiError> {
    let run = state.sessions.get(id).filter(|session| session.run.is_some());
    run.ok_or_else(|| ApiError::not_found("run", id))
}

fn shown(state: &super::State, id: &str, status: StatusCode) -> Answer {
    Ok(answer(status, show(find(state, id)?)))
}

/// The run's resource.
fn show(run: &Session) -> String {
    let Some(of) = &run.run else { return String::new() };
    let turn = run.turns.first();
    let status = match (run.status, turn.map(|turn| turn.status)) {
        (Status::InProgress, _) => "in_progress",
        (Status::RequiresAction, _) => "requires_action",
        (Status::Failed, _) => "failed",
        (Status::Idle, Some(TurnStatus::Cancelled)) => "cancelled",
        (Status::Idle, _) => "completed",
    };
    let expires_at = of.expires_at.filter(|_| run.status == Status::RequiresAction);
    let result = run.answer().map_or(Value::Null, Value::from);
    Object::new()
        .text("id", &run.id)
        .text("object", "workflow_agent.run")
        .text("agent_id", &of.agent_id)
        .number("version", 1)
        .raw("preview", "false")
        .text("status", status)
        .raw("input", &of.input.to_string())
        .raw("result", &result.to_string())
        .raw("required_actions", &array(run.pending().map(required_action)))
        .raw("calls", "[]")
        .raw("outputs", "[]")
        .raw("logs", "[]")
        .maybe_text("error", run.error.as_deref())
        .maybe_number("expires_at", expires_at)
        .number("created_at", run.created_at)
        .maybe_number("completed_at", turn.and_then(|turn| turn.completed_at))
        .end()
}

fn required_action(action: &super::Action) -> String {
    let ActionKind::FunctionCall { name, arguments } = &action.kind else { return "{}".to_owned() };
    let object = Object::new().text("type", "function_call").text("call_id", &action.id).text("name", name);
    arguments.iter().fold(object, |object, arguments| object.raw("arguments", arguments)).end()
}
