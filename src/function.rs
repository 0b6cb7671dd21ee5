//! Functions: what the config registers under a name, with its schema compiled and its handler built.

mod aivax_schema;
mod live;
pub mod source;

use std::{collections::HashMap, sync::Arc, time::Duration};

use serde_json::{Map, Value};

pub use self::{
    aivax_schema::aivax_schema,
    live::{Expected, Live, Place, Serves},
};
pub use crate::session::IfInterrupted;
use crate::{
    allow::Rule,
    approval,
    arguments::Arguments,
    handler::{self, Call, Handler},
    limits::{self, Limits},
    platform::covers,
    redact::Path,
    retry,
    schema::Schema,
    session::ToolResult,
};

/// A function as the config says it.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments.
    pub parameters: Value,
    /// The model finds it by `tool_search` instead of seeing it from the start.
    pub deferred: bool,
    pub handler: handler::Config,
    pub if_interrupted: IfInterrupted,
    pub retry: retry::Policy,
    pub limits: limits::Config,
    /// Metadata that a session must have to call it.
    pub require_metadata: Vec<String>,
    /// What else must hold for a call.
    pub allow: Option<Rule>,
    /// Which calls wait for a person.
    pub approval: Option<approval::Policy>,
    /// Names of the platforms it answers; all of them where empty.
    pub platforms: Vec<String>,
    /// How long an equal call of a platform without call ids gets the first one's answer.
    pub dedupe: Option<Duration>,
    /// What of its arguments and results nobody is shown.
    pub redact: Vec<Path>,
    /// The pool of workers that alone runs it; none where any worker does.
    pub pool: Option<Arc<str>>,
}

impl Config {
    /// A function whose handler is code, with defaults elsewhere.
    pub fn rust(name: impl Into<String>, description: impl Into<String>, parameters: Value) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            parameters,
            deferred: false,
            handler: handler::Config::Rust,
            if_interrupted: IfInterrupted::Rerun,
            retry: retry::Policy::default(),
            limits: limits::Config::default(),
            require_metadata: Vec::new(),
            allow: None,
            approval: None,
            platforms: Vec::new(),
            dedupe: None,
            redact: Vec::new(),
            pool: None,
        }
    }

    /// Whether it answers this platform; with a platform, its workflow runs.
    pub fn answers(&self, platform: &str) -> bool {
        self.platforms.is_empty() || self.platforms.iter().any(|listed| covers(listed, platform))
    }
}

/// Whether platforms take it as a function's name.
pub fn is_name(text: &str) -> bool {
    (1..=64).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
}

/// A function ready to be called.
pub struct Function {
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments, as it was written.
    pub parameters: Value,
    pub schema: Schema,
    pub handler: Arc<dyn Handler>,
    pub if_interrupted: IfInterrupted,
    pub retry: retry::Policy,
    pub limits: Arc<Limits>,
    pub require_metadata: Vec<String>,
    pub allow: Option<Rule>,
    pub approval: Option<approval::notify::Gate>,
    pub platforms: Vec<String>,
    pub dedupe: Option<Duration>,
    /// What of its arguments and results nobody is shown.
    pub redact: Vec<Path>,
    /// The pool of workers that alone runs it.
    pub pool: Option<Arc<str>>,
    /// The function source that it was imported from; none where the config says it.
    pub source: Option<Arc<str>>,
}

impl Function {
    /// Whether it answers this platform; with a platform, its workflow runs.
    pub fn answers(&self, platform: &str) -> bool {
        self.platforms.is_empty() || self.platforms.iter().any(|listed| covers(listed, platform))
    }
}

impl Function {
    /// Whether a session with these metadata may call it so; the error tells the model why not, without a value.
    pub fn may_call(&self, platform: &str, arguments: &Arguments, metadata: &Map<String, Value>) -> Result<(), String> {
        let lacks = |key: &&String| metadata.get(*key).is_none_or(|value| value.is_null() || value == "");
        let missing: Vec<&str> = self.require_metadata.iter().filter(lacks).map(String::as_str).collect();
        if !missing.is_empty() {
            let missing = missing.join(", ");
            return Err(format!(
                "this session may not call the function: its metadata lack {missing}. it cannot be called here."
            ));
        }
        match &self.allow {
            Some(rule) if !rule.allows(platform, arguments, metadata) => {
                Err("this session may not call the function with these arguments. do not try it again.".to_owned())
            }
            _ => Ok(()),
        }
    }

    /// Validates the raw JSON of `arguments` and runs `call` with them, once. What the model did wrong is a result too.
    pub async fn run_once(&self, arguments: &str, call: Call) -> Result<ToolResult, handler::Error> {
        let arguments = Arguments::parse(Some(arguments));
        let arguments = arguments.and_then(|arguments| {
            self.schema.check(&arguments)?;
            self.may_call(&call.key.session.platform, &arguments, &call.metadata)?;
            Ok(arguments)
        });
        match arguments {
            Ok(arguments) => self
                .handler
                .call(&Call { arguments, if_interrupted: self.if_interrupted, ..call })
                .await
                .map(ToolResult::Success),
            Err(sentence) => Ok(ToolResult::Error(sentence)),
        }
    }
}

/// Every function by name.
#[derive(Clone, Default)]
pub struct Registry {
    functions: HashMap<String, Arc<Function>>,
}

impl Registry {
    pub fn new(functions: impl IntoIterator<Item = Function>) -> Self {
        Self { functions: functions.into_iter().map(|f| (f.name.clone(), Arc::new(f))).collect() }
    }

    /// The function of that name, if it answers this platform.
    pub fn get(&self, name: &str, platform: &str) -> Option<&Arc<Function>> {
        self.functions.get(name).filter(|f| f.answers(platform))
    }

    /// With the state of what is limited as before: who runs now counts under the new registry too.
    #[must_use]
    pub fn inheriting(mut self, before: &Self) -> Self {
        for (name, function) in &mut self.functions {
            let limits = before.by_name(name).map(|old| old.limits.clone());
            let limits = limits.filter(|limits| limits.config() == function.limits.config());
            if let (Some(function), Some(limits)) = (Arc::get_mut(function), limits) {
                function.limits = limits;
            }
        }
        self
    }

    pub fn by_name(&self, name: &str) -> Option<&Arc<Function>> {
        self.functions.get(name)
    }

    /// Every function that answers this platform, by name.
    pub fn of(&self, platform: &str) -> Vec<&Arc<Function>> {
        let mut functions: Vec<_> = self.functions.values().filter(|f| f.answers(platform)).collect();
        functions.sort_by(|a, b| a.name.cmp(&b.name));
        functions
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.functions.keys().map(String::as_str)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
pub(crate) mod tests {
    use std::time::Instant;

    use serde_json::json;

    use super::*;

    /// A function that answers its arguments.
    pub(crate) fn echo(name: &str, source: Option<&str>) -> Function {
        let parameters = json!({ "type": "object" });
        Function {
            name: name.into(),
            description: "d".into(),
            schema: Schema::compile(&parameters).unwrap(),
            parameters,
            handler: Arc::new(handler::Echo),
            if_interrupted: IfInterrupted::Rerun,
            retry: retry::Policy::default(),
            limits: Limits::new(limits::Config::default(), Instant::now()),
            require_metadata: Vec::new(),
            allow: None,
            approval: None,
            platforms: Vec::new(),
            dedupe: None,
            redact: Vec::new(),
            pool: None,
            source: source.map(Into::into),
        }
    }
}
