//! Looks after approvals: tells people of calls that wait, and closes what ended without a decision. Every worker does;
//! rows are taken by one.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::Worker;
use crate::{
    approval::{By, notify::AGAIN},
    store::{self, Approval},
};

/// Pause between two looks.
const EVERY: Duration = Duration::from_secs(2);
/// Notices on their way at once.
const MOST: usize = 16;
/// A worker that died while it sent a notice leaves it to the others after this; longer than a request may take.
const HOLD: Duration = Duration::from_secs(60);

pub(super) async fn run(worker: Arc<Worker>, stop: CancellationToken) {
    let sending = TaskTracker::new();
    while !stop.is_cancelled() {
        if let Err(error) = look(&worker, &sending).await {
            tracing::debug!(%error, "cannot look after approvals");
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = worker.asked.notified() => {}
            () = stop.cancelled() => {}
        }
    }
    // What is not sent by then is sent again by whoever looks next.
    sending.close();
    let _ = tokio::time::timeout(worker.config.grace_period, sending.wait()).await;
}

async fn look(worker: &Arc<Worker>, sending: &TaskTracker) -> store::Result<()> {
    let approvals = worker.ledger.approvals();
    let open = approvals.open_approvals().await?;
    worker.metrics.approvals_pending(open.pending);
    if open.ended > 0 {
        for (function, decision) in approvals.close_approvals().await? {
            worker.metrics.approval(&function, decision.as_str());
        }
    }
    let room = MOST.saturating_sub(sending.len());
    if open.notices > 0 && room > 0 {
        for approval in approvals.notices(room, HOLD).await? {
            let worker = worker.clone();
            sending.spawn(async move { tell(&worker, &approval).await });
        }
    }
    Ok(())
}

async fn tell(worker: &Worker, approval: &Approval) {
    let again = match send(worker, approval).await {
        Ok(()) => None,
        Err(why) => {
            let wait = AGAIN.backoff(approval.notices, None, rand::random());
            tracing::warn!(call = %approval.key, function = approval.function, why, wait = ?wait, "a notice of an approval was not taken");
            Some(wait)
        }
    };
    if let Err(error) = worker.ledger.approvals().noticed(approval, again).await {
        tracing::warn!(%error, "cannot note that a notice was sent: it is sent again");
    }
}

/// Nobody is told of a function that has no notice any more.
async fn send(worker: &Worker, approval: &Approval) -> Result<(), String> {
    let function = worker.functions.get(&approval.function, &approval.key.session.platform);
    let function = function.ok_or("the function is not registered here")?;
    let Some((gate, notifier)) = function.approval.as_ref().and_then(|gate| Some((gate, gate.notifier.as_ref()?)))
    else {
        return Ok(());
    };
    let link = match (&worker.links, gate.policy.by) {
        (Some(links), By::Link) => Some(links.url(approval).await.map_err(|error| error.to_string())?),
        _ => None,
    };
    notifier.send(approval, link.as_deref(), SystemTime::now()).await
}
