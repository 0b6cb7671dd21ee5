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
        let seconds = step.min(self.max).as_secs_f64() * (0.5 + random.clamp(0.0, 1.0) / 2.0);
        // What no duration holds, or what rounding lifts over the largest, is the largest.
        let jittered = Duration::try_from_secs_f64(seconds).unwrap_or(self.max).min(self.max);
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn steps_double_up_to_the_largest() {
        let policy = Policy { max: 5 * SECOND, ..Policy::default() };
        let steps: Vec<_> = (1..=5).map(|attempt| policy.backoff(attempt, None, 1.0)).collect();
        assert_eq!(steps, [1, 2, 4, 5, 5].map(Duration::from_secs));
        assert_eq!(policy.backoff(1, None, 0.0), SECOND / 2);
        assert_eq!(policy.backoff(u32::MAX, None, 1.0), policy.max);
        let endless = Policy { initial: Duration::MAX, max: Duration::MAX, ..Policy::default() };
        assert_eq!(endless.backoff(3, None, 1.0), Duration::MAX);
    }

    #[test]
    fn the_last_attempt_is_followed_by_none() {
        let policy = Policy { max_attempts: 2, ..Policy::default() };
        assert!(policy.delay(1, None, 0.5).is_some());
        assert_eq!(policy.delay(2, None, 0.5), None);
        assert_eq!(policy.delay(2, Some(SECOND), 0.5), None);
        assert!(policy.backoff(2, None, 0.5) > Duration::ZERO);
    }

    #[test]
    fn what_the_other_side_asked_for_is_kept_up_to_the_largest() {
        let policy = Policy::default();
        assert_eq!(policy.backoff(1, Some(10 * SECOND), 0.5), 10 * SECOND);
        assert_eq!(policy.backoff(1, Some(Duration::ZERO), 0.0), SECOND / 2);
        assert_eq!(policy.backoff(1, Some(Duration::MAX), 0.5), policy.max);
    }

    fn duration() -> impl Strategy<Value = Duration> {
        prop_oneof![(0..10_000u64).prop_map(Duration::from_millis), (0..u64::MAX).prop_map(Duration::from_secs)]
    }

    proptest! {
        #[test]
        fn a_delay_stays_between_half_a_step_and_the_largest(
            (initial, max) in (duration(), duration()),
            multiplier in 1.0..10.0f64,
            (max_attempts, attempt) in (0..20u32, any::<u32>()),
            after in prop::option::of(duration()),
            random in 0.0..1.0f64,
        ) {
            let policy = Policy { initial, multiplier, max, max_attempts };
            let delay = policy.backoff(attempt, after, random);
            prop_assert!(delay <= max);
            prop_assert!(delay >= after.unwrap_or_default().min(max));
            // Nanoseconds of a long time are lost in a float.
            prop_assert!(delay.as_secs_f64() >= initial.min(max).as_secs_f64() / 2.0 * (1.0 - 1e-9) - 1e-9);
            let bounded = policy.delay(attempt, after, random);
            prop_assert_eq!(bounded.is_some(), attempt < max_attempts);
            prop_assert!(bounded.is_none_or(|bounded| bounded <= max));
        }
    }
}
