//! The store and the queue that a config names.

use std::{fs::File, sync::Arc};

use anyhow::{Context, bail};
use secrecy::ExposeSecret;

use crate::{
    config::Config,
    metrics::Metrics,
    queue::{self, DeadLetters, Embedded, Pools, RabbitMq, RabbitMqDead, SharedQueue},
    store::{self, Database, Postgres, Sqlite, Store},
};

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

/// The queue, and what makes this process the only one that uses it where that is needed.
pub(super) async fn queue(
    config: &Config,
    opened: Option<&Opened>,
    pool: Option<&str>,
    metrics: &Metrics,
) -> anyhow::Result<(SharedQueue, Option<File>)> {
    match (&config.queue, opened.and_then(|o| o.database.as_ref())) {
        (queue::Config::RabbitMq(rabbitmq), _) => {
            let pools = Pools { names: config.worker.pools.clone(), own: pool.map(ToOwned::to_owned) };
            Ok((Arc::new(RabbitMq::with_pools(rabbitmq.clone(), &pools, metrics.clone())), None))
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
