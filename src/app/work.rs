//! A worker from its start to its end, and what is looked at beside it.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use anyhow::anyhow;
use tokio_util::sync::CancellationToken;

use super::desk;
use crate::{
    admin::Readiness,
    function::Serves,
    store::{self, Ledger},
    worker::{Worker, watch_pools},
};

/// How often the store is asked whether it is there.
pub(super) const STORE_CHECK: Duration = Duration::from_secs(2);
/// So many of these pass between two counts of what is dead.
const DEAD_COUNT: usize = 7;
/// And so many between two of what waits in the queue.
const DEPTH_COUNT: usize = 4;

/// Resolves when a task that should last until `stop` ends before.
pub(super) async fn unexpected(task: Option<tokio::task::AbortHandle>, stop: CancellationToken) -> anyhow::Error {
    let Some(task) = task else { return std::future::pending().await };
    let mut look = tokio::time::interval(Duration::from_secs(1));
    while !task.is_finished() || stop.is_cancelled() {
        look.tick().await;
    }
    anyhow!("the ingress listener ended by itself")
}

/// Prepares the store, however long it is away, then works until `stop`.
pub(super) async fn work(worker: Arc<Worker>, readiness: Readiness, stop: CancellationToken) {
    let away = Arc::new(Mutex::new(Some("not reached yet".to_owned())));
    let shown = away.clone();
    readiness.register(
        "store",
        Box::new(move || match &*shown.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(reason) => Err(reason.clone()),
            None => Ok(()),
        }),
    );
    let note = move |state: Result<(), store::Error>| {
        *away.lock().unwrap_or_else(PoisonError::into_inner) = state.err().map(|e| e.to_string());
    };
    if !migrate(&worker.ledger, &stop, &note).await {
        return;
    }
    desk::learn_pauses(&worker.ledger, &worker.functions, &worker.metrics, &stop).await;
    let watched = worker.clone();
    let watch = tokio::spawn(async move {
        let mut unserved = HashSet::new();
        for look in 0_usize.. {
            tokio::time::sleep(STORE_CHECK).await;
            let oldest = watched.ledger.oldest_pending().await;
            if let Ok(oldest) = &oldest {
                watched.metrics.oldest_pending(oldest.unwrap_or_default().as_secs_f64());
            }
            note(oldest.map(drop));
            if let Err(error) = desk::look_for_pauses(&watched.ledger, &watched.functions, &watched.metrics).await {
                tracing::warn!(%error, "cannot read which functions are paused");
            }
            if look.is_multiple_of(DEPTH_COUNT)
                && let Some(depth) = watched.queue.depth().await
            {
                watched.metrics.queue_depth(depth);
            }
            if !look.is_multiple_of(DEAD_COUNT) {
                continue;
            }
            if let Some(count) = watched.queue.count_dead().await {
                watched.metrics.dead(count);
            }
            if *watched.functions.serves() == Serves::Unpinned {
                watch_pools(&watched, &mut unserved).await;
            }
        }
    });
    worker.run(stop).await;
    watch.abort();
}

/// Prepares the store, however long it is away; `false` where it was to stop before.
pub(super) async fn migrate(
    ledger: &Ledger,
    stop: &CancellationToken,
    note: impl Fn(Result<(), store::Error>),
) -> bool {
    loop {
        match ledger.migrate().await {
            Ok(()) => break,
            Err(error) => {
                tracing::error!(%error, "the store is away: trying again");
                note(Err(error));
            }
        }
        tokio::select! {
            () = tokio::time::sleep(STORE_CHECK) => {}
            () = stop.cancelled() => return false,
        }
    }
    note(Ok(()));
    true
}
