//! Takes deliveries, one permit each, and reconciles their sessions.

use std::time::Duration;

/// `worker` in the config.
#[derive(Clone, Debug)]
pub struct Config {
    /// Sessions reconciled at once.
    pub concurrency: usize,
    /// How long work may go on after SIGTERM.
    pub grace_period: Duration,
    /// How long a claim holds without being renewed.
    pub lease: Duration,
    /// A submitted call still pending after this is submitted again.
    pub confirm_after: Duration,
    pub unknown_functions: UnknownFunctions,
}

/// What to do with a pending call of a function that is not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownFunctions {
    /// Sessions may be shared with other workers.
    Leave,
    /// Answer with an error result.
    Fail,
}
