//! Deletes what ended long ago, a few rows at a time. Due like a sweep: its row has neither platform nor session.

use std::{sync::Arc, time::Duration};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::Worker;
use crate::{
    session::SessionKey,
    store::{self, Due, Taken},
};

/// Between two passes, all workers together.
const EVERY: Duration = Duration::from_secs(600);
const FIRST: Duration = Duration::from_secs(30);
/// Rows that one step looks at, and the pause after it: what else is written goes first.
const STEP: usize = 256;
const PAUSE: Duration = Duration::from_millis(100);

pub(super) fn is_prune(due: &Due) -> bool {
    due.session.platform.is_empty() && due.session.session.is_empty()
}

/// Makes sure that a pass is to come.
pub(super) async fn plan(worker: &Worker) -> store::Result<()> {
    match worker.retention {
        Some(_) => worker.ledger.postpone(next(FIRST)).await,
        None => Ok(()),
    }
}

fn next(after: Duration) -> Due {
    Due { session: SessionKey::new("", ""), after, tries: 0, accepted_at: 0, traceparent: None }
}

/// Plans the next pass and runs this one beside the caller.
pub(super) async fn start(
    worker: &Arc<Worker>,
    taken: Taken,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> store::Result<()> {
    let Some(older) = worker.retention else { return worker.ledger.forget(&[taken]).await };
    worker.ledger.postpone(next(EVERY)).await?;
    let (worker, stop) = (worker.clone(), stop.clone());
    tasks.spawn(async move { stop.run_until_cancelled(pass(&worker, older)).await });
    Ok(())
}

async fn pass(worker: &Worker, older: Duration) {
    let (mut from, mut deleted) = (Some(0), 0);
    while let Some(at) = from {
        match worker.ledger.prune(older, at, STEP).await {
            Ok(pruned) => (from, deleted) = (pruned.next, deleted + pruned.deleted),
            Err(error) => {
                tracing::warn!(%error, deleted, "cannot delete old calls now");
                return;
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
    if deleted > 0 {
        tracing::info!(calls = deleted, "deleted calls that ended longer ago than store.retention");
    }
}
