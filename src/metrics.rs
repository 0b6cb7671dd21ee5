//! The metrics of the program by name; one instrumentation feeds `/metrics`, OTLP and the dashboard.

mod last_delivery;
pub mod series;

use std::{sync::Arc, time::Instant};

use opentelemetry::{
    KeyValue,
    metrics::{Counter, Gauge, Histogram, MeterProvider as _, UpDownCounter},
};
use opentelemetry_sdk::metrics::{MeterProviderBuilder, SdkMeterProvider};
use prometheus::{Registry, TextEncoder};

use self::{
    last_delivery::LastDelivery,
    series::{Point, Series},
};

/// From a local publish to a slow handler, in seconds.
const SECONDS: [f64; 15] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// A cheap clone of the instruments.
#[derive(Clone)]
pub struct Metrics {
    inner: Arc<Inner>,
}

struct Inner {
    registry: Registry,
    provider: SdkMeterProvider,
    series: Series,
    last_delivery: Arc<LastDelivery>,
    webhooks: Counter<u64>,
    publish: Histogram<f64>,
    calls: Counter<u64>,
    handler: Histogram<f64>,
    result_latency: Histogram<f64>,
    in_flight: UpDownCounter<i64>,
    unknown_function: Counter<u64>,
    import_refused: Counter<u64>,
    sessions_due: Gauge<u64>,
    broker_up: Gauge<u64>,
    dead: Gauge<u64>,
    oldest_pending: Gauge<f64>,
    queue_depth: Gauge<u64>,
    function_paused: Gauge<u64>,
    callbacks: Counter<u64>,
    function_sources: Counter<u64>,
    submissions: Counter<u64>,
    swept_sessions: Counter<u64>,
    polls: Counter<u64>,
    watched: Gauge<u64>,
    other_actions: Counter<u64>,
    config_reloads: Counter<u64>,
    webhook_secrets: Counter<u64>,
    approvals: Counter<u64>,
    approvals_pending: Gauge<u64>,
    handovers: Counter<u64>,
    pool_sessions: Gauge<u64>,
    pool_workers: Gauge<u64>,
}

impl Metrics {
    /// Metrics that only `render` shows.
    pub fn new() -> Self {
        Self::with(SdkMeterProvider::builder())
    }

    /// Metrics that the readers of `builder` get too.
    pub fn with(builder: MeterProviderBuilder) -> Self {
        let registry = Registry::new();
        let exporter = opentelemetry_prometheus::exporter()
            .with_registry(registry.clone())
            .scope_info_enabled(false)
            .without_target_info()
            .build();
        let provider = match exporter {
            Ok(exporter) => builder.with_reader(exporter).build(),
            Err(_) => builder.build(),
        };
        Self { inner: Arc::new(Inner::new(registry, provider)) }
    }

    /// The Prometheus text of this moment.
    pub fn render(&self) -> String {
        TextEncoder::new().encode_to_string(&self.inner.registry.gather()).unwrap_or_default()
    }

    /// The last hour of this process.
    pub fn points(&self) -> Vec<Point> {
        self.inner.series.points(Instant::now())
    }

    /// What must be shut down for the last values to reach a collector.
    pub(crate) fn provider(&self) -> &SdkMeterProvider {
        &self.inner.provider
    }

    /// `actiond_webhooks_total{platform,outcome}`: queued, ignored, malformed, signature, unavailable, too_large.
    pub fn webhook(&self, platform: &str, outcome: &'static str) {
        self.inner.webhooks.add(1, &[label("platform", platform), KeyValue::new("outcome", outcome)]);
        self.inner.series.record(Instant::now(), |step| step.webhooks += 1);
    }

    /// `actiond_webhook_secrets_total{platform,secret}`: the place of the first secret that a webhook's signature matched.
    pub fn webhook_secret(&self, platform: &str, secret: usize) {
        let labels = [label("platform", platform), label("secret", &secret.to_string())];
        self.inner.webhook_secrets.add(1, &labels);
    }

    /// `actiond_publish_seconds`
    pub fn published(&self, seconds: f64) {
        self.inner.publish.record(seconds, &[]);
    }

    /// `actiond_calls_total{platform,function,outcome}`: success, error, retried, waiting, interrupted, refused,
    /// obsolete.
    pub fn call(&self, platform: &str, function: &str, outcome: &'static str) {
        let labels = [label("platform", platform), label("function", function), KeyValue::new("outcome", outcome)];
        self.inner.calls.add(1, &labels);
        self.inner.series.record(Instant::now(), |step| match outcome {
            "success" => step.succeeded += 1,
            "error" | "refused" => step.failed += 1,
            "retried" => step.retried += 1,
            _ => {}
        });
    }

