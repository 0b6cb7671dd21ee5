//! How much a function's handler is asked at once and in a time; what is over is told when to come again.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Where `adaptive` starts if no `concurrency` says so.
const ADAPTIVE_CEILING: f64 = 64.0;
/// No pause that a callee asks for is longer here; the call's own retry honours the rest.
const MAX_PAUSE: Duration = Duration::from_secs(300);
/// Between these two a call that finds no slot is told to come again.
const SOON: Duration = Duration::from_millis(100);
const LATE: Duration = Duration::from_secs(30);

/// `limits` of a function, in one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Config {
    /// Calls that run at once.
    pub concurrency: Option<usize>,
    /// Calls that start.
    pub rate: Option<Rate>,
    /// Fewer at once after each 429 or 503, more again with each answer.
    pub adaptive: bool,
}

/// So many in such a time, all at once if need be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    pub count: u32,
    pub per: Duration,
}

pub struct Limits {
    config: Config,
    state: Mutex<State>,
}

struct State {
    running: usize,
    /// How many may run; moves only where `adaptive`.
    allowed: f64,
    tokens: f64,
    refilled: Instant,
    /// Nothing starts before this.
    paused: Instant,
    /// Who started before this saw the callee as it was before the last cut.
    cut: Instant,
    /// How long a call takes, about.
    usual: Duration,
    /// When the last one that was sent away was told to come: the next comes later.
    booked: Instant,
}

/// A function's limits at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    pub running: usize,
    /// How many may run at once; `None` without a limit.
    pub allowed: Option<usize>,
    /// How long nothing starts, because the callee asked for it.
    pub paused: Duration,
}

/// The right to run one call.
pub struct Slot {
    limits: Arc<Limits>,
    started: Instant,
}

