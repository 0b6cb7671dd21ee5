//! Sessions, turns, items and stream events in the Agents API's JSON.

use serde_json::Value;

use super::{
    json::{Object, array, quoted},
    model::Ids,
    session::{Accepted, Action, ActionKind, ActionState, Item, ItemKind, Session, Status, Turn, TurnStatus},
};

/// A page of a list.
pub(super) struct Page {
    pub(super) data: Vec<String>,
    pub(super) first_id: Option<String>,
    pub(super) last_id: Option<String>,
    pub(super) has_more: bool,
}

pub(super) fn page(page: Page) -> String {
    Object::new()
        .text("object", "list")
        .raw("data", &array(page.data))
        .maybe_text("first_id", page.first_id.as_deref())
        .maybe_text("last_id", page.last_id.as_deref())
        .raw("has_more", if page.has_more { "true" } else { "false" })
        .end()
}

pub(super) fn session(session: &Session) -> String {
    let metadata = serde_json::to_string(&session.metadata).unwrap_or_default();
    Object::new()
        .text("id", &session.id)
        .text("object", "agent.session")
        .text("status", status(session.status))
        .raw("required_actions", &array(session.pending().map(required_action)))
        .maybe_text("error", session.error.as_deref())
        .number("created_at", session.created_at)
        .number("last_active_at", session.last_active_at)
        .raw("metadata", &metadata)
        .raw("agent", &session.agent.to_string())
        .raw("environment", &session.environment.to_string())
        .raw("usage", "null")
        .raw("vault_ids", "[]")
        .end()
}

pub(super) fn required_action(action: &Action) -> String {
    let object = Object::new().text("type", action_type(&action.kind));
    match &action.kind {
        ActionKind::FunctionCall { name, arguments } => {
            let object = object.text("turn_id", &action.turn_id).text("call_id", &action.id).text("name", name);
            arguments.iter().fold(object, |object, arguments| object.raw("arguments", arguments)).end()
        }
        ActionKind::Other { kind } => {
            let request = match kind.as_str() {
                "environment_connection" => return object.text("environment_id", &action.id).end(),
                "mcp_approval_request" => {
                    r#"{"type":"mcp_tool_call","server_label":"sandbox","name":"tool","arguments":{},"message":"Allow it?"}"#
                }
                "computer_use_approval_request" => {
                    r#"{"type":"browser_origin_access","origin":"https://example.com","reason":null}"#
                }
                _ => "{}",
            };
            object.text("turn_id", &action.turn_id).text("request_id", &action.id).raw("request", request).end()
        }
    }
}

pub(super) fn turn(session: &Session, turn: &Turn) -> String {
    let error = turn.error.as_ref().map_or_else(
        || "null".to_owned(),
        |error| Object::new().text("code", error.code).text("message", &error.message).end(),
    );
    Object::new()
        .text("id", &turn.id)
        .text("object", "agent.session.turn")
        .text("session_id", &session.id)
        .text("agent_id", session.agent["id"].as_str().unwrap_or_default())
        .raw("subagent_id", "null")
        .text("status", turn_status(turn.status))
        .number("created_at", turn.created_at)
        .maybe_number("started_at", turn.started_at)
        .maybe_number("completed_at", turn.completed_at)
        .raw("error", &error)
        .raw("usage", "null")
        .end()
}

pub(super) fn item(item: &Item) -> String {
    let object = Object::new().text("id", &item.id).text("turn_id", &item.turn_id);
    match &item.kind {
        ItemKind::User { content } => object
            .text("type", "message")
            .text("role", "user")
            .raw("content", &content.to_string())
            .text("status", "completed")
            .end(),
        ItemKind::Assistant { text } => object
            .text("type", "message")
            .text("role", "assistant")
            .text("phase", "final_answer")
            .raw("content", &array([output_text(text)]))
            .text("status", "completed")
            .end(),
        ItemKind::Call { call_id, name, arguments, status } => {
            let object = object.text("type", "function_call").text("call_id", call_id).text("name", name);
            let object = arguments.iter().fold(object, |object, arguments| object.raw("arguments", arguments));
            object.text("status", status).end()
        }
        ItemKind::Output { call_id, result } => object
            .text("type", "function_call_output")
            .text("call_id", call_id)
            .raw("output", &result.output.to_string())
            .maybe_text("error", result.error.as_deref())
            .text("status", if result.success { "completed" } else { "failed" })
            .end(),
    }
}

