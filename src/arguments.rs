//! What a model sent as arguments, read strictly: exactly one JSON object, every key once, digits as written.

use std::fmt;

use serde::{
    Deserializer,
    de::{MapAccess, Visitor},
};
use serde_json::{Map, Number, Value, value::RawValue};

/// Levels of arrays and objects.
const MAX_DEPTH: usize = 100;
/// Characters of one number; longer ones are no numbers anybody meant.
const MAX_NUMBER: usize = 400;
/// Magnitude of an exponent: what a double can hold.
const MAX_EXPONENT: u32 = 308;
/// Keys by which serde_json marks numbers and raw text inside its own maps. Whoever reads such a key again as a `Value`
/// would get something else than what was checked.
const RESERVED: &str = "$serde_json::private::";

const SEND_ONE: &str = "send one object, without text around it.";

/// Arguments that were read. What was checked is what the handler gets: the text is made from the value.
#[derive(Clone, Debug, PartialEq)]
pub struct Arguments {
    value: Value,
    text: String,
}

impl Arguments {
    /// Reads the raw JSON of a call's `arguments`: an object, or a string that holds one. Missing, `null` and `""` mean no
    /// arguments. The error is a sentence for the model.
    pub fn parse(raw: Option<&str>) -> Result<Self, String> {
        let raw = trim(raw.unwrap_or_default());
        if raw.starts_with('"') {
            let inner: String = serde_json::from_str(raw).map_err(|e| syntax(&e))?;
            return Ok(Self::from_object(object(trim(&inner))?));
        }
        if raw == "null" {
            return Ok(Self::from_object(Map::new()));
        }
        Ok(Self::from_object(object(raw)?))
    }

    pub fn from_object(object: Map<String, Value>) -> Self {
        let value = Value::Object(object);
        Self { text: value.to_string(), value }
    }

    /// The object.
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// Its compact JSON text.
    pub fn text(&self) -> &str {
        &self.text
    }
}

fn object(text: &str) -> Result<Map<String, Value>, String> {
    if text.is_empty() {
        return Ok(Map::new());
    }
    if !text.starts_with('{') {
        let found = match serde_json::from_str::<&RawValue>(text) {
            Ok(_) => "another JSON value",
            Err(_) => "text that is not an object",
        };
        return Err(format!("the arguments must be exactly one JSON object; found {found}. {SEND_ONE}"));
    }
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
    let first = values.next().ok_or(SEND_ONE)?.map_err(|e| syntax(&e))?;
    let rest = trim(&text[values.byte_offset()..]);
    if !rest.is_empty() {
        let found = if rest.starts_with(['{', '[', '"']) { "a second value" } else { "more text" };
        return Err(format!(
            "the arguments must be exactly one JSON object; found {found} after the first. {SEND_ONE}"
        ));
    }
    read_object(first, 1)
}

/// Only the whitespace that JSON knows.
fn trim(text: &str) -> &str {
    text.trim_matches([' ', '\t', '\r', '\n'])
}

fn syntax(error: &serde_json::Error) -> String {
    format!("the arguments are not valid JSON: {error}. {SEND_ONE}")
}

/// Reads level by level from raw text, never through `deserialize_any`: there a number and an object with serde_json's
/// private key look the same.
fn read(raw: &RawValue, depth: usize) -> Result<Value, String> {
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'{') => Ok(Value::Object(read_object(raw, depth)?)),
        Some(b'[') => {
            check_depth(depth)?;
            let items: Vec<&RawValue> = serde_json::from_str(text).map_err(|e| syntax(&e))?;
            Ok(Value::Array(items.into_iter().map(|item| read(item, depth + 1)).collect::<Result<_, _>>()?))
        }
        Some(b'"') => Ok(Value::String(serde_json::from_str(text).map_err(|e| syntax(&e))?)),
        Some(b't') => Ok(Value::Bool(true)),
        Some(b'f') => Ok(Value::Bool(false)),
        Some(b'n') => Ok(Value::Null),
        _ => Ok(Value::Number(read_number(text)?)),
    }
}

