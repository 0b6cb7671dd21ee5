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
