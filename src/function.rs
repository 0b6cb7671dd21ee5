//! Functions: what the config registers under a name, with its schema compiled and its handler built.

use std::{collections::HashMap, sync::Arc};

use arc_swap::ArcSwap;
use serde_json::Value;
use tokio::sync::Semaphore;

pub use crate::session::IfInterrupted;
use crate::{handler, handler::Handler, retry, schema::Schema};

/// A function as the config says it.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments.
    pub parameters: Value,
    pub handler: handler::Config,
    pub if_interrupted: IfInterrupted,
    pub retry: retry::Policy,
    /// Calls that run at once in one worker.
    pub concurrency: Option<usize>,
    /// Names of the platforms it answers; all of them where empty.
    pub platforms: Vec<String>,
}

/// A function ready to be called.
pub struct Function {
    pub name: String,
    pub schema: Schema,
    pub handler: Arc<dyn Handler>,
    pub if_interrupted: IfInterrupted,
    pub retry: retry::Policy,
    pub slots: Option<Arc<Semaphore>>,
    pub platforms: Vec<String>,
}

/// Every function by name.
#[derive(Default)]
pub struct Registry {
    functions: HashMap<String, Arc<Function>>,
}

impl Registry {
    pub fn new(functions: impl IntoIterator<Item = Function>) -> Self {
        Self { functions: functions.into_iter().map(|f| (f.name.clone(), Arc::new(f))).collect() }
    }

    /// The function of that name, if it answers this platform.
    pub fn get(&self, name: &str, platform: &str) -> Option<&Arc<Function>> {
        self.functions.get(name).filter(|f| f.platforms.is_empty() || f.platforms.iter().any(|p| p == platform))
    }

    pub fn by_name(&self, name: &str) -> Option<&Arc<Function>> {
        self.functions.get(name)
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.functions.keys().map(String::as_str)
    }
}

/// The registry that counts now. Who holds a function goes on with it when the registry is replaced.
pub struct Live(ArcSwap<Registry>);

impl Live {
    pub fn new(registry: Registry) -> Self {
        Self(ArcSwap::from_pointee(registry))
    }

    /// The registry of this moment.
    pub fn load(&self) -> Arc<Registry> {
        self.0.load_full()
    }

    /// The function of that name, if it answers this platform.
    pub fn get(&self, name: &str, platform: &str) -> Option<Arc<Function>> {
        self.0.load().get(name, platform).cloned()
    }

    /// Replaces the registry as a whole.
    pub fn swap(&self, registry: Registry) {
        self.0.store(Arc::new(registry));
    }
}
