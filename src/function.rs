//! Functions: what the config registers under a name, with its schema compiled and its handler built.

mod aivax_schema;
pub mod source;

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use arc_swap::ArcSwap;
use serde_json::{Map, Value};

pub use self::aivax_schema::aivax_schema;
pub use crate::session::IfInterrupted;
use crate::{
    allow::Rule,
    arguments::Arguments,
    handler::{self, Call, Handler},
    limits::{self, Limits},
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
    /// Names of the platforms it answers; all of them where empty.
    pub platforms: Vec<String>,
    /// How long an equal call of a platform without call ids gets the first one's answer.
    pub dedupe: Option<Duration>,
    /// What of its results nobody is shown.
    pub redact: Vec<Path>,
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
            platforms: Vec::new(),
            dedupe: None,
            redact: Vec::new(),
        }
    }

    /// Whether it answers this platform.
    pub fn answers(&self, platform: &str) -> bool {
        self.platforms.is_empty() || self.platforms.iter().any(|p| p == platform)
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
    pub platforms: Vec<String>,
    pub dedupe: Option<Duration>,
    /// What of its results nobody is shown.
    pub redact: Vec<Path>,
    /// The function source that it was imported from; none where the config says it.
    pub source: Option<Arc<str>>,
}

impl Function {
    /// Whether it answers this platform.
    pub fn answers(&self, platform: &str) -> bool {
        self.platforms.is_empty() || self.platforms.iter().any(|p| p == platform)
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

/// The registry that counts now: what the config registers, and beneath it what is imported from elsewhere. Who holds a
/// function goes on with it when the registry is replaced.
pub struct Live {
    layers: Mutex<Layers>,
    merged: ArcSwap<Registry>,
    expected: ArcSwap<Vec<Expected>>,
    /// Names of functions that an operator has paused.
    paused: ArcSwap<BTreeSet<String>>,
}

/// Functions that will be registered, but are not known yet.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Who will register them.
    pub by: String,
    pub prefix: String,
    /// What may follow the prefix; anything where empty.
    pub only: Vec<String>,
}

struct Layers {
    config: Registry,
    /// By source, in the order in which they came first.
    imports: Vec<(String, Vec<Arc<Function>>)>,
}

impl Layers {
    /// A name is the config's if it has it, else the source's that has it already, else the first one's.
    fn merged(&self, before: &Registry) -> Registry {
        let mut next = self.config.clone();
        let had = |function: &&Arc<Function>| {
            before.by_name(&function.name).is_some_and(|had| had.source.is_some() && had.source == function.source)
        };
        let imported = || self.imports.iter().flat_map(|(_, functions)| functions);
        for function in imported().filter(had).chain(imported()) {
            next.functions.entry(function.name.clone()).or_insert_with(|| function.clone());
        }
        next
    }
}

impl Live {
    pub fn new(config: Registry) -> Self {
        let merged = ArcSwap::from_pointee(config.clone());
        Self {
            layers: Mutex::new(Layers { config, imports: Vec::new() }),
            merged,
            expected: ArcSwap::default(),
            paused: ArcSwap::default(),
        }
    }

    /// The registry of this moment.
    pub fn load(&self) -> Arc<Registry> {
        self.merged.load_full()
    }

    /// The function of that name, if it answers this platform.
    pub fn get(&self, name: &str, platform: &str) -> Option<Arc<Function>> {
        self.merged.load().get(name, platform).cloned()
    }

    /// Replaces what the config registers. What was imported stays, but where a name of it is the config's now.
    pub fn swap(&self, config: Registry) {
        self.change(|layers| layers.config = config);
    }

    /// Replaces what one source gave; its functions bear its name. A name that the config or another source has is refused;
    /// the refused names.
    pub fn import(&self, source: &str, functions: Vec<Function>) -> Vec<String> {
        let functions: Vec<_> = functions.into_iter().map(Arc::new).collect();
        let given = functions.clone();
        let merged = self.change(|layers| match layers.imports.iter_mut().find(|(name, _)| name == source) {
            Some((_, before)) => *before = given,
            None => layers.imports.push((source.to_owned(), given)),
        });
        let is_refused =
            |function: &&Arc<Function>| !merged.by_name(&function.name).is_some_and(|held| Arc::ptr_eq(held, function));
        functions.iter().filter(is_refused).map(|function| function.name.clone()).collect()
    }

    /// From now on calls of such functions wait.
    pub fn expect(&self, expected: Vec<Expected>) {
        self.expected.store(Arc::new(expected));
    }

    /// Whoever was expected has registered its functions.
    pub fn came(&self, by: &str) {
        self.expected.rcu(|expected| expected.iter().filter(|e| e.by != by).cloned().collect::<Vec<_>>());
    }

    /// Whether a function of that name may be registered soon.
    pub fn is_expected(&self, name: &str) -> bool {
        self.expected.load().iter().any(|expected| match name.strip_prefix(&expected.prefix) {
            Some(rest) => expected.only.is_empty() || expected.only.iter().any(|only| only == rest),
            None => false,
        })
    }

    /// From now on exactly these are not started here.
    pub fn pause(&self, names: BTreeSet<String>) {
        self.paused.store(Arc::new(names));
    }

    pub fn is_paused(&self, name: &str) -> bool {
        self.paused.load().contains(name)
    }

    /// The names of what is paused.
    pub fn paused(&self) -> Arc<BTreeSet<String>> {
        self.paused.load_full()
    }

    fn change(&self, change: impl FnOnce(&mut Layers)) -> Arc<Registry> {
        let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut layers);
        let merged = Arc::new(layers.merged(&self.merged.load()));
        self.merged.store(merged.clone());
        merged
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
            platforms: Vec::new(),
            dedupe: None,
            redact: Vec::new(),
            source: source.map(Into::into),
        }
    }

    fn held(live: &Live) -> Vec<String> {
        let registry = live.load();
        registry.of("p").iter().map(|f| format!("{}:{}", f.name, f.source.as_deref().unwrap_or("config"))).collect()
    }

    #[test]
    fn the_config_wins_and_a_source_replaces_only_its_own() {
        let live = Live::new(Registry::new([echo("a", None)]));
        let of = |source, names: &[&str]| names.iter().map(|name| echo(name, Some(source))).collect::<Vec<_>>();
        assert_eq!(live.import("s", of("s", &["a", "b", "c"])), ["a"]);
        assert_eq!(live.import("t", of("t", &["c", "d"])), ["c"]);
        assert_eq!(held(&live), ["a:config", "b:s", "c:s", "d:t"]);
        assert!(live.import("s", of("s", &["b"])).is_empty());
        live.swap(Registry::new([echo("b", None), echo("e", None)]));
        assert_eq!(held(&live), ["b:config", "c:t", "d:t", "e:config"], "a name that was given up is the next one's");
        assert!(live.import("t", Vec::new()).is_empty());
        assert_eq!(held(&live), ["b:config", "e:config"]);
        live.swap(Registry::new([echo("e", None)]));
        assert_eq!(held(&live), ["b:s", "e:config"], "what the config had hidden is there again");
        assert_eq!(live.import("t", of("t", &["b", "d"])), ["b"]);
        assert!(live.import("s", of("s", &["c"])).is_empty());
        assert_eq!(held(&live), ["b:t", "c:s", "d:t", "e:config"]);
        assert_eq!(live.import("s", of("s", &["b", "c"])), ["b"], "who has a name keeps it");
    }
}
