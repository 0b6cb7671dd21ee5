//! The composition root: the only file that names concrete types. Builds the parts, starts them in order, ends them in order.

use std::{collections::HashMap, fs::File, sync::Arc, time::Duration};

use anyhow::{Context, anyhow, bail};
use secrecy::ExposeSecret;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{
    admin::{self, Readiness},
    config::Config,
    function::{self, Function, Live, Registry},
    handler, http,
    ingress::{self, Ingress, signature::Verifier},
    metrics::Metrics,
    platform::{self, AgentsApi, Platform},
    queue::{self, DeadLetters, Embedded, RabbitMq, RabbitMqDead, SharedQueue},
    schema::Schema,
    store::{self, Database, Ledger, Postgres, Sqlite, Store},
    worker::{Account, Worker},
};

/// How often the store is asked whether it is there.
const STORE_CHECK: Duration = Duration::from_secs(2);
/// So many of these pass between two counts of what is dead.
const DEAD_COUNT: usize = 7;

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
    worker: Option<Arc<Worker>>,
    force: CancellationToken,
    /// Held as long as the process uses the embedded queue.
    _owned: Option<File>,
}

impl App {
    /// Builds every part. A broker or PostgreSQL that is away is no error: they are waited for while running.
    pub async fn build(config: Config, role: Role, metrics: Metrics) -> anyhow::Result<Self> {
        if matches!(config.queue, queue::Config::Embedded) && role != Role::All {
            bail!("queue.type: embedded works within one process: use --role all, or queue.type: rabbitmq");
        }
        let readiness = Readiness::new();
        let force = CancellationToken::new();
        let needs_store = role != Role::Ingress || matches!(config.queue, queue::Config::Embedded);
        let store = if needs_store { Some(open(&config.store).await?) } else { None };
        let (queue, owned) = queue(&config, store.as_ref(), &metrics).await?;
        let watched = queue.clone();
        readiness.register("queue", Box::new(move || watched.ready()));

        let ingress = match role {
            Role::Worker => None,
            Role::All | Role::Ingress => {
                let verifiers = verifiers(&config.platforms)?;
                Some(Ingress::new(verifiers, queue.clone(), metrics.clone(), config.ingress.max_body))
            }
        };
        let worker = match (role, store) {
            (Role::Ingress, _) | (_, None) => None,
            (_, Some(opened)) => {
                let ledger = Ledger::new(opened.store, config.store.timeout);
                let client = http::client().context("cannot make an HTTP client")?;
                let accounts = accounts(&config.platforms, &client)?;
                for account in accounts.values() {
                    let account = account.clone();
                    readiness.register("platform", Box::new(move || account.ready()));
                }
                Some(Arc::new(Worker {
                    config: config.worker.clone(),
                    sweep: config.sweep.clone(),
                    queue: queue.clone(),
                    ledger,
                    accounts,
                    functions: Arc::new(Live::new(functions(&config.functions, &client)?)),
                    metrics: metrics.clone(),
                    force: force.clone(),
                }))
            }
        };
        Ok(Self { config, metrics, readiness, queue, ingress, worker, force, _owned: owned })
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
        let admin = admin::router(self.readiness.clone(), self.metrics.clone());
        let closing = ended.clone().cancelled_owned();
        let admin = tokio::spawn(axum::serve(listeners.admin, admin).with_graceful_shutdown(closing).into_future());

        let draining = self.readiness.clone();
        let stopping = stop.clone();
        let ingress = match (self.ingress, listeners.ingress) {
            (Some(ingress), Some(listener)) => {
                let signal = stopping.clone().cancelled_owned();
                Some(tokio::spawn(ingress::serve(listener, ingress::router(ingress), signal)))
            }
            _ => None,
        };
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
        self.queue.close().await;
        ended.cancel();
        let _ = tokio::time::timeout(Duration::from_secs(1), admin).await;
        failure.map_or(Ok(()), Err)
    }
}

/// Resolves when a task that should last until `stop` ends before.
async fn unexpected(task: Option<tokio::task::AbortHandle>, stop: CancellationToken) -> anyhow::Error {
    let Some(task) = task else { return std::future::pending().await };
    let mut look = tokio::time::interval(Duration::from_secs(1));
    while !task.is_finished() || stop.is_cancelled() {
        look.tick().await;
    }
    anyhow!("the ingress listener ended by itself")
}

/// Prepares the store, however long it is away, then works until `stop`.
async fn work(worker: Arc<Worker>, readiness: Readiness, stop: CancellationToken) {
    let away = Arc::new(std::sync::Mutex::new(Some("not reached yet".to_owned())));
    let shown = away.clone();
    readiness.register(
        "store",
        Box::new(move || match &*shown.lock().unwrap_or_else(std::sync::PoisonError::into_inner) {
            Some(reason) => Err(reason.clone()),
            None => Ok(()),
        }),
    );
    let note = move |state: Result<(), store::Error>| {
        *away.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = state.err().map(|e| e.to_string());
    };
    loop {
        match worker.ledger.migrate().await {
            Ok(()) => break,
            Err(error) => {
                tracing::error!(%error, "the store is away: trying again");
                note(Err(error));
            }
        }
        tokio::select! {
            () = tokio::time::sleep(STORE_CHECK) => {}
            () = stop.cancelled() => return,
        }
    }
    note(Ok(()));
    let watched = worker.clone();
    let watch = tokio::spawn(async move {
        for look in 0_usize.. {
            tokio::time::sleep(STORE_CHECK).await;
            let oldest = watched.ledger.oldest_pending().await;
            if let Ok(oldest) = &oldest {
                watched.metrics.oldest_pending(oldest.unwrap_or_default().as_secs_f64());
            }
            note(oldest.map(drop));
            if look.is_multiple_of(DEAD_COUNT)
                && let Some(count) = watched.queue.count_dead().await
            {
                watched.metrics.dead(count);
            }
        }
    });
    worker.run(stop).await;
    watch.abort();
}

