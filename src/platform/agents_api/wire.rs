//! The Agents API's JSON. Read leniently, member by member, so that what one call carries cannot hurt the others.

use std::{collections::HashMap, sync::Arc};

use serde::Serialize;
use serde_json::{Value, value::RawValue};

use crate::{
    platform::{Listed, Page},
    session::{CallKey, FunctionCall, Output, Part, RequiredAction, Session, SessionKey, ToolResult},
};

/// What an action is called that cannot be read.
const UNREADABLE: &str = "unreadable";
const MAX_NAME: usize = 512;
const MAX_WORD: usize = 64;

/// A session's resource; `None` where the text is none.
pub(super) fn session(key: &SessionKey, body: &[u8]) -> Option<Session> {
    let text = String::from_utf8_lossy(body);
    let fields = object(&text)?;
    let status = fields.get("status").and_then(|raw| string(raw));
    let actions = match fields.get("required_actions").map(|raw| raw.get()) {
        None if status.is_none() => return None,
        None | Some("null") => Vec::new(),
        Some(list) => serde_json::from_str::<Vec<&RawValue>>(list).ok()?,
    };
    let metadata = fields.get("metadata").and_then(|raw| serde_json::from_str(raw.get()).ok());
    Some(Session {
        key: key.clone(),
        status: status.unwrap_or_default(),
        metadata: Arc::new(metadata.unwrap_or_default()),
        required_actions: actions.into_iter().map(|action| required_action(key, action)).collect(),
    })
}

fn required_action(session: &SessionKey, action: &RawValue) -> RequiredAction {
    let fields = object(action.get()).unwrap_or_default();
    let kind = fields.get("type").and_then(|raw| string(raw)).filter(|kind| is_word(kind));
    let call = kind.as_deref().filter(|&kind| kind == "function_call").map(|_| function_call(session, &fields));
    match (call, kind) {
        (Some(Some(call)), _) => RequiredAction::FunctionCall(call),
        (None, Some(kind)) => RequiredAction::Other { kind },
        _ => RequiredAction::Other { kind: UNREADABLE.to_owned() },
    }
}

fn function_call(session: &SessionKey, fields: &HashMap<String, &RawValue>) -> Option<FunctionCall> {
    let name = |field: &str| fields.get(field).and_then(|raw| string(raw)).filter(|name| is_name(name));
    let turn = match fields.get("turn_id").map(|raw| raw.get()) {
        None | Some("null") => String::new(),
        Some(_) => name("turn_id")?,
    };
    Some(FunctionCall {
        key: CallKey::new(session.clone(), turn, name("call_id")?),
        name: name("name")?,
        arguments: fields.get("arguments").map(|raw| raw.get().into()),
    })
}

/// A page of the list of sessions; `None` where the text is none. What cannot be a session is left out.
pub(super) fn page(platform: &Arc<str>, body: &[u8]) -> Option<Page> {
    let text = String::from_utf8_lossy(body);
    let fields = object(&text)?;
    let data: Vec<&RawValue> = serde_json::from_str(fields.get("data")?.get()).ok()?;
    let sessions: Vec<Listed> = data.iter().filter_map(|one| listed(platform, one)).collect();
    let more = fields.get("has_more").is_some_and(|raw| raw.get() == "true");
    let last = || fields.get("last_id").and_then(|raw| string(raw)).filter(|id| is_name(id));
    let next = more.then(|| last().or_else(|| sessions.last().map(|one| one.key.session.to_string()))).flatten();
    Some(Page { sessions, next })
}

fn listed(platform: &Arc<str>, one: &RawValue) -> Option<Listed> {
    let fields = object(one.get())?;
    let id = fields.get("id").and_then(|raw| string(raw)).filter(|id| is_name(id))?;
    let key = SessionKey::new(platform.clone(), id);
    let seconds = |field: &str| fields.get(field).and_then(|raw| serde_json::from_str(raw.get()).ok());
    let waiting = match fields.get("required_actions").map(|raw| raw.get()) {
        // A list may leave them out: then only its status tells whether a session is worth a look.
        None | Some("null") => {
            let status = fields.get("status").and_then(|raw| string(raw));
            !matches!(status.as_deref(), Some("idle" | "in_progress" | "failed"))
        }
        Some(list) => serde_json::from_str::<Vec<&RawValue>>(list)
            .unwrap_or_default()
            .into_iter()
            .any(|action| matches!(required_action(&key, action), RequiredAction::FunctionCall(_))),
    };
    Some(Listed { last_active_at: seconds("last_active_at").or_else(|| seconds("created_at")), waiting, key })
}

/// What the error envelope says.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ApiError {
    /// A short word, fit for a log.
    pub(super) code: Option<String>,
    /// "Unknown pending tool call", the one message that means something.
    pub(super) unknown_call: bool,
}

/// Reads `{"error":{"type","code","message"}}`.
pub(super) fn error(body: &[u8]) -> Option<ApiError> {
    let body: Value = serde_json::from_slice(body).ok()?;
    let text = |field: &str| body["error"][field].as_str();
    let code = text("code").or_else(|| text("type")).filter(|code| is_word(code));
    let unknown_call = code == Some("invalid_request_error")
        && text("message").is_some_and(|message| message.starts_with("Unknown pending tool call"));
    Some(ApiError { code: code.map(str::to_owned), unknown_call })
}

/// One result as the body of one request. Output and error exclude each other; an empty output is still an output.
pub(super) fn tool_result(call: &CallKey, result: &ToolResult) -> Vec<u8> {
    let (output, error) = match result {
        ToolResult::Success(Output::Text(text)) => (Some(OutputField::Text(text)), None),
        ToolResult::Success(Output::Content(parts)) => (Some(OutputField::Content(parts)), None),
        ToolResult::Error(sentence) => (None, Some(sentence.as_str())),
    };
    let event = Event {
        r#type: "agent.session.input.tool_result",
        turn_id: &call.turn,
        call_id: &call.call_id,
        success: error.is_none(),
        output,
        error,
    };
    serde_json::to_vec(&Events { events: [event] }).unwrap_or_default() // text and lists of text always serialize
}

#[derive(Serialize)]
struct Events<'a> {
    events: [Event<'a>; 1],
}

#[derive(Serialize)]
struct Event<'a> {
    r#type: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    turn_id: &'a str,
    call_id: &'a str,
    success: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<OutputField<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum OutputField<'a> {
    Text(&'a str),
    Content(&'a [Part]),
}

fn object(text: &str) -> Option<HashMap<String, &RawValue>> {
    serde_json::from_str(text).ok()
}

fn string(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

/// An id or a name that can be a row's key and an environment variable.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= MAX_NAME && !name.chars().any(char::is_control)
}

/// A code or type that can stand in a log line and a metric label.
fn is_word(word: &str) -> bool {
    !word.is_empty()
        && word.len() <= MAX_WORD
        && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
}
