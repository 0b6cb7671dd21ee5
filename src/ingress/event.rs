//! What a webhook says. It is a hint of a session's id and one action's type, never more.

use std::collections::HashMap;

use serde_json::value::RawValue;

const ACTION_REQUIRED: &str = "agent.session.action_required";
const MAX_SESSION_ID: usize = 256;

/// A webhook's body that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The session may have pending calls, whatever action the event names: it names one, and there may be more.
    ActionRequired {
        session: String,
        /// Type of the required action that the event names; empty where it names none.
        kind: String,
    },
    /// Another event.
    Ignored { kind: String },
}

/// The body is no event, or names no session that could be asked for. The text is public.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    #[error("the body is not a json object")]
    NotAnObject,
    #[error("type is not a string")]
    Type,
    #[error("data.id is not the id of a session")]
    SessionId,
}

/// Reads the body of a verified webhook. Fields that are not needed are skipped, whatever they hold.
pub fn parse(body: &[u8]) -> Result<Event, Malformed> {
    let event = std::str::from_utf8(body).ok().and_then(object).ok_or(Malformed::NotAnObject)?;
    let kind = event.get("type").and_then(|raw| string(raw)).ok_or(Malformed::Type)?;
    if kind != ACTION_REQUIRED {
        return Ok(Event::Ignored { kind });
    }
    let data = event.get("data").and_then(|raw| object(raw.get())).ok_or(Malformed::SessionId)?;
    let session = data.get("id").and_then(|raw| string(raw)).filter(|id| is_session_id(id));
    let session = session.ok_or(Malformed::SessionId)?;
    let action = data.get("required_action").and_then(|raw| object(raw.get())).unwrap_or_default();
    let kind = action.get("type").and_then(|raw| string(raw)).unwrap_or_default();
    Ok(Event::ActionRequired { session, kind })
}

/// The members of a JSON object, each left as text: what one holds cannot spoil another.
fn object(text: &str) -> Option<HashMap<String, &RawValue>> {
    serde_json::from_str(text).ok()
}

fn string(raw: &RawValue) -> Option<String> {
    serde_json::from_str(raw.get()).ok()
}

/// An id becomes one segment of a path: dots alone would climb in it, and no platform has ids that long.
pub(crate) fn is_session_id(id: &str) -> bool {
    id.len() <= MAX_SESSION_ID && !id.chars().any(char::is_control) && !id.chars().all(|c| c == '.')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn nudge(id: &str) -> Vec<u8> {
        let id = serde_json::to_string(id).unwrap();
        format!(r#"{{"id":"evt_1","object":"event","created_at":1,"type":"agent.session.action_required","data":{{"id":{id},"required_action":{{"type":"function_call"}}}}}}"#)
            .into_bytes()
    }

    fn action_required(session: &str, kind: &str) -> Event {
        Event::ActionRequired { session: session.to_owned(), kind: kind.to_owned() }
    }

    #[test]
    fn a_function_call_names_its_session() {
        assert_eq!(parse(&nudge("sess_1")), Ok(action_required("sess_1", "function_call")));
    }

    #[test]
    fn an_event_without_an_action_type_is_still_a_nudge() {
        for data in [
            r#"{"id":"s"}"#,
            r#"{"id":"s","required_action":null}"#,
            r#"{"id":"s","required_action":{}}"#,
            r#"{"id":"s","required_action":{"type":null}}"#,
        ] {
            let body = format!(r#"{{"type":"agent.session.action_required","data":{data}}}"#);
            assert_eq!(parse(body.as_bytes()), Ok(action_required("s", "")), "{data}");
        }
    }

    #[test]
    fn an_event_that_names_another_action_is_a_nudge_too() {
        assert_eq!(
            parse(br#"{"type":"agent.session.action_required","data":{"id":"s","required_action":{"type":"mcp_approval_request"}}}"#),
            Ok(action_required("s", "mcp_approval_request"))
        );
    }

    #[test]
    fn other_events_are_ignored() {
        let ignored = |kind: &str| Ok(Event::Ignored { kind: kind.to_owned() });
        assert_eq!(parse(br#"{"type":"response.completed","data":{"id":"resp_123"}}"#), ignored("response.completed"));
        assert_eq!(parse(br#"{"type":"agent.session.idle"}"#), ignored("agent.session.idle"));
    }

    #[test]
    fn what_cannot_be_one_path_segment_is_malformed() {
        for id in ["", ".", "..", "....", "a\u{0}b", "a\nb", "\u{7f}", &"x".repeat(257), &"x".repeat(3000)] {
            assert_eq!(parse(&nudge(id)), Err(Malformed::SessionId), "{id:?}");
        }
        for id in ["../../files", "%2e%2e", "sess_1?x=1", "sess_1#f", "sess_1/turns", "a b", "é", &"x".repeat(256)] {
            assert_eq!(parse(&nudge(id)), Ok(action_required(id, "function_call")), "escaped later: {id:?}");
        }
    }

    #[test]
    fn what_is_no_event_is_malformed() {
        let cases: [(&[u8], Malformed); 12] = [
            (b"", Malformed::NotAnObject),
            (b"null", Malformed::NotAnObject),
            (b"[]", Malformed::NotAnObject),
            (b"{} {}", Malformed::NotAnObject),
            (b"{\"type\":\"\xff\"}", Malformed::NotAnObject),
            (b"\xef\xbb\xbf{}", Malformed::NotAnObject),
            (b"{}", Malformed::Type),
            (br#"{"type":1}"#, Malformed::Type),
            (br#"{"type":"\ud800"}"#, Malformed::Type),
            (br#"{"type":"agent.session.action_required"}"#, Malformed::SessionId),
            (br#"{"type":"agent.session.action_required","data":{"id":7}}"#, Malformed::SessionId),
            (br#"{"type":"agent.session.action_required","data":{"id":"\udfff"}}"#, Malformed::SessionId),
        ];
        for (body, error) in cases {
            assert_eq!(parse(body), Err(error), "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn what_stands_in_unknown_fields_does_no_harm() {
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        for odd in [r#""\ud800""#, "1e400", "123456789012345678901234567890", r#"{"a":1,"a":2}"#, &deep] {
            let body = format!(
                r#"{{"x":{odd},"type":"ignored","type":"agent.session.action_required","data":{{"y":{odd},"id":"s"}}}}"#
            );
            assert_eq!(parse(body.as_bytes()), Ok(action_required("s", "")), "{odd:.40}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(body in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = parse(&body);
        }

        #[test]
        fn any_text_is_an_id_or_malformed(id in "\\PC*") {
            match parse(&nudge(&id)) {
                Ok(event) => prop_assert_eq!(event, action_required(&id, "function_call")),
                Err(error) => prop_assert_eq!(error, Malformed::SessionId),
            }
        }
    }
}
