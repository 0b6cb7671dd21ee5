//! What AIVAX posts, of every year: only the function's name is always there.

use jiff::{Timestamp, civil::DateTime};
use serde::Deserialize;
use serde_json::{Map, Value, value::RawValue};

/// Keys of the context that handlers find among the metadata. A caller's metadata must not pass for them.
const CONTEXT: [&str; 4] = ["externalUserId", "callSource", "conversationToken", "moment"];

/// One function call of AIVAX.
#[derive(Debug)]
pub(super) struct Callback {
    pub(super) function: String,
    /// The raw JSON of the arguments.
    pub(super) content: Option<Box<RawValue>>,
    pub(super) user: Option<String>,
    pub(super) token: Option<String>,
    /// What callers said of the conversation, with the context's own values among it.
    pub(super) metadata: Map<String, Value>,
}

#[derive(Deserialize)]
struct Envelope {
    r#type: Option<Value>,
    function: Option<Function>,
    context: Option<Value>,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    content: Option<Box<RawValue>>,
}

impl Callback {
    /// The error is public.
    pub(super) fn parse(body: &[u8]) -> Result<Self, &'static str> {
        let envelope: Envelope = serde_json::from_slice(body).map_err(|_| "the body is no function call")?;
        if envelope.r#type.is_some_and(|kind| !kind.is_null() && kind != "tool_call") {
            return Err("the type is not tool_call");
        }
        let function = envelope.function.ok_or("the body names no function")?;
        let mut context = match envelope.context {
            Some(Value::Object(context)) => context,
            _ => Map::new(),
        };
        let mut metadata = match context.remove("metadata") {
            Some(Value::Object(metadata)) => metadata,
            _ => Map::new(),
        };
        for key in CONTEXT {
            metadata.remove(key);
            if let Some(Value::String(text)) = context.remove(key).filter(|value| *value != "") {
                let text = if key == "moment" { moment(text) } else { text };
                metadata.insert(key.to_owned(), text.into());
            }
        }
        let text = |key: &str| metadata.get(key).and_then(Value::as_str).map(str::to_owned);
        Ok(Self {
            function: function.name,
            content: function.content,
            user: text("externalUserId"),
            token: text("conversationToken"),
            metadata,
        })
    }
}

/// With an offset. Older envelopes had none: AIVAX's clock is São Paulo's, UTC-03 all year.
fn moment(text: String) -> String {
    let is_naive = text.parse::<Timestamp>().is_err() && text.parse::<DateTime>().is_ok();
    if is_naive { format!("{text}-03:00") } else { text }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(body: &Value) -> Callback {
        Callback::parse(body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn envelopes_of_every_year_are_read() {
        let newest = parse(&json!({
            "type": "tool_call",
            "function": { "name": "view_client", "content": { "user_id": "u", "n": 1.10 } },
            "context": {
                "externalUserId": "user-1",
                "metadata": { "plan": "pro", "externalUserId": "forged", "moment": "forged" },
                "callSource": "WebChatClient",
                "conversationToken": "token-1",
                "moment": "2025-05-18T03:36:27.1234567+00:00",
                "tomorrow": { "a": [1] },
            },
        }));
        assert_eq!(newest.function, "view_client");
        assert_eq!((newest.user.as_deref(), newest.token.as_deref()), (Some("user-1"), Some("token-1")));
        let metadata = json!({ "plan": "pro", "externalUserId": "user-1", "callSource": "WebChatClient",
                               "conversationToken": "token-1", "moment": "2025-05-18T03:36:27.1234567+00:00" });
        assert_eq!(Value::Object(newest.metadata), metadata);

        let oldest = parse(&json!({
            "function": { "name": "view-client", "content": null },
            "context": { "externalUserId": null, "moment": "2025-05-18T03:36:27" },
        }));
        assert!(oldest.content.is_none() && oldest.user.is_none() && oldest.token.is_none());
        assert_eq!(Value::Object(oldest.metadata), json!({ "moment": "2025-05-18T03:36:27-03:00" }));

        let least = parse(&json!({ "function": { "name": "f" } }));
        assert!(least.content.is_none() && least.metadata.is_empty());
        let forged = json!({ "metadata": { "externalUserId": "admin" }, "externalUserId": null, "callSource": 5 });
        assert!(parse(&json!({ "function": { "name": "f" }, "context": forged })).metadata.is_empty());
    }

    #[test]
    fn what_is_no_function_call_is_told_so() {
        let worker = json!({ "gatewayId": "g", "moment": "m", "event": { "name": "message.received", "data": {} } });
        for body in [
            worker.to_string(),
            json!({ "type": "worker", "function": { "name": "f" } }).to_string(),
            json!({ "function": "f" }).to_string(),
            json!({ "function": { "name": 5 } }).to_string(),
            "[]".into(),
            "null".into(),
            "{".into(),
            String::new(),
            r#"{"function":{"name":"f"},"function":{"name":"g"}}"#.into(),
            "[".repeat(100_000),
        ] {
            assert!(Callback::parse(body.as_bytes()).is_err(), "{}", &body[..body.len().min(80)]);
        }
        assert!(Callback::parse(b"\xff\xfe").is_err());
    }
}