/// A store, and its database where that can hold a queue too.
pub struct Opened {
    pub store: Arc<dyn Store>,
    database: Option<Database>,
}

/// Opens the configured store. SQLite is migrated here; PostgreSQL may be away, so that is left to who uses it.
pub async fn open(config: &store::Config) -> anyhow::Result<Opened> {
    if !config.url.expose_secret().starts_with("sqlite:") {
        let store = Postgres::new(config).context("store.url")?;
        return Ok(Opened { store: Arc::new(store), database: None });
    }
    let database = Database::open(config).await.context("store.url: cannot open the SQLite file")?;
    let store = Sqlite::new(database.clone());
    store.migrate().await.context("store.url: cannot migrate the SQLite file")?;
    Ok(Opened { store: Arc::new(store), database: Some(database) })
}

/// Opens a store that is there already: a command that only looks should not make an empty one.
pub async fn open_existing(config: &store::Config) -> anyhow::Result<Opened> {
    if let Some(file) = Database::missing(config) {
        bail!("store.url: there is no file {}: nothing has run with this config yet", file.display());
    }
    open(config).await
}

/// What was put aside as dead, for an operator's command beside the running program.
pub fn dead_letters(config: &queue::Config, opened: &Opened) -> anyhow::Result<Arc<dyn DeadLetters>> {
    match (config, &opened.database) {
        (queue::Config::RabbitMq(rabbitmq), _) => Ok(Arc::new(RabbitMqDead::new(rabbitmq.clone()))),
        (queue::Config::Embedded, Some(database)) => Ok(Arc::new(Embedded::new(database.clone(), Metrics::new()))),
        (queue::Config::Embedded, None) => bail!("queue.type: embedded needs a sqlite:// store"),
    }
}

async fn queue(
    config: &Config,
    opened: Option<&Opened>,
    metrics: &Metrics,
) -> anyhow::Result<(SharedQueue, Option<File>)> {
    match (&config.queue, opened.and_then(|o| o.database.as_ref())) {
        (queue::Config::RabbitMq(rabbitmq), _) => {
            Ok((Arc::new(RabbitMq::new(rabbitmq.clone(), metrics.clone())), None))
        }
        (queue::Config::Embedded, Some(database)) => {
            let owned = database.own().context("queue.type: embedded")?;
            let queue = Embedded::new(database.clone(), metrics.clone());
            queue.recover().await.context("queue.type: embedded")?;
            Ok((Arc::new(queue), Some(owned)))
        }
        (queue::Config::Embedded, None) => bail!("queue.type: embedded needs a sqlite:// store"),
    }
}

fn verifiers(platforms: &[platform::Config]) -> anyhow::Result<HashMap<String, Verifier>> {
    platforms
        .iter()
        .map(|platform| match Verifier::new(&platform.webhook) {
            Ok(verifier) => Ok((platform.name.clone(), verifier)),
            Err(problems) => {
                let reasons: Vec<String> =
                    problems.into_iter().map(|(at, why)| format!("secrets[{at}]: {why}")).collect();
                bail!("platform {}: webhook.{}", platform.name, reasons.join("; "))
            }
        })
        .collect()
}

fn accounts(platforms: &[platform::Config], client: &http::Client) -> anyhow::Result<HashMap<Arc<str>, Arc<Account>>> {
    platforms
        .iter()
        .map(|config| {
            let name: Arc<str> = config.name.as_str().into();
            let account = Account::new(name.clone(), adapter(config, client)?, answer_within(config.call_deadline));
            Ok((name, Arc::new(account)))
        })
        .collect()
}

/// The agent hears of a call that took too long before the platform gives up on it.
fn answer_within(deadline: Duration) -> Duration {
    deadline - (deadline / 10).min(Duration::from_secs(60))
}

/// The adapter that speaks to a platform.
pub fn adapter(config: &platform::Config, client: &http::Client) -> anyhow::Result<Arc<dyn Platform>> {
    match &config.kind {
        platform::Kind::AgentsApi { base_url, api_key } => {
            let adapter = AgentsApi::new(&config.name, base_url, api_key, client.clone())
                .map_err(|e| anyhow!("platform {}: {e}", config.name))?;
            Ok(Arc::new(adapter))
        }
    }
}

/// Every registered function with its schema compiled and its handler built.
pub fn functions(configs: &[function::Config], client: &http::Client) -> anyhow::Result<Registry> {
    let functions = configs.iter().map(|config| {
        let wrong = |(path, why): (String, String)| anyhow!("function {}: {path}: {why}", config.name);
        Ok(Function {
            name: config.name.clone(),
            schema: Schema::compile(&config.parameters).map_err(wrong)?,
            handler: handler::build(&config.handler, client).map_err(wrong)?,
            if_interrupted: config.if_interrupted,
            retry: config.retry.clone(),
            slots: config.concurrency.map(|slots| Arc::new(tokio::sync::Semaphore::new(slots))),
            platforms: config.platforms.clone(),
        })
    });
    Ok(Registry::new(functions.collect::<anyhow::Result<Vec<_>>>()?))
}
