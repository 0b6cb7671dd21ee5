//! What is known of the two connections: for readiness, for the metric, and logged once per change.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::connection::Failure;
use crate::metrics::Metrics;

pub(super) struct Health {
    pub(super) metrics: Metrics,
    state: Mutex<State>,
}

struct State {
    publisher: Result<(), String>,
    /// `None` while nobody consumes.
    consumer: Option<Result<(), String>>,
}

impl Health {
    pub(super) fn new(metrics: Metrics) -> Self {
        metrics.broker_up(false);
        let state = State { publisher: Err("not connected to the broker yet".into()), consumer: None };
        Self { metrics, state: Mutex::new(state) }
    }

    pub(super) fn ready(&self) -> Result<(), String> {
        self.lock().ready()
    }

    pub(super) fn publisher(&self, now: Result<(), Failure>) {
        let mut state = self.lock();
        log("publisher", &state.publisher, &now);
        state.publisher = now.map_err(|failure| failure.reason);
        self.metrics.broker_up(state.ready().is_ok());
    }

    /// `None`: it was cancelled, and nobody waits for it.
    pub(super) fn consumer(&self, now: Option<Result<(), Failure>>) {
        let mut state = self.lock();
        if let Some(now) = &now {
            log("consumer", state.consumer.as_ref().unwrap_or(&Ok(())), now);
        }
        state.consumer = now.map(|now| now.map_err(|failure| failure.reason));
        self.metrics.broker_up(state.ready().is_ok());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn ready(&self) -> Result<(), String> {
        self.publisher.clone()?;
        self.consumer.clone().unwrap_or(Ok(()))
    }
}

/// A broker that stays away for an hour is two lines, not thousands.
fn log(connection: &'static str, before: &Result<(), String>, now: &Result<(), Failure>) {
    match now {
        Ok(()) => tracing::info!(connection, "connected to the broker"),
        Err(failure) if before.as_ref().err() == Some(&failure.reason) => {
            tracing::debug!(connection, reason = failure.reason, "the broker is still away");
        }
        Err(failure) if failure.operator => tracing::error!(connection, "{}", failure.reason),
        Err(failure) => tracing::warn!(connection, reason = failure.reason, "the broker is away"),
    }
}
