//! Logs, traces and metrics: set up once, shut down last, never in the way.

use std::{
    collections::HashMap,
    io::{IsTerminal, stderr},
    thread,
    time::Duration,
};

use opentelemetry::{
    KeyValue,
    propagation::TextMapPropagator,
    trace::{TraceContextExt, TracerProvider as _},
};
use opentelemetry_appender_tracing::layer::OpenTelemetryTracingBridge;
use opentelemetry_otlp::{
    ExporterBuildError, LogExporter, MetricExporter, RetryPolicy, SpanExporter, WithExportConfig, WithHttpConfig,
};
use opentelemetry_sdk::{
    Resource, logs::SdkLoggerProvider, metrics::SdkMeterProvider, propagation::TraceContextPropagator,
    trace::SdkTracerProvider,
};
use tokio::{sync::mpsc, time::timeout};
use tracing::{Span, Subscriber, level_filters::LevelFilter, subscriber::Interest};
use tracing_opentelemetry::OpenTelemetrySpanExt;
use tracing_subscriber::{
    EnvFilter, Layer, Registry,
    filter::{FilterExt, Targets, dynamic_filter_fn},
    fmt::{self, writer::BoxMakeWriter},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use crate::metrics::Metrics;

/// How long one export may take.
const EXPORT_LIMIT: Duration = Duration::from_secs(3);
/// How long the end of the process waits for the last export.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(2);
/// What is logged where `RUST_LOG` does not say.
const DEFAULT_LOG: &str =
    "info,hyper=warn,reqwest=warn,h2=warn,rustls=warn,lapin=warn,sqlx=warn,opentelemetry=warn,rmcp=off";

/// `telemetry` in the config.
#[derive(Clone, Debug)]
pub struct Config {
    pub log: LogFormat,
    /// Base URL of an OTLP/HTTP collector; off where `None`.
    pub otlp: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Json,
    Text,
}

/// What was set up. Keep it until the end.
pub struct Guard {
    metrics: Metrics,
    traces_and_logs: Option<(SdkTracerProvider, SdkLoggerProvider)>,
}

/// Sets up logs on standard error, and OTLP where it is configured. Call it once. A collector that is
/// away is no error.
pub fn init(config: &Config) -> Guard {
    let (subscriber, guard, problem) = build(config, BoxMakeWriter::new(stderr));
    if subscriber.try_init().is_ok()
        && let Some(problem) = problem
    {
        tracing::warn!(%problem, "telemetry is not exported");
    }
    guard
}

impl Guard {
    /// The instruments; `/metrics` and OTLP show the same ones.
    pub fn metrics(&self) -> Metrics {
        self.metrics.clone()
    }

    /// Sends what is left. Gives up after two seconds: a collector that never answers does not hold the exit.
    pub async fn shutdown(self) {
        let Some((traces, logs)) = self.traces_and_logs else { return };
        let metrics = self.metrics.provider().clone();
        let (working, mut ended) = mpsc::channel::<()>(1);
        let shut_down: [Box<dyn FnOnce() + Send>; 3] = [
            Box::new(move || drop(traces.shutdown_with_timeout(SHUTDOWN_LIMIT))),
            Box::new(move || drop(logs.shutdown_with_timeout(SHUTDOWN_LIMIT))),
            Box::new(move || drop(metrics.shutdown_with_timeout(SHUTDOWN_LIMIT))),
        ];
        for shut_down in shut_down {
            let working = working.clone();
            // Not tokio's blocking pool: the runtime would wait for it without limit.
            let _ = thread::Builder::new().name("telemetry-end".into()).spawn(move || {
                shut_down();
                drop(working);
            });
        }
        drop(working);
        let _ = timeout(SHUTDOWN_LIMIT, ended.recv()).await;
    }
}

/// The subscriber that logs to `writer`, and why OTLP is not there although it is configured.
fn build(config: &Config, writer: BoxMakeWriter) -> (impl Subscriber + Send + Sync + use<>, Guard, Option<String>) {
    crate::http::use_ring();
    let otlp = config.otlp.as_deref().map(Otlp::new).transpose();
    let (otlp, problem) = match otlp {
        Ok(otlp) => (otlp, None),
        Err(error) => (None, Some(error.to_string())),
    };
    let (metrics, providers) = match otlp {
        Some(Otlp { metrics, traces, logs }) => (metrics, Some((traces, logs))),
        None => (Metrics::new(), None),
    };
    // A list, because an absent layer beside a filtered one would keep every span alive.
    let mut layers = vec![log(config.log, writer)];
    if let Some((traces, logs)) = &providers {
        let spans = tracing_opentelemetry::layer().with_tracer(traces.tracer("actiond"));
        layers.push(spans.and_then(OpenTelemetryTracingBridge::new(logs)).with_filter(exported()).boxed());
    }
    let subscriber = Registry::default().with(layers);
    (subscriber, Guard { metrics, traces_and_logs: providers }, problem)
}

/// Events only: with OTLP off nobody looks at a span, and then it costs nothing.
fn log(format: LogFormat, writer: BoxMakeWriter) -> Box<dyn Layer<Registry> + Send + Sync> {
    let layer = match format {
        LogFormat::Json => {
            let json = fmt::layer().json().flatten_event(true).with_current_span(false).with_span_list(false);
            json.with_writer(writer).boxed()
        }
        LogFormat::Text => fmt::layer().compact().with_ansi(stderr().is_terminal()).with_writer(writer).boxed(),
    };
    let chosen = std::env::var("RUST_LOG").ok().filter(|text| !text.is_empty());
    let filter = EnvFilter::builder().parse_lossy(chosen.as_deref().unwrap_or(DEFAULT_LOG));
    // Asked anew for every event: were its answer kept, an event after somebody's mere question whether it would be logged
    // (the database driver's, around statements) would be taken for refused, and get lost.
    // With a hint of its level, or both filters together have none and every disabled event of every library is asked about.
    let events = dynamic_filter_fn(|metadata, _| metadata.is_event())
        .with_max_level_hint(LevelFilter::TRACE)
        .with_callsite_filter(|metadata| if metadata.is_event() { Interest::sometimes() } else { Interest::never() });
    layer.with_filter(events.and(filter)).boxed()
}

/// All but what an export does itself, which would be exported again without end.
fn exported() -> Targets {
    let own = ["hyper", "reqwest", "h2", "rustls", "opentelemetry", "rmcp"];
    Targets::new().with_default(LevelFilter::INFO).with_targets(own.map(|target| (target, LevelFilter::OFF)))
}

/// Providers that export from their own threads, through the blocking client.
struct Otlp {
    metrics: Metrics,
    traces: SdkTracerProvider,
    logs: SdkLoggerProvider,
}

impl Otlp {
    fn new(base: &str) -> Result<Self, ExporterBuildError> {
        let base = base.trim_end_matches('/');
        let spans = SpanExporter::builder()
            .with_http()
            .with_endpoint(format!("{base}/v1/traces"))
            .with_timeout(EXPORT_LIMIT)
            .with_retry_policy(RetryPolicy::recommended())
            .build()?;
        let records = LogExporter::builder()
            .with_http()
            .with_endpoint(format!("{base}/v1/logs"))
            .with_timeout(EXPORT_LIMIT)
            .with_retry_policy(RetryPolicy::recommended())
            .build()?;
        let points = MetricExporter::builder()
            .with_http()
            .with_endpoint(format!("{base}/v1/metrics"))
            .with_timeout(EXPORT_LIMIT)
            .with_retry_policy(RetryPolicy::recommended())
            .build()?;
        let resource = resource();
        let meters = SdkMeterProvider::builder().with_periodic_exporter(points).with_resource(resource.clone());
        Ok(Self {
            metrics: Metrics::with(meters),
            traces: SdkTracerProvider::builder().with_batch_exporter(spans).with_resource(resource.clone()).build(),
            logs: SdkLoggerProvider::builder().with_batch_exporter(records).with_resource(resource).build(),
        })
    }
}

/// Who we are; `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` have the last word.
fn resource() -> Resource {
    let ours = [KeyValue::new("service.name", "actiond"), KeyValue::new("service.version", env!("CARGO_PKG_VERSION"))];
    let environment = Resource::builder().build();
    let named = environment.iter().filter(|(_, value)| !value.as_str().starts_with("unknown_service"));
    let named: Vec<KeyValue> = named.map(|(key, value)| KeyValue::new(key.clone(), value.clone())).collect();
    Resource::builder_empty().with_attributes(ours).with_attributes(named).build()
}

/// The current span as a W3C `traceparent`; `None` where OTLP is off.
pub fn traceparent() -> Option<String> {
    let context = Span::current().context();
    let context = context.span().span_context().clone();
    let flags = context.trace_flags().to_u8();
    context.is_valid().then(|| format!("00-{}-{}-{flags:02x}", context.trace_id(), context.span_id()))
}

/// Makes `span` continue the trace of a `traceparent`. Only before the span is entered; what is no `traceparent` is ignored.
pub fn set_parent(span: &Span, traceparent: &str) {
    let carrier = HashMap::from([("traceparent".to_owned(), traceparent.to_owned())]);
    let context = TraceContextPropagator::new().extract(&carrier);
    if context.span().span_context().is_valid() {
        let _ = span.set_parent(context);
    }
}

#[cfg(test)]
mod tests;
