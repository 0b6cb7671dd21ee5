//! The composition root: the only file that names concrete types. Builds the parts, starts them in order, ends them in order.

mod builder;
mod desk;
mod platforms;
mod reload;
mod stores;
mod work;

use std::{
    fs::File,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use tokio::{net::TcpListener, sync::Notify};
use tokio_util::sync::CancellationToken;

pub use self::{
    builder::Builder,
    platforms::{accounts, adapter},
    stores::{Opened, dead_letters, open, open_existing},
};
use self::{
    builder::Code,
    platforms::{Watchable, verifiers, watchable},
    reload::Reload,
    stores::queue,
    work::{STORE_CHECK, migrate, unexpected, work},
};
use crate::{
    admin::{self, Readiness},
    api,
    approval::notify::Links,
    callback::{self, Callbacks},
    config::{self, Config},
    dashboard,
    function::{self, Live, Registry, Serves, source::Source},
    handler::Call,
    http,
    ingress::{self, Ingress, approvals::Approvals},
    later::{Addresses, Results},
    mcp::{Importer, Servers},
    metrics::Metrics,
    platform, process,
    queue::{self, SharedQueue},
    session::ToolResult,
    store::Ledger,
    watch::{self, Watches},
    worker::Worker,
};

/// Which half of the path this process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Role {
    /// Ingress and worker in one process
    All,
    /// Only takes webhooks
    Ingress,
    /// Only answers calls
    Worker,
}

/// Bound sockets: ports are taken before anything starts.
pub struct Listeners {
    /// Needed by every role but `worker`.
    pub ingress: Option<TcpListener>,
    pub admin: TcpListener,
}

impl Listeners {
    /// Binds what the role needs.
    pub async fn bind(config: &Config, role: Role) -> anyhow::Result<Self> {
        let bind = async |what, address| {
            TcpListener::bind(address).await.with_context(|| format!("{what}.listen: cannot listen on {address}"))
        };
        let ingress = match role {
            Role::Worker => None,
            Role::All | Role::Ingress => Some(bind("ingress", config.ingress.listen).await?),
        };
        Ok(Self { ingress, admin: bind("admin", config.admin.listen).await? })
    }
}

/// The program, built and not yet running.
pub struct App {
    config: Config,
    metrics: Metrics,
    readiness: Readiness,
    queue: SharedQueue,
    ingress: Option<Ingress>,
    results: Option<Results>,
    approvals: Option<Approvals>,
    callbacks: Option<Callbacks>,
    watchable: Watchable,
    worker: Option<Arc<Worker>>,
    ledger: Option<Ledger>,
    desk: Arc<api::Desk>,
    functions: Arc<Live>,
    /// Where functions are imported from.
    sources: Vec<Source>,
    servers: Servers,
    importer: Option<Importer>,
    code: Code,
    client: http::Client,
    reload: Option<Reload>,
    force: CancellationToken,
    /// Held as long as the process uses the embedded queue.
    _owned: Option<File>,
}

impl App {
    /// A program of this config, to which handlers in Rust can be added.
    pub fn builder(config: Config) -> Builder {
        Builder::new(config)
    }

    /// A program that is all in its config. See [`Builder::build`].
    pub async fn build(config: Config, role: Role, metrics: Metrics) -> anyhow::Result<Self> {
        Self::builder(config).build(role, metrics).await
    }

