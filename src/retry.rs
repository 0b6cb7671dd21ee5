//! When to try again: exponential backoff with jitter, the only file that knows the `backoff` crate.

use std::time::Duration;

use backoff::{ExponentialBackoff, ExponentialBackoffBuilder, backoff::Backoff};

/// `retry` in the config.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    pub initial: Duration,
    pub multiplier: f64,
    pub max: Duration,
    /// Starts of the handler in all, the first one included.
    pub max_attempts: u32,
}

impl Default for Policy {
    fn default() -> Self {
        Self { initial: Duration::from_secs(1), multiplier: 2.0, max: Duration::from_secs(300), max_attempts: 8 }
    }
}

impl Policy {
    /// How long to wait after failed attempt `attempt` (1 is the first), or `None` when it was the last one. `after` is what
    /// the other side asked for: never earlier than that, but not later than `max` either. `random` in 0..1 is the jitter.
    pub fn delay(&self, attempt: u32, after: Option<Duration>, random: f64) -> Option<Duration> {
        (attempt < self.max_attempts).then(|| self.backoff(attempt, after, random))
    }

    /// The same without a last attempt, for what must not be given up.
    pub fn backoff(&self, attempt: u32, after: Option<Duration>, random: f64) -> Duration {
        let mut steps = self.steps();
        let mut step = self.initial;
        for _ in 0..attempt.clamp(1, 64) {
            step = steps.next_backoff().unwrap_or(self.max);
        }
        let jittered = step.min(self.max).mul_f64(0.5 + random.clamp(0.0, 1.0) / 2.0);
        jittered.max(after.unwrap_or_default().min(self.max))
    }

    fn steps(&self) -> ExponentialBackoff {
        ExponentialBackoffBuilder::new()
            .with_initial_interval(self.initial)
            .with_multiplier(self.multiplier)
            .with_max_interval(self.max)
            .with_randomization_factor(0.0)
            .with_max_elapsed_time(None)
            .build()
    }
}
