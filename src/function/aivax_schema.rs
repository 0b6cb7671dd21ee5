//! A JSON Schema in the words that AIVAX knows. What it ignores or stumbles over is left out; we check arguments by the whole
//! schema anyway, so that only the model's hint is lost.

use serde_json::{Map, Value, json};

const TYPES: [&str; 7] = ["array", "boolean", "integer", "null", "number", "object", "string"];
/// An unknown format makes AIVAX fail.
const FORMATS: [&str; 14] = [
    "date",
    "date-time",
    "duration",
    "email",
    "guid",
    "hostname",
    "idn-email",
    "idn-hostname",
    "ipv4",
    "ipv6",
    "time",
    "uri",
    "url",
    "uuid",
];
/// Keywords with a number, or a boolean for `uniqueItems`, that are kept as they are.
const LIMITS: [&str; 10] = [
    "exclusiveMaximum",
    "exclusiveMinimum",
    "maxItems",
    "maxLength",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "multipleOf",
    "uniqueItems",
];
/// Left out without a word: they allow and forbid nothing.
const NOTES: [&str; 13] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "contentEncoding",
    "contentMediaType",
    "default",
    "definitions",
    "deprecated",
    "examples",
    "readOnly",
    "title",
];
/// Levels of schemas, references followed included.
const MAX_DEPTH: usize = 32;
/// Schemas written at most: references can multiply.
const MAX_NODES: usize = 10_000;
const MAX_WARNINGS: usize = 50;

/// The schema for `contentFormat`, and a warning for each place where meaning is lost.
pub fn aivax_schema(schema: &Value) -> (Value, Vec<String>) {
    let mut writer = Writer { root: schema, warnings: Vec::new(), nodes: 0 };
    let mut top = writer.schema(schema, "", 0);
    top.insert("type".into(), "object".into());
    top.entry("properties").or_insert_with(|| json!({}));
    (Value::Object(top), writer.warnings)
}

struct Writer<'a> {
    root: &'a Value,
    warnings: Vec<String>,
    nodes: usize,
}

impl<'a> Writer<'a> {
    fn lost(&mut self, path: &str, what: &str) {
        let at = if path.is_empty() { String::new() } else { format!("{path}: ") };
        if self.warnings.len() < MAX_WARNINGS {
            self.warnings.push(format!("{at}AIVAX does not know {what}: it is left out"));
        }
    }

    fn schema(&mut self, schema: &'a Value, path: &str, depth: usize) -> Map<String, Value> {
        self.nodes += 1;
        let Value::Object(schema) = schema else {
            if schema == &Value::Bool(false) {
                self.lost(path, "a schema that allows nothing");
            }
            return Map::new();
        };
        if depth > MAX_DEPTH || self.nodes > MAX_NODES {
            self.lost(path, "schemas as deep or large as this one");
            return Map::new();
        }
        let mut written = self.referenced(schema, path, depth);
        for (keyword, value) in schema {
            self.keyword(keyword, value, path, depth, &mut written);
        }
        // Without a type AIVAX checks nothing.
        if !written.contains_key("type")
            && let Some(kind) = implied(&written)
        {
            written.insert("type".into(), kind.into());
        }
        written
    }

    /// What a local reference refers to, to be written in its place.
    fn referenced(&mut self, schema: &'a Map<String, Value>, path: &str, depth: usize) -> Map<String, Value> {
        let Some(reference) = schema.get("$ref") else { return Map::new() };
        let root = self.root;
        match reference.as_str().and_then(|r| r.strip_prefix('#')).and_then(|pointer| root.pointer(pointer)) {
            Some(target) => self.schema(target, path, depth + 1),
            None => {
                self.lost(path, "$ref");
                Map::new()
            }
        }
    }

