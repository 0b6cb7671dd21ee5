//! The HTTP surface of sessions, and the gate every request passes.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    Router,
    body::Body,
    extract::{Path, Request, State},
    http::{HeaderMap, HeaderValue, StatusCode, Uri, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::Bytes;
use secrecy::ExposeSecret;
use serde_json::Value;

use super::{
    Sandbox, agents,
    error::ApiError,
    events, input,
    journal::What,
    json::Object,
    model::Effect,
    query::Query,
    runs,
    session::{Item, Session},
    stats,
    submission::Submission,
    webhook::EventType,
    wire,
};

pub(super) type Answer = Result<Response, ApiError>;

const MAX_BODY: usize = 4 * 1024 * 1024;

pub(super) fn router(sandbox: &Arc<Sandbox>) -> Router {
    let api = Router::new()
        .route("/agents", get(agents::list).post(agents::create))
        .route("/agents/{agent}", get(agents::retrieve).post(agents::update).delete(agents::delete))
        .route("/agents/sessions", get(list).post(create))
        .route("/agents/sessions/{session}", get(retrieve).post(update).delete(delete))
        .route("/agents/sessions/{session}/events", get(events::stream).post(submit))
        .route("/agents/sessions/{session}/turns", get(turns))
        .route("/agents/sessions/{session}/turns/{turn}", get(turn))
        .route("/agents/sessions/{session}/turns/{turn}/items", get(turn_items))
        .route("/agents/sessions/{session}/items", get(items))
        .merge(runs::router(sandbox.config.flavor))
        .fallback(unknown_path)
        .layer(middleware::from_fn_with_state(sandbox.clone(), gate));
    let switches = Router::new()
        .route("/faults", get(stats::faults).post(stats::set_faults))
        .route("/stats", get(stats::stats))
        .layer(middleware::from_fn_with_state(sandbox.clone(), key_only));
    Router::new().nest("/v1", api).nest("/sandbox", switches).fallback(unknown_path).with_state(sandbox.clone())
}

/// Key, beta header, and the faults that strike any request.
async fn gate(State(sandbox): State<Arc<Sandbox>>, request: Request, next: Next) -> Response {
    let (delay, refuse, id) = {
        let state = &mut *sandbox.state();
        let refuse = state.faults.unauthorized.hits(&mut state.random);
        (state.faults.answer_delay_ms, refuse, state.ids.next("req"))
    };
    tokio::time::sleep(Duration::from_millis(delay)).await;
    let is_run = request.uri().path().contains("/workflow-agents/");
    let beta = request.headers().get("openai-beta").and_then(|value| value.to_str().ok());
    let mut response = if refuse || !has_key(&sandbox, request.headers()) {
        ApiError::unauthorized().into_response()
    } else if !is_run && !beta.is_some_and(|beta| beta.split(',').any(|beta| beta.trim() == "agents=v1")) {
        let message = "This API needs the header OpenAI-Beta: agents=v1";
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_beta", message).into_response()
    } else {
        next.run(request).await
    };
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert("x-request-id", id);
    }
    response
}

async fn key_only(State(sandbox): State<Arc<Sandbox>>, request: Request, next: Next) -> Response {
    match has_key(&sandbox, request.headers()) {
        true => next.run(request).await,
        false => ApiError::unauthorized().into_response(),
    }
}

fn has_key(sandbox: &Sandbox, headers: &HeaderMap) -> bool {
    let header = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    header.and_then(|value| value.strip_prefix("Bearer ")) == Some(sandbox.config.api_key.expose_secret())
}

async fn unknown_path(uri: Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "not_found_error", format!("Invalid URL {}", uri.path()))
}

async fn create(State(sandbox): State<Arc<Sandbox>>, body: Body) -> Answer {
    let request = read_json(body).await?;
    let input = match &request["input"] {
        Value::Null => None,
        input => Some(input::message(input).map_err(ApiError::invalid)?),
    };
    let environment = environment(&request["environment"])?;
    let metadata = metadata(&request["metadata"])?;
    let state = &mut *sandbox.state();
    let agent = agents::resolve(state, sandbox.config.flavor, &request)?;
    let id: Arc<str> = state.ids.next("sess").into();
    let now = super::unix_millis() / 1000;
    let session = Session::new(id.clone(), now, metadata, agent, environment);
    state.sessions.insert(id.clone(), session);
    state.order.push(id.clone());
    let streams = request["stream"] == true;
    let follower = if streams { Some(events::follow(&sandbox, state, &id)?) } else { None };
    let answer = sandbox.change(state, &id, |session, cx| {
        cx.effects.push(Effect::Journal(What::Created));
        cx.effects.push(Effect::Webhook { event: EventType::Created, action: None });
        session.emit(|session, ids| wire::session_event(session, "created", ids), cx);
        match input {
            Some((text, content)) => session.say(&text, content, cx),
            None => session.emit(|session, ids| wire::session_event(session, "idle", ids), cx),
        }
        wire::session(session)
    })?;
    Ok(follower.unwrap_or_else(|| json(StatusCode::OK, answer)))
}