fn read_object(raw: &RawValue, depth: usize) -> Result<Map<String, Value>, String> {
    check_depth(depth)?;
    let mut object = Map::new();
    for (key, raw) in entries(raw.get())? {
        if key.starts_with(RESERVED) {
            return Err(format!("the key {} cannot be used in arguments. leave it out.", shorten(&key)));
        }
        let value = read(raw, depth + 1)?;
        if object.contains_key(&key) {
            return Err(format!("the key {} appears twice in the arguments. send every key once.", shorten(&key)));
        }
        object.insert(key, value);
    }
    Ok(object)
}

fn check_depth(depth: usize) -> Result<(), String> {
    match depth > MAX_DEPTH {
        true => Err(format!("the arguments are nested more than {MAX_DEPTH} levels deep. send a flatter object.")),
        false => Ok(()),
    }
}

fn read_number(text: &str) -> Result<Number, String> {
    let exponent = text.split_once(['e', 'E']).map(|(_, exponent)| exponent.trim_start_matches(['+', '-']));
    let in_range = exponent.is_none_or(|e| e.parse::<u32>().is_ok_and(|e| e <= MAX_EXPONENT));
    if text.len() > MAX_NUMBER || !in_range {
        return Err(format!(
            "the number {} is out of range. send a smaller number, or send it as a string.",
            cut(text)
        ));
    }
    text.parse().map_err(|e| syntax(&e))
}

