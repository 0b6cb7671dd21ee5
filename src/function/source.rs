//! Function sources: definitions in AIVAX's listing format, fetched again and again, imported under the rules for URLs that
//! strangers choose.

mod definition;

use std::{
    collections::HashSet,
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

pub(crate) use self::definition::{DEFAULT_MIN, DEFAULT_RERANKER, DEFAULT_TOP, search_parameters};
use self::definition::{Definition, headers, is_name, parameters, query};
use super::{Function, IfInterrupted, Live};
use crate::{
    handler::{self, Body, Call, Error, Handler, HttpConfig, QueryAccount, QueryCollectionConfig, Response, Sign},
    http::{
        Client, describe,
        guard::{self, Allowed},
        read_capped,
    },
    limits::{self, Limits},
    mcp::Servers,
    metrics::Metrics,
    nonce::{self, Minted},
    retry,
    schema::Schema,
    session::Output,
};

/// Bytes of a listing, and functions in it.
const MAX_LISTING: usize = 2 << 20;
const MAX_FUNCTIONS: usize = 512;
const MAX_DESCRIPTION: usize = 16 << 10;
/// How long a fetch may take.
const FETCH_TIMEOUT: Duration = Duration::from_secs(20);
/// A fetch that failed is tried again after this, if the listing's time is not up earlier.
const FETCH_AGAIN: Duration = Duration::from_secs(30);
/// Bytes of an imported function's answer.
const MAX_RESPONSE: usize = 1 << 20;
/// One of `function_sources` in the config.
#[derive(Clone, Debug)]
pub struct Config {
    pub url: String,
    /// How long a listing counts.
    pub ttl: Duration,
    /// Hosts of callbacks that may have private addresses.
    pub allow_hosts: Vec<String>,
    /// Sent with the listing's request; values may be secret.
    pub headers: Vec<(String, SecretString)>,
    /// Shared key of the nonce that we send to the source and its callbacks.
    pub hook_key: Option<SecretString>,
    /// Names of the platforms that the imported functions answer; all of them where empty.
    pub platforms: Vec<String>,
    /// The pool of workers that alone runs them.
    pub pool: Option<Arc<str>>,
    /// How long an imported function may take.
    pub timeout: Duration,
    pub retry: retry::Policy,
    /// Who asks for `aivax://query-collection`, if somebody can.
    pub account: Option<QueryAccount>,
}

/// A source that imports into a registry.
pub struct Source {
    config: Config,
    /// Names it in logs and metrics, and its functions in the registry: place and host, as a path can be secret.
    label: Arc<str>,
    client: Client,
    guarded: Client,
    allowed: Allowed,
    nonce: Option<Arc<Minted>>,
    metrics: Metrics,
}

#[derive(Deserialize)]
struct Listing {
    functions: Vec<Value>,
}

impl Source {
    /// `place` is where it stands in the config.
    pub fn new(place: usize, config: Config, metrics: Metrics) -> Result<Self, String> {
        let host = config.url.split('/').nth(2).unwrap_or_default();
        let allowed = Allowed::new(config.allow_hosts.iter().cloned());
        let client = |made: Result<Client, _>| made.map_err(|_| "cannot make an HTTP client".to_owned());
        Ok(Self {
            label: format!("{place}:{host}").into(),
            client: client(crate::http::client())?,
            guarded: client(guard::client(&allowed))?,
            nonce: config.hook_key.clone().map(|key| Arc::new(Minted::new(key))),
            allowed,
            config,
            metrics,
        })
    }

    /// Imports now and whenever the listing's time is up, until `stop`. While the source fails, what it gave last stays.
    pub async fn run(self, live: Arc<Live>, stop: CancellationToken) {
        loop {
            let wait = match self.refresh(&live).await {
                Ok(count) => {
                    tracing::debug!(source = %self.label, functions = count, "functions imported");
                    self.config.ttl
                }
                Err(reason) => {
                    tracing::warn!(source = %self.label, reason, "a function source failed: keeping what it gave last");
                    self.config.ttl.min(FETCH_AGAIN)
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Fetches the listing once and imports what it defines; how many functions that are.
    pub async fn refresh(&self, live: &Live) -> Result<usize, String> {
        let fetched = tokio::time::timeout(FETCH_TIMEOUT, self.fetch()).await;
        let definitions =
            fetched.unwrap_or_else(|_| Err("it did not answer in time".to_owned())).inspect_err(|_| {
                self.metrics.function_source(&self.label, "failed");
            })?;
        self.metrics.function_source(&self.label, "fetched");
        let mut seen = HashSet::new();
        let mut functions = Vec::new();
        for (place, definition) in definitions.into_iter().enumerate() {
            match self.function(definition) {
                Ok(function) if !seen.insert(function.name.clone()) => self.refuse(place, "its name comes twice"),
                Ok(function) => functions.push(function),
                Err(why) => self.refuse(place, &why),
            }
        }
        let count = functions.len();
        let clashes = live.import(&self.label, functions);
        for name in &clashes {
            tracing::warn!(source = %self.label, function = name, "a function of a source is refused: its name is taken");
            self.metrics.function_source(&self.label, "refused");
        }
        Ok(count - clashes.len())
    }

    fn refuse(&self, place: usize, why: &str) {
        tracing::warn!(source = %self.label, place, why, "a function of a source is refused");
        self.metrics.function_source(&self.label, "refused");
    }

    async fn fetch(&self) -> Result<Vec<Value>, String> {
        let mut request = self.client.get(&self.config.url);
        for (name, value) in &self.config.headers {
            request = request.header(name, value.expose_secret());
        }
        if let Some(nonce) = &self.nonce {
            request = request.header(nonce::HEADER, nonce.get().await.ok_or("no nonce could be made")?);
        }
        let response = request.send().await.map_err(|e| describe(&e))?;
        if !response.status().is_success() {
            return Err(format!("it answered {}", response.status().as_u16()));
        }
        let body = read_capped(response, MAX_LISTING).await.map_err(|e| e.to_string())?;
        let listing: Listing =
            serde_json::from_slice(&body).map_err(|_| "its answer is no object with a list of functions".to_owned())?;
        match listing.functions.len() {
            0..=MAX_FUNCTIONS => Ok(listing.functions),
            count => Err(format!("it lists {count} functions, more than {MAX_FUNCTIONS}")),
        }
    }

    fn function(&self, definition: Value) -> Result<Function, String> {
        let definition: Definition = serde_json::from_value(definition)
            .map_err(|_| "it is no object with name, description, callbackUrl and contentFormat".to_owned())?;
        if !is_name(&definition.name) {
            return Err("its name must be 1 to 64 letters, digits, dashes, underscores or dollars".to_owned());
        }
        if definition.description.len() > MAX_DESCRIPTION {
            return Err("its description is too long".to_owned());
        }
        let is_search = definition.callback_url.starts_with("aivax:");
        let parameters = parameters(definition.content_format.as_ref(), is_search)?;
        let handler = match is_search {
            true => self.search(&definition),
            false => self.callback(&definition)?,
        };
        Ok(Function {
            schema: Schema::compile(&parameters)
                .map_err(|(_, what)| format!("its contentFormat is no JSON Schema: {what}"))?,
            name: definition.name,
            description: definition.description,
            parameters,
            handler,
            if_interrupted: IfInterrupted::Rerun,
            retry: self.config.retry.clone(),
            limits: Limits::new(limits::Config::default(), Instant::now()),
            require_metadata: Vec::new(),
            allow: None,
            approval: None,
            platforms: self.config.platforms.clone(),
            dedupe: None,
            redact: Vec::new(),
            pool: self.config.pool.clone(),
            source: Some(self.label.clone()),
        })
    }

    /// A URL that must not be connected to makes a function that fails: its calls are answered, and seen.
    fn callback(&self, definition: &Definition) -> Result<Arc<dyn Handler>, String> {
        let url = match guard::check(&definition.callback_url, &self.allowed) {
            Ok(url) => url,
            Err(why) => {
                tracing::warn!(source = %self.label, function = definition.name, why, "a callbackUrl is not allowed: calls of this function fail");
                return Ok(Arc::new(Forbidden { why: format!("the callbackUrl is not allowed: {why}") }));
            }
        };
        let config = HttpConfig {
            url: url.into(),
            headers: headers(definition.headers.as_ref())?,
            timeout: self.config.timeout,
            body: Body::Protocol,
            response: Response::Text,
            max_response: MAX_RESPONSE,
            sign: Sign::default(),
        };
        handler::imported(&config, &self.guarded, self.nonce.clone()).map_err(|(path, what)| format!("{path} {what}"))
    }

    fn search(&self, definition: &Definition) -> Arc<dyn Handler> {
        let built = query(&definition.callback_url)
            .ok_or("the callbackUrl is no aivax://query-collection with a collection-id")
            .and_then(|query| {
                let account =
                    self.config.account.clone().ok_or("no platform of type aivax with an api_key is named")?;
                Ok(handler::Config::QueryCollection(QueryCollectionConfig {
                    timeout: self.config.timeout,
                    account,
                    ..query
                }))
            })
            .and_then(|config| {
                handler::build(&config, &self.client, &Servers::default()).map_err(|_| "the account cannot be asked")
            });
        built.unwrap_or_else(|why| {
            tracing::warn!(source = %self.label, function = definition.name, why, "calls of a search fail");
            Arc::new(Forbidden { why: why.to_owned() })
        })
    }
}

/// As the config finds it: `function_sources[0]`.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = self.label.split(':').next().unwrap_or_default();
        write!(f, "function_sources[{place}]")
    }
}

/// Answers every call with a failure.
struct Forbidden {
    why: String,
}

#[async_trait]
impl Handler for Forbidden {
    async fn call(&self, _call: &Call) -> Result<Output, Error> {
        Err(Error::fatal(self.why.as_str()))
    }
}

#[cfg(test)]
mod tests;
