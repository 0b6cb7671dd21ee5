//! What is pasted into a platform so that its model knows the functions.

pub mod search;

use serde::Serialize;
use serde_json::Value;

use crate::{function, platform::Flavor};

/// Bytes of compact JSON that a list of tools may have.
pub const MAX_TOOLS: usize = 3 << 20;

/// A function as a model sees it.
#[derive(Clone, Copy, Debug)]
pub struct Tool<'a> {
    pub name: &'a str,
    pub description: &'a str,
    /// JSON Schema of the arguments.
    pub parameters: &'a Value,
    /// Found by `tool_search` instead of seen from the start.
    pub deferred: bool,
}

impl<'a> From<&'a function::Config> for Tool<'a> {
    fn from(config: &'a function::Config) -> Self {
        Self {
            name: &config.name,
            description: &config.description,
            parameters: &config.parameters,
            deferred: config.deferred,
        }
    }
}

/// One entry of `agent.tools`.
#[derive(Serialize)]
#[serde(untagged)]
enum Entry<'a> {
    Search {
        r#type: &'static str,
    },
    Function {
        r#type: &'static str,
        name: &'a str,
        description: &'a str,
        parameters: &'a Value,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        defer_loading: bool,
    },
}

/// The JSON that a platform of that flavor takes, on one line or indented. The error says why it would not take it.
pub fn declaration(flavor: Flavor, tools: &[Tool], indented: bool) -> Result<String, String> {
    match flavor {
        Flavor::OpenAi | Flavor::Rebyte => agent_tools(tools, indented),
        Flavor::Aivax => Err("there are no protocol functions to print".to_owned()),
    }
}

/// `agent.tools`, with `tool_search` where a function is deferred.
fn agent_tools(tools: &[Tool], indented: bool) -> Result<String, String> {
    let search = tools.iter().any(|tool| tool.deferred).then_some(Entry::Search { r#type: "tool_search" });
    let functions = tools.iter().map(|tool| Entry::Function {
        r#type: "function",
        name: tool.name,
        description: tool.description,
        parameters: tool.parameters,
        defer_loading: tool.deferred,
    });
    let entries: Vec<Entry> = search.into_iter().chain(functions).collect();
    let compact = serde_json::to_string(&entries).map_err(|e| e.to_string())?;
    if compact.len() > MAX_TOOLS {
        return Err(format!("the tools have {} bytes as compact JSON; at most {MAX_TOOLS} are taken", compact.len()));
    }
    if indented { serde_json::to_string_pretty(&entries).map_err(|e| e.to_string()) } else { Ok(compact) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn deferred_functions_bring_the_search_with_them() {
        let parameters = json!({ "type": "object" });
        let tool = |name, deferred| Tool { name, description: "d", parameters: &parameters, deferred };
        let declared = |tools: &[Tool]| -> Value {
            serde_json::from_str(&declaration(Flavor::OpenAi, tools, false).unwrap()).unwrap()
        };
        let eager = json!({ "type": "function", "name": "a", "description": "d", "parameters": { "type": "object" } });
        let mut late = eager.clone();
        late["name"] = "b".into();
        late["defer_loading"] = true.into();
        assert_eq!(declared(&[tool("a", false)]), json!([eager]));
        assert_eq!(declared(&[tool("a", false), tool("b", true)]), json!([{ "type": "tool_search" }, eager, late]));
        assert_eq!(declared(&[]), json!([]));
    }

    #[test]
    fn what_is_too_large_for_a_platform_is_not_printed() {
        let parameters = json!({ "type": "object", "description": "d".repeat(MAX_TOOLS - 100) });
        let tool = |name| Tool { name, description: "", parameters: &parameters, deferred: false };
        assert!(declaration(Flavor::OpenAi, &[tool("a")], true).is_ok());
        let error = declaration(Flavor::Rebyte, &[tool("a"), tool("b")], true).unwrap_err();
        assert!(error.contains("at most 3145728"), "{error}");
    }
}
