//! actiond answers the required actions of AI agents.

pub mod admin;
pub mod arguments;
pub mod config;
pub mod function;
pub mod handler;
pub mod http;
pub mod ingress;
pub mod metrics;
pub mod platform;
pub mod queue;
pub mod retry;
pub mod sandbox;
pub mod schema;
pub mod send;
pub mod session;
pub mod store;
pub mod telemetry;
pub mod worker;
