//! The JSON of sessions and runs. Read leniently, member by member, so that what one call carries cannot hurt the others.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use serde::Serialize;
use serde_json::{Value, value::RawValue};
use sha2::{Digest as _, Sha256};

use crate::{
    platform::{Listed, Page},
    session::{
        ActionKey, CallKey, FunctionCall, OtherAction, Output, Part, RequiredAction, Session, SessionKey, ToolResult,
        hex,
    },
};

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
        expires_in: None,
        required_actions: actions.into_iter().map(|action| required_action(key, action)).collect(),
    })
}

/// A workflow run's resource, which says how long it waits; `now` is the platform's clock.
pub(super) fn run(key: &SessionKey, body: &[u8], now: SystemTime) -> Option<Session> {
    let session = session(key, body)?;
    let text = String::from_utf8_lossy(body);
    let expires_at = object(&text)?.get("expires_at").and_then(|raw| whole(raw));
    let left = |at: i64| {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(u64::try_from(at).unwrap_or(0));
        at.duration_since(now).unwrap_or_default()
    };
    Some(Session { expires_in: expires_at.map(left), ..session })
}

fn required_action(session: &SessionKey, action: &RawValue) -> RequiredAction {
    let fields = object(action.get()).unwrap_or_default();
    let kind = fields.get("type").and_then(|raw| string(raw)).filter(|kind| is_word(kind));
    let call = kind.as_deref().filter(|&kind| kind == "function_call").map(|_| function_call(session, &fields));
    match (call, kind) {
        (Some(Some(call)), _) => RequiredAction::FunctionCall(call),
        (None, Some(kind)) => RequiredAction::Other(other(session, kind, action, &fields)),
        _ => RequiredAction::Other(other(session, OtherAction::UNREADABLE.to_owned(), action, &fields)),
    }
}

fn other(session: &SessionKey, kind: String, action: &RawValue, fields: &HashMap<String, &RawValue>) -> OtherAction {
    let name = |field: &str| fields.get(field).and_then(|raw| string(raw)).filter(|name| is_name(name));
    let id = ["request_id", "environment_id", "id"].into_iter().find_map(name);
    let key = ActionKey {
        session: session.clone(),
        turn: name("turn_id").unwrap_or_default().into(),
        kind,
        id: id.unwrap_or_else(|| hex(&Sha256::digest(action.get())[..16])).into(),
    };
    OtherAction { key, json: action.get().into() }
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
    let status = fields.get("status").and_then(|raw| string(raw)).unwrap_or_default();
    let at = |field: &str| fields.get(field).and_then(|raw| whole(raw));
    let (waiting, asking) = match fields.get("required_actions").map(|raw| raw.get()) {
        // A list may leave them out: then only its status tells whether a session is worth a look.
        None | Some("null") => (!is_running(&status) && !ENDED.contains(&status.as_str()), false),
        Some(list) => {
            let actions: Vec<&RawValue> = serde_json::from_str(list).unwrap_or_default();
            let is_call = |action| matches!(required_action(&key, action), RequiredAction::FunctionCall(_));
            let calls = actions.iter().filter(|action| is_call(action)).count();
            (calls > 0, calls < actions.len())
        }
    };
    let open = waiting || is_running(&status);
    // A run has no time of its last activity: while it is open, it may be old and active.
    let is_run = fields.contains_key("expires_at");
    let last_active_at = match at("last_active_at") {
        None if is_run && open => None,
        last => last.or_else(|| at("completed_at")).or_else(|| at("created_at")),
    };
    let version = at("expires_at").or(last_active_at);
    Some(Listed { key, last_active_at, waiting, asking, running: is_running(&status), version })
}

/// Statuses of sessions and runs that wait for nothing.
const ENDED: [&str; 4] = ["idle", "failed", "completed", "cancelled"];

fn is_running(status: &str) -> bool {
    matches!(status, "in_progress" | "preparing")
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

fn whole(raw: &RawValue) -> Option<i64> {
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
