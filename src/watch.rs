//! Watched sessions: named by an application, followed by their live stream until they are gone.
//!
//! A watch lives in the process that took it, and ends with it. What a stream does not tell, a poll or sweep finds.

mod routes;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use futures_util::StreamExt as _;
use tokio_util::sync::CancellationToken;

pub use self::routes::router;
use crate::{
    metrics::Metrics,
    platform::{self, Platform},
    queue::SharedQueue,
    retry::Policy,
    session::{ActionRequired, SessionKey},
};

/// Sessions that one process watches at most: each has a connection.
const MOST: usize = 1000;
/// A session without any event for so long is watched no more.
const IDLE: Duration = Duration::from_secs(24 * 60 * 60);
/// A connection that lasted so long was a good one: the next attempt comes soon.
const GOOD: Duration = Duration::from_secs(60);
/// Events may come twice: as many ids are kept as the official SDKs keep.
const IDS: usize = 1024;

const AWAY: Policy = Policy {
    initial: Duration::from_millis(500),
    multiplier: 2.0,
    max: Duration::from_secs(60),
    max_attempts: u32::MAX,
};

/// A cheap clone of what this process watches.
#[derive(Clone)]
pub struct Watches {
    inner: Arc<Inner>,
}

struct Inner {
    /// Those whose sessions may be watched, by the platform's name; `None` where the config does not say so.
    platforms: HashMap<Arc<str>, Option<Arc<dyn Platform>>>,
    queue: SharedQueue,
    metrics: Metrics,
    stop: CancellationToken,
    running: Mutex<HashMap<SessionKey, CancellationToken>>,
}

/// Why a session is not watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    UnknownPlatform,
    /// Its `intake` holds no `stream`, or it has none.
    NoStream,
    /// This process watches as many as it can.
    Full,
}

impl Watches {
    /// Nothing is watched any more after `stop`.
    pub fn new(
        platforms: HashMap<Arc<str>, Option<Arc<dyn Platform>>>,
        queue: SharedQueue,
        metrics: Metrics,
        stop: CancellationToken,
    ) -> Self {
        Self { inner: Arc::new(Inner { platforms, queue, metrics, stop, running: Mutex::default() }) }
    }

    /// Watches a session from now on; `false` where it is watched already.
    pub fn watch(&self, session: SessionKey) -> Result<bool, Refused> {
        let platform = self.inner.platforms.get(&session.platform).ok_or(Refused::UnknownPlatform)?;
        let platform = platform.clone().ok_or(Refused::NoStream)?;
        let mut running = self.inner.lock();
        if running.contains_key(&session) {
            return Ok(false);
        }
        if running.len() >= MOST {
            return Err(Refused::Full);
        }
        let end = self.inner.stop.child_token();
        running.insert(session.clone(), end.clone());
        self.inner.metrics.watched(running.len() as u64);
        drop(running);
        let inner = self.inner.clone();
        tokio::spawn(async move {
            end.run_until_cancelled(inner.follow(&*platform, &session)).await;
            let mut running = inner.lock();
            running.remove(&session);
            inner.metrics.watched(running.len() as u64);
        });
        Ok(true)
    }

    /// Ends a watch; `false` where there is none.
    pub fn end(&self, session: &SessionKey) -> bool {
        self.inner.lock().get(session).is_some_and(|end| {
            end.cancel();
            true
        })
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, HashMap<SessionKey, CancellationToken>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connects again and again until the session is gone, or nothing has happened in it for long.
    async fn follow(&self, platform: &dyn Platform, session: &SessionKey) {
        let (mut ids, mut last, mut tries) = (Ids::default(), Instant::now(), 0);
        while last.elapsed() < IDLE {
            let connected = Instant::now();
            let after = match platform.follow(session).await {
                Ok(Some(mut waits)) => {
                    // Nothing is repeated: what came before this connection is looked for.
                    self.publish(session, "watch").await;
                    let left = IDLE.saturating_sub(last.elapsed());
                    let listen = async {
                        while let Some(id) = waits.next().await {
                            last = Instant::now();
                            if ids.is_new(&id) {
                                self.publish(session, &id).await;
                            }
                        }
                    };
                    let _ = tokio::time::timeout(left, listen).await;
                    None
                }
                Ok(None) | Err(platform::Error::Gone) => {
                    tracing::info!(session.id = %session.session, platform = %session.platform, "a watched session is gone");
                    return;
                }
                Err(platform::Error::Unauthorized { .. }) => None,
                Err(platform::Error::Retryable { after, .. }) => after,
            };
            tries = if connected.elapsed() > GOOD { 1 } else { tries + 1 };
            tracing::debug!(session.id = %session.session, tries, "a watched session's stream ended: connecting again");
            tokio::time::sleep(AWAY.backoff(tries, after, rand::random())).await;
        }
    }

    /// However long the queue is away: nobody else tells.
    async fn publish(&self, session: &SessionKey, event: &str) {
        let accepted_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let action = ActionRequired {
            session: session.clone(),
            event: if event.is_empty() { "watch".to_owned() } else { event.to_owned() },
            accepted_at: i64::try_from(accepted_at).unwrap_or(i64::MAX),
            tries: 0,
            traceparent: None,
        };
        for attempt in 1.. {
            match self.queue.publish(&action).await {
                Ok(()) => return,
                Err(error) => tracing::warn!(session.id = %session.session, %error, "a watched session is not queued"),
            }
            tokio::time::sleep(AWAY.backoff(attempt, None, rand::random())).await;
        }
    }
}

/// The ids of the last events.
#[derive(Default)]
struct Ids {
    seen: HashSet<String>,
    order: VecDeque<String>,
}

impl Ids {
    /// An event without an id is new each time.
    fn is_new(&mut self, id: &str) -> bool {
        if id.is_empty() {
            return true;
        }
        if !self.seen.insert(id.to_owned()) {
            return false;
        }
        self.order.push_back(id.to_owned());
        if self.order.len() > IDS
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_that_comes_twice_counts_once() {
        let mut ids = Ids::default();
        assert!(ids.is_new("a") && !ids.is_new("a") && ids.is_new("b"));
        assert!(ids.is_new("") && ids.is_new(""));
        for n in 0..IDS {
            assert!(ids.is_new(&n.to_string()));
        }
        assert!(ids.is_new("a"), "forgotten by now");
        assert_eq!(ids.seen.len(), IDS);
    }
}
