//! One definition of a listing: AIVAX's words of every year in ours.

use std::time::Duration;

use secrecy::SecretString;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::handler::{self, QueryAccount, QueryCollectionConfig};

/// What AIVAX documents for its search.
pub(crate) const DEFAULT_TOP: u32 = 5;
pub(crate) const DEFAULT_MIN: f64 = 0.2;
pub(crate) const DEFAULT_RERANKER: &str = "rrf";

/// What AIVAX's listing says of one function.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Definition {
    pub(super) name: String,
    pub(super) description: String,
    pub(super) callback_url: String,
    pub(super) headers: Option<Map<String, Value>>,
    pub(super) content_format: Option<Value>,
}

/// What platforms take as a name, and `$`, which AIVAX takes too.
pub(super) fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_$".contains(&b))
}

/// `contentFormat` as a schema. Missing or null was how "no arguments" was written once.
pub(super) fn parameters(format: Option<&Value>, is_search: bool) -> Result<Value, String> {
    match format {
        None | Some(Value::Null) if is_search => Ok(search_parameters()),
        None | Some(Value::Null) => Ok(json!({ "type": "object", "properties": {} })),
        Some(Value::Object(schema)) => {
            // Until 2025-07 it was an example of the arguments instead.
            let is_schema = schema.is_empty()
                || ["type", "properties", "$ref", "anyOf", "oneOf", "allOf"]
                    .iter()
                    .any(|key| schema.contains_key(*key));
            match is_schema {
                true => Ok(without_bool(&Value::Object(schema.clone()), 0)),
                false => {
                    Err("its contentFormat is an example, not a JSON Schema: write { type: object, properties: … }"
                        .to_owned())
                }
            }
        }
        Some(_) => Err("its contentFormat is no JSON Schema".to_owned()),
    }
}

/// The arguments of `query-collection`, which are fixed.
pub(crate) fn search_parameters() -> Value {
    json!({
        "type": "object",
        "properties": { "query": { "type": "string", "description": "Search content." } },
        "required": ["query"],
    })
}

/// AIVAX's own `bool` is JSON Schema's `boolean`.
fn without_bool(schema: &Value, depth: usize) -> Value {
    match schema {
        Value::Object(map) if depth < 100 => {
            let member = |(key, value): (&String, &Value)| match (key.as_str(), value) {
                ("type", Value::String(kind)) if kind == "bool" => (key.clone(), "boolean".into()),
                ("enum" | "const" | "default" | "examples", _) => (key.clone(), value.clone()),
                _ => (key.clone(), without_bool(value, depth + 1)),
            };
            Value::Object(map.iter().map(member).collect())
        }
        Value::Array(items) if depth < 100 => items.iter().map(|item| without_bool(item, depth + 1)).collect(),
        _ => schema.clone(),
    }
}

/// The hidden headers of a definition, without those that are not its to set.
pub(super) fn headers(given: Option<&Map<String, Value>>) -> Result<Vec<(String, SecretString)>, String> {
    let header = |(name, value): (&String, &Value)| match value {
        Value::String(value) => Ok((name.clone(), value.as_str().into())),
        _ => Err("its headers are no map of texts".to_owned()),
    };
    given.into_iter().flatten().filter(|(name, _)| !handler::is_reserved(name)).map(header).collect()
}

/// `aivax://query-collection?collection-id=…&top=…&min=…[&refs]`; numbers out of range are brought into it.
pub(super) fn query(url: &str) -> Option<QueryCollectionConfig> {
    let rest = url.strip_prefix("aivax://query-collection")?;
    let parameters = rest.strip_prefix('/').unwrap_or(rest).strip_prefix('?')?;
    let pairs: Vec<(&str, &str)> =
        parameters.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect();
    let get = |key: &str| pairs.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
    let is_id = |id: &&str| (1..=64).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    let number = |key: &str| get(key).and_then(|value| value.parse::<f64>().ok()).filter(|n| n.is_finite());
    Some(QueryCollectionConfig {
        collection: get("collection-id").filter(is_id)?.to_owned(),
        top: number("top").map_or(DEFAULT_TOP, |top| top.clamp(1.0, 128.0) as u32),
        min: number("min").map_or(DEFAULT_MIN, |min| min.clamp(0.01, 0.99)),
        references: get("refs").is_some(),
        reranker: DEFAULT_RERANKER.to_owned(),
        timeout: Duration::ZERO,
        account: QueryAccount { base_url: String::new(), api_key: SecretString::default() },
    })
}
