//! Takes a changed config file over while the program runs: its functions, as a whole or not at all.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::builder::{Code, check_pool};
use crate::{
    config::{self, Digest},
    function::Live,
    http::Client,
    mcp::Servers,
    metrics::Metrics,
};

/// How often the file is looked at. Its content counts, so that a link that is swapped above it is noticed too.
const EVERY: Duration = Duration::from_secs(2);
/// What can be taken over; a change elsewhere needs a restart.
const LIVE: [&str; 2] = ["functions", "retry"];

pub(super) struct Reload {
    pub(super) path: PathBuf,
    /// What the file was when it was last looked at.
    pub(super) seen: Digest,
    pub(super) code: Code,
    pub(super) client: Client,
    pub(super) servers: Servers,
    pub(super) functions: Arc<Live>,
    pub(super) metrics: Metrics,
    /// Those that there are queues for.
    pub(super) pools: Vec<String>,
}

impl Reload {
    /// Looks at every SIGHUP, and now and then, until `stop`.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut hangup = match signal(SignalKind::hangup()) {
            Ok(hangup) => hangup,
            Err(error) => return tracing::warn!(%error, "the config is not reloaded"),
        };
        loop {
            let asked = tokio::select! {
                _ = hangup.recv() => true,
                () = tokio::time::sleep(EVERY) => false,
                () = stop.cancelled() => return,
            };
            let changed = self.changed();
            if asked || changed {
                self.reload();
            }
        }
    }

    /// A file that is away for a moment has not changed.
    fn changed(&mut self) -> bool {
        let Ok(text) = std::fs::read(&self.path) else { return false };
        let text = config::hash(&text);
        std::mem::replace(&mut self.seen.text, text) != text
    }

    fn reload(&mut self) {
        let outcome = match self.take_over() {
            Ok(true) => "applied",
            Ok(false) => "unchanged",
            Err(error) => {
                tracing::error!(error = %format!("{error:#}"), "the changed config is refused: the functions stay as they were");
                "refused"
            }
        };
        self.metrics.config_reload(outcome);
    }

    /// Whether there was something to take over.
    fn take_over(&mut self) -> anyhow::Result<bool> {
        let loaded = config::load(&self.path)?;
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        let changed = loaded.digest.changed(&self.seen);
        let (live, elsewhere): (Vec<_>, Vec<_>) = changed.into_iter().partition(|section| LIVE.contains(section));
        if !elsewhere.is_empty() {
            tracing::warn!(sections = elsewhere.join(", "), "changes there need a restart");
        }
        let is_new = !live.is_empty();
        if is_new {
            let functions = &loaded.config.functions;
            functions.iter().try_for_each(|function| check_pool(function, &self.pools)).context("restart first")?;
            let registry = self.code.registry(functions, &self.client, &self.servers, Instant::now())?;
            let count = registry.names().count();
            self.functions.swap(registry.inheriting(&self.functions.load()));
            tracing::info!(functions = count, "the functions of the changed config count now");
        }
        self.seen = loaded.digest;
        Ok(is_new)
    }
}
