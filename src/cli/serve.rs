//! `actiond serve`: config, telemetry, ports, parts; then run until a signal.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{ConfigFile, Failure};
use crate::{
    app::{App, Listeners, Role},
    config::Loaded,
    metrics::Metrics,
    telemetry,
};

pub(super) async fn serve(file: &ConfigFile, role: Role, pool: Option<String>) -> Result<(), Failure> {
    let loaded = file.read()?;
    let guard = telemetry::init(&loaded.config.telemetry);
    let ended = run(file, loaded, role, pool, guard.metrics()).await;
    guard.shutdown().await;
    ended
}

async fn run(
    file: &ConfigFile,
    loaded: Loaded,
    role: Role,
    pool: Option<String>,
    metrics: Metrics,
) -> Result<(), Failure> {
    let Loaded { config, digest, .. } = loaded;
    let listeners = Listeners::bind(&config, role).await?;
    let (platforms, functions) = (config.platforms.len(), config.functions.len());
    let pool = pool.filter(|pool| !pool.is_empty());
    let shown = pool.clone().unwrap_or_else(|| "-".to_owned());
    let app = App::builder(config)
        .pool(pool)
        .build(role, metrics)
        .await
        .map_err(|error| Failure::Config(format!("{error:#}")))?;
    let app = app.reloading(file.path().to_owned(), digest);
    let stop = signals(Some(app.force()));
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"),
        role = ?role,
        pool = shown,
        ingress = %address(listeners.ingress.as_ref()),
        admin = %address(Some(&listeners.admin)),
        platforms,
        functions,
        "actiond runs"
    );
    app.run(listeners, stop).await?;
    tracing::info!("actiond ended");
    Ok(())
}

fn address(listener: Option<&tokio::net::TcpListener>) -> String {
    listener.and_then(|l| l.local_addr().ok()).map_or_else(|| "-".to_owned(), |address| address.to_string())
}

/// Cancelled at the first SIGTERM or SIGINT; the second cancels `force`, or ends the process.
pub(super) fn signals(force: Option<CancellationToken>) -> CancellationToken {
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        let (Ok(mut terminate), Ok(mut interrupt)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
        else {
            return;
        };
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        next().await;
        tracing::info!("stopping; a second signal cuts it short");
        stopping.cancel();
        next().await;
        match force {
            Some(force) => force.cancel(),
            None => std::process::exit(1),
        }
    });
    stop
}
