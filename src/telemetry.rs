//! Logs, traces and metrics.

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

/// W3C `traceparent` of the current span, where traces are exported.
pub fn traceparent() -> Option<String> {
    None
}

/// Makes `span` a child of the span that `traceparent` names.
pub fn set_parent(_span: &tracing::Span, _traceparent: &str) {}
