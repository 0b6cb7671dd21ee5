//! What is pasted into a platform so that its model knows the functions.

pub mod search;

use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    function::{self, aivax_schema},
    platform::Flavor,
};

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

/// Where AIVAX is to call.
#[derive(Clone, Copy, Debug, Default)]
pub struct Callback<'a> {
    pub url: &'a str,
    /// A bearer token that is sent with each callback.
    pub token: Option<&'a str>,
}

/// The JSON that a platform of that flavor takes, on one line or indented. The error says why it would not take it.
pub fn declaration(flavor: Flavor, tools: &[Tool], callback: Callback, indented: bool) -> Result<String, String> {
    match flavor {
        Flavor::OpenAi | Flavor::Rebyte => agent_tools(tools, indented),
        Flavor::Aivax => {
            let functions: Vec<Value> = tools.iter().map(|tool| protocol_function(tool, callback).0).collect();
            let text =
                if indented { serde_json::to_string_pretty(&functions) } else { serde_json::to_string(&functions) };
            text.map_err(|e| e.to_string())
        }
    }
}

/// One of AIVAX's protocol functions, and a warning for each place where its schema loses meaning.
pub fn protocol_function(tool: &Tool, callback: Callback) -> (Value, Vec<String>) {
    let (schema, warnings) = aivax_schema(tool.parameters);
    let mut function = json!({
        "name": tool.name,
        "description": tool.description,
        "callbackUrl": callback.url,
        "contentFormat": schema,
    });
    if let Some(token) = callback.token {
        function["headers"] = json!({ "Authorization": format!("Bearer {token}") });
    }
    (function, warnings)
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
            serde_json::from_str(&declaration(Flavor::OpenAi, tools, Callback::default(), false).unwrap()).unwrap()
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
    fn aivax_is_told_where_to_call() {
        let parameters = json!({ "type": "object" });
        let tool = Tool { name: "note", description: "d", parameters: &parameters, deferred: true };
        let callback = Callback { url: "https://h/functions/aivax", token: Some("t") };
        let declared = declaration(Flavor::Aivax, &[tool], callback, false).unwrap();
        assert_eq!(
            serde_json::from_str::<Value>(&declared).unwrap(),
            json!([{
                "name": "note", "description": "d", "callbackUrl": "https://h/functions/aivax",
                "headers": { "Authorization": "Bearer t" },
                "contentFormat": { "type": "object", "properties": {} },
            }])
        );
    }

    #[test]
    fn what_is_too_large_for_a_platform_is_not_printed() {
        let parameters = json!({ "type": "object", "description": "d".repeat(MAX_TOOLS - 100) });
        let tool = |name| Tool { name, description: "", parameters: &parameters, deferred: false };
        assert!(declaration(Flavor::OpenAi, &[tool("a")], Callback::default(), true).is_ok());
        let error = declaration(Flavor::Rebyte, &[tool("a"), tool("b")], Callback::default(), true).unwrap_err();
        assert!(error.contains("at most 3145728"), "{error}");
    }
}
