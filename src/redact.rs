//! What of a stored result is shown: everything but what its function's `redact` paths name.

use serde_json::{Value, json};

/// What stands in the place of something hidden.
pub(crate) const HIDDEN: &str = "[redacted]";

/// `$.card.number`: members of objects, by name or `*`; what is in a list counts for each of its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(Vec<String>);

impl Path {
    /// `None` where it is no such path.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix('$')?;
        let segments: Vec<String> = match rest.strip_prefix('.') {
            Some(rest) => rest.split('.').map(str::to_owned).collect(),
            None if rest.is_empty() => Vec::new(),
            None => return None,
        };
        let is_plain = |segment: &String| !segment.is_empty() && !segment.contains(['[', ']', '"', '\'']);
        segments.iter().all(is_plain).then_some(Self(segments))
    }

    fn apply(segments: &[String], value: &mut Value) {
        match (segments, value) {
            ([], value) => *value = json!(HIDDEN),
            (segments, Value::Array(list)) => list.iter_mut().for_each(|value| Self::apply(segments, value)),
            ([name, rest @ ..], Value::Object(object)) => {
                let fits = |key: &String| name == "*" || key == name;
                object.iter_mut().filter(|(key, _)| fits(key)).for_each(|(_, value)| Self::apply(rest, value));
            }
            _ => {}
        }
    }
}

/// The bytes of a stored result as they may be shown: a platform's envelope around an output, or the output alone.
pub fn show(paths: &[Path], body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    if paths.is_empty() {
        return text.into_owned();
    }
    match Envelope::read(&text) {
        Some(Envelope::Events(mut envelope)) => {
            envelope["events"].as_array_mut().into_iter().flatten().for_each(|event| hide_result(paths, event));
            envelope.to_string()
        }
        // A handler's own output may look like this one: the paths count for both.
        Some(Envelope::Run(mut envelope)) => {
            hide_result(paths, &mut envelope);
            paths.iter().for_each(|path| Path::apply(&path.0, &mut envelope));
            envelope.to_string()
        }
        None => output(paths, &text),
    }
}

/// What a platform gets around an output.
enum Envelope {
    /// Of the Agents API: a list of input events.
    Events(Value),
    /// Of a workflow run.
    Run(Value),
}

impl Envelope {
    fn read(text: &str) -> Option<Self> {
        let envelope: Value = serde_json::from_str(text).ok()?;
        let is_event = |event: &Value| event["type"] == "agent.session.input.tool_result";
        if envelope["events"].as_array().is_some_and(|events| events.iter().all(is_event)) {
            return Some(Self::Events(envelope));
        }
        (envelope["call_id"].is_string() && envelope["success"].is_boolean()).then_some(Self::Run(envelope))
    }
}

/// Output and error of one result.
fn hide_result(paths: &[Path], result: &mut Value) {
    for field in ["output", "error"] {
        match result.get_mut(field) {
            Some(Value::String(text)) => *text = output(paths, text),
            Some(value @ (Value::Array(_) | Value::Object(_))) => {
                value.as_array_mut().into_iter().flatten().for_each(|part| hide_part(paths, part));
                paths.iter().for_each(|path| Path::apply(&path.0, value));
            }
            Some(other) => *other = json!(HIDDEN),
            None => {}
        }
    }
}

/// Where the paths lead in a text cannot be told unless it is JSON: then all of it is hidden.
fn output(paths: &[Path], text: &str) -> String {
    match serde_json::from_str(text) {
        Ok(mut value @ (Value::Object(_) | Value::Array(_))) => {
            paths.iter().for_each(|path| Path::apply(&path.0, &mut value));
            value.to_string()
        }
        _ => HIDDEN.to_owned(),
    }
}

/// A content part: its text is an output, an image cannot be looked into.
fn hide_part(paths: &[Path], part: &mut Value) {
    match part["type"].as_str() {
        Some("input_text") => {
            if let Some(Value::String(text)) = part.get_mut("text") {
                *text = output(paths, text);
            }
        }
        Some("input_image") => part["image_url"] = json!(HIDDEN),
        _ => {}
    }
}

