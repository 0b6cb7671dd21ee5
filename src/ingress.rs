//! The public listener: verifies a webhook, publishes its session, and only then answers 2xx.

pub mod event;
pub mod signature;

use std::net::SocketAddr;

/// `ingress` in the config.
#[derive(Clone, Debug)]
pub struct Config {
    pub listen: SocketAddr,
    /// Bytes of a request body that are read at most.
    pub max_body: usize,
    /// Where the platforms reach us, for what is printed and handed out.
    pub public_url: Option<String>,
}