    /// `actiond_handler_seconds{function}`
    pub fn handler(&self, function: &str, seconds: f64) {
        self.inner.handler.record(seconds, &[label("function", function)]);
        self.inner.series.record(Instant::now(), |step| step.handler.add(seconds));
    }

    /// `actiond_result_latency_seconds{platform}`: webhook accepted to result accepted.
    pub fn result_latency(&self, platform: &str, seconds: f64) {
        self.inner.result_latency.record(seconds, &[label("platform", platform)]);
        self.inner.series.record(Instant::now(), |step| step.result.add(seconds));
    }

    /// `actiond_handovers_total{pool}`
    pub fn handed_over(&self, pool: &str) {
        self.inner.handovers.add(1, &[label("pool", pool)]);
    }

    /// `actiond_pool_sessions{pool}` and `actiond_pool_workers{pool}`
    pub fn pool(&self, pool: &str, sessions: u64, workers: u64) {
        self.inner.pool_sessions.record(sessions, &[label("pool", pool)]);
        self.inner.pool_workers.record(workers, &[label("pool", pool)]);
    }

    /// `actiond_calls_in_flight`, +1 and -1.
    pub fn in_flight(&self, change: i64) {
        self.inner.in_flight.add(change, &[]);
    }

    /// `actiond_unknown_function_total{platform}`
    pub fn unknown_function(&self, platform: &str) {
        self.inner.unknown_function.add(1, &[label("platform", platform)]);
    }

    /// `actiond_import_refused_total{server,reason}`: tools of MCP servers that did not become functions.
    pub fn import_refused(&self, server: &str, reason: &'static str) {
        self.inner.import_refused.add(1, &[label("server", server), label("reason", reason)]);
    }

    /// `actiond_sessions_due`, the scheduler's last look.
    pub fn sessions_due(&self, count: u64) {
        self.inner.sessions_due.record(count, &[]);
    }

    /// `actiond_config_reloads_total{outcome}`: applied, unchanged, refused.
    pub fn config_reload(&self, outcome: &'static str) {
        self.inner.config_reloads.add(1, &[KeyValue::new("outcome", outcome)]);
    }

    /// `actiond_broker_up`, 0 or 1.
    pub fn broker_up(&self, up: bool) {
        self.inner.broker_up.record(up.into(), &[]);
    }

    /// `actiond_dead`: messages that wait for an operator.
    pub fn dead(&self, count: u64) {
        self.inner.dead.record(count, &[]);
    }

    /// `actiond_oldest_pending_seconds`: age of the oldest session that is to be looked at again; 0 where there is none.
    pub fn oldest_pending(&self, seconds: f64) {
        self.inner.oldest_pending.record(seconds, &[]);
        self.inner.series.record(Instant::now(), |step| step.oldest_pending = Some(seconds));
    }

    /// `actiond_queue_depth`: messages that wait for a worker.
    pub fn queue_depth(&self, count: u64) {
        self.inner.queue_depth.record(count, &[]);
        self.inner.series.record(Instant::now(), |step| step.queue_depth = Some(count));
    }

    /// `actiond_function_paused{function}`, 0 or 1.
    pub fn paused(&self, function: &str, paused: bool) {
        self.inner.function_paused.record(paused.into(), &[label("function", function)]);
    }

    /// A delivery came: `actiond_last_delivery_age_seconds` counts from here. Not shown before the first one.
    pub fn delivered(&self) {
        self.inner.last_delivery.now();
    }

    /// `actiond_callbacks_total{platform,outcome}`: answered, listed, unauthorized, malformed, unknown_function, overloaded,
    /// limited, unavailable.
    pub fn callback(&self, platform: &str, outcome: &'static str) {
        self.inner.callbacks.add(1, &[label("platform", platform), KeyValue::new("outcome", outcome)]);
    }

    /// `actiond_function_sources_total{source,outcome}`: fetched, failed, refused (one for each function).
    pub fn function_source(&self, source: &str, outcome: &'static str) {
        self.inner.function_sources.add(1, &[label("source", source), KeyValue::new("outcome", outcome)]);
    }

    /// `actiond_submissions_total{platform,outcome}`: accepted, unclear, retry, unauthorized, too_large, refused, gone.
    pub fn submission(&self, platform: &str, outcome: &'static str) {
        self.inner.submissions.add(1, &[label("platform", platform), KeyValue::new("outcome", outcome)]);
    }

    /// `actiond_swept_sessions_total{platform}`
    pub fn swept(&self, platform: &str, sessions: u64) {
        self.inner.swept_sessions.add(sessions, &[label("platform", platform)]);
    }

    /// `actiond_other_actions_total{platform,kind,outcome}`: seen, forwarded, failed.
    pub fn other_action(&self, platform: &str, kind: &str, outcome: &'static str) {
        let labels = [label("platform", platform), label("kind", kind), KeyValue::new("outcome", outcome)];
        self.inner.other_actions.add(1, &labels);
    }

