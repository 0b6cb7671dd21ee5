//! Saved agents: what `/v1/agents` keeps and what a session resolves from it.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{Path, State},
    http::{StatusCode, Uri},
};
use serde_json::{Map, Value, json};

use super::{
    Flavor, Sandbox, State as Everything,
    error::ApiError,
    json::Object,
    query::Query,
    routes::{Answer, json as answer, metadata, read_json},
};

/// What an agent has when nothing else is said.
fn defaults() -> Map<String, Value> {
    let defaults = json!({
        "name": null, "model": "scripted", "instructions": null, "tools": [], "service_tier": "auto",
        "reasoning": {"effort": null, "summary": null}, "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "multi_agent": {"enabled": false, "max_concurrent_subagents": null},
    });
    defaults.as_object().cloned().unwrap_or_default()
}

pub(super) async fn create(State(sandbox): State<Arc<Sandbox>>, body: Body) -> Answer {
    let request = read_json(body).await?;
    if !request["model"].is_string() {
        return Err(ApiError::invalid("model: must be a string"));
    }
    let mut agent = defaults();
    merge(&mut agent, &request)?;
    sandbox.config.flavor.check(&agent)?;
    let metadata = metadata(&request["metadata"])?;
    let now = super::unix_millis() / 1000;
    let state = &mut *sandbox.state();
    agent.insert("id".to_owned(), state.ids.next("agent").into());
    agent.insert("object".to_owned(), "agent".into());
    agent.insert("created_at".to_owned(), now.into());
    agent.insert("updated_at".to_owned(), now.into());
    agent.insert("metadata".to_owned(), json!(metadata));
    let agent = Value::Object(agent);
    state.agents.push(agent.clone());
    Ok(answer(StatusCode::OK, agent.to_string()))
}

pub(super) async fn list(State(sandbox): State<Arc<Sandbox>>, uri: Uri) -> Answer {
    let state = sandbox.state();
    let id = |agent: &Value| agent["id"].as_str().unwrap_or_default().to_owned();
    Ok(answer(StatusCode::OK, Query::parse(&uri).page(state.agents.iter(), id, Value::to_string)?))
}

pub(super) async fn retrieve(State(sandbox): State<Arc<Sandbox>>, Path(id): Path<String>) -> Answer {
    let state = &mut *sandbox.state();
    Ok(answer(StatusCode::OK, find(state, &id)?.to_string()))
}

pub(super) async fn update(State(sandbox): State<Arc<Sandbox>>, Path(id): Path<String>, body: Body) -> Answer {
    let request = read_json(body).await?;
    let metadata = request.get("metadata").map(metadata).transpose()?;
    let state = &mut *sandbox.state();
    let found = find(state, &id)?;
    let mut agent = found.as_object().cloned().unwrap_or_default();
    merge(&mut agent, &request)?;
    sandbox.config.flavor.check(&agent)?;
    agent.insert("updated_at".to_owned(), (super::unix_millis() / 1000).into());
    if let Some(metadata) = metadata {
        agent.insert("metadata".to_owned(), json!(metadata));
    }
    *found = Value::Object(agent);
    Ok(answer(StatusCode::OK, found.to_string()))
}

pub(super) async fn delete(State(sandbox): State<Arc<Sandbox>>, Path(id): Path<String>) -> Answer {
    let state = &mut *sandbox.state();
    find(state, &id)?;
    state.agents.retain(|agent| agent["id"] != id.as_str());
    Ok(answer(
        StatusCode::OK,
        Object::new().text("id", &id).raw("deleted", "true").text("object", "agent.deleted").end(),
    ))
}

/// The agent of a new session: the saved one, with what the request's `agent` replaces.
pub(super) fn resolve(state: &mut Everything, flavor: Flavor, request: &Value) -> Result<Value, ApiError> {
    let mut agent = match &request["agent_id"] {
        Value::String(id) => find(state, id)?.as_object().cloned().unwrap_or_default(),
        Value::Null if request["agent"].is_object() => defaults(),
        _ => return Err(ApiError::invalid("agent_id or agent: one of them is needed")),
    };
    if request["agent"].is_object() {
        merge(&mut agent, &request["agent"])?;
        flavor.check(&agent)?;
    }
    for own in ["object", "created_at", "updated_at", "metadata"] {
        agent.remove(own);
    }
    if !agent.contains_key("id") {
        agent.insert("id".to_owned(), state.ids.next("agent").into());
    }
    Ok(Value::Object(agent))
}

fn find<'a>(state: &'a mut Everything, id: &str) -> Result<&'a mut Value, ApiError> {
    let found = state.agents.iter_mut().find(|agent| agent["id"] == id);
    found.ok_or_else(|| ApiError::not_found("agent", id))
}

/// Takes over the known fields; `null` means the default.
fn merge(agent: &mut Map<String, Value>, request: &Value) -> Result<(), ApiError> {
    for (name, default) in defaults() {
        match request.get(&name) {
            None => {}
            Some(Value::Null) => drop(agent.insert(name, default)),
            Some(value) if name == "tools" => drop(agent.insert(name, tools(value)?)),
            Some(value) if default.is_object() => {
                let mut merged = default;
                for (key, value) in value.as_object().into_iter().flatten() {
                    merged[key] = value.clone();
                }
                agent.insert(name, merged);
            }
            Some(Value::String(text)) => drop(agent.insert(name, text.as_str().into())),
            Some(_) => return Err(ApiError::invalid(format!("{name}: must be a string"))),
        }
    }
    Ok(())
}

fn tools(value: &Value) -> Result<Value, ApiError> {
    let mut tools = value.as_array().cloned().ok_or_else(|| ApiError::invalid("tools: must be an array"))?;
    let mut names = std::collections::HashSet::new();
    for (index, tool) in tools.iter_mut().enumerate() {
        let wrong = |what: &str| ApiError::invalid(format!("tools[{index}]{what}"));
        let kind = tool["type"].as_str().ok_or_else(|| wrong(".type: must be a string"))?;
        if kind != "function" {
            continue;
        }
        let name = tool["name"].as_str().unwrap_or_default().to_owned();
        let legal = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if !(1..=64).contains(&name.len()) || !name.chars().all(legal) {
            return Err(wrong(".name: must be 1 to 64 letters, digits, _ or -"));
        }
        if !names.insert(name) {
            return Err(wrong(".name: used twice"));
        }
        if !tool["parameters"].is_object() {
            return Err(wrong(".parameters: must be a JSON Schema object"));
        }
        if !tool["description"].is_string() {
            tool["description"] = "".into();
        }
        if !tool["defer_loading"].is_boolean() {
            tool["defer_loading"] = false.into();
        }
    }
    Ok(Value::Array(tools))
}
