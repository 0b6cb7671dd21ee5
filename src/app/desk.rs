//! What an operator works with, put together from the parts of a process.

use std::{collections::HashMap, sync::Arc};

use tokio_util::sync::CancellationToken;

use super::{Opened, Role, STORE_CHECK, dead_letters};
use crate::{
    admin::Readiness,
    api::{Desk, Gate},
    config::Config,
    function::Live,
    metrics::Metrics,
    operator::{Operator, Redaction},
    queue::SharedQueue,
    store::{self, Ledger, Pause},
    worker::Account,
};

/// The parts that the rest of the process has too.
pub(super) struct Parts<'a> {
    pub(super) config: &'a Config,
    pub(super) role: Role,
    pub(super) store: Option<&'a Opened>,
    pub(super) accounts: HashMap<Arc<str>, Arc<Account>>,
    pub(super) functions: &'a Arc<Live>,
    pub(super) queue: &'a SharedQueue,
    pub(super) metrics: &'a Metrics,
    pub(super) readiness: &'a Readiness,
}

pub(super) fn desk(parts: Parts<'_>) -> anyhow::Result<Arc<Desk>> {
    let Parts { config, role, store, accounts, functions, queue, metrics, readiness } = parts;
    let operator = match store {
        Some(opened) => {
            let letters = dead_letters(&config.queue, opened)?;
            Some(Operator::new(opened.store.clone(), letters, accounts, Redaction::Live(functions.clone())))
        }
        None => None,
    };
    let shown = functions.clone();
    readiness.note("paused", Box::new(move || shown.paused().iter().cloned().collect()));
    Ok(Arc::new(Desk {
        gate: Gate::new(config.admin.token.as_ref()),
        operator,
        functions: functions.clone(),
        platforms: config.platforms.clone(),
        metrics: metrics.clone(),
        queue: queue.clone(),
        readiness: readiness.clone(),
        role,
        tally: crate::api::Cache::default(),
    }))
}

/// Learns which functions are paused, before anything is started.
pub(super) async fn learn_pauses(ledger: &Ledger, functions: &Live, metrics: &Metrics, stop: &CancellationToken) {
    while let Err(error) = look_for_pauses(ledger, functions, metrics).await {
        tracing::error!(%error, "cannot read which functions are paused: trying again");
        tokio::select! {
            () = tokio::time::sleep(STORE_CHECK) => {}
            () = stop.cancelled() => return,
        }
    }
}

/// What cannot be read stays as it was.
pub(super) async fn look_for_pauses(ledger: &Ledger, functions: &Live, metrics: &Metrics) -> store::Result<()> {
    let pauses = ledger.pauses().await?;
    apply(pauses, functions, metrics);
    Ok(())
}

fn apply(pauses: Vec<Pause>, functions: &Live, metrics: &Metrics) {
    let names = pauses.into_iter().map(|pause| pause.function).collect();
    let before = functions.paused();
    if *before == names {
        return;
    }
    for name in names.difference(&before) {
        tracing::warn!(function = name, "paused by an operator: its calls wait");
        metrics.paused(name, true);
    }
    for name in before.difference(&names) {
        tracing::info!(function = name, "resumed by an operator");
        metrics.paused(name, false);
    }
    functions.pause(names);
}
