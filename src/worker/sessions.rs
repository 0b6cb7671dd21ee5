//! One reconcile a session at a time: copies of a webhook join the one that runs, which then looks once more.

use std::{
    collections::HashMap,
    panic::AssertUnwindSafe,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::FutureExt;
use tracing::Instrument;

use super::{
    Worker,
    reconcile::{Outcome, reconcile},
};
use crate::{
    queue::Delivery,
    retry::Policy,
    session::{ActionRequired, SessionKey},
    store::{self, Due},
};

#[derive(Default)]
pub(super) struct Sessions {
    /// Sessions that are worked on, with the deliveries that came meanwhile.
    running: Mutex<HashMap<SessionKey, Vec<Delivery>>>,
}

impl Sessions {
    /// Gives the delivery back if nobody works on its session: the caller must call [`Sessions::work`] with it.
    pub(super) fn join(&self, delivery: Delivery) -> Option<Delivery> {
        let mut running = self.lock();
        match running.get_mut(&delivery.action.session) {
            Some(joined) => {
                joined.push(delivery);
                None
            }
            None => {
                running.insert(delivery.action.session.clone(), Vec::new());
                Some(delivery)
            }
        }
    }

    /// Reconciles until no delivery came meanwhile, then settles all of them.
    pub(super) async fn work(&self, worker: &Worker, first: Delivery) {
        let key = first.action.session.clone();
        let mut deliveries = vec![first];
        let outcome = loop {
            let outcome = self.look(worker, &key, &mut deliveries).await;
            let mut running = self.lock();
            match running.get_mut(&key) {
                Some(joined) if !joined.is_empty() && !worker.force.is_cancelled() => deliveries.append(joined),
                _ => {
                    deliveries.extend(running.remove(&key).unwrap_or_default());
                    break outcome;
                }
            }
        };
        for delivery in deliveries {
            match &outcome {
                Outcome::Done => delivery.ack().await,
                Outcome::Reject(reason) => delivery.reject(reason).await,
                Outcome::Again { .. } | Outcome::Stopped => delivery.release().await,
            }
        }
    }

    /// One look, which may outlive the deliveries that asked for it: a broker takes back what is held too long.
    async fn look(&self, worker: &Worker, key: &SessionKey, deliveries: &mut Vec<Delivery>) -> Outcome {
        let Some(action) = deliveries.last().map(|delivery| delivery.action.clone()) else { return Outcome::Done };
        let redelivered = deliveries.iter().any(|delivery| delivery.redelivered);
        let times = deliveries.iter().map(|delivery| delivery.deliveries).max().unwrap_or(0);
        if times >= worker.config.max_deliveries {
            return Outcome::Reject(format!("delivered {times} times without being finished"));
        }
        let mut looking = std::pin::pin!(look(worker, &action, redelivered));
        loop {
            tokio::select! {
                outcome = &mut looking => return outcome,
                () = tokio::time::sleep(worker.config.max_hold) => {}
            }
            deliveries.extend(self.lock().get_mut(key).map(std::mem::take).unwrap_or_default());
            if let Err(error) = let_go(worker, &action, deliveries).await {
                tracing::error!(session.id = %key.session, %error, "cannot let go of a delivery that is held for long");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SessionKey, Vec<Delivery>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Acknowledges what is held for long; a due row looks after the session should this process die.
async fn let_go(worker: &Worker, action: &ActionRequired, deliveries: &mut Vec<Delivery>) -> store::Result<()> {
    if deliveries.is_empty() {
        return Ok(());
    }
    postpone(worker, action, worker.config.lease, 1).await?;
    for delivery in deliveries.drain(..) {
        delivery.ack().await;
    }
    Ok(())
}

/// One look at a session; never gives up for a store that is away, except to stop.
async fn look(worker: &Worker, action: &ActionRequired, redelivered: bool) -> Outcome {
    let span = tracing::info_span!(
        "reconcile",
        platform = %action.session.platform,
        session.id = %action.session.session,
        event.id = %action.event
    );
    if let Some(traceparent) = &action.traceparent {
        crate::telemetry::set_parent(&span, traceparent);
    }
    async {
        for attempt in 1.. {
            let looked = AssertUnwindSafe(attempt_once(worker, action, redelivered, attempt > 1)).catch_unwind().await;
            let wait = match looked {
                Ok(Ok(outcome)) => return outcome,
                Ok(Err(error)) => {
                    tracing::error!(%error, attempt, "the store is away: holding the session");
                    STORE_AWAY.backoff(attempt, None, rand::random())
                }
                Err(_) => {
                    tracing::error!(attempt, "a reconcile panicked");
                    if attempt >= 3 {
                        return Outcome::Reject("its reconcile panicked".to_owned());
                    }
                    STORE_AWAY.backoff(attempt, None, rand::random())
                }
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = worker.force.cancelled() => return Outcome::Stopped,
            }
        }
        Outcome::Stopped
    }
    .instrument(span)
    .await
}

const STORE_AWAY: Policy = Policy {
    initial: Duration::from_millis(200),
    multiplier: 2.0,
    max: Duration::from_secs(5),
    max_attempts: u32::MAX,
};

/// "Look again later" is done when a due row says so.
async fn attempt_once(
    worker: &Worker,
    action: &ActionRequired,
    redelivered: bool,
    resumed: bool,
) -> store::Result<Outcome> {
    let outcome = reconcile(worker, action, redelivered, resumed).await?;
    let Outcome::Again { after, tries } = outcome else { return Ok(outcome) };
    postpone(worker, action, after, tries).await?;
    Ok(Outcome::Done)
}

async fn postpone(worker: &Worker, action: &ActionRequired, after: Duration, tries: u32) -> store::Result<()> {
    let due = Due {
        session: action.session.clone(),
        after,
        tries,
        accepted_at: action.accepted_at,
        traceparent: action.traceparent.clone(),
    };
    worker.ledger.postpone(due).await
}
