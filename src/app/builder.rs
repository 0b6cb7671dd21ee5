//! The parts that a program which embeds actiond brings along: handlers in Rust, and functions defined in code.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Instant,
};

use anyhow::{anyhow, bail};
use async_trait::async_trait;

use super::{App, Role};
use crate::{
    approval::notify::Gate,
    config::Config,
    function::{self, Function, Registry},
    handler::{self, Call, Error, Handler},
    http::Client,
    limits::Limits,
    mcp::Servers,
    metrics::Metrics,
    schema::Schema,
    session::Output,
};

/// An [`App`] that is being put together.
pub struct Builder {
    config: Config,
    code: Code,
    pool: Option<String>,
}

/// What comes from code, not from the config file.
#[derive(Clone, Default)]
pub(super) struct Code {
    functions: Vec<function::Config>,
    /// By the function's name.
    handlers: HashMap<String, Arc<dyn Handler>>,
}

impl Builder {
    pub(super) fn new(config: Config) -> Self {
        Self { config, code: Code::default(), pool: None }
    }

    /// Binds code to the function of that name, which has `handler: { type: rust }`. A dropped future is a cancelled call.
    #[must_use]
    pub fn handler<F, R, O>(mut self, name: impl Into<String>, run: F) -> Self
    where
        F: Fn(Call) -> R + Send + Sync + 'static,
        R: Future<Output = Result<O, Error>> + Send + 'static,
        O: Into<Output> + Send + 'static,
    {
        self.code.handlers.insert(name.into(), Arc::new(Closure(run)));
        self
    }

    /// Registers a function that no config file names, with its code.
    #[must_use]
    pub fn function<F, R, O>(mut self, definition: function::Config, run: F) -> Self
    where
        F: Fn(Call) -> R + Send + Sync + 'static,
        R: Future<Output = Result<O, Error>> + Send + 'static,
        O: Into<Output> + Send + 'static,
    {
        let name = definition.name.clone();
        self.code.functions.push(definition);
        self.handler(name, run)
    }

    /// Makes the process one of that pool of workers.
    #[must_use]
    pub fn pool(mut self, pool: Option<String>) -> Self {
        self.pool = pool;
        self
    }

    /// Builds every part. A broker or PostgreSQL that is away is no error: they are waited for while running.
    pub async fn build(self, role: Role, metrics: Metrics) -> anyhow::Result<App> {
        for function in &self.code.functions {
            check_pool(function, &self.config.worker.pools)?;
            for platform in self.config.platforms.iter().filter(|p| function.answers(&p.name)) {
                let wrong = |why| anyhow!("function {}: {why} at platform {}", function.name, platform.name);
                platform.flavor().check_name(&function.name).map_err(wrong)?;
            }
        }
        App::assemble(self.config, self.code, role, self.pool.as_deref(), metrics).await
    }
}

/// The error says which function is pinned to a pool that is not there.
pub(super) fn check_pool(function: &function::Config, pools: &[String]) -> anyhow::Result<()> {
    match &function.pool {
        Some(pool) if !pools.iter().any(|name| **name == **pool) => {
            bail!("function {}: there is no pool {pool} in worker.pools", function.name)
        }
        _ => Ok(()),
    }
}

impl Code {
    /// Every function of config and code with its schema compiled and its handler built.
    pub(super) fn registry(
        &self,
        configs: &[function::Config],
        client: &Client,
        servers: &Servers,
        now: Instant,
    ) -> anyhow::Result<Registry> {
        let all: Vec<&function::Config> = configs.iter().chain(&self.functions).collect();
        let mut names = HashSet::new();
        if let Some(twice) = all.iter().find(|config| !names.insert(&config.name)) {
            bail!("function {}: is defined twice", twice.name);
        }
        let is_rust = |name: &String| all.iter().any(|c| c.name == *name && matches!(c.handler, handler::Config::Rust));
        if let Some(name) = self.handlers.keys().find(|name| !is_rust(name)) {
            bail!("there is no function {name} with handler type rust for the handler that is bound to it");
        }
        let functions = all.into_iter().map(|config| self.function(config, client, servers, now));
        Ok(Registry::new(functions.collect::<anyhow::Result<Vec<_>>>()?))
    }

