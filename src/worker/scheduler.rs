//! Publishes the sessions whose time has come, and starts sweeps. Every worker runs one; they share the work without a leader.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Worker, sweep};
use crate::{
    session::ActionRequired,
    store::{self, Taken},
};

/// Pause between two looks when little is due.
const EVERY: Duration = Duration::from_millis(250);
/// Sessions taken at once.
const MOST: usize = 128;
/// A scheduler that died leaves its sessions to the others after this.
const HOLD: Duration = Duration::from_secs(30);

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

/// One look: takes what is due, publishes it and forgets what the queue has; a sweep is started.
async fn look(
    worker: &Arc<Worker>,
    planned: &mut bool,
    sweeps: &TaskTracker,
    stop: &CancellationToken,
) -> store::Result<usize> {
    if !*planned {
        sweep::plan(worker).await?;
        *planned = true;
    }
    let taken = worker.ledger.due(MOST, HOLD).await?;
    let (swept, taken): (Vec<Taken>, Vec<Taken>) = taken.into_iter().partition(|taken| sweep::is_sweep(&taken.due));
    worker.metrics.sessions_due(taken.len() as u64);
    let results = join_all(taken.into_iter().map(|taken| publish(worker, taken))).await;
    let published: Vec<Taken> = results.into_iter().flatten().collect();
    if !published.is_empty() {
        worker.ledger.forget(&published).await?;
    }
    for taken in swept {
        sweep::start(worker, taken, sweeps, stop).await?;
    }
    Ok(published.len())
}

/// `None` where the queue did not confirm: the session is due again when the hold ends.
async fn publish(worker: &Worker, taken: Taken) -> Option<Taken> {
    let action = ActionRequired {
        session: taken.due.session.clone(),
        event: "due".to_owned(),
        accepted_at: taken.due.accepted_at,
        tries: taken.due.tries,
        traceparent: taken.due.traceparent.clone(),
    };
    match worker.queue.publish(&action).await {
        Ok(()) => Some(taken),
        Err(error) => {
            tracing::warn!(session.id = %taken.due.session.session, %error, "cannot publish a due session");
            None
        }
    }
}
