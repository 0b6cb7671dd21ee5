//! JSON Schema of a function's arguments, compiled once; its complaints are phrased for a model.

use jsonschema::{Draft, ValidationError};
use serde_json::{Map, Value};

use crate::arguments::Arguments;

/// Complaints in one answer; a model mends a few at a time.
const MAX_COMPLAINTS: usize = 5;
/// Characters of a value, and of a whole complaint, that are shown.
const MAX_VALUE: usize = 80;
const MAX_COMPLAINT: usize = 300;
/// Levels of schemas in schemas.
const MAX_DEPTH: usize = 100;

/// Keywords that hold one schema (or, in old drafts, a list or a boolean), a list of them, or a map of them. What stands
/// under any other keyword is data: a `$ref` in an `enum` or `default` refers to nothing.
const ONE: [&str; 12] = [
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
const LIST: [&str; 5] = ["allOf", "anyOf", "items", "oneOf", "prefixItems"];
const MAP: [&str; 6] = ["$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"];

/// A compiled schema.
pub struct Schema {
    validator: jsonschema::Validator,
}

impl Schema {
    /// Compiles without ever fetching or reading anything: an external `$ref` or `$schema` is refused. The error says where
    /// in the schema, relative to it (empty for the schema itself), and what.
    pub fn compile(schema: &Value) -> Result<Self, (String, String)> {
        let Value::Object(top) = schema else {
            return Err((String::new(), "must be a JSON Schema object, like { type: object }".into()));
        };
        takes_an_object(top)?;
        only_local_references(schema, "", 0)?;
        let validator = jsonschema::options()
            .offline()
            .build(schema)
            .map_err(|e| (dotted(e.instance_path().as_str()), cut(&e.to_string(), MAX_COMPLAINT)))?;
        Ok(Self { validator })
    }

    /// `Err` is a sentence that a model can act on, at most a few hundred characters for each of the first five complaints.
    pub fn check(&self, arguments: &Arguments) -> Result<(), String> {
        let mut errors = self.validator.iter_errors(arguments.value());
        let complaints: Vec<_> = errors.by_ref().take(MAX_COMPLAINTS).map(|e| complaint(&e)).collect();
        if complaints.is_empty() {
            return Ok(());
        }
        let more = if errors.next().is_some() { "; and more" } else { "" };
        Err(format!(
            "invalid arguments: {}{more}. call the function again with corrected arguments.",
            complaints.join("; ")
        ))
    }
}

fn takes_an_object(top: &Map<String, Value>) -> Result<(), (String, String)> {
    let object = match top.get("type") {
        None => true,
        Some(Value::Array(types)) => types.iter().any(|t| t == "object"),
        Some(kind) => kind == "object",
    };
    match object {
        true => Ok(()),
        false => Err(("type".into(), "must be object: a function's arguments are one JSON object".into())),
    }
}

/// Walks the places where a schema stands, whatever draft it is of.
fn only_local_references(schema: &Value, path: &str, depth: usize) -> Result<(), (String, String)> {
    let Value::Object(schema) = schema else { return Ok(()) };
    if depth > MAX_DEPTH {
        return Err((path.into(), format!("nested more than {MAX_DEPTH} levels deep")));
    }
    refuse_external(schema, path)?;
    for (keyword, value) in schema {
        let at = join(path, keyword);
        match value {
            Value::Array(items) if LIST.contains(&keyword.as_str()) => {
                for (index, item) in items.iter().enumerate() {
                    only_local_references(item, &format!("{at}[{index}]"), depth + 1)?;
                }
            }
            Value::Object(members) if MAP.contains(&keyword.as_str()) => {
                for (name, member) in members {
                    only_local_references(member, &join(&at, name), depth + 1)?;
                }
            }
            Value::Object(_) if ONE.contains(&keyword.as_str()) => only_local_references(value, &at, depth + 1)?,
            _ => {}
        }
    }
    Ok(())
}

fn refuse_external(schema: &Map<String, Value>, path: &str) -> Result<(), (String, String)> {
    for keyword in ["$ref", "$dynamicRef", "$recursiveRef"] {
        let target = schema.get(keyword).and_then(Value::as_str);
        if target.is_some_and(|target| !target.starts_with('#')) {
            return Err((path.into(), format!("external reference in {keyword}; only local ones (#/…) are followed")));
        }
    }
    match schema.get("$schema").and_then(Value::as_str) {
        Some(uri) if Draft::from_schema_uri(uri) == Draft::Unknown => {
            Err((path.into(), "external reference in $schema; name a published draft or leave it out".into()))
        }
        _ => Ok(()),
    }
}

/// `order.items[0]: "x" is not of type "integer"`, with long values cut.
fn complaint(error: &ValidationError<'_>) -> String {
    let value = cut(&error.instance().to_string(), MAX_VALUE);
    let what = cut(&error.masked_with(value).to_string(), MAX_COMPLAINT);
    match dotted(error.instance_path().as_str()).as_str() {
        "" => what,
        path => format!("{}: {what}", cut(path, MAX_VALUE)),
    }
}

/// A JSON pointer as people write paths: `/a/0/b` is `a[0].b`.
fn dotted(pointer: &str) -> String {
    pointer.split('/').skip(1).fold(String::new(), |path, segment| {
        let segment = segment.replace("~1", "/").replace("~0", "~");
        match segment.is_empty() || !segment.bytes().all(|b| b.is_ascii_digit()) {
            true => join(&path, &segment),
            false => format!("{path}[{segment}]"),
        }
    })
}

fn join(path: &str, name: &str) -> String {
    match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    }
}

