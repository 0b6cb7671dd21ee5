//! The config file: one YAML document, every problem reported at once with its path.

use crate::{admin, function, ingress, platform, queue, store, telemetry, worker};

/// The whole file, read and checked.
#[derive(Clone, Debug)]
pub struct Config {
    pub ingress: ingress::Config,
    pub admin: admin::Config,
    pub queue: queue::Config,
    pub store: store::Config,
    pub worker: worker::Config,
    pub telemetry: telemetry::Config,
    pub platforms: Vec<platform::Config>,
    pub functions: Vec<function::Config>,
}