    /// `actiond_watched_sessions`: sessions whose stream this process follows.
    pub fn watched(&self, sessions: u64) {
        self.inner.watched.record(sessions, &[]);
    }

    /// `actiond_polls_total{platform,outcome}`: found, nothing, failed.
    pub fn poll(&self, platform: &str, outcome: &'static str) {
        self.inner.polls.add(1, &[label("platform", platform), KeyValue::new("outcome", outcome)]);
    }

    /// `actiond_approvals_total{function,outcome}`: asked, approved, denied, expired, withdrawn.
    pub fn approval(&self, function: &str, outcome: &'static str) {
        self.inner.approvals.add(1, &[label("function", function), KeyValue::new("outcome", outcome)]);
    }

    /// `actiond_approvals_pending`: calls that somebody may decide now, in the whole store.
    pub fn approvals_pending(&self, count: u64) {
        self.inner.approvals_pending.record(count, &[]);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

fn label(name: &'static str, value: &str) -> KeyValue {
    KeyValue::new(name, value.to_owned())
}

/// The exporter to Prometheus adds `_total` to counters and `_seconds` for the unit.
impl Inner {
    fn new(registry: Registry, provider: SdkMeterProvider) -> Self {
        let meter = provider.meter("actiond");
        let last_delivery = LastDelivery::register(&meter);
        let counter = |name, help| meter.u64_counter(name).with_description(help).build();
        let gauge = |name, help| meter.u64_gauge(name).with_description(help).build();
        let seconds = |name, help| {
            let histogram = meter.f64_histogram(name).with_unit("s").with_description(help);
            histogram.with_boundaries(SECONDS.to_vec()).build()
        };
        let oldest_pending = meter.f64_gauge("actiond_oldest_pending").with_unit("s");
        let in_flight = meter.i64_up_down_counter("actiond_calls_in_flight");
        Self {
            webhooks: counter("actiond_webhooks", "Webhooks received, by platform and outcome."),
            publish: seconds("actiond_publish", "Time until a publish was confirmed."),
            calls: counter("actiond_calls", "Calls that came to an outcome or a retry."),
            handler: seconds("actiond_handler", "Time that a handler ran."),
            result_latency: seconds("actiond_result_latency", "Time from webhook accepted to result accepted."),
            in_flight: in_flight.with_description("Calls whose handler is running.").build(),
            import_refused: counter("actiond_import_refused", "Tools of MCP servers that did not become functions."),
            unknown_function: counter(
                "actiond_unknown_function",
                "Pending calls of functions that are not registered.",
            ),
            sessions_due: gauge("actiond_sessions_due", "Sessions due at the scheduler's last look."),
            broker_up: gauge("actiond_broker_up", "Whether the broker is connected, 0 or 1."),
            dead: gauge("actiond_dead", "Messages that were put aside as dead."),
            oldest_pending: oldest_pending
                .with_description("Age of the oldest session that is to be looked at again.")
                .build(),
            callbacks: counter("actiond_callbacks", "AIVAX callbacks and listings answered, by outcome."),
            function_sources: counter("actiond_function_sources", "Listings of function sources, by outcome."),
            submissions: counter("actiond_submissions", "Results posted to a platform, by outcome."),
            swept_sessions: counter("actiond_swept_sessions", "Sessions that waited and that only a sweep found."),
            other_actions: counter("actiond_other_actions", "Required actions that are no function calls, by outcome."),
            watched: gauge("actiond_watched_sessions", "Sessions whose live stream this process follows."),
            polls: counter("actiond_polls", "Readings of a platform's list that is polled, by outcome."),
            config_reloads: counter("actiond_config_reloads", "Looks at a changed config file, by outcome."),
            webhook_secrets: counter(
                "actiond_webhook_secrets",
                "Webhooks by the place of the secret that signed them.",
            ),
            queue_depth: gauge("actiond_queue_depth", "Messages that wait in the queue."),
            function_paused: gauge("actiond_function_paused", "Whether an operator has paused the function, 0 or 1."),
            series: Series::new(Instant::now()),
            approvals: counter("actiond_approvals", "Calls that waited for a person, by what became of them."),
            approvals_pending: gauge("actiond_approvals_pending", "Calls that wait for a person's approval."),
            handovers: counter("actiond_handovers", "Sessions given to the workers of a pool."),
            pool_sessions: gauge("actiond_pool_sessions", "Sessions that no worker of their pool has taken yet."),
            pool_workers: gauge("actiond_pool_workers", "Workers that take the sessions of a pool."),
            last_delivery,
            registry,
            provider,
        }
    }
}

#[cfg(test)]
mod tests;
