//! The age of the last delivery, told when it is asked for.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use opentelemetry::metrics::Meter;

/// When the last delivery came, in milliseconds since the start and one more; zero before the first.
pub(super) struct LastDelivery {
    start: Instant,
    at: AtomicU64,
}

impl LastDelivery {
    pub(super) fn register(meter: &Meter) -> Arc<Self> {
        let last = Arc::new(Self { start: Instant::now(), at: AtomicU64::new(0) });
        let observed = Arc::clone(&last);
        meter
            .f64_observable_gauge("actiond_last_delivery_age")
            .with_unit("s")
            .with_description("Time since the queue delivered something to this process.")
            .with_callback(move |observer| {
                if let Some(age) = observed.age() {
                    observer.observe(age, &[]);
                }
            })
            .build();
        last
    }

    pub(super) fn now(&self) {
        self.at.store(self.millis() + 1, Ordering::Relaxed);
    }

    fn age(&self) -> Option<f64> {
        let at = self.at.load(Ordering::Relaxed).checked_sub(1)?;
        Some(self.millis().saturating_sub(at) as f64 / 1000.0)
    }

    fn millis(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX - 1)
    }
}