    async fn assemble(
        config: Config,
        code: Code,
        role: Role,
        pool: Option<&str>,
        metrics: Metrics,
    ) -> anyhow::Result<Self> {
        let serves = serves(&config, role, pool)?;
        if matches!(config.queue, queue::Config::Embedded) && role != Role::All {
            bail!("queue.type: embedded works within one process: use --role all, or queue.type: rabbitmq");
        }
        let readiness = Readiness::new();
        let force = CancellationToken::new();
        // AIVAX is answered where it calls.
        let is_called =
            role != Role::Worker && config.platforms.iter().any(|p| matches!(p.kind, platform::Kind::Aivax(_)));
        // The ingress needs the store for that, and for results that come later.
        let public_url = config.ingress.public_url.as_deref();
        let needs_store = role != Role::Ingress || public_url.is_some();
        let store = if needs_store { Some(open(&config.store).await?) } else { None };
        let (queue, owned) = queue(&config, store.as_ref(), pool, &metrics).await?;
        let watched = queue.clone();
        readiness.register("queue", Box::new(move || watched.ready()));

        let ledger = store.as_ref().map(|opened| Ledger::new(opened.store.clone(), config.store.timeout));
        let client = http::client().context("cannot make an HTTP client")?;
        let accounts = accounts(&config.platforms, &client)?;
        let servers = servers(&config, &client)?;
        let registry = code.registry(&config.functions, &client, &servers, Instant::now())?;
        let functions = Arc::new(Live::serving(registry, serves));
        let desk = desk::desk(desk::Parts {
            config: &config,
            role,
            store: store.as_ref(),
            accounts: accounts.clone(),
            functions: &functions,
            queue: &queue,
            metrics: &metrics,
            readiness: &readiness,
        })?;
        let addresses = ledger.clone().zip(public_url).map(|(ledger, url)| Arc::new(Addresses::new(ledger, url)));
        let results = addresses.clone().zip(ledger.clone()).filter(|_| role != Role::Worker);
        let results = results.map(|(addresses, ledger)| Results {
            addresses,
            ledger,
            platforms: accounts.iter().map(|(name, account)| (name.clone(), account.platform.clone())).collect(),
            metrics: metrics.clone(),
        });
        let watchable = watchable(&config.platforms, &accounts);
        let approvals = match (&ledger, public_url) {
            (Some(ledger), Some(url)) if role != Role::Worker => Some(Approvals {
                links: Links::new(ledger.clone(), url),
                ledger: ledger.clone(),
                functions: functions.clone(),
            }),
            _ => None,
        };
        let runs_functions = role != Role::Ingress || is_called;
        let sources = if runs_functions { sources(&config, &metrics)? } else { Vec::new() };
        let importer = runs_functions.then(|| importer(&servers, &client, &functions, &metrics));
        functions.expect(servers.expected());
        let callbacks = match &ledger {
            Some(ledger) if is_called => {
                let url = public_url.context("ingress.public_url: required by type aivax")?;
                let (ledger, metrics) = (ledger.clone(), metrics.clone());
                Callbacks::new(&config.platforms, url, ledger, functions.clone(), metrics, config.ingress.max_body)
            }
            _ => None,
        };
        let ingress = match role {
            Role::Worker => None,
            Role::All | Role::Ingress => {
                let verifiers = verifiers(&config.platforms)?;
                Some(Ingress::new(verifiers, queue.clone(), metrics.clone(), config.ingress.max_body))
            }
        };
        let worker = match (role, &ledger) {
            (Role::Ingress, _) | (_, None) => None,
            (_, Some(ledger)) => {
                for account in accounts.values() {
                    let account = account.clone();
                    readiness.register("platform", Box::new(move || account.ready()));
                }
                Some(Arc::new(Worker {
                    name: process::name(),
                    config: config.worker.clone(),
                    sweep: config.sweep.clone(),
                    queue: queue.clone(),
                    ledger: ledger.clone(),
                    accounts,
                    functions: functions.clone(),
                    addresses,
                    links: public_url.map(|url| Links::new(ledger.clone(), url)),
                    retention: config.store.retention,
                    asked: Notify::new(),
                    metrics: metrics.clone(),
                    force: force.clone(),
                }))
            }
        };
        Ok(Self {
            config,
            metrics,
            readiness,
            queue,
            ingress,
            results,
            approvals,
            callbacks,
            watchable,
            worker,
            ledger,
            desk,
            functions,
            sources,
            servers,
            importer,
            code,
            client,
            reload: None,
            force,
            _owned: owned,
        })
    }

    /// Takes over changed functions of that file while it runs, at SIGHUP and when the file changes. `digest` is what it
    /// was when it was read.
    #[must_use]
    pub fn reloading(mut self, path: PathBuf, digest: config::Digest) -> Self {
        self.reload = Some(Reload {
            path,
            seen: digest,
            code: self.code.clone(),
            client: self.client.clone(),
            servers: self.servers.clone(),
            functions: self.functions.clone(),
            metrics: self.metrics.clone(),
            pools: self.config.worker.pools.clone(),
        });
        self
    }

    /// The functions that count now.
    pub fn functions(&self) -> Arc<Live> {
        self.functions.clone()
    }

    /// Validates arguments and runs one function here and now, as `actiond call` does; nothing is stored or tried again.
    pub async fn try_call(&self, function: &str, arguments: &str) -> anyhow::Result<ToolResult> {
        let function = self.functions.load().by_name(function).cloned();
        let function = function.ok_or_else(|| anyhow!("there is no such function"))?;
        Ok(function.run_once(arguments, Call::trial("trial", &function.name)).await?)
    }

