//! Input events as they come in: what has the right form.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::{error::ApiError, session::CallResult};

/// One element of `events`.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Input {
    Message { text: String, content: Value },
    Cancel,
    Approval { request_id: String },
    ToolResult { turn_id: String, call_id: String, result: CallResult },
}

pub(super) fn parse(body: &[u8], max_events: usize) -> Result<Vec<Input>, ApiError> {
    let value: Value =
        serde_json::from_slice(body).map_err(|error| ApiError::invalid(format!("Invalid JSON: {error}")))?;
    let Some(events) = value["events"].as_array() else {
        return Err(ApiError::invalid("events: must be an array"));
    };
    if events.is_empty() || events.len() > max_events {
        return Err(ApiError::invalid(format!("events: must hold 1 to {max_events} events, not {}", events.len())));
    }
    let inputs: Vec<Input> =
        events.iter().enumerate().map(|(index, event)| input(index, event)).collect::<Result<_, _>>()?;
    let mut results = HashMap::new();
    for (index, input) in inputs.iter().enumerate() {
        if let Input::ToolResult { turn_id, call_id, result } = input
            && *results.entry((turn_id, call_id)).or_insert(result) != result
        {
            return Err(ApiError::invalid(format!("events[{index}]: another result for the same call")));
        }
    }
    Ok(inputs)
}

fn input(index: usize, event: &Value) -> Result<Input, ApiError> {
    let invalid = |what: &str| ApiError::invalid(format!("events[{index}]{what}"));
    let Some(event) = event.as_object() else { return Err(invalid(": must be an object")) };
    let text = |field: &str| {
        let text = event.get(field).and_then(Value::as_str).filter(|text| !text.is_empty());
        text.map(str::to_owned).ok_or_else(|| invalid(&format!(".{field}: must be a string that is not empty")))
    };
    match text("type")?.as_str() {
        "agent.session.input.cancel" => Ok(Input::Cancel),
        "agent.session.input.message" => {
            let input = event.get("input").unwrap_or(&Value::Null);
            let (text, content) = message(input).map_err(|problem| invalid(&format!(".{problem}")))?;
            Ok(Input::Message { text, content })
        }
        "agent.session.input.mcp_approval_request_result"
        | "agent.session.input.computer_use_approval_request_result" => {
            Ok(Input::Approval { request_id: text("request_id")? })
        }
        "agent.session.input.tool_result" => {
            let (turn_id, call_id) = (text("turn_id")?, text("call_id")?);
            let result = call_result(event).map_err(|problem| invalid(&format!(".{problem}")))?;
            Ok(Input::ToolResult { turn_id, call_id, result })
        }
        other => Err(invalid(&format!(".type: unknown type {other:?}"))),
    }
}

fn call_result(event: &Map<String, Value>) -> Result<CallResult, String> {
    let Some(success) = event.get("success").and_then(Value::as_bool) else {
        return Err("success: must be true or false".to_owned());
    };
    let output = event.get("output").cloned().unwrap_or(Value::Null);
    let error = match event.get("error") {
        None | Some(Value::Null) => None,
        Some(Value::String(error)) => Some(error.clone()),
        Some(_) => return Err("error: must be a string".to_owned()),
    };
    match &output {
        Value::Null | Value::String(_) => {}
        Value::Array(parts) if parts.iter().all(is_part) => {}
        _ => return Err("output: must be a string or an array of input_text and input_image parts".to_owned()),
    }
    match (success, &output, &error) {
        (true, _, Some(_)) => Err("error: not allowed when success is true".to_owned()),
        (false, Value::String(_) | Value::Array(_), _) => Err("output: not allowed when success is false".to_owned()),
        _ => Ok(CallResult { success, output, error }),
    }
}

fn is_part(part: &Value) -> bool {
    match part["type"].as_str() {
        Some("input_text") => part["text"].is_string(),
        Some("input_image") => {
            part["image_url"].as_str().is_some_and(|url| url.starts_with("https://") || url.starts_with("data:image/"))
        }
        _ => false,
    }
}