impl Limits {
    pub fn new(config: Config, now: Instant) -> Arc<Self> {
        let ceiling = ceiling(&config);
        let tokens = config.rate.map_or(0.0, |rate| f64::from(rate.count));
        let state = State {
            running: 0,
            allowed: ceiling,
            tokens,
            refilled: now,
            paused: now,
            cut: now,
            usual: SOON,
            booked: now,
        };
        Arc::new(Self { config, state: Mutex::new(state) })
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A slot, or how long to stay away. Never waits.
    pub fn enter(self: &Arc<Self>, now: Instant) -> Result<Slot, Duration> {
        let mut state = self.lock();
        if let Some(left) = state.paused.checked_duration_since(now).filter(|left| !left.is_zero()) {
            return Err(state.book(now, left, Duration::ZERO));
        }
        if state.running as f64 >= state.allowed.floor() {
            let each = state.usual.div_f64(state.allowed.max(1.0));
            return Err(state.book(now, Duration::ZERO, each));
        }
        if let Some(rate) = self.config.rate {
            let each = rate.per.div_f64(f64::from(rate.count));
            let filled = now.saturating_duration_since(state.refilled).div_duration_f64(each);
            state.tokens = (state.tokens + filled).min(f64::from(rate.count));
            state.refilled = now;
            if state.tokens < 1.0 {
                let first = each.mul_f64(1.0 - state.tokens);
                return Err(state.book(now, first, each));
            }
            state.tokens -= 1.0;
        }
        state.running += 1;
        Ok(Slot { limits: self.clone(), started: now })
    }

    /// What is going on now.
    pub fn figures(&self, now: Instant) -> Figures {
        let state = self.lock();
        Figures {
            running: state.running,
            allowed: state.allowed.is_finite().then(|| state.allowed.floor() as usize),
            paused: state.paused.saturating_duration_since(now),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// One place further back in the line for everyone who is sent away.
    fn book(&mut self, now: Instant, first: Duration, each: Duration) -> Duration {
        self.booked = self.booked.max(now + first) + each;
        let wait = self.booked.saturating_duration_since(now);
        if wait > LATE.max(first) {
            // Further than this nobody can foresee.
            self.booked = now + LATE.max(first);
        }
        wait.clamp(SOON, LATE.max(first).max(SOON))
    }
}

impl Slot {
    /// The callee answered, whatever it was.
    pub fn answered(self, now: Instant) {
        let mut state = self.limits.lock();
        state.usual = (state.usual * 7 + now.saturating_duration_since(self.started).min(LATE)) / 8;
        if self.limits.config.adaptive {
            state.allowed = (state.allowed + 1.0 / state.allowed.max(1.0)).min(ceiling(&self.limits.config));
        }
    }

    /// The callee has too much to do, and may have said for how long.
    pub fn overloaded(self, after: Option<Duration>, now: Instant) {
        if !self.limits.config.adaptive {
            return;
        }
        let mut state = self.limits.lock();
        if self.started >= state.cut {
            state.allowed = (state.allowed / 2.0).max(1.0);
            state.cut = now;
        }
        state.paused = state.paused.max(now + after.unwrap_or_default().min(MAX_PAUSE));
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.limits.lock().running -= 1;
    }
}

fn ceiling(config: &Config) -> f64 {
    match (config.concurrency, config.adaptive) {
        (Some(concurrency), _) => concurrency as f64,
        (None, true) => ADAPTIVE_CEILING,
        (None, false) => f64::INFINITY,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limits(config: Config) -> (Arc<Limits>, Instant) {
        let now = Instant::now();
        (Limits::new(config, now), now)
    }

    #[test]
    fn without_limits_everything_runs() {
        let (limits, now) = limits(Config::default());
        let slots: Vec<_> = (0..1000).map(|_| limits.enter(now).ok().unwrap()).collect();
        slots.into_iter().for_each(|slot| slot.overloaded(Some(SECOND), now));
        assert!(limits.enter(now).is_ok());
    }

    #[test]
    fn a_slot_is_free_again_when_it_is_dropped() {
        let (limits, now) = limits(Config { concurrency: Some(2), ..Config::default() });
        let (first, _second) = (limits.enter(now).ok().unwrap(), limits.enter(now).ok().unwrap());
        assert!(limits.enter(now).is_err());
        drop(first);
        assert!(limits.enter(now).is_ok());
    }

    #[test]
    fn who_finds_no_slot_is_sent_to_the_end_of_the_line() {
        let (limits, now) = limits(Config { concurrency: Some(1), ..Config::default() });
        limits.enter(now).ok().unwrap().answered(now + 8 * SECOND);
        let _slot = limits.enter(now).ok().unwrap();
        let waits: Vec<_> = (0..100).map(|_| limits.enter(now).err().unwrap()).collect();
        assert!(waits.windows(2).all(|pair| pair[0] <= pair[1]) && waits[0] < waits[9], "{waits:?}");
        assert!(waits.iter().all(|wait| (SOON..=LATE).contains(wait)), "{waits:?}");
        assert!(limits.enter(now + LATE).err().unwrap() < 3 * SECOND, "the line is over by then");
    }

    #[test]
    fn a_rate_lets_its_count_start_at_once_and_then_one_by_one() {
        let (limits, now) = limits(Config { rate: Some(Rate { count: 5, per: SECOND }), ..Config::default() });
        let started = |at| std::iter::from_fn(|| limits.enter(at).ok()).count();
        assert_eq!(started(now), 5);
        assert_eq!(
            limits.enter(now).err().unwrap(),
            Duration::from_millis(600),
            "behind the one that was just refused"
        );
        assert_eq!(started(now + SECOND / 5), 1);
        assert_eq!(started(now + 100 * SECOND), 5, "what is not used is not saved up");
    }

    #[test]
    fn overload_halves_once_for_all_that_were_running_and_recovers_step_by_step() {
        let (limits, now) = limits(Config { concurrency: Some(8), adaptive: true, ..Config::default() });
        let fits = |at| {
            let slots: Vec<_> = std::iter::from_fn(|| limits.enter(at).ok()).collect();
            slots.len()
        };
        let slots: Vec<_> = (0..8).map(|_| limits.enter(now).ok().unwrap()).collect();
        slots.into_iter().for_each(|slot| slot.overloaded(None, now + SECOND));
        assert_eq!(fits(now + SECOND), 4);
        limits.enter(now + SECOND).ok().unwrap().overloaded(Some(10 * SECOND), now + SECOND);
        assert_eq!(fits(now + 2 * SECOND), 0, "Retry-After is followed");
        assert_eq!(limits.enter(now + 2 * SECOND).err().unwrap(), 9 * SECOND);
        let later = now + 12 * SECOND;
        assert_eq!(fits(later), 2);
        for _ in 0..3 {
            limits.enter(later).ok().unwrap().answered(later);
        }
        assert_eq!(fits(later), 3);
        for _ in 0..100 {
            limits.enter(later).ok().unwrap().answered(later);
        }
        assert_eq!(fits(later), 8, "never more than configured");
    }

    proptest! {
        #[test]
        fn never_more_run_than_allowed(steps in prop::collection::vec((0u8..4, 0u64..5000), 1..200)) {
            let (limits, mut now) = limits(Config {
                concurrency: Some(4), rate: Some(Rate { count: 10, per: SECOND }), adaptive: true,
            });
            let mut running = Vec::new();
            for (step, pause) in steps {
                now += Duration::from_millis(pause);
                match step {
                    0 | 1 => match limits.enter(now) {
                        Ok(slot) => running.push(slot),
                        Err(wait) => prop_assert!(wait >= SOON && wait <= MAX_PAUSE),
                    },
                    2 => running.pop().into_iter().for_each(|slot| slot.answered(now)),
                    _ => running.pop().into_iter().for_each(|slot| slot.overloaded(Some(Duration::from_millis(pause)), now)),
                }
                prop_assert!(running.len() <= 4);
            }
        }
    }
}