async fn retrieve(State(sandbox): State<Arc<Sandbox>>, Path(id): Path<String>) -> Answer {
    let state = &mut *sandbox.state();
    read_by_get(&sandbox, state, &id, false, wire::session)
}

/// One read of a session or of a run, with the faults that strike it.
pub(super) fn read_by_get(
    sandbox: &Arc<Sandbox>,
    state: &mut super::State,
    id: &str,
    is_run: bool,
    show: impl FnOnce(&Session) -> String,
) -> Answer {
    let is_there = state.sessions.get(id).is_some_and(|session| session.run.is_some() == is_run);
    let answer = if state.faults.retrieve_500.hits(&mut state.random) {
        Err(ApiError::internal())
    } else if state.faults.retrieve_429.hits(&mut state.random) {
        Err(ApiError::rate_limited(state.faults.retry_after))
    } else if !is_there {
        Err(ApiError::not_found(if is_run { "run" } else { "session" }, id))
    } else {
        sandbox.change(state, id, |session, cx| {
            let answer = show(session);
            session.read(cx);
            answer
        })
    };
    let status = answer.as_ref().map_or_else(|error| error.status.as_u16(), |_| 200);
    sandbox.record(&mut state.counters, &id.into(), What::Retrieved { status });
    Ok(json(StatusCode::OK, answer?))
}

/// Changes metadata only: an empty value removes a pair, `null` removes all.
async fn update(State(sandbox): State<Arc<Sandbox>>, Path(id): Path<String>, body: Body) -> Answer {
    let request = read_json(body).await?;
    let replacement = request.get("metadata").map(metadata).transpose()?;
    let answer = sandbox.change(&mut sandbox.state(), &id, |session, _| {
        if let Some(metadata) = replacement {
            session.metadata = metadata;
        }
        wire::session(session)
    })?;
    Ok(json(StatusCode::OK, answer))
}

async fn delete(State(sandbox): State<Arc<Sandbox>>, Path(id): Path<String>) -> Answer {
    remove(&sandbox, &id, "agent.session.deleted")
}

/// A session that is over goes.
pub(super) fn remove(sandbox: &Sandbox, id: &str, object: &str) -> Answer {
    let state = &mut *sandbox.state();
    let session = state.sessions.get(id).ok_or_else(|| ApiError::not_found("session", id))?;
    if session.running_turn().is_some() {
        return Err(ApiError::conflict("It is still running: cancel it first"));
    }
    state.sessions.remove(id);
    state.order.retain(|other| **other != *id);
    let answer = Object::new().text("id", id).raw("deleted", "true").text("object", object).end();
    sandbox.record(&mut state.counters, &id.into(), What::Deleted);
    Ok(json(StatusCode::OK, answer))
}

async fn list(State(sandbox): State<Arc<Sandbox>>, uri: Uri) -> Answer {
    let query = Query::parse(&uri);
    let mut state = sandbox.state();
    state.counters.listed += 1;
    let sessions = state.order.iter().filter_map(|id| state.sessions.get(id)).filter(|session| {
        session.run.is_none()
            && query.pairs.iter().all(|(name, value)| match name.strip_prefix("metadata[") {
                Some(key) => session.metadata.get(key.trim_end_matches(']')) == Some(value),
                None => name != "agent_id" || session.agent["id"] == value.as_str(),
            })
    });
    let page = query.page(sessions, |session| session.id.to_string(), wire::session)?;
    Ok(json(StatusCode::OK, page))
}

async fn turns(State(sandbox): State<Arc<Sandbox>>, Path(id): Path<String>, uri: Uri) -> Answer {
    let state = sandbox.state();
    let session = state.sessions.get(id.as_str()).ok_or_else(|| ApiError::not_found("session", &id))?;
    let page =
        Query::parse(&uri).page(session.turns.iter(), |turn| turn.id.clone(), |turn| wire::turn(session, turn))?;
    Ok(json(StatusCode::OK, page))
}

async fn turn(State(sandbox): State<Arc<Sandbox>>, Path((id, turn)): Path<(String, String)>) -> Answer {
    let state = sandbox.state();
    let session = state.sessions.get(id.as_str()).ok_or_else(|| ApiError::not_found("session", &id))?;
    let found =
        session.turns.iter().find(|found| found.id == turn).ok_or_else(|| ApiError::not_found("turn", &turn))?;
    Ok(json(StatusCode::OK, wire::turn(session, found)))
}