    /// Cancelled when the grace period is to be cut short.
    pub fn force(&self) -> CancellationToken {
        self.force.clone()
    }

    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Runs until `stop`, then ends in order: no new webhooks, no new deliveries, what is held finishes within the grace
    /// period, leases and deliveries go back, acknowledgements are flushed, the broker's connection closes last.
    pub async fn run(self, listeners: Listeners, stop: CancellationToken) -> anyhow::Result<()> {
        let ended = CancellationToken::new();
        let watches = Watches::new(self.watchable, self.queue.clone(), self.metrics.clone(), stop.clone());
        let admin = admin::router(self.readiness.clone(), self.metrics.clone());
        let admin = admin.merge(api::guarded(watch::router(watches), self.desk.clone()));
        let admin = admin.merge(api::router(self.desk.clone())).merge(dashboard::router(self.desk));
        let closing = ended.clone().cancelled_owned();
        let admin = tokio::spawn(axum::serve(listeners.admin, admin).with_graceful_shutdown(closing).into_future());

        let draining = self.readiness.clone();
        let stopping = stop.clone();
        let ingress = match (self.ingress, listeners.ingress) {
            (Some(ingress), Some(listener)) => {
                let signal = stopping.clone().cancelled_owned();
                let mut router = ingress::router(ingress);
                if let Some(results) = self.results {
                    router = router.merge(ingress::results::router(results));
                }
                if let Some(approvals) = self.approvals {
                    router = router.merge(ingress::approvals::router(approvals));
                }
                if let Some(callbacks) = self.callbacks {
                    router = router.merge(callback::router(callbacks));
                }
                Some(tokio::spawn(ingress::serve(listener, router, signal)))
            }
            _ => None,
        };
        if let Some(reload) = self.reload {
            tokio::spawn(reload.run(stop.clone()));
        }
        for source in self.sources {
            tokio::spawn(source.run(self.functions.clone(), stop.clone()));
        }
        if let Some(importer) = self.importer {
            tokio::spawn(importer.run(stop.clone()));
        }
        if let (None, Some(ledger)) = (&self.worker, self.ledger) {
            // Webhooks need no store, so its state is not this process' readiness: callbacks and results are told 503.
            let (stop, functions, metrics) = (stop.clone(), self.functions.clone(), self.metrics.clone());
            tokio::spawn(async move {
                migrate(&ledger, &stop, |_| ()).await;
                while !stop.is_cancelled() {
                    desk::learn_pauses(&ledger, &functions, &metrics, &stop).await;
                    tokio::time::sleep(STORE_CHECK).await;
                }
            });
        }
        let worker = self.worker.map(|worker| tokio::spawn(work(worker, self.readiness.clone(), stop.clone())));
        let failure = tokio::select! {
            () = stop.cancelled() => None,
            failure = unexpected(ingress.as_ref().map(tokio::task::JoinHandle::abort_handle), stop.clone()) => Some(failure),
        };
        draining.set_draining();
        stop.cancel();
        if let Some(ingress) = ingress
            && tokio::time::timeout(self.config.worker.grace_period, ingress).await.is_err()
        {
            tracing::warn!("some webhook requests did not end within the grace period");
        }
        if let Some(worker) = worker {
            worker.await.context("the worker panicked")?;
        }
        self.servers.close().await;
        self.queue.close().await;
        ended.cancel();
        let _ = tokio::time::timeout(Duration::from_secs(1), admin).await;
        failure.map_or(Ok(()), Err)
    }
}

/// Whose functions a process of that role and pool runs.
fn serves(config: &Config, role: Role, pool: Option<&str>) -> anyhow::Result<Serves> {
    match (pool, role) {
        (Some(_), Role::Ingress) => bail!("--pool names a pool of workers, and --role ingress has no worker"),
        (Some(_), _) if matches!(config.queue, queue::Config::Embedded) => {
            bail!("--pool needs queue.type: rabbitmq; with embedded, one process runs every function")
        }
        (Some(pool), _) if !config.worker.pools.iter().any(|name| name == pool) => {
            bail!("--pool {pool}: must be the name of a pool in worker.pools")
        }
        (Some(pool), _) => Ok(Serves::Pool(pool.into())),
        (None, Role::All) => Ok(Serves::Everything),
        (None, Role::Ingress | Role::Worker) => Ok(Serves::Unpinned),
    }
}

/// What imports the functions of `function_sources`.
pub fn sources(config: &Config, metrics: &Metrics) -> anyhow::Result<Vec<Source>> {
    let source = |(place, source): (usize, &function::source::Config)| {
        Source::new(place, source.clone(), metrics.clone()).map_err(|why| anyhow!("function_sources[{place}]: {why}"))
    };
    config.function_sources.iter().enumerate().map(source).collect()
}

/// The MCP servers of a config; none is connected to yet.
pub fn servers(config: &Config, client: &http::Client) -> anyhow::Result<Servers> {
    Servers::new(&config.mcp_servers, client).map_err(|(path, why)| anyhow!("{path}: {why}"))
}

/// What turns the tools of servers into functions of `live`.
pub fn importer(servers: &Servers, client: &http::Client, live: &Arc<Live>, metrics: &Metrics) -> Importer {
    let build = {
        let (servers, client) = (servers.clone(), client.clone());
        move |config: &function::Config| {
            let built = Code::default().function(config, &client, &servers, Instant::now());
            built.map_err(|error| format!("{error:#}"))
        }
    };
    Importer { servers: servers.clone(), live: live.clone(), build: Box::new(build), metrics: metrics.clone() }
}

/// Every registered function with its schema compiled and its handler built.
pub fn functions(configs: &[function::Config], client: &http::Client, servers: &Servers) -> anyhow::Result<Registry> {
    Code::default().registry(configs, client, servers, Instant::now())
}
