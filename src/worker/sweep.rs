//! Finds what nobody will come back to: sessions whose webhook never came, and calls that were left behind. Where polls are
//! the intake, sweeps come often and are how sessions are learned of.
//!
//! A sweep is due like a session: its row in the store has the platform's name and no session, so that workers share it
//! without a leader.

use std::{
    sync::{Arc, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use futures_util::future::try_join_all;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Account, Worker, polls};
use crate::{
    platform::{self, Listed, Poll},
    session::{ActionRequired, SessionKey},
    store::{self, Due, Taken},
};

/// Pause between two pages of a platform's list.
const PACE: Duration = Duration::from_millis(500);
/// Pages of one sweep at most.
const MOST_PAGES: usize = 100;
/// Calls left behind that one sweep takes up at most.
const MOST_STRANDED: usize = 1000;
/// The first sweep comes at the latest so long after the start: what was lost while nobody ran.
const FIRST: Duration = Duration::from_secs(10);
/// A webhook has so long to arrive by itself.
const ON_ITS_WAY: Duration = Duration::from_secs(10);

/// `sweep` in the config.
#[derive(Clone, Debug)]
pub struct Config {
    pub enabled: bool,
    /// Between two sweeps of a platform, all workers together.
    pub every: Duration,
    /// Sessions that were active within this time are looked at.
    pub window: Duration,
}

/// Whether a due row is a sweep's.
pub(super) fn is_sweep(due: &Due) -> bool {
    due.session.session.is_empty()
}

/// Makes sure that every platform has a sweep to come.
pub(super) async fn plan(worker: &Worker) -> store::Result<()> {
    let swept = worker.accounts.values().filter(|account| is_swept(worker, account));
    let first = |account: &Account| {
        let every = account.poll.map_or(worker.sweep.every, |poll| poll.every);
        next(&account.name, every.min(FIRST).mul_f64(rand::random_range(0.5..1.0)), 0)
    };
    try_join_all(swept.map(|account| worker.ledger.postpone(first(account)))).await?;
    Ok(())
}

fn is_swept(worker: &Worker, account: &Account) -> bool {
    worker.sweep.enabled || account.poll.is_some()
}

/// `idle`: how many polls in a row found nothing.
fn next(platform: &Arc<str>, after: Duration, idle: u32) -> Due {
    Due { session: SessionKey::new(platform.clone(), ""), after, tries: idle, accepted_at: 0, traceparent: None }
}

/// Plans the next sweep of a platform and runs this one beside the caller, unless the last one still runs here.
pub(super) async fn start(
    worker: &Arc<Worker>,
    taken: Taken,
    tasks: &TaskTracker,
    stop: &CancellationToken,
) -> store::Result<()> {
    let account = worker.accounts.get(&taken.due.session.platform).filter(|account| is_swept(worker, account));
    let Some(account) = account else {
        return worker.ledger.forget(&[taken]).await;
    };
    let idle = taken.due.tries;
    // A poll that finds something brings the next one forward.
    let (after, idle) = match account.poll {
        Some(poll) => (polls::pause(poll, idle), idle.saturating_add(1)),
        None => (worker.sweep.every.mul_f64(rand::random_range(0.9..1.1)), 0),
    };
    worker.ledger.postpone(next(&account.name, after, idle)).await?;
    if let Ok(alone) = account.sweeping.clone().try_lock_owned() {
        let (worker, account, stop) = (worker.clone(), account.clone(), stop.clone());
        tasks.spawn(async move {
            stop.run_until_cancelled(sweep(&worker, &account)).await;
            drop(alone);
        });
    }
    Ok(())
}

/// What one sweep found.
#[derive(Debug, Default)]
struct Found {
    pages: usize,
    listed: usize,
    /// Sessions that were woken.
    waiting: u64,
    /// Those among them that no poll had woken before.
    fresh: u64,
    /// Sessions that run, and so may wait soon.
    running: usize,
}

async fn sweep(worker: &Worker, account: &Account) {
    if account.poll.is_none() || is_time_to_take_up(worker, account) {
        match take_up(worker, account).await {
            Ok(0) => {}
            Ok(sessions) => {
                tracing::warn!(platform = %account.name, sessions, "looking again at calls that were left behind")
            }
            Err(error) => {
                tracing::warn!(platform = %account.name, %error, "cannot look for calls that were left behind")
            }
        }
    }
    let mut found = Found::default();
    let ended = browse(worker, account, &mut found).await;
    match account.poll {
        Some(poll) => polled(worker, account, poll, &found, ended).await,
        None => swept(worker, account, &found, ended),
    }
}

/// Polls come too often to look for that each time.
fn is_time_to_take_up(worker: &Worker, account: &Account) -> bool {
    let mut last = account.taken_up.lock().unwrap_or_else(PoisonError::into_inner);
    let is_time = worker.sweep.enabled && last.is_none_or(|last| last.elapsed() >= worker.sweep.every);
    if is_time {
        *last = Some(Instant::now());
    }
    is_time
}

fn swept(worker: &Worker, account: &Account, found: &Found, ended: Result<(), String>) {
    worker.metrics.swept(&account.name, found.waiting);
    let Found { pages, listed, waiting, .. } = found;
    match ended {
        Ok(()) if *waiting > 0 => {
            tracing::warn!(platform = %account.name, pages, listed, waiting, "a sweep found waiting sessions: do webhooks arrive?");
        }
        Ok(()) => tracing::debug!(platform = %account.name, pages, listed, "a sweep found nothing"),
        Err(reason) => tracing::warn!(platform = %account.name, pages, listed, waiting, reason, "a sweep broke off"),
    }
}

/// While anything runs or has begun to wait, the next poll is not put off.
async fn polled(worker: &Worker, account: &Account, poll: Poll, found: &Found, ended: Result<(), String>) {
    let Found { pages, listed, waiting, .. } = found;
    let outcome = match ended {
        Ok(()) if *waiting > 0 => "found",
        Ok(()) => "nothing",
        Err(reason) => {
            tracing::warn!(platform = %account.name, pages, listed, waiting, reason, "a poll broke off");
            "failed"
        }
    };
    worker.metrics.poll(&account.name, outcome);
    tracing::debug!(platform = %account.name, pages, listed, waiting, "polled");
    if outcome != "failed" && found.fresh + found.running as u64 > 0 {
        let soon = worker.ledger.postpone(next(&account.name, poll.every, 0)).await;
        if let Err(error) = soon {
            tracing::warn!(platform = %account.name, %error, "cannot bring the next poll forward");
        }
    }
}

/// Makes sessions due whose calls stand in the ledger and that nothing would come back to.
async fn take_up(worker: &Worker, account: &Account) -> store::Result<usize> {
    let quiet = worker.config.lease + worker.config.confirm_after + worker.sweep.every;
    let reach = worker.sweep.window.max(account.call_deadline) + quiet;
    let stranded = worker.ledger.stranded(&account.name, reach, quiet, MOST_STRANDED).await?;
    let dues = stranded.into_iter().map(|session| {
        // With a try behind it, a look ends also what the platform no longer lists.
        let due = Due { session, after: Duration::ZERO, tries: 1, accepted_at: unix_millis(), traceparent: None };
        worker.ledger.postpone(due)
    });
    Ok(try_join_all(dues).await?.len())
}

/// Pages through the platform's sessions, newest first, and puts those that wait in the queue.
async fn browse(worker: &Worker, account: &Account, found: &mut Found) -> Result<(), String> {
    let oldest = unix_seconds(worker.sweep.window);
    let mut pace = interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut after: Option<String> = None;
    while found.pages < MOST_PAGES {
        pace.tick().await;
        let page = list(account, after.as_deref()).await?;
        found.pages += 1;
        let recent = |session: &Listed| session.last_active_at.is_none_or(|at| at >= oldest);
        let sessions: Vec<Listed> = page.sessions.into_iter().filter(recent).collect();
        if sessions.is_empty() {
            break;
        }
        found.listed += sessions.len();
        found.running += sessions.iter().filter(|session| session.running).count();
        wake(worker, account, sessions, found).await?;
        match page.next {
            Some(next) if Some(&next) != after.as_ref() => after = Some(next),
            _ => break,
        }
    }
    Ok(())
}

async fn list(account: &Account, after: Option<&str>) -> Result<platform::Page, String> {
    if account.paused().is_some() {
        return Err("the platform refuses our credentials".to_owned());
    }
    // A key may read sessions but not list them: whether our credentials hold is for `retrieve` to say.
    account.platform.list(after).await.map_err(|error| match error {
        platform::Error::Gone => "the platform has no list of sessions".to_owned(),
        platform::Error::Unauthorized { detail } | platform::Error::Retryable { detail, .. } => detail,
    })
}

/// Publishes the sessions that wait and that nothing of ours will look at by itself.
async fn wake(worker: &Worker, account: &Account, sessions: Vec<Listed>, found: &mut Found) -> Result<(), String> {
    let tells = account.receiver.is_some();
    let waiting = sessions.into_iter().filter(|session| session.waiting || tells && session.asking);
    // Whoever waits for others only is no sign that webhooks are lost.
    let (waiting, within, event): (Vec<(SessionKey, bool)>, _, _) = match account.poll {
        Some(poll) => {
            let choice = account.woken.choose(waiting, poll, Instant::now());
            found.fresh += choice.fresh;
            (choice.sessions.into_iter().map(|session| (session, true)).collect(), poll.every, "poll")
        }
        None => {
            let latest = unix_seconds(worker.sweep.every.min(ON_ITS_WAY));
            let late = waiting.filter(|session| session.last_active_at.is_none_or(|at| at <= latest));
            (late.map(|session| (session.key, session.waiting)).collect(), worker.sweep.every, "sweep")
        }
    };
    if waiting.is_empty() {
        return Ok(());
    }
    let (keys, counts): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
    let in_hand = worker.ledger.in_hand(&keys, within).await.map_err(|e| e.to_string())?;
    let forgotten = keys.into_iter().zip(counts).zip(in_hand).filter(|(_, in_hand)| !in_hand);
    let published = forgotten.map(|((session, counts), _)| async move {
        let (event, accepted_at) = (event.to_owned(), unix_millis());
        let action = ActionRequired { session, event, accepted_at, tries: 0, traceparent: None };
        worker.queue.publish(&action).await.map(|()| counts).map_err(|error| error.to_string())
    });
    found.waiting += try_join_all(published).await?.into_iter().filter(|counts| *counts).count() as u64;
    Ok(())
}

fn unix_millis() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(i64::MAX)
}

/// The Unix second that is so long ago.
fn unix_seconds(ago: Duration) -> i64 {
    (unix_millis() - i64::try_from(ago.as_millis()).unwrap_or(i64::MAX)) / 1000
}
