//! What polls remember of an account: which waiting sessions they woke, so that one that nobody answers costs less and less.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use crate::{
    platform::{Listed, Poll},
    session::SessionKey,
};

/// Pauses that a session must not be listed for until it is forgotten.
const FORGET: u32 = 10;

/// The pause before the next poll, after so many in a row that found nothing.
pub(super) fn pause(poll: Poll, idle: u32) -> Duration {
    poll.every.saturating_mul(2_u32.saturating_pow(idle.min(16))).min(poll.max)
}

/// The sessions that polls of this process woke. Another process wakes them once more: that costs a read.
#[derive(Default)]
pub(super) struct Woken {
    seen: Mutex<HashMap<SessionKey, Seen>>,
}

struct Seen {
    version: Option<i64>,
    times: u32,
    at: Instant,
}

/// The sessions of a page that are to be woken now.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Choice {
    pub(super) sessions: Vec<SessionKey>,
    /// How many of them have not been woken before in this wait.
    pub(super) fresh: u64,
}

impl Woken {
    /// Those of these waiting sessions whose time has come: at once in a new wait, then at growing pauses. Two waits that the
    /// list does not tell apart are one to us, which costs the second a pause at most.
    pub(super) fn choose(&self, waiting: impl IntoIterator<Item = Listed>, poll: Poll, now: Instant) -> Choice {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.retain(|_, seen| now.saturating_duration_since(seen.at) < poll.max * FORGET);
        let mut choice = Choice::default();
        for Listed { key, version, .. } in waiting {
            let times = match seen.get(&key).filter(|seen| seen.version == version) {
                Some(seen) if now < seen.at + pause(poll, seen.times) => continue,
                Some(seen) => seen.times + 1,
                None => 0,
            };
            choice.fresh += u64::from(times == 0);
            seen.insert(key.clone(), Seen { version, times, at: now });
            choice.sessions.push(key);
        }
        choice
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const POLL: Poll = Poll { every: Duration::from_secs(2), max: Duration::from_secs(30) };

    fn waiting(version: i64) -> Listed {
        let (key, version) = (SessionKey::new("p", "s"), Some(version));
        Listed { key, last_active_at: None, waiting: true, asking: false, running: false, version }
    }

    #[test]
    fn the_pause_grows_while_nothing_happens() {
        let pauses: Vec<u64> = [0, 1, 2, 3, 4, 99].iter().map(|idle| pause(POLL, *idle).as_secs()).collect();
        assert_eq!(pauses, [2, 4, 8, 16, 30, 30]);
    }

    #[test]
    fn a_session_that_waits_on_is_woken_less_and_less_and_a_new_wait_at_once() {
        let (woken, start) = (Woken::default(), Instant::now());
        let at = |second: u64, version| {
            let choice = woken.choose([waiting(version)], POLL, start + Duration::from_secs(second));
            (choice.sessions.len(), choice.fresh)
        };
        let seconds: Vec<u64> = (0..80).filter(|second| at(*second, 7).0 == 1).collect();
        assert_eq!(seconds, [0, 2, 6, 14, 30, 60]);
        assert_eq!(at(80, 8), (1, 1), "another wait");
        assert_eq!(at(81, 8), (0, 0));
        assert_eq!(at(82, 8), (1, 0));
        assert_eq!(at(700, 8), (1, 1), "forgotten meanwhile");
    }
}
