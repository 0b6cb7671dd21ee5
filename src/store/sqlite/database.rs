//! One SQLite file with one writer, which ledger and embedded queue share.

use std::{fs::File, path::PathBuf, str::FromStr};

use futures_util::future::BoxFuture;
use secrecy::ExposeSecret;
use sqlx::{
    Connection, SqliteConnection, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};
use tokio::sync::{mpsc, oneshot};

use crate::store::{Config, Error, Result};

/// Writes that share one commit at most.
const WRITES: usize = 64;

/// Tells a caller how its write ended, after the commit.
type Finish = Box<dyn FnOnce(Option<&Error>) + Send>;
type Write = Box<dyn for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Finish> + Send>;

/// One SQLite file: many readers, one writer. Writes that arrive while a commit runs share the next one.
#[derive(Clone)]
pub struct Database {
    pub(crate) reads: SqlitePool,
    writes: mpsc::Sender<Write>,
    file: PathBuf,
}

impl Database {
    /// Opens or creates the file. A commit is on disk when it returns (`synchronous = FULL`).
    pub async fn open(config: &Config) -> Result<Self> {
        let options = SqliteConnectOptions::from_str(config.url.expose_secret())
            .map_err(|_| Error::new("store.url: not a sqlite:// URL"))?
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(config.timeout);
        let file = options.get_filename().to_owned();
        let writer = SqliteConnection::connect_with(&options).await?;
        let reads = SqlitePoolOptions::new().max_connections(4).acquire_timeout(config.timeout);
        let (writes, waiting) = mpsc::channel(WRITES * 4);
        tokio::spawn(write(writer, waiting));
        Ok(Self { reads: reads.connect_lazy_with(options), writes, file })
    }

    /// The configured SQLite file, where it is not there yet.
    pub fn missing(config: &Config) -> Option<PathBuf> {
        let options = SqliteConnectOptions::from_str(config.url.expose_secret()).ok()?;
        let file = options.get_filename();
        (config.url.expose_secret().starts_with("sqlite:") && !file.exists()).then(|| file.to_owned())
    }

    /// Makes this process the only one that serves the file, as long as the answer is kept.
    pub fn own(&self) -> Result<File> {
        let mut name = self.file.clone().into_os_string();
        name.push(".lock");
        let lock = File::create(&name).map_err(Error::new)?;
        match lock.try_lock() {
            Ok(()) => Ok(lock),
            Err(_) => Err(Error::new(format!("another actiond serves {}", self.file.display()))),
        }
    }

    /// Runs `job` in a transaction with whatever else is waiting, and answers after the commit.
    pub(crate) async fn write<T, F>(&self, job: F) -> Result<T>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T>> + Send + 'static,
    {
        self.write_later(job).await?.await.map_err(|_| Error::new("the database took no write"))?
    }

    /// The same without waiting for the commit: what it returns may be dropped.
    pub(crate) async fn write_later<T, F>(&self, job: F) -> Result<oneshot::Receiver<Result<T>>>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T>> + Send + 'static,
    {
        let (caller, answer) = oneshot::channel();
        let write: Write = Box::new(move |connection| {
            let running = job(connection);
            Box::pin(async move {
                let result = running.await;
                let finish: Finish = Box::new(move |failed| {
                    let _ = caller.send(match failed {
                        Some(error) => Err(error.clone()),
                        None => result,
                    });
                });
                finish
            })
        });
        self.writes.send(write).await.map_err(|_| Error::new("the database is closed"))?;
        Ok(answer)
    }
}

async fn write(mut connection: SqliteConnection, mut waiting: mpsc::Receiver<Write>) {
    let mut jobs = Vec::with_capacity(WRITES);
    while waiting.recv_many(&mut jobs, WRITES).await > 0 {
        if let Err(error) = sqlx::query("BEGIN IMMEDIATE").execute(&mut connection).await {
            tracing::error!(%error, writes = jobs.len(), "the database takes no writes");
            // Their callers hear that nobody answers; run outside of a transaction they could stay half done.
            jobs.clear();
            continue;
        }
        let mut finishes = Vec::with_capacity(jobs.len());
        for job in jobs.drain(..) {
            finishes.push(job(&mut connection).await);
        }
        let failed = sqlx::query("COMMIT").execute(&mut connection).await.err().map(Error::from);
        if failed.is_some() {
            let _ = sqlx::query("ROLLBACK").execute(&mut connection).await;
        }
        for finish in finishes {
            finish(failed.as_ref());
        }
    }
}
