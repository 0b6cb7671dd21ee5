//! A connection of its own for what a job writes.

use std::time::Duration;

use sqlx::{ConnectOptions as _, PgConnection, postgres::PgConnectOptions};
use tokio::sync::Mutex;

use crate::store::{Error, Result};

/// Batches run one after the other, so they keep a connection. A pool would ask it for a sign of life whenever it is taken
/// and whenever it is given back: three round trips instead of one.
pub(super) struct Lane {
    options: PgConnectOptions,
    timeout: Duration,
    connection: Mutex<Option<PgConnection>>,
}

impl Lane {
    pub(super) fn new(options: PgConnectOptions, timeout: Duration) -> Self {
        Self { options, timeout, connection: Mutex::new(None) }
    }

    /// Runs `work` on the connection; after an error, or dropped before its end, the next one gets a fresh connection.
    pub(super) async fn run<T>(&self, work: impl AsyncFnOnce(&mut PgConnection) -> Result<T>) -> Result<T> {
        let mut slot = self.connection.lock().await;
        let mut connection = match slot.take() {
            Some(connection) => connection,
            None => tokio::time::timeout(self.timeout, self.options.connect())
                .await
                .map_err(|_| Error::new("the database did not take a connection in time"))??,
        };
        let done = work(&mut connection).await?;
        *slot = Some(connection);
        Ok(done)
    }
}