fn cut(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refused(schema: Value) -> (String, String) {
        Schema::compile(&schema).err().unwrap()
    }

    fn check(schema: &Value, arguments: &str) -> Result<(), String> {
        Schema::compile(schema).unwrap().check(&Arguments::parse(Some(arguments)).unwrap())
    }

    #[test]
    fn references_that_leave_the_schema_are_refused_by_path() {
        for target in ["http://127.0.0.1:9/s.json", "file:///etc/hostname", "s.json", "//host/s", "urn:x:y", ""] {
            let (path, what) = refused(json!({"type": "object", "properties": {"a": {"$ref": target}}}));
            assert_eq!(path, "properties.a");
            assert!(what.starts_with("external reference"), "{what}");
        }
        let nested = [
            (json!({"allOf": [{}, {"$dynamicRef": "http://h/#a"}]}), "allOf[1]"),
            (json!({"items": {"not": {"$ref": "http://h/"}}}), "items.not"),
            (json!({"$defs": {"x": {"$schema": "http://127.0.0.1:9/meta"}}}), "$defs.x"),
            (json!({"dependencies": {"a": {"$ref": "http://h/"}}}), "dependencies.a"),
            (json!({"patternProperties": {"^a": {"if": {"$ref": "http://h/"}}}}), "patternProperties.^a.if"),
            (json!({"$schema": "http://127.0.0.1:9/meta"}), ""),
            (json!({"$ref": "file:///etc/hostname"}), ""),
        ];
        for (schema, expected) in nested {
            let (path, what) = refused(schema);
            assert_eq!(path, expected);
            assert!(what.starts_with("external reference"), "{what}");
        }
    }

    #[test]
    fn a_reference_into_data_cannot_smuggle_a_fetch() {
        let schema = json!({
            "$ref": "#/default",
            "default": {"properties": {"a": {"$ref": "http://127.0.0.1:9/s.json"}}},
        });
        assert!(Schema::compile(&schema).is_err());
        let rebased = json!({"$id": "http://127.0.0.1:9/root", "properties": {"a": {"$id": "b", "$ref": "#/c"}}});
        assert!(Schema::compile(&rebased).is_err());
    }

    #[test]
    fn local_references_and_data_named_like_references_are_fine() {
        let schema = json!({
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "object",
            "properties": {
                "a": {"$ref": "#/$defs/x"},
                "$ref": {"type": "string"},
                "b": {"enum": [{"$ref": "http://h/"}], "default": {"$ref": "http://h/"}, "examples": [{"$ref": "http://h/"}]},
            },
            "$defs": {"x": {"type": "integer"}},
        });
        assert!(check(&schema, r#"{"a":1,"$ref":"http://h/"}"#).is_ok());
        assert!(check(&schema, r#"{"a":"x"}"#).unwrap_err().contains("a: \"x\" is not of type \"integer\""));
        assert!(Schema::compile(&json!({"$schema": "https://json-schema.org/draft/2020-12/schema"})).is_ok());
    }

    #[test]
    fn a_schema_must_take_an_object() {
        for schema in [json!({"type": "string"}), json!({"type": ["string", "null"]}), json!({"type": 1})] {
            assert_eq!(refused(schema).0, "type");
        }
        for schema in [json!(true), json!([]), json!("object"), json!(null)] {
            assert!(refused(schema).1.contains("must be a JSON Schema object"));
        }
        for schema in [json!({}), json!({"type": "object"}), json!({"type": ["object", "null"]})] {
            assert!(Schema::compile(&schema).is_ok());
        }
    }

    #[test]
    fn a_broken_schema_is_refused_by_path() {
        assert_eq!(refused(json!({"properties": {"a": {"type": "strnig"}}})).0, "properties.a.type");
        assert_eq!(refused(json!({"allOf": [{"minLength": -1}]})).0, "allOf[0].minLength");
        refused(json!({"properties": {"a": {"pattern": "("}}}));
        refused(json!({"$ref": "#/$defs/missing"}));
        let deep = (0..MAX_DEPTH + 1).fold(json!({}), |inner, _| json!({"not": inner}));
        assert!(refused(deep).1.contains("levels deep"));
    }

    #[test]
    fn multiple_of_asks_for_the_decimal_quotient() {
        let tenth: f64 = "0.1".parse().unwrap();
        let price = json!({"type": "object", "properties": {"p": {"type": "number", "multipleOf": tenth}}});
        for p in ["10.1", "1.1", "78.0", "7.8e1", "1070468.1", "-0", "123456789012345678901234567890.1"] {
            assert_eq!(check(&price, &format!(r#"{{"p":{p}}}"#)), Ok(()), "{p}");
        }
        for p in ["10.15", "0.10000000000000000555", "1e-5"] {
            assert!(check(&price, &format!(r#"{{"p":{p}}}"#)).is_err(), "{p}");
        }
        let even = json!({"type": "object", "properties": {"n": {"type": "integer", "multipleOf": 2}}});
        for n in ["9007199254740994", "10.0", "123456789012345678901234567890", "1e300"] {
            assert_eq!(check(&even, &format!(r#"{{"n":{n}}}"#)), Ok(()), "{n}");
        }
        for n in ["9007199254740993", "10.5", "123456789012345678901234567891"] {
            assert!(check(&even, &format!(r#"{{"n":{n}}}"#)).is_err(), "{n}");
        }
    }

    #[test]
    fn complaints_name_the_place_and_stay_short() {
        let schema = json!({
            "type": "object",
            "properties": {"order_id": {"type": "string"}, "lines": {"items": {"properties": {"n": {"maximum": 3}}}}},
            "required": ["order_id"],
            "additionalProperties": false,
        });
        let message = check(&schema, r#"{"order_id":12,"lines":[{},{"n":4}],"foo":1}"#).unwrap_err();
        assert!(message.starts_with("invalid arguments: "), "{message}");
        assert!(message.contains(r#"order_id: 12 is not of type "string""#), "{message}");
        assert!(message.contains("lines[1].n: 4 is greater than the maximum of 3"), "{message}");
        assert!(message.contains("'foo' was unexpected"), "{message}");
        assert!(message.ends_with("call the function again with corrected arguments."), "{message}");
        assert!(check(&schema, "{}").unwrap_err().contains(r#""order_id" is a required property"#));

        let huge = format!(r#"{{"order_id":["{}"],"{}":1}}"#, "é".repeat(100_000), "k".repeat(100_000));
        assert!(check(&schema, &huge).unwrap_err().chars().count() < 1000);
        let many = format!(r#"{{"order_id":"1","lines":[{}]}}"#, vec![r#"{"n":9}"#; 1000].join(","));
        let message = check(&schema, &many).unwrap_err();
        assert!(message.contains("; and more.") && message.len() < 2000, "{message}");
    }

    #[test]
    fn a_pattern_that_backtracks_for_ever_ends_in_a_complaint() {
        let schema = json!({"properties": {"a": {"pattern": "^(?=(a+)+$)(a|aa)+$"}}});
        assert!(check(&schema, &format!(r#"{{"a":"{}!"}}"#, "a".repeat(60))).is_err());
    }
}
