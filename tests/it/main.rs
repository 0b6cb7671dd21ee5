//! The program driven from outside. One binary, so that it links once.

#![allow(clippy::unwrap_used)]

mod queue_contract;
mod services;
mod store_contract;
