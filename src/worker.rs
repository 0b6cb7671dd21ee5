//! Takes deliveries, one permit each, and reconciles their sessions; ends without losing or repeating anything.

mod account;
mod answer;
mod approve;
mod notices;
mod others;
mod polls;
mod pools;
mod prune;
mod reconcile;
mod run;
mod scheduler;
mod sessions;
mod submit;
pub mod sweep;

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::sync::{Notify, Semaphore};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use self::answer::{EXPIRED, FAILED, INTERRUPTED};
use self::sessions::Sessions;
pub use self::{account::Account, pools::watch_pools};
use crate::{
    approval::notify::Links,
    function::{Live, Serves},
    later::Addresses,
    metrics::Metrics,
    queue::{Consumer, SharedQueue},
    store::Ledger,
};

/// `worker` in the config.
#[derive(Clone, Debug)]
pub struct Config {
    /// Sessions reconciled at once.
    pub concurrency: usize,
    /// How long work may go on after SIGTERM.
    pub grace_period: Duration,
    /// How long a claim holds without being renewed.
    pub lease: Duration,
    /// A submitted call still pending after this is submitted again.
    pub confirm_after: Duration,
    /// A handler that runs this long is stopped if its call is no longer pending; looked up again at this interval.
    pub recheck: Duration,
    /// A delivery is held at most this long; then the work goes on under its lease. Stays below the broker's own limit.
    pub max_hold: Duration,
    /// A message that was delivered so often before is taken for one that kills its workers, and put aside. High, because
    /// whatever ends a worker counts against all that it held.
    pub max_deliveries: u32,
    pub unknown_functions: UnknownFunctions,
    /// Names of the pools that functions may be pinned to.
    pub pools: Vec<String>,
}

/// What to do with a pending call of a function that is not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownFunctions {
    /// Sessions may be shared with other workers.
    Leave,
    /// Answer with an error result.
    Fail,
}

/// What a worker works with.
pub struct Worker {
    /// What this process is called in histories.
    pub name: Arc<str>,
    pub config: Config,
    pub sweep: sweep::Config,
    pub queue: SharedQueue,
    pub ledger: Ledger,
    /// By the platform's name.
    pub accounts: HashMap<Arc<str>, Arc<Account>>,
    pub functions: Arc<Live>,
    /// Where results that come later arrive; without it they cannot.
    pub addresses: Option<Arc<Addresses>>,
    /// Where a call can be decided by who has its link; without it nobody gets one.
    pub links: Option<Links>,
    /// How long calls are kept that have ended.
    pub retention: Option<Duration>,
    /// Somebody is to be told of a call.
    pub asked: Notify,
    pub metrics: Metrics,
    /// Cancelled when work must end now: handlers stop, leases are released, deliveries go back.
    pub force: CancellationToken,
}

impl Worker {
    /// Works until `stop`; then takes nothing new, finishes what it holds within the grace period, and gives the rest back.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        // What is due goes to the common queue, and is handed over from there; those who consume it see to that.
        let schedules = !matches!(self.functions.serves(), Serves::Pool(_));
        let scheduler = schedules.then(|| tokio::spawn(scheduler::run(self.clone(), stop.clone())));
        let notices = tokio::spawn(notices::run(self.clone(), stop.clone()));
        let mut consumer = self.queue.consume().await;
        let tracker = TaskTracker::new();
        self.take(&mut *consumer, &tracker, &stop).await;
        consumer.cancel().await;
        tracker.close();
        self.drain(&tracker).await;
        if let Some(scheduler) = scheduler {
            let _ = scheduler.await;
        }
        let _ = notices.await;
    }

    async fn take(self: &Arc<Self>, consumer: &mut dyn Consumer, tracker: &TaskTracker, stop: &CancellationToken) {
        let permits = Arc::new(Semaphore::new(self.config.concurrency));
        let sessions = Arc::new(Sessions::default());
        loop {
            let permit = tokio::select! {
                permit = permits.clone().acquire_owned() => permit,
                () = stop.cancelled() => return,
            };
            let delivery = tokio::select! {
                delivery = consumer.next() => delivery,
                () = stop.cancelled() => return,
            };
            let (Ok(permit), Some(delivery)) = (permit, delivery) else { return };
            if let Some(delivery) = sessions.join(delivery) {
                let (worker, sessions) = (self.clone(), sessions.clone());
                tracker.spawn(async move {
                    sessions.work(&worker, delivery).await;
                    drop(permit);
                });
            }
        }
    }

    async fn drain(&self, tracker: &TaskTracker) {
        if !tracker.is_empty() {
            tracing::info!(sessions = tracker.len(), grace = ?self.config.grace_period, "finishing what is held");
        }
        tokio::select! {
            () = tracker.wait() => return,
            () = tokio::time::sleep(self.config.grace_period) => {}
            () = self.force.cancelled() => {}
        }
        tracing::warn!(sessions = tracker.len(), "grace period over: giving back what is not finished");
        self.force.cancel();
        if tokio::time::timeout(Duration::from_secs(5), tracker.wait()).await.is_err() {
            tracing::error!(
                sessions = tracker.len(),
                "some sessions could not be given back; the queue delivers them again"
            );
        }
    }
}