/// One line of the final answer: what a call came to.
pub(super) fn answer_line(action: &Action) -> String {
    let name = match &action.kind {
        ActionKind::FunctionCall { name, .. } => name,
        ActionKind::Other { kind } => kind,
    };
    match &action.result {
        None if action.state == ActionState::Dropped => format!("{name}: not answered in time"),
        None => format!("{name}: done"),
        Some(Accepted { result, .. }) if !result.success => {
            format!("{name} failed: {}", result.error.as_deref().unwrap_or("no reason given"))
        }
        Some(Accepted { result, .. }) => format!("{name}: {}", output_as_text(&result.output)),
    }
}

fn output_as_text(output: &Value) -> String {
    let part = |part: &Value| match (part["text"].as_str(), part["image_url"].as_str()) {
        (Some(text), _) => text.to_owned(),
        (None, Some(url)) => format!("[image {}]", url.chars().take(60).collect::<String>()),
        (None, None) => String::new(),
    };
    match output {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().map(part).collect::<Vec<_>>().join(" "),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

pub(super) fn session_event(of: &Session, word: &str, ids: &mut Ids) -> String {
    let kind = format!("agent.session.{word}");
    frame(&kind, Object::new().text("event_id", &ids.next("evt")).text("type", &kind).raw("session", &session(of)))
}

pub(super) fn turn_event(session: &Session, of: &Turn, word: &str, ids: &mut Ids) -> String {
    let kind = format!("agent.session.turn.{word}");
    frame(&kind, event(&kind, session, &of.id, ids).raw("turn", &turn(session, of)))
}

/// What a new item, not yet in the list, looks like on the stream.
pub(super) fn item_events(session: &Session, new: &Item, ids: &mut Ids) -> String {
    let (json, index) = (item(new), session.items.len() as i64);
    let mut frames = String::new();
    let mut push = |word: &str, fields: &dyn Fn(Object) -> Object| {
        let kind = format!("agent.session.turn.{word}");
        frames += &frame(&kind, fields(event(&kind, session, &new.turn_id, ids).number("output_index", index)));
    };
    push("item.added", &|object| object.raw("item", &json));
    if let ItemKind::Assistant { text } = &new.kind {
        let part = |object: Object| object.text("item_id", &new.id).number("content_index", 0);
        push("content_part.added", &|object| part(object).raw("part", &output_text("")));
        push("output_text.delta", &|object| part(object).text("delta", text));
        push("output_text.done", &|object| part(object).text("text", text));
        push("content_part.done", &|object| part(object).raw("part", &output_text(text)));
        push("item.done", &|object| object.raw("item", &json));
    }
    frames
}

pub(super) fn call_done_event(session: &Session, turn_id: &str, id: &str, ids: &mut Ids) -> String {
    let is_it = |item: &&(usize, &Item)| {
        item.1.turn_id == turn_id && matches!(&item.1.kind, ItemKind::Call { call_id, .. } if call_id == id)
    };
    let kind = "agent.session.turn.item.done";
    session.items.iter().enumerate().collect::<Vec<_>>().iter().rfind(is_it).map_or_else(
        String::new,
        |(index, call)| {
            frame(
                kind,
                event(kind, session, turn_id, ids).number("output_index", *index as i64).raw("item", &item(call)),
            )
        },
    )
}

fn event(kind: &str, session: &Session, turn_id: &str, ids: &mut Ids) -> Object {
    Object::new()
        .text("event_id", &ids.next("evt"))
        .text("type", kind)
        .text("session_id", &session.id)
        .text("turn_id", turn_id)
}

/// A server-sent event. White space in pasted arguments must not end the line.
fn frame(kind: &str, data: Object) -> String {
    format!("event: {kind}\ndata: {}\n\n", data.end().replace(['\r', '\n'], " "))
}

fn output_text(text: &str) -> String {
    format!("{{\"type\":\"output_text\",\"text\":{}}}", quoted(text))
}

pub(super) fn action_type(kind: &ActionKind) -> &str {
    match kind {
        ActionKind::FunctionCall { .. } => "function_call",
        ActionKind::Other { kind } => kind,
    }
}

pub(super) fn status(status: Status) -> &'static str {
    match status {
        Status::Idle => "idle",
        Status::InProgress => "in_progress",
        Status::RequiresAction => "requires_action",
        Status::Failed => "failed",
    }
}

pub(super) fn turn_status(status: TurnStatus) -> &'static str {
    match status {
        TurnStatus::Queued => "queued",
        TurnStatus::InProgress => "in_progress",
        TurnStatus::Waiting => "waiting",
        TurnStatus::Completed => "completed",
        TurnStatus::Failed => "failed",
        TurnStatus::Cancelled => "cancelled",
    }
}
