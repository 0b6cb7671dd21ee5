//! A platform account as the worker uses it: with its deadline, and silent for a while after it refused our credentials.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime},
};

use super::polls::Woken;
use crate::{
    handler::Receiver,
    platform::{Platform, Poll},
    session::Session,
};

/// How long nothing is asked after a 401 or 403.
const PAUSE: Duration = Duration::from_secs(10);

pub struct Account {
    pub name: Arc<str>,
    pub platform: Arc<dyn Platform>,
    /// How long a call may wait for its answer, from when it is first seen.
    pub call_deadline: Duration,
    /// How often its list is read, where that is how its sessions are learned of.
    pub poll: Option<Poll>,
    /// Who is told of actions that are no function calls.
    pub receiver: Option<Arc<dyn Receiver>>,
    refused: Mutex<Option<Refused>>,
    last: Mutex<Last>,
    /// Held while its sessions are swept here.
    pub(super) sweeping: Arc<tokio::sync::Mutex<()>>,
    pub(super) woken: Woken,
    /// When calls that were left behind were last looked for here.
    pub(super) taken_up: Mutex<Option<Instant>>,
}

/// The agent hears of a call that took too long before the platform gives up on it.
fn answer_within(deadline: Duration) -> Duration {
    deadline - (deadline / 10).min(Duration::from_secs(60))
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
    /// `call_deadline` is when the platform gives up.
    pub fn new(name: impl Into<Arc<str>>, platform: Arc<dyn Platform>, call_deadline: Duration) -> Self {
        Self {
            name: name.into(),
            platform,
            call_deadline: answer_within(call_deadline),
            poll: None,
            receiver: None,
            refused: Mutex::new(None),
            last: Mutex::default(),
            sweeping: Arc::default(),
            woken: Woken::default(),
            taken_up: Mutex::new(None),
        }
    }

    #[must_use]
    pub fn polling(self, poll: Option<Poll>) -> Self {
        Self { poll, ..self }
    }

    #[must_use]
    pub fn telling(self, receiver: Option<Arc<dyn Receiver>>) -> Self {
        Self { receiver, ..self }
    }

    /// How long a call that the session lists may wait for its answer.
    pub(super) fn deadline(&self, session: &Session) -> Duration {
        session.expires_in.map_or(self.call_deadline, |left| answer_within(left).min(self.call_deadline))
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