async fn items(State(sandbox): State<Arc<Sandbox>>, Path(id): Path<String>, uri: Uri) -> Answer {
    list_items(&sandbox, &id, &uri, |_| true)
}

async fn turn_items(State(sandbox): State<Arc<Sandbox>>, Path(ids): Path<(String, String)>, uri: Uri) -> Answer {
    list_items(&sandbox, &ids.0, &uri, |item| item.turn_id == ids.1)
}

fn list_items(sandbox: &Sandbox, id: &str, uri: &Uri, wanted: impl Fn(&Item) -> bool) -> Answer {
    let state = sandbox.state();
    let session = state.sessions.get(id).ok_or_else(|| ApiError::not_found("session", id))?;
    let items = session.items.iter().filter(|item| wanted(item));
    Ok(json(StatusCode::OK, Query::parse(uri).page(items, |item| item.id.clone(), wire::item)?))
}

async fn submit(State(sandbox): State<Arc<Sandbox>>, Path(id): Path<String>, headers: HeaderMap, body: Body) -> Answer {
    let body = read(body).await?;
    let inputs = input::parse(&body, sandbox.config.max_events)?;
    inputs.iter().try_for_each(|input| sandbox.config.flavor.check_images(input))?;
    let key = match headers.get("idempotency-key").map(HeaderValue::to_str) {
        None if sandbox.config.require_idempotency_key => {
            return Err(ApiError::invalid("Idempotency-Key: this platform requires it"));
        }
        None => None,
        Some(Ok(key)) if (1..=256).contains(&key.len()) => Some(key.to_owned()),
        Some(_) => return Err(ApiError::invalid("Idempotency-Key: must be 1 to 256 ASCII characters")),
    };
    let submission = Submission { inputs, key, body };
    let state = &mut *sandbox.state();
    if state.sessions.get(id.as_str()).is_none_or(|session| session.run.is_some()) {
        return Err(ApiError::not_found("session", &id));
    }
    let has_calls = submission.calls().next().is_some();
    let fault = if has_calls { state.faults.on_submit(&mut state.random) } else { None };
    let switches = (state.faults.linger, state.faults.retry_after);
    sandbox.change(state, &id, |session, cx| session.submit(&submission, fault, switches, cx))??;
    let accepted = StatusCode::from_u16(sandbox.config.accepted_status).unwrap_or(StatusCode::ACCEPTED);
    Ok(accepted.into_response())
}

pub(super) fn json(status: StatusCode, body: String) -> Response {
    (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
}

pub(super) async fn read(body: Body) -> Result<Bytes, ApiError> {
    axum::body::to_bytes(body, MAX_BODY).await.map_err(|_| {
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", "The body must be below 4 MiB")
    })
}

pub(super) async fn read_json(body: Body) -> Result<Value, ApiError> {
    let value: Value = serde_json::from_slice(&read(body).await?)
        .map_err(|error| ApiError::invalid(format!("Invalid JSON: {error}")))?;
    if value.is_object() { Ok(value) } else { Err(ApiError::invalid("The body must be a JSON object")) }
}

pub(super) fn metadata(value: &Value) -> Result<BTreeMap<String, String>, ApiError> {
    let wrong =
        || ApiError::invalid("metadata: at most 16 pairs of texts, keys up to 64 and values up to 512 characters");
    let pairs: BTreeMap<String, String> = match value {
        Value::Null => BTreeMap::new(),
        value => serde_json::from_value(value.clone()).map_err(|_| wrong())?,
    };
    let fits = |(key, value): (&String, &String)| key.chars().count() <= 64 && value.chars().count() <= 512;
    if pairs.len() <= 16 && pairs.iter().all(fits) { Ok(pairs) } else { Err(wrong()) }
}

/// There is none behind it: nothing runs in the sandbox.
fn environment(value: &Value) -> Result<Value, ApiError> {
    match value["type"].as_str() {
        None if value.is_null() => Ok(serde_json::json!({"type": "none"})),
        Some("none") => Ok(serde_json::json!({"type": "none"})),
        Some("openai_hosted") => Ok(serde_json::json!({
            "type": "openai_hosted", "id": "env_sandbox", "capability_directories": [], "files": [], "plugins": [],
            "skills": [], "network": {"access": "disabled", "allowed_domains": []},
            "packages": {"npm": [], "python": [], "system": []},
        })),
        _ => Err(ApiError::invalid("environment.type: the sandbox knows none and openai_hosted")),
    }
}
