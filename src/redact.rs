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
    let Some(mut envelope) = events(&text) else { return output(paths, &text) };
    for event in envelope["events"].as_array_mut().into_iter().flatten() {
        for field in ["output", "error"] {
            match event.get_mut(field) {
                Some(Value::String(text)) => *text = output(paths, text),
                Some(Value::Array(parts)) => parts.iter_mut().for_each(|part| hide_part(paths, part)),
                Some(other) => *other = json!(HIDDEN),
                None => {}
            }
        }
    }
    envelope.to_string()
}

/// An envelope of the Agents API.
fn events(text: &str) -> Option<Value> {
    let envelope: Value = serde_json::from_str(text).ok()?;
    let is_event = |event: &Value| event["type"] == "agent.session.input.tool_result";
    envelope["events"].as_array().is_some_and(|events| events.iter().all(is_event)).then_some(envelope)
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

fn hide_part(paths: &[Path], part: &mut Value) {
    if let Some(Value::String(text)) = part.get_mut("text") {
        *text = output(paths, text);
    }
    if let Some(image) = part.get_mut("image_url") {
        *image = json!(HIDDEN);
    }
}

/// What a shown result says, without its envelope.
pub fn outcome(shown: &str) -> String {
    let Some(envelope) = events(shown) else { return shown.to_owned() };
    let event = &envelope["events"][0];
    match (event.get("output"), event.get("error")) {
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
