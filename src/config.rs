//! The config file: one YAML document, every problem reported at once with its path.

mod approval;
mod expand;
mod functions;
mod intake;
mod limits;
mod mcp_servers;
mod path;
mod platforms;
mod reader;
mod sections;
mod sources;
pub(crate) mod units;
mod yaml;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    io::ErrorKind,
    path::Path,
};

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use self::reader::{Item, Problems};
use crate::{admin, approval::By, function, ingress, mcp, platform, queue, retry, store, telemetry, worker};

/// Every key with its default and what it is for: what `actiond init` writes.
pub const EXAMPLE: &str = include_str!("config/example.yaml");

/// The whole file, read and checked.
#[derive(Clone, Debug)]
pub struct Config {
    pub ingress: ingress::Config,
    pub admin: admin::Config,
    pub queue: queue::Config,
    pub store: store::Config,
    pub worker: worker::Config,
    pub sweep: worker::sweep::Config,
    pub telemetry: telemetry::Config,
    pub platforms: Vec<platform::Config>,
    pub functions: Vec<function::Config>,
    pub function_sources: Vec<function::source::Config>,
    pub mcp_servers: Vec<mcp::Config>,
}

/// A config that can be run with, and what its operator should know about it, one line each.
#[derive(Clone, Debug)]
pub struct Loaded {
    pub config: Config,
    pub warnings: Vec<String>,
    pub digest: Digest,
}

/// What tells whether a file has changed, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Digest {
    /// Of the text as it stands in the file.
    pub text: [u8; 32],
    /// Of each section, with what comes from the environment and other files.
    sections: BTreeMap<String, [u8; 32]>,
}

impl Digest {
    fn of(text: &str, value: &Value) -> Self {
        let sections = value.as_object().into_iter().flatten();
        let sections = sections.map(|(key, value)| (key.clone(), hash(value.to_string().as_bytes()))).collect();
        Self { text: hash(text.as_bytes()), sections }
    }

    /// The sections that are not as they were, those that are gone included.
    pub fn changed<'a>(&'a self, before: &'a Self) -> Vec<&'a str> {
        let of = |section: &String| (self.sections.get(section), before.sections.get(section));
        let all: BTreeSet<&String> = self.sections.keys().chain(before.sections.keys()).collect();
        all.into_iter().filter(|section| of(section).0 != of(section).1).map(String::as_str).collect()
    }
}

pub(crate) fn hash(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Why a file cannot be run with. Displays as a header and a line for each problem; no line shows a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Errors {
    file: String,
    problems: Vec<String>,
}

impl Errors {
    /// One line each: `functions[2].handler.url: …`.
    pub fn problems(&self) -> &[String] {
        &self.problems
    }
}

impl fmt::Display for Errors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.problems.len() == 1 { "" } else { "s" };
        write!(f, "{}: {} problem{plural}", self.file, self.problems.len())?;
        self.problems.iter().try_for_each(|problem| write!(f, "\n  {problem}"))
    }
}

impl std::error::Error for Errors {}

/// Reads a file, with the environment of the process.
pub fn load(path: &Path) -> Result<Loaded, Errors> {
    let errors = |problems| Errors { file: path.display().to_string(), problems };
    let text = fs::read_to_string(path).map_err(|error| {
        errors(vec![match error.kind() {
            ErrorKind::NotFound => format!("no {} here; run actiond init to write one", path.display()),
            ErrorKind::InvalidData => "is not UTF-8 text".into(),
            _ => format!("cannot be read: {error}"),
        }])
    })?;
    read(&text, &|name| std::env::var(name).ok()).map_err(errors)
}

/// Reads the text of a file, with `env` as the environment.
pub fn parse(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Loaded, Errors> {
    read(text, env).map_err(|problems| Errors { file: "actiond.yaml".into(), problems })
}

fn read(text: &str, env: &dyn Fn(&str) -> Option<String>) -> Result<Loaded, Vec<String>> {
    let mut value = yaml::parse(text).map_err(|error| vec![error])?;
    let problems = Problems::new(expand::expand(&mut value, env));
    let config = config(&value, &problems);
    let (errors, warnings) = problems.finish();
    let digest = Digest::of(text, &value);
    if errors.is_empty() { Ok(Loaded { config, warnings, digest }) } else { Err(errors) }
}

fn config(value: &Value, problems: &Problems) -> Config {
    let root = Item::root(value, problems).section();
    let ingress_item = root.key("ingress");
    let ingress = sections::ingress(&ingress_item);
    let admin = sections::admin(&root.key("admin"));
    let (queue_item, store_item) = (root.key("queue"), root.key("store"));
    let queue = sections::queue(&queue_item);
    let store = sections::store(&store_item);
    match (&queue, sections::scheme(&store)) {
        (queue::Config::Embedded, "postgres" | "postgresql") => {
            queue_item.error_at(".type", "embedded needs a sqlite:// store")
        }
        (queue::Config::RabbitMq(_), "sqlite") => {
            store_item.warn("sqlite:// keeps results on one machine: all workers must run there");
        }
        _ => {}
    }
    let worker = sections::worker(&root.key("worker"));
    let sweep = sections::sweep(&root.key("sweep"));
    if store.retention.is_some_and(|kept| kept < sweep.window) {
        store_item.error_at(".retention", "must not be shorter than sweep.window");
    }
    let retry = sections::retry(&root.key("retry"), &retry::Policy::default());
    let telemetry = sections::telemetry(&root.key("telemetry"));
    let platforms = platforms::platforms(&root.key("platforms"));
    if ingress.public_url.is_none()
        && let Some(aivax) = platforms.iter().find(|p| matches!(p.kind, platform::Kind::Aivax(_)))
    {
        let what = format!("required; it is where platform {} is told to call", aivax.name);
        ingress_item.error_at(".public_url", &what);
    }
    let mcp_servers = mcp_servers::servers(&root.key("mcp_servers"), &retry, &worker.pools);
    let pools = &worker.pools;
    let functions = functions::functions(&root.key("functions"), &retry, &platforms, &mcp_servers, pools);
    if ingress.public_url.is_none()
        && let Some(linked) = functions.iter().find(|f| f.approval.as_ref().is_some_and(|a| a.by == By::Link))
    {
        let what = format!("required; it is where the approval links of function {} lead", linked.name);
        ingress_item.error_at(".public_url", &what);
    }
    let function_sources = sources::sources(&root.key("function_sources"), &retry, &platforms, pools);
    root.finish();
    Config {
        ingress,
        admin,
        queue,
        store,
        worker,
        sweep,
        telemetry,
        platforms,
        functions,
        function_sources,
        mcp_servers,
    }
}

#[cfg(test)]
mod tests;
