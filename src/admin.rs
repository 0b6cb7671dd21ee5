//! The private listener: health and metrics.

use std::net::SocketAddr;

use secrecy::SecretString;

/// `admin` in the config.
#[derive(Clone, Debug)]
pub struct Config {
    pub listen: SocketAddr,
    /// Bearer token of the operator API; needed where the listener is not loopback.
    pub token: Option<SecretString>,
}
