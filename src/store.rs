//! The store seam: the ledger of calls and the clock.

use std::time::Duration;

use secrecy::SecretString;

/// `store` in the config.
#[derive(Clone, Debug)]
pub struct Config {
    /// `sqlite://file` or `postgres://…`; may hold a password.
    pub url: SecretString,
    /// Connections to PostgreSQL at most.
    pub max_connections: u32,
    /// How long one statement may take before the store counts as away.
    pub timeout: Duration,
}
