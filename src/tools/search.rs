//! What `tool_search` would find: BM25 over names and descriptions of tools and parameters, or a pattern over the same.

use std::collections::HashMap;

use regex::RegexBuilder;
use serde_json::Value;

use super::Tool;

pub const DEFAULT_LIMIT: usize = 5;
pub const MAX_LIMIT: usize = 20;
/// Characters.
const MAX_QUERY: usize = 500;
const MAX_PATTERN: usize = 200;
/// Bytes of a compiled pattern; what repeats itself too often needs more.
const MAX_COMPILED: usize = 1 << 20;
/// Levels of a schema whose parameters are read.
const MAX_DEPTH: usize = 16;

/// The usual constants of BM25.
const SATURATION: f64 = 1.2;
const LENGTH_WEIGHT: f64 = 0.75;

/// What the model asks with.
#[derive(Clone, Copy, Debug)]
pub enum Ask<'a> {
    /// Words, ranked.
    Query(&'a str),
    /// A regular expression; case does not count.
    Pattern(&'a str),
}

/// At most `limit` places in `tools`, best first, each with its score (1 for a pattern).
pub fn search(tools: &[Tool], ask: Ask, limit: usize) -> Result<Vec<(usize, f64)>, String> {
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(format!("the limit must be from 1 to {MAX_LIMIT}"));
    }
    let texts = tools.iter().map(text);
    let mut found = match ask {
        Ask::Query(query) if query.chars().count() > MAX_QUERY => {
            return Err(format!("a query may have at most {MAX_QUERY} characters"));
        }
        Ask::Query(query) => rank(&texts.map(|text| words(&text)).collect::<Vec<_>>(), &words(query)),
        Ask::Pattern(pattern) if pattern.chars().count() > MAX_PATTERN => {
            return Err(format!("a pattern may have at most {MAX_PATTERN} characters"));
        }
        Ask::Pattern(pattern) => {
            let pattern = RegexBuilder::new(pattern).case_insensitive(true).size_limit(MAX_COMPILED).build();
            let pattern = pattern.map_err(|e| format!("not a regular expression that is understood here: {e}"))?;
            let is_match = |text: &String| text.lines().any(|line| pattern.is_match(line));
            texts.enumerate().filter(|(_, text)| is_match(text)).map(|(place, _)| (place, 1.0)).collect()
        }
    };
    found.truncate(limit);
    Ok(found)
}

/// Everything of a tool that is searched, a line for each name and description.
fn text(tool: &Tool) -> String {
    let mut text = format!("{}\n{}", tool.name, tool.description);
    parameters(tool.parameters, 0, &mut text);
    text
}

fn parameters(schema: &Value, depth: usize, text: &mut String) {
    if depth > MAX_DEPTH {
        return;
    }
    for (name, schema) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        let description = schema.get("description").and_then(Value::as_str).unwrap_or_default();
        *text += &format!("\n{name}\n{description}");
        parameters(schema, depth + 1, text);
    }
    if let Some(items) = schema.get("items") {
        parameters(items, depth + 1, text);
    }
}