fn shorten(key: &str) -> String {
    Value::String(cut(key)).to_string()
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The members of an object in their order, doubles included.
fn entries(text: &str) -> Result<Vec<(String, &RawValue)>, String> {
    struct Entries;

    impl<'de> Visitor<'de> for Entries {
        type Value = Vec<(String, &'de RawValue)>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
            let mut entries = Vec::new();
            while let Some(entry) = map.next_entry()? {
                entries.push(entry);
            }
            Ok(entries)
        }
    }

    serde_json::Deserializer::from_str(text).deserialize_map(Entries).map_err(|e| syntax(&e))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn parse(raw: &str) -> Result<String, String> {
        Arguments::parse(Some(raw)).map(|a| a.text().to_owned())
    }

    /// The same text as an object and as a JSON string that holds it.
    fn both(text: &str) -> [Result<String, String>; 2] {
        [parse(text), parse(&Value::String(text.to_owned()).to_string())]
    }

    #[test]
    fn an_object_and_a_string_that_holds_one_read_the_same() {
        for result in both("{\"order_id\": \"42\"}\n") {
            assert_eq!(result.unwrap(), r#"{"order_id":"42"}"#);
        }
    }

    #[test]
    fn nothing_sent_means_no_arguments() {
        for raw in [None, Some(""), Some(" \n"), Some("null"), Some("\"\""), Some("\" \\n\"")] {
            assert_eq!(Arguments::parse(raw).unwrap().text(), "{}", "{raw:?}");
        }
    }

    #[test]
    fn anything_but_one_object_is_refused_with_what_to_change() {
        let inputs = [
            (r#"{"order_id":"42"}{"order_id":"43"}"#, "found a second value after the first"),
            (r#"{"order_id":"42"} Done."#, "found more text after the first"),
            ("```json\n{\"order_id\":\"42\"}\n```", "found text that is not an object"),
            (r#"[{"order_id":"42"}]"#, "found another JSON value"),
            ("true", "found another JSON value"),
            ("42", "found another JSON value"),
        ];
        for (text, expected) in inputs {
            for result in both(text) {
                let message = result.unwrap_err();
                assert!(message.contains(expected), "{text}: {message}");
                assert!(message.ends_with(SEND_ONE), "{message}");
            }
        }
        assert!(parse(r#""\"42\"""#).is_err(), "a string in a string");
        assert!(parse(r#""null""#).is_err());
        assert!(parse(r#""{}" {}"#).is_err());
        assert!(parse("{\"a\":1,}").unwrap_err().contains("not valid JSON"));
        assert!(parse("\u{feff}{}").is_err());
    }

    #[test]
    fn digits_stay_as_written() {
        for number in [
            "2512292042121000001",
            "123456789012345678901234567890",
            "0.10000000000000000555",
            "-0",
            "-0.0",
            "10.0",
            "9007199254740993",
        ] {
            for result in both(&format!(r#"{{"x":{number}}}"#)) {
                assert_eq!(result.unwrap(), format!(r#"{{"x":{number}}}"#));
            }
        }
        assert_eq!(parse(r#"{"x":7.8E1}"#).unwrap(), r#"{"x":7.8e+1}"#);
    }

    #[test]
    fn numbers_out_of_every_range_are_refused() {
        let long = "1".repeat(10_000);
        for number in ["1e400", "-1e-400", "1e999999999999999999999", "0e00000000309", &long] {
            for result in both(&format!(r#"{{"x":[{number}]}}"#)) {
                let message = result.unwrap_err();
                assert!(message.contains("out of range"), "{message}");
                assert!(message.len() < 300, "{message}");
            }
        }
    }

    #[test]
    fn a_key_may_come_once_at_every_depth() {
        for text in [
            r#"{"order_id":"../admin","order_id":"42"}"#,
            r#"{"order_id":"42","order_id":"../admin"}"#,
            r#"{"a":[{"b":1,"c":2,"b":1}]}"#,
            r#"{"order_id":"42","order\u005fid":"../admin"}"#,
        ] {
            for result in both(text) {
                assert!(result.unwrap_err().contains("appears twice"), "{text}");
            }
        }
        assert!(parse(r#"{"a":{"b":1},"b":1}"#).is_ok());
    }

    #[test]
    fn keys_that_mark_numbers_inside_serde_json_cannot_be_forged() {
        for text in [
            r#"{"$serde_json::private::Number":"1e5"}"#,
            r#"{"a":{"$serde_json::private::Number":"1"}}"#,
            r#"{"a":[{"$serde_json::private::RawValue":"{\"b\":1,\"b\":2}"}]}"#,
            r#"{"\u0024serde_json::private::Number":"not a number"}"#,
        ] {
            for result in both(text) {
                assert!(result.unwrap_err().contains("cannot be used"), "{text}");
            }
        }
    }

    #[test]
    fn odd_text_is_kept_or_refused_and_never_panics() {
        assert_eq!(parse(r#"{"q":"a\u0000b"}"#).unwrap(), r#"{"q":"a\u0000b"}"#);
        assert_eq!(parse(r#""{\"q\":\"a\\u0000b\"}""#).unwrap(), r#"{"q":"a\u0000b"}"#);
        for raw in ["{\"q\":\"a\u{0}b\"}", r#"{"q":"\ud800"}"#, r#"{"\udc00":1}"#, r#""\ud800""#, r#"{"q":"#, "{", "\""]
        {
            assert!(parse(raw).is_err(), "{raw}");
        }
    }

    #[test]
    fn depth_is_limited() {
        let nested = |levels: usize| format!(r#"{{"a":{}{}}}"#, "[".repeat(levels), "]".repeat(levels));
        assert!(parse(&nested(MAX_DEPTH - 1)).is_ok());
        assert!(parse(&nested(MAX_DEPTH)).unwrap_err().contains("levels deep"));
        assert!(parse(&nested(50_000)).is_err());
        assert!(parse(&r#"{"a":"#.repeat(50_000)).is_err());
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            (-1e300..1e300f64).prop_map(|f| json!(f)),
            ".*".prop_map(Value::from),
        ];
        leaf.prop_recursive(6, 48, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(".*", inner, 0..6).prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused_without_a_panic(text in ".*", json in r#"[{}\[\]",:0-9eE.+\-tfn \\ud8"]{0,40}"#) {
            for raw in [text, json] {
                for result in both(&raw).into_iter().flatten() {
                    let again = Arguments::parse(Some(&result)).unwrap();
                    prop_assert_eq!(again.text(), result);
                }
            }
        }

        #[test]
        fn what_is_accepted_is_equal_to_what_was_sent(map in prop::collection::btree_map(".*", json_value(), 0..6)) {
            let sent = Value::Object(map.into_iter().collect());
            for raw in [sent.to_string(), format!(" {sent:#}\n"), Value::String(sent.to_string()).to_string()] {
                let read = Arguments::parse(Some(&raw)).unwrap();
                prop_assert_eq!(read.value(), &sent);
                prop_assert_eq!(&serde_json::from_str::<Value>(read.text()).unwrap(), &sent);
            }
        }
    }
}