    fn keyword(
        &mut self,
        keyword: &'a str,
        value: &'a Value,
        path: &str,
        depth: usize,
        written: &mut Map<String, Value>,
    ) {
        let kept = match (keyword, value) {
            ("$ref", _) => return,
            ("type", _) => kinds(value),
            ("description" | "pattern", Value::String(_)) => Some(value.clone()),
            ("required", Value::Array(_)) => Some(value.clone()),
            ("format", Value::String(format)) => FORMATS.contains(&format.as_str()).then(|| value.clone()),
            ("enum", Value::Array(values)) => values.iter().all(Value::is_string).then(|| value.clone()),
            ("const", Value::String(_)) => {
                written.insert("enum".into(), json!([value]));
                return;
            }
            ("uniqueItems", Value::Bool(_)) => Some(value.clone()),
            (_, Value::Number(_)) if LIMITS.contains(&keyword) => Some(value.clone()),
            ("properties", Value::Object(properties)) => Some(self.properties(properties, path, depth)),
            ("items", Value::Object(_)) => Some(Value::Object(self.schema(value, &join(path, "items"), depth + 1))),
            ("anyOf" | "oneOf", Value::Array(choices)) => {
                if let Some(nullable) = self.nullable(choices, path, depth) {
                    written.extend(nullable);
                    return;
                }
                None
            }
            _ if NOTES.contains(&keyword) => return,
            _ => None,
        };
        match kept {
            Some(kept) => {
                written.insert(keyword.into(), kept);
            }
            None => self.lost(path, &shown(keyword, value)),
        }
    }

    fn properties(&mut self, properties: &'a Map<String, Value>, path: &str, depth: usize) -> Value {
        let property = |(name, value): (&String, &'a Value)| {
            (name.clone(), Value::Object(self.schema(value, &join(path, name), depth + 1)))
        };
        Value::Object(properties.iter().map(property).collect())
    }

    /// "That or null" in one schema, which is how most generators write an optional value.
    fn nullable(&mut self, choices: &'a [Value], path: &str, depth: usize) -> Option<Map<String, Value>> {
        let is_null = |choice: &&Value| choice.get("type").is_some_and(|kind| kind == "null");
        let [one, other] = choices else { return None };
        let choice = match (is_null(&one), is_null(&other)) {
            (false, true) => one,
            (true, false) => other,
            _ => return None,
        };
        let mut written = self.schema(choice, path, depth + 1);
        match written.get("type") {
            Some(Value::String(kind)) => {
                let kinds = json!([kind, "null"]);
                written.insert("type".into(), kinds);
            }
            Some(Value::Array(kinds)) if kinds.iter().any(|kind| kind == "null") => {}
            _ => {
                written.remove("type");
            }
        }
        Some(written)
    }
}

/// The types of a `type` that AIVAX knows all of; `bool` is its own word.
fn kinds(value: &Value) -> Option<Value> {
    let kind = |value: &Value| match value.as_str()? {
        "bool" => Some("boolean".to_owned()),
        kind => TYPES.contains(&kind).then(|| kind.to_owned()),
    };
    match value {
        Value::Array(kinds) => kinds.iter().map(kind).collect::<Option<Vec<_>>>().map(|kinds| json!(kinds)),
        _ => kind(value).map(Value::from),
    }
}

fn implied(written: &Map<String, Value>) -> Option<&'static str> {
    match () {
        () if written.contains_key("properties") => Some("object"),
        () if written.contains_key("items") => Some("array"),
        () if written.contains_key("enum") => Some("string"),
        () => None,
    }
}

