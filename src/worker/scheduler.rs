//! Publishes the sessions whose time has come, and starts sweeps. Every worker runs one; they share the work without a leader.

use std::{sync::Arc, time::Duration};

use futures_util::future::{join_all, try_join_all};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Worker, prune, sweep};
use crate::{
    session::ActionRequired,
    store::{self, Due, Taken},
};

/// Pause between two looks when little is due.
const EVERY: Duration = Duration::from_millis(250);
/// Sessions taken at once.
const MOST: usize = 128;
/// A scheduler that died leaves its sessions to the others after this. Longer than a publish usually takes: a session that
/// is published twice costs a read.
const HOLD: Duration = Duration::from_secs(10);
/// When a session that the queue did not take is tried again.
const REFUSED: Duration = Duration::from_secs(1);

pub(super) async fn run(worker: Arc<Worker>, stop: CancellationToken) {
    let (mut failing, mut planned) = (false, false);
    let sweeps = TaskTracker::new();
    while !stop.is_cancelled() {
        let (published, pause) = match look(&worker, &mut planned, &sweeps, &stop).await {
            Ok(published) => (published, EVERY),
            Err(error) => {
                if !std::mem::replace(&mut failing, true) {
                    tracing::error!(%error, "the scheduler cannot reach the store");
                }
                (0, EVERY * 8)
            }
        };
        if published > 0 {
            failing = false;
        }
        if published < MOST {
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => {}
            }
        }
    }
    sweeps.close();
    sweeps.wait().await;
}

/// One look: takes what is due, publishes it, forgets what the queue has, and gives back what it did not take; a sweep is
/// started.
async fn look(
    worker: &Arc<Worker>,
    planned: &mut bool,
    sweeps: &TaskTracker,
    stop: &CancellationToken,
) -> store::Result<usize> {
    if !*planned {
        sweep::plan(worker).await?;
        prune::plan(worker).await?;
        *planned = true;
    }
    let taken = worker.ledger.due(MOST, HOLD).await?;
    let (pruned, taken): (Vec<Taken>, Vec<Taken>) = taken.into_iter().partition(|taken| prune::is_prune(&taken.due));
    let (swept, taken): (Vec<Taken>, Vec<Taken>) = taken.into_iter().partition(|taken| sweep::is_sweep(&taken.due));
    worker.metrics.sessions_due(taken.len() as u64);
    let (mut published, mut refused) = (Vec::new(), Vec::new());
    for result in join_all(taken.into_iter().map(|taken| publish(worker, taken))).await {
        match result {
            Ok(taken) => published.push(taken),
            Err(taken) => refused.push(Due { after: REFUSED, ..taken.due }),
        }
    }
    if !published.is_empty() {
        worker.ledger.forget(&published).await?;
    }
    try_join_all(refused.into_iter().map(|due| worker.ledger.postpone(due))).await?;
    for taken in pruned {
        prune::start(worker, taken, sweeps, stop).await?;
    }
    for taken in swept {
        sweep::start(worker, taken, sweeps, stop).await?;
    }
    Ok(published.len())
}

/// `Err` where the queue did not confirm.
async fn publish(worker: &Worker, taken: Taken) -> Result<Taken, Taken> {
    let action = ActionRequired {
        session: taken.due.session.clone(),
        event: "due".to_owned(),
        accepted_at: taken.due.accepted_at,
        tries: taken.due.tries,
        traceparent: taken.due.traceparent.clone(),
    };
    match worker.queue.publish(&action).await {
        Ok(()) => Ok(taken),
        Err(error) => {
            tracing::warn!(session.id = %taken.due.session.session, %error, "cannot publish a due session");
            Err(taken)
        }
    }
}
