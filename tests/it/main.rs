//! The program driven from outside. One binary, so that it links once.

#![allow(clippy::unwrap_used)]

mod aivax;
mod api;
mod approvals;
mod browser;
mod crash;
mod demo;
mod doctor;
mod endings;
mod export;
mod faults;
mod flow;
mod ingress;
mod intake;
mod later;
mod live;
mod mcp;
mod operator;
mod others;
mod parsers;
mod platforms;
mod pools;
mod proxy;
mod queue_contract;
mod readme;
mod registry;
mod rig;
mod rolling;
mod sdk;
mod services;
mod shell;
mod store_contract;
mod subscription;
mod sweep;
mod telemetry;
mod tools;
mod watch;