    /// A function with its schema compiled and its handler built.
    pub(super) fn function(
        &self,
        config: &function::Config,
        client: &Client,
        servers: &Servers,
        now: Instant,
    ) -> anyhow::Result<Function> {
        let wrong = |(path, why): (String, String)| anyhow!("function {}: {path}: {why}", config.name);
        let handler = match (&config.handler, self.handlers.get(&config.name)) {
            (handler::Config::Rust, Some(handler)) => handler.clone(),
            (handler, _) => handler::build(handler, client, servers).map_err(wrong)?,
        };
        Ok(Function {
            name: config.name.clone(),
            description: config.description.clone(),
            parameters: config.parameters.clone(),
            schema: Schema::compile(&config.parameters).map_err(wrong)?,
            handler,
            if_interrupted: config.if_interrupted,
            retry: config.retry.clone(),
            limits: Limits::new(config.limits.clone(), now),
            require_metadata: config.require_metadata.clone(),
            allow: config.allow.clone(),
            approval: match &config.approval {
                Some(policy) => {
                    Some(Gate::new(policy, client).map_err(|(path, why)| wrong((format!("approval.{path}"), why)))?)
                }
                None => None,
            },
            platforms: config.platforms.clone(),
            dedupe: config.dedupe,
            redact: config.redact.clone(),
            pool: config.pool.clone(),
            source: None,
        })
    }
}

/// A handler that is a function of the embedding program.
struct Closure<F>(F);

#[async_trait]
impl<F, R, O> Handler for Closure<F>
where
    F: Fn(Call) -> R + Send + Sync,
    R: Future<Output = Result<O, Error>> + Send,
    O: Into<Output> + Send,
{
    async fn call(&self, call: &Call) -> Result<Output, Error> {
        (self.0)(call.clone()).await.map(Into::into)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(functions: &str) -> Config {
        crate::config::parse(functions, &|_| None).unwrap().config
    }

    const ADD: &str = "functions: [{ name: add, handler: { type: rust } }]";

    fn registry(builder: &Builder) -> Result<Registry, String> {
        let client = crate::http::client().unwrap();
        builder
            .code
            .registry(&builder.config.functions, &client, &Servers::default(), Instant::now())
            .map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn code_answers_functions_of_the_config_and_of_its_own() {
        let own = function::Config::rust("own", "Answers.", json!({ "type": "object" }));
        let builder = Builder::new(config(ADD))
            .handler("add", |call: Call| async move { Ok(call.arguments.text().to_owned()) })
            .function(own, |_| async { Err::<String, _>(Error::Later) });
        let registry = registry(&builder).unwrap();
        let call = crate::handler::tests::call(r#"{"a":1}"#);
        let output = registry.by_name("add").unwrap().handler.call(&call).await.unwrap();
        assert_eq!(output, Output::Text(r#"{"a":1}"#.into()));
        assert!(matches!(registry.by_name("own").unwrap().handler.call(&call).await, Err(Error::Later)));
    }

    #[test]
    fn what_does_not_fit_together_is_told_by_name() {
        let answer = |_| async { Ok("ok") };
        let add = || function::Config::rust("add", "", json!({ "type": "object" }));
        let wrong = |builder: Builder| registry(&builder).err().unwrap();
        assert!(wrong(Builder::new(config(ADD))).contains("function add: type: rust needs code"));
        assert!(wrong(Builder::new(config("{}")).handler("add", answer)).contains("no function add"));
        assert!(wrong(Builder::new(config(ADD)).function(add(), answer)).contains("function add: is defined twice"));
        let echo = config("functions: [{ name: add, handler: { type: echo } }]");
        assert!(wrong(Builder::new(echo).handler("add", answer)).contains("no function add with handler type rust"));
    }
}