fn shown(keyword: &str, value: &Value) -> String {
    match (keyword, value) {
        ("type" | "format", Value::String(value)) => format!("{keyword} {value}"),
        ("enum" | "const", _) => format!("{keyword} of what is not text"),
        _ => keyword.to_owned(),
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_aivax_knows_stays_as_it_is() {
        let schema = json!({
            "type": "object",
            "description": "d",
            "properties": {
                "id": { "type": "string", "format": "uuid", "minLength": 1, "maxLength": 40, "pattern": "^[0-9a-f-]+$" },
                "kind": { "type": "string", "enum": ["a", "b"] },
                "n": { "type": ["integer", "null"], "minimum": 0, "exclusiveMaximum": 10, "multipleOf": 2 },
                "list": { "type": "array", "items": { "type": "number" }, "uniqueItems": true, "minItems": 1, "maxItems": 3 },
                "deep": { "type": "object", "properties": { "x": { "type": "boolean" } }, "required": ["x"] },
            },
            "required": ["id"],
        });
        assert_eq!(aivax_schema(&schema), (schema, Vec::new()));
    }

    #[test]
    fn what_it_does_not_know_is_left_out_with_a_warning() {
        let schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "t",
            "type": "object",
            "additionalProperties": false,
            "properties": {
                "a": { "type": "string", "format": "iban", "default": "x", "examples": ["y"] },
                "b": { "type": "money" },
                "c": { "enum": [1, 2] },
                "d": { "oneOf": [{ "type": "string" }, { "type": "number" }] },
                "e": { "const": "only" },
                "f": false,
                "g": true,
                "h": { "type": "array", "items": [{ "type": "string" }], "contains": {} },
                "i": { "type": "bool", "exclusiveMinimum": true },
            },
        });
        let (written, warnings) = aivax_schema(&schema);
        let expected = json!({
            "type": "object",
            "properties": {
                "a": { "type": "string" },
                "b": {},
                "c": {},
                "d": {},
                "e": { "enum": ["only"], "type": "string" },
                "f": {},
                "g": {},
                "h": { "type": "array" },
                "i": { "type": "boolean" },
            },
        });
        assert_eq!(written, expected);
        let lost: Vec<&str> = warnings.iter().filter_map(|w| w.strip_suffix(": it is left out")).collect();
        for part in [
            "additionalProperties",
            "a: AIVAX does not know format iban",
            "b: AIVAX does not know type money",
            "c: ",
            "d: ",
            "f: ",
            "h: ",
            "i: ",
        ] {
            assert!(lost.iter().any(|lost| lost.contains(part)), "{part}: {lost:?}");
        }
        assert!(!warnings.iter().any(|w| w.starts_with("e: ") || w.contains("title")), "{warnings:?}");
    }

    #[test]
    fn references_are_written_out_and_optional_values_keep_their_type() {
        let schema = json!({
            "$defs": { "Item": { "type": "object", "properties": { "next": { "$ref": "#/$defs/Item" } } },
                       "Name": { "type": "string", "minLength": 1 } },
            "properties": {
                "name": { "$ref": "#/$defs/Name", "description": "who" },
                "maybe": { "anyOf": [{ "type": "integer", "minimum": 1 }, { "type": "null" }] },
                "gone": { "$ref": "#/$defs/Gone" },
            },
        });
        let (written, warnings) = aivax_schema(&schema);
        let expected = json!({
            "type": "object",
            "properties": {
                "name": { "type": "string", "minLength": 1, "description": "who" },
                "maybe": { "type": ["integer", "null"], "minimum": 1 },
                "gone": {},
            },
        });
        assert_eq!(written, expected);
        assert_eq!(warnings, ["gone: AIVAX does not know $ref: it is left out"]);
    }

    #[test]
    fn schemas_without_end_come_to_an_end() {
        let branch = json!({ "$ref": "#/$defs/T" });
        let schema =
            json!({ "$defs": { "T": { "properties": { "a": branch, "b": branch } } }, "properties": { "t": branch } });
        let (_, warnings) = aivax_schema(&schema);
        assert!(!warnings.is_empty());
        assert_eq!(aivax_schema(&json!({})).0, json!({ "type": "object", "properties": {} }));
        assert_eq!(aivax_schema(&json!(5)).0, json!({ "type": "object", "properties": {} }));
    }
}
