//! A platform account as the worker uses it: with its deadline, and silent for a while after it refused our credentials.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use crate::platform::Platform;

/// How long nothing is asked after a 401 or 403.
const PAUSE: Duration = Duration::from_secs(10);

pub struct Account {
    pub name: Arc<str>,
    pub platform: Arc<dyn Platform>,
    pub call_deadline: Duration,
    refused: Mutex<Option<Refused>>,
    last: Mutex<Last>,
    /// Held while its sessions are swept here.
    pub(super) sweeping: Arc<tokio::sync::Mutex<()>>,
}

/// What the platform answered last, as far as this process asked it.
#[derive(Clone, Debug, Default)]
pub struct Last {
    pub answered: Option<SystemTime>,
    /// When it failed to answer, and how; older than `answered` where it has recovered.
    pub failed: Option<(SystemTime, String)>,
}

struct Refused {
    until: Instant,
    detail: String,
}

impl Account {
    pub fn new(name: impl Into<Arc<str>>, platform: Arc<dyn Platform>, call_deadline: Duration) -> Self {
        Self {
            name: name.into(),
            platform,
            call_deadline,
            refused: Mutex::new(None),
            last: Mutex::default(),
            sweeping: Arc::default(),
        }
    }

    /// How long to leave the platform alone, if it refused our credentials a moment ago.
    pub(super) fn paused(&self) -> Option<Duration> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.as_ref().map(|r| r.until.saturating_duration_since(Instant::now())).filter(|left| !left.is_zero())
    }

    /// Our credentials were refused: stop hammering.
    pub(super) fn refuse(&self, detail: &str) -> Duration {
        tracing::error!(platform = %self.name, detail, pause = ?PAUSE, "the platform refuses our credentials: check api_key");
        let refused = Refused { until: Instant::now() + PAUSE, detail: detail.to_owned() };
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(refused);
        self.fail(detail);
        PAUSE
    }

    /// The credentials work.
    pub(super) fn accept(&self) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.last.lock().unwrap_or_else(PoisonError::into_inner).answered = Some(SystemTime::now());
    }

    /// It did not answer as it should.
    pub(super) fn fail(&self, detail: &str) {
        let failed = Some((SystemTime::now(), detail.to_owned()));
        self.last.lock().unwrap_or_else(PoisonError::into_inner).failed = failed;
    }

    /// What the platform answered last.
    pub fn last(&self) -> Last {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// For readiness: `Err` from the first refusal until something is accepted again.
    pub fn ready(&self) -> Result<(), String> {
        match &*self.refused.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(refused) => Err(format!("platform {} refuses our credentials: {}", self.name, refused.detail)),
            None => Ok(()),
        }
    }
}