/// The text and the content parts of a message: a string, or an array of user messages.
pub(super) fn message(input: &Value) -> Result<(String, Value), String> {
    let wrong = || "input: must be a text or an array of user messages, and not empty".to_owned();
    let text_part = |text: &str| serde_json::json!({"type": "input_text", "text": text});
    let parts: Vec<Value> = match input {
        Value::String(text) => vec![text_part(text)],
        Value::Array(messages) => {
            let mut parts = Vec::new();
            for message in messages {
                match (&message["role"], &message["content"]) {
                    (Value::String(role), Value::String(text)) if role == "user" => parts.push(text_part(text)),
                    (Value::String(role), Value::Array(content)) if role == "user" && content.iter().all(is_part) => {
                        parts.extend(content.iter().cloned());
                    }
                    _ => return Err(wrong()),
                }
            }
            parts
        }
        _ => return Err(wrong()),
    };
    let text = parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n");
    if parts.is_empty() || text.is_empty() && parts.len() == 1 && parts[0]["type"] == "input_text" {
        return Err(wrong());
    }
    Ok((text, Value::Array(parts)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn refusal(event: &str) -> String {
        parse(format!("{{\"events\":[{event}]}}").as_bytes(), 32).unwrap_err().message
    }

    fn result(fields: &str) -> String {
        format!(r#"{{"type":"agent.session.input.tool_result","turn_id":"turn_1","call_id":"call_1"{fields}}}"#)
    }

    #[test]
    fn a_result_of_either_kind_is_taken() {
        for fields in [
            r#","success":true,"output":"{}""#,
            r#","success":true,"output":null,"error":null"#,
            r#","success":true,"output":[{"type":"input_text","text":""},{"type":"input_image","image_url":"https://a/b"}]"#,
            r#","success":false,"error":"no""#,
        ] {
            let inputs = parse(format!("{{\"events\":[{}]}}", result(fields)).as_bytes(), 32).unwrap();
            assert!(matches!(inputs[0], Input::ToolResult { .. }), "{fields}");
        }
    }

    #[test]
    fn a_result_out_of_form_is_refused_with_its_field() {
        for (fields, field) in [
            ("", "success"),
            (r#","success":"yes""#, "success"),
            (r#","success":true,"output":{}"#, "output"),
            (r#","success":true,"output":[{"type":"input_image","image_url":"file:///a"}]"#, "output"),
            (r#","success":true,"output":"a","error":"b""#, "error"),
            (r#","success":false,"output":"a""#, "output"),
            (r#","success":false,"error":1"#, "error"),
        ] {
            assert!(refusal(&result(fields)).starts_with(&format!("events[0].{field}")), "{fields}");
        }
        assert!(refusal(r#"{"type":"agent.session.input.tool_result","success":true}"#).contains("turn_id"));
        assert!(refusal(r#"{"type":"tomorrow"}"#).contains("unknown type"));
        assert!(refusal("1").contains("object"));
    }

    #[test]
    fn a_request_holds_1_to_32_events() {
        let cancel = r#"{"type":"agent.session.input.cancel"}"#;
        let request = |count: usize| format!("{{\"events\":[{}]}}", vec![cancel; count].join(","));
        for (count, legal) in [(0, false), (1, true), (32, true), (33, false)] {
            assert_eq!(parse(request(count).as_bytes(), 32).is_ok(), legal, "{count}");
        }
        for body in ["", "{}", "[]", "{\"events\":{}}"] {
            assert!(parse(body.as_bytes(), 32).is_err(), "{body}");
        }
    }

    #[test]
    fn one_request_cannot_carry_two_results_for_a_call() {
        let [a, b] = ["a", "b"].map(|output| result(&format!(r#","success":true,"output":"{output}""#)));
        assert!(parse(format!("{{\"events\":[{a},{a}]}}").as_bytes(), 32).is_ok());
        assert!(parse(format!("{{\"events\":[{a},{b}]}}").as_bytes(), 32).is_err());
    }

    #[test]
    fn a_message_is_a_text_or_user_messages() {
        let (text, _) = message(&serde_json::json!("hello")).unwrap();
        assert_eq!(text, "hello");
        let both = serde_json::json!([{"role": "user", "content": [{"type": "input_text", "text": "a {}"}]}, {"role": "user", "content": "b {}"}]);
        assert_eq!(message(&both).unwrap().0, "a {}\nb {}");
        for wrong in [
            serde_json::json!(""),
            serde_json::json!([]),
            serde_json::json!(1),
            serde_json::json!([{"role": "system", "content": "a"}]),
        ] {
            assert!(message(&wrong).is_err(), "{wrong}");
        }
    }
}