/// Lower-case words; `lookup_order` and `lookupOrder` are two each.
fn words(text: &str) -> Vec<String> {
    let mut spaced = String::new();
    let mut before = ' ';
    for c in text.chars() {
        if !c.is_alphanumeric() || (c.is_uppercase() && before.is_lowercase()) {
            spaced.push(' ');
        }
        if c.is_alphanumeric() {
            spaced.extend(c.to_lowercase());
        }
        before = c;
    }
    spaced.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn rank(texts: &[Vec<String>], query: &[String]) -> Vec<(usize, f64)> {
    let mut terms: Vec<&str> = query.iter().map(String::as_str).collect();
    terms.sort_unstable();
    terms.dedup();
    let count = texts.len() as f64;
    let average = (texts.iter().map(Vec::len).sum::<usize>() as f64 / count.max(1.0)).max(1.0);
    let frequencies: Vec<HashMap<&str, f64>> = texts
        .iter()
        .map(|text| {
            text.iter().fold(HashMap::new(), |mut counts, word| {
                *counts.entry(word.as_str()).or_default() += 1.0;
                counts
            })
        })
        .collect();
    let rarity = |term: &str| {
        let having = frequencies.iter().filter(|counts| counts.contains_key(term)).count() as f64;
        (1.0 + (count - having + 0.5) / (having + 0.5)).ln()
    };
    let weighted: Vec<(&str, f64)> = terms.into_iter().map(|term| (term, rarity(term))).collect();
    let score = |place: usize| {
        let norm = SATURATION * (1.0 - LENGTH_WEIGHT + LENGTH_WEIGHT * texts[place].len() as f64 / average);
        let of = |(term, rarity): &(&str, f64)| {
            frequencies[place].get(term).map_or(0.0, |times| rarity * times * (SATURATION + 1.0) / (times + norm))
        };
        weighted.iter().map(of).sum::<f64>()
    };
    let mut found: Vec<(usize, f64)> =
        (0..texts.len()).map(|place| (place, score(place))).filter(|(_, score)| *score > 0.0).collect();
    found.sort_by(|a, b| b.1.total_cmp(&a.1));
    found
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn found(ask: Ask, limit: usize) -> Result<Vec<String>, String> {
        let order = json!({ "properties": { "order_id": { "description": "The order's number." } } });
        let nested = json!({ "properties": { "lines": { "items": { "properties": { "giftWrap": {} } } } } });
        let none = json!({});
        let tools = [
            ("lookup_order", "Look up an order and its delivery status by order ID.", &order),
            ("cancel_order", "Cancel an order.", &order),
            ("create_order", "Place an order.", &nested),
            ("get_weather", "The weather of a city.", &none),
        ]
        .map(|(name, description, parameters)| Tool { name, description, parameters, deferred: true });
        let found = search(&tools, ask, limit)?;
        assert!(found.windows(2).all(|pair| pair[0].1 >= pair[1].1), "{found:?}");
        Ok(found.into_iter().map(|(place, _)| tools[place].name.to_owned()).collect())
    }

    #[test]
    fn the_best_match_comes_first() {
        assert_eq!(found(Ask::Query("order status"), 5).unwrap()[0], "lookup_order");
        assert_eq!(found(Ask::Query("CANCEL an order"), 1).unwrap(), ["cancel_order"]);
        assert_eq!(found(Ask::Query("weather"), 5).unwrap(), ["get_weather"]);
        assert_eq!(found(Ask::Query("gift"), 5).unwrap(), ["create_order"], "a parameter's name, deep in the schema");
        assert_eq!(found(Ask::Query("number"), 5).unwrap(), ["cancel_order", "lookup_order"], "the shorter one first");
        for nothing in ["", "  ", "météo", "?!"] {
            assert!(found(Ask::Query(nothing), 5).unwrap().is_empty(), "{nothing}");
        }
    }

    #[test]
    fn a_pattern_is_looked_for_without_regard_to_case() {
        assert_eq!(found(Ask::Pattern("LOOKUP_.*order"), 5).unwrap(), ["lookup_order"]);
        assert_eq!(found(Ask::Pattern("^(lookup|order)_order$"), 5).unwrap(), ["lookup_order"]);
        assert_eq!(found(Ask::Pattern("^number"), 5).unwrap(), Vec::<String>::new());
        assert_eq!(found(Ask::Pattern("order"), 2).unwrap().len(), 2);
        assert!(found(Ask::Pattern("("), 5).unwrap_err().starts_with("not a regular expression"));
        assert!(found(Ask::Pattern("(a{1000}){1000}"), 5).is_err(), "no pattern may grow without bound");
    }

    #[test]
    fn the_limits_are_those_of_the_platform() {
        assert!(found(Ask::Query(&"é".repeat(500)), 20).is_ok());
        assert!(found(Ask::Query(&"é".repeat(501)), 5).unwrap_err().contains("500"));
        assert!(found(Ask::Pattern(&"a".repeat(200)), 1).is_ok());
        assert!(found(Ask::Pattern(&"a".repeat(201)), 5).unwrap_err().contains("200"));
        for limit in [0, 21] {
            assert!(found(Ask::Query("order"), limit).unwrap_err().contains("from 1 to 20"));
        }
    }

    proptest! {
        #[test]
        fn no_question_panics(text in "\\PC{0,60}") {
            let _ = found(Ask::Query(&text), 5);
            let _ = found(Ask::Pattern(&text), 5);
        }
    }
}