/// What a shown result says, without its envelope.
pub fn outcome(shown: &str) -> String {
    let result = match Envelope::read(shown) {
        Some(Envelope::Events(envelope)) => envelope["events"][0].clone(),
        Some(Envelope::Run(envelope)) => envelope,
        None => return shown.to_owned(),
    };
    match (result.get("output"), result.get("error")) {
        (Some(Value::String(text)), _) | (None, Some(Value::String(text))) => text.clone(),
        (Some(other), _) | (None, Some(other)) => other.to_string(),
        (None, None) => shown.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn paths(texts: &[&str]) -> Vec<Path> {
        texts.iter().map(|text| Path::parse(text).unwrap()).collect()
    }

    fn envelope(output: &Value) -> Vec<u8> {
        json!({ "events": [{ "type": "agent.session.input.tool_result", "call_id": "c", "success": true, "output": output }] })
            .to_string()
            .into_bytes()
    }

    #[test]
    fn only_simple_paths_are_paths() {
        for text in ["$", "$.a", "$.card.number", "$.a-b.*.c"] {
            assert!(Path::parse(text).is_some(), "{text}");
        }
        for text in ["", "a", "$a", "$.", "$..a", "$.a.", "$.a[0]", "$['a']", ".a"] {
            assert!(Path::parse(text).is_none(), "{text}");
        }
    }

    #[test]
    fn what_a_path_names_is_hidden_wherever_it_is() {
        let text = r#"{"id":12345678901234567890,"card":{"number":"4111","name":"N"},"items":[{"pin":1},{"pin":[2]}]}"#;
        let shown = show(&paths(&["$.card.number", "$.items.pin", "$.none.x"]), &envelope(&json!(text)));
        assert!(!shown.contains("4111") && shown.contains("12345678901234567890"), "{shown}");
        assert_eq!(
            outcome(&shown),
            r#"{"card":{"name":"N","number":"[redacted]"},"id":12345678901234567890,"items":[{"pin":"[redacted]"},{"pin":"[redacted]"}]}"#
        );
        assert_eq!(show(&paths(&["$.*.b"]), br#"[{"a":{"b":1,"c":2}}]"#), r#"[{"a":{"b":"[redacted]","c":2}}]"#);
        assert_eq!(show(&paths(&["$"]), br#"{"a":1}"#), r#""[redacted]""#);
    }

    #[test]
    fn what_a_run_gets_is_hidden_inside_its_envelope() {
        let run = |output: Value| json!({ "call_id": "c", "success": true, "output": output }).to_string();
        let card = paths(&["$.card.number"]);
        for output in
            [json!({ "card": { "number": 4111 }, "a": 1 }), json!([{ "card": { "number": 4111 } }]), json!("4111")]
        {
            let shown = show(&card, run(output).as_bytes());
            assert!(!shown.contains("4111") && shown.contains("[redacted]"), "{shown}");
        }
        assert_eq!(outcome(&show(&card, run(json!({ "a": 1 })).as_bytes())), r#"{"a":1}"#);
        let alike = br#"{"call_id":"c","success":true,"card":{"number":4111}}"#;
        assert!(!show(&card, alike).contains("4111"), "a handler's own output that looks like an envelope");
    }

    #[test]
    fn what_is_no_json_is_hidden_as_a_whole() {
        let card = paths(&["$.card"]);
        assert_eq!(show(&card, b"card 4111"), HIDDEN);
        assert_eq!(outcome(&show(&card, &envelope(&json!("card 4111")))), HIDDEN);
        assert_eq!(outcome(&show(&card, &envelope(&json!("\"4111\"")))), HIDDEN);
        let parts = json!([{ "type": "input_text", "text": "{\"card\":1,\"b\":2}" }, { "type": "input_image", "image_url": "data:x" }]);
        let shown = show(&card, &envelope(&parts));
        assert!(
            !shown.contains("data:x") && shown.contains(r#"\"b\":2"#) && !shown.contains(r#"\"card\":1"#),
            "{shown}"
        );
        let twice = r#"{"card":1,"card":2}"#;
        assert_eq!(show(&card, twice.as_bytes()), r#"{"card":"[redacted]"}"#);
        assert_eq!(show(&[], b"card 4111"), "card 4111");
    }
}
