//! The listing of the functions that AIVAX reads before it prepares its tools. It is rendered once for each registry.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use crate::{
    approval::Required,
    function::{Function, Live, Registry},
    platform::Flavor,
    tools::{Callback, Tool, protocol_function},
};

pub(super) struct Listing {
    url: String,
    /// Told to AIVAX, which sends it with each callback.
    token: Option<SecretString>,
    rendered: Mutex<Option<(Arc<Registry>, Bytes)>>,
}

impl Listing {
    pub(super) fn new(url: String, token: Option<&SecretString>) -> Self {
        Self { url, token: token.cloned(), rendered: Mutex::default() }
    }

    /// The listing of what answers that platform here.
    pub(super) fn render(&self, live: &Live, platform: &str) -> Bytes {
        let registry = live.load();
        let mut rendered = self.rendered.lock().unwrap_or_else(PoisonError::into_inner);
        match &*rendered {
            Some((of, bytes)) if Arc::ptr_eq(of, &registry) => bytes.clone(),
            _ => {
                let functions = registry.of(platform).into_iter().filter(|f| is_listed(f, platform));
                let functions = functions.filter(|f| live.serves().has(f.pool.as_deref()));
                let functions: Vec<Value> = functions.map(|f| self.definition(f)).collect();
                let bytes = Bytes::from(json!({ "functions": functions }).to_string());
                *rendered = Some((registry, bytes.clone()));
                bytes
            }
        }
    }

    fn definition(&self, function: &Function) -> Value {
        let tool = Tool {
            name: &function.name,
            description: &function.description,
            parameters: &function.parameters,
            deferred: false,
        };
        let token = self.token.as_ref().map(ExposeSecret::expose_secret);
        let (definition, warnings) = protocol_function(&tool, Callback { url: &self.url, token });
        for warning in warnings {
            tracing::debug!(function = function.name, warning, "listed with less than its schema");
        }
        definition
    }
}

/// One name that AIVAX does not take would fail every inference of the account.
fn is_listed(function: &Function, platform: &str) -> bool {
    // It could only be answered with an error there.
    if function.approval.as_ref().is_some_and(|gate| matches!(gate.policy.required, Required::Always)) {
        return false;
    }
    let checked = Flavor::Aivax.check_name(&function.name);
    if let Err(why) = checked {
        tracing::warn!(platform, function = function.name, why, "not listed");
    }
    checked.is_ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::{
        approval::notify::Gate,
        function::{Serves, tests::echo},
    };

    #[test]
    fn what_aivax_can_call_here_is_listed_in_order_and_once_for_each_registry() {
        let only_other = Function { platforms: vec!["openai".into()], ..echo("elsewhere", None) };
        let names =
            [echo("view_client", None), echo("a-b", None), echo("ab", None), echo("add_note", None), only_other];
        let policy = crate::approval::Policy {
            required: Required::Always,
            by: crate::approval::By::Token,
            expires: std::time::Duration::from_secs(60),
            notify: None,
        };
        let gate = Gate::new(&policy, &crate::http::client().unwrap()).unwrap();
        let asks = Function { approval: Some(gate), ..echo("asks", None) };
        let pinned = Function { pool: Some("gpu".into()), ..echo("draw", None) };
        let live = Live::serving(Registry::new(names.into_iter().chain([pinned, asks])), Serves::Unpinned);
        let listing = Listing::new("https://h/functions/aivax".into(), Some(&"token".into()));
        let bytes = listing.render(&live, "aivax");
        let function = |name: &str| {
            json!({
                "name": name,
                "description": "d",
                "callbackUrl": "https://h/functions/aivax",
                "headers": { "Authorization": "Bearer token" },
                "contentFormat": { "type": "object", "properties": {} },
            })
        };
        let expected = json!({ "functions": [function("add_note"), function("view_client")] });
        assert_eq!(serde_json::from_slice::<Value>(&bytes).ok(), Some(expected));
        assert_eq!(listing.render(&live, "aivax").as_ptr(), bytes.as_ptr());
        let empty = listing.render(&Live::new(Registry::default()), "aivax");
        assert_eq!(empty, r#"{"functions":[]}"#);
    }
}
