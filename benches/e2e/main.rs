//! From the webhook to the accepted result: the real program, between a platform and a handler that answer at once.
//!
//! ```sh
//! cargo bench --bench e2e                                            # one process, embedded queue, SQLite
//! eval "$(tests/services start)"; cargo bench --bench e2e            # and over RabbitMQ and PostgreSQL
//! ```
//!
//! `-- SECONDS` says how long each measurement takes (5). Everything shares this machine's cores, the load and the platform
//! too: rates are for comparison, the processor time of a job travels better to other machines.
#![allow(clippy::unwrap_used)]

mod broker;
mod load;
mod platform;
mod system;

use std::{sync::Arc, time::Duration};

use load::{Load, quantile};
use platform::Platform;
use system::System;

/// Deliveries in flight while throughput is measured.
const CLOSED: usize = 128;
/// Deliveries a second while latency is measured.
const OPEN: u32 = 50;
/// Publishes in flight at the ingress and at the broker alone.
const WINDOW: usize = 64;
/// Of one webhook.
const COPIES: usize = 1000;

#[tokio::main]
async fn main() {
    let seconds = std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(5);
    let time = Duration::from_secs(seconds);
    let platform = Platform::start().await;

    println!(
        "| queue and store | jobs/s | CPU-s per 1000 jobs | result p50 / p90 / p99 ms at {OPEN}/s | ingress p50 / p99 ms at {OPEN}/s | RSS MB | {COPIES} copies of one webhook: handler calls, CPU-s |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    row("embedded, SQLite", System::embedded(&platform).await, &platform, time).await;
    let (Ok(amqp), Ok(postgres)) = (std::env::var("ACTIOND_TEST_AMQP_URL"), std::env::var("ACTIOND_TEST_POSTGRES_URL"))
    else {
        println!("\nOver RabbitMQ and PostgreSQL:  eval \"$(tests/services start)\"; cargo bench --bench e2e");
        return;
    };
    let system = System::clustered(&platform, &amqp, &postgres).await;
    row("RabbitMQ, PostgreSQL", system, &platform, time).await;

    let alone = broker::confirmed(&amqp, WINDOW, time).await;
    let ingress = System::ingress(&platform, &amqp).await;
    let load = Arc::new(Load::new(&ingress, platform.clone()));
    let accepted = load.accepted(WINDOW, time).await;
    println!(
        "\nPublishes with confirm, {WINDOW} in flight: the broker alone {alone:.0}/s, through the ingress {accepted:.0}/s ({:.2} of it)",
        accepted / alone
    );
}

async fn row(name: &str, system: System, platform: &Arc<Platform>, time: Duration) {
    let load = Arc::new(Load::new(&system, platform.clone()));
    // Connections, statements and caches as they are later.
    load.closed(CLOSED, Duration::from_secs(2)).await;
    let before = system.cpu();
    let jobs = load.closed(CLOSED, time).await;
    let cpu = system.cpu() - before;
    let rate = jobs as f64 / time.as_secs_f64();
    let mut latencies = load.open(OPEN, time).await;
    let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|q| quantile(&mut latencies.result, q));
    let [accepted, late] = [0.5, 0.99].map(|q| quantile(&mut latencies.ingress, q));
    let memory = system.memory() >> 20;
    let (handled, before) = (platform.handled(), system.cpu());
    load.copies(COPIES).await;
    // What was accepted last may still be looked at.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (handled, copies) = (platform.handled() - handled, system.cpu() - before);
    println!(
        "| {name} | {rate:.0} | {:.2} | {p50:.2} / {p90:.2} / {p99:.2} | {accepted:.2} / {late:.2} | {memory} | {handled}, {:.2} |",
        cpu.as_secs_f64() * 1000.0 / jobs as f64,
        copies.as_secs_f64(),
    );
}
