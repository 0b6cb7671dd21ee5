//! The last hour of this process, in steps of ten seconds, for the dashboard: counts, gauges and percentiles of latencies.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// What one point stands for.
pub const STEP: Duration = Duration::from_secs(10);
/// Points that are kept.
pub const STEPS: usize = 360;

/// Bounds of the histograms grow by this from [`LEAST`] on: up to four minutes.
const GROWTH: f64 = 1.3;
const LEAST: f64 = 0.001;
const BUCKETS: usize = 48;

/// One step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Point {
    /// How long ago the step began.
    pub age: Duration,
    pub webhooks: u32,
    pub succeeded: u32,
    /// Ended in an error result, or refused by the platform.
    pub failed: u32,
    pub retried: u32,
    /// Seconds that half of the handlers took at most, and 95 of 100.
    pub handler: Option<[f64; 2]>,
    /// The same from a webhook to the result that was accepted.
    pub result: Option<[f64; 2]>,
    pub queue_depth: Option<u64>,
    /// Seconds.
    pub oldest_pending: Option<f64>,
}

/// A ring of steps.
pub struct Series {
    start: Instant,
    ring: Mutex<Vec<Step>>,
}

#[derive(Clone, Default)]
pub(super) struct Step {
    /// Which one since the start, and one more; 0 is an empty place.
    number: u64,
    pub(super) webhooks: u32,
    pub(super) succeeded: u32,
    pub(super) failed: u32,
    pub(super) retried: u32,
    pub(super) handler: Histogram,
    pub(super) result: Histogram,
    pub(super) queue_depth: Option<u64>,
    pub(super) oldest_pending: Option<f64>,
}

impl Series {
    pub(super) fn new(start: Instant) -> Self {
        Self { start, ring: Mutex::new(vec![Step::default(); STEPS]) }
    }

    pub(super) fn record(&self, now: Instant, change: impl FnOnce(&mut Step)) {
        let number = self.number(now);
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let step = &mut ring[(number % STEPS as u64) as usize];
        if step.number != number {
            *step = Step { number, ..Step::default() };
        }
        change(step);
    }

    /// The last hour, oldest first; less where the process is younger.
    pub fn points(&self, now: Instant) -> Vec<Point> {
        let last = self.number(now);
        let first = last.saturating_sub(STEPS as u64 - 1).max(1);
        let into = Duration::from_millis((now.saturating_duration_since(self.start).as_millis() % 10_000) as u64);
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let point = |number: u64| {
            let step = &ring[(number % STEPS as u64) as usize];
            let age = into + STEP * u32::try_from(last - number).unwrap_or(u32::MAX);
            if step.number == number { step.point(age) } else { Point { age, ..Point::default() } }
        };
        (first..=last).map(point).collect()
    }

    fn number(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.start).as_secs() / STEP.as_secs() + 1
    }
}

impl Step {
    fn point(&self, age: Duration) -> Point {
        Point {
            age,
            webhooks: self.webhooks,
            succeeded: self.succeeded,
            failed: self.failed,
            retried: self.retried,
            handler: self.handler.percentiles(),
            result: self.result.percentiles(),
            queue_depth: self.queue_depth,
            oldest_pending: self.oldest_pending,
        }
    }
}

#[derive(Clone)]
pub(super) struct Histogram([u32; BUCKETS]);

impl Default for Histogram {
    fn default() -> Self {
        Self([0; BUCKETS])
    }
}

impl Histogram {
    pub(super) fn add(&mut self, seconds: f64) {
        let place = ((seconds / LEAST).max(1.0).ln() / GROWTH.ln()).ceil() as usize;
        self.0[place.min(BUCKETS - 1)] += 1;
    }

    /// Of the median and of 95 in 100, the upper bound of the bucket that each falls into.
    fn percentiles(&self) -> Option<[f64; 2]> {
        let count: u64 = self.0.iter().copied().map(u64::from).sum();
        let bound = |share: f64| {
            let wanted = (count as f64 * share).ceil() as u64;
            let mut seen = 0;
            let place = self.0.iter().position(|n| {
                seen += u64::from(*n);
                seen >= wanted
            });
            LEAST * GROWTH.powi(place.unwrap_or(BUCKETS - 1) as i32)
        };
        (count > 0).then(|| [bound(0.5), bound(0.95)])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_point_has_what_was_recorded_in_its_step_and_old_ones_are_overwritten() {
        let start = Instant::now();
        let series = Series::new(start);
        series.record(start, |step| step.webhooks += 1);
        series.record(start + Duration::from_secs(9), |step| step.webhooks += 1);
        series.record(start + Duration::from_secs(25), |step| step.failed += 1);
        let points = series.points(start + Duration::from_secs(29));
        let counts: Vec<_> = points.iter().map(|p| (p.age.as_secs(), p.webhooks, p.failed)).collect();
        assert_eq!(counts, [(29, 2, 0), (19, 0, 0), (9, 0, 1)]);

        let later = start + STEP * STEPS as u32;
        series.record(later, |step| step.retried += 1);
        let points = series.points(later);
        assert_eq!((points.len(), points[0].webhooks, points[STEPS - 1].retried), (STEPS, 0, 1));
        assert_eq!(points[1].failed, 1);
        assert_eq!(series.points(later + STEP * 1000).iter().map(|p| p.failed + p.retried).sum::<u32>(), 0);
    }

    #[test]
    fn percentiles_are_within_a_third_of_the_truth() {
        let start = Instant::now();
        let series = Series::new(start);
        assert_eq!(series.points(start)[0].handler, None);
        series.record(start, |step| (1..=100).for_each(|n| step.handler.add(f64::from(n) / 100.0)));
        let [half, most] = series.points(start)[0].handler.unwrap();
        assert!((0.5..0.5 * GROWTH).contains(&half) && (0.95..0.95 * GROWTH).contains(&most), "{half} {most}");
        series.record(start, |step| [f64::NAN, -1.0, 0.0, 1e9].into_iter().for_each(|n| step.result.add(n)));
        let [half, most] = series.points(start)[0].result.unwrap();
        assert!(half == LEAST && most > 200.0);
    }
}
