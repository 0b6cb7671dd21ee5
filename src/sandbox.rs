//! A local Agents API with a scripted model, for trying handlers, for the demo and for tests.

mod agents;
pub mod cli;
mod error;
mod events;
mod faults;
mod flavor;
mod input;
mod journal;
mod json;
mod model;
mod query;
mod routes;
mod runs;
mod script;
mod session;
mod stats;
mod submission;
#[cfg(test)]
mod tests;
mod webhook;
mod wire;

use std::{
    collections::HashMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use axum::Router;
use rand::{SeedableRng, rngs::StdRng};
use secrecy::SecretString;
use serde_json::Value;
use tokio::{net::TcpListener, sync::broadcast};
use tokio_util::sync::CancellationToken;

use self::{
    error::ApiError,
    model::{Context, Effect, Ids},
    webhook::{Delivery, Sender},
};
pub use self::{
    faults::{Faults, Rule},
    flavor::Flavor,
    journal::{Counters, Entry, Outcome, What},
    script::{Round, Script, Step},
    session::{
        Accepted, Action, ActionKind, ActionState, CallResult, Item, ItemKind, Posts, RunOf, Session, Status, Turn,
        TurnError, TurnStatus,
    },
    webhook::{EventType, Webhook, generate_secret, secret_key, sign},
};

/// How the sandbox behaves.
#[derive(Clone, Debug)]
pub struct Config {
    /// What `Authorization: Bearer` must carry.
    pub api_key: SecretString,
    /// Whose rules count, and whether there are workflow runs.
    pub flavor: Flavor,
    pub webhook: Option<Webhook>,
    pub faults: Faults,
    /// Ids and chance follow from it.
    pub seed: u64,
    /// Most input events in one request; some platforms take one only.
    pub max_events: usize,
    /// Refuse results that carry no Idempotency-Key.
    pub require_idempotency_key: bool,
    /// The status of an accepted submission: 202 at OpenAI, 204 elsewhere.
    pub accepted_status: u16,
}

impl Config {
    /// A platform of that flavor.
    pub fn of(flavor: Flavor) -> Self {
        Self {
            flavor,
            require_idempotency_key: flavor.requires_key(),
            accepted_status: flavor.accepted_status(),
            ..Self::default()
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            api_key: "sk-sandbox".into(),
            flavor: Flavor::Openai,
            webhook: None,
            faults: Faults::default(),
            seed: 0,
            max_events: 32,
            require_idempotency_key: false,
            accepted_status: 202,
        }
    }
}

/// A running platform. Needs a Tokio runtime as soon as it sends webhooks.
pub struct Sandbox {
    config: Config,
    sender: Option<Sender>,
    state: Mutex<State>,
    journal: broadcast::Sender<Entry>,
    stop: CancellationToken,
}

struct State {
    agents: Vec<Value>,
    sessions: HashMap<Arc<str>, Session>,
    /// Ids, oldest first.
    order: Vec<Arc<str>>,
    faults: Faults,
    ids: Ids,
    random: StdRng,
    counters: Counters,
}

impl Sandbox {
    /// # Errors
    /// When the webhook's URL or secret cannot be read.
    pub fn new(config: Config) -> anyhow::Result<Arc<Self>> {
        let state = State {
            agents: Vec::new(),
            sessions: HashMap::new(),
            order: Vec::new(),
            faults: config.faults.clone(),
            ids: Ids { seed: config.seed, made: 0 },
            random: StdRng::seed_from_u64(config.seed),
            counters: Counters::default(),
        };
        Ok(Arc::new(Self {
            sender: config.webhook.clone().map(Sender::new).transpose()?,
            config,
            state: Mutex::new(state),
            journal: broadcast::channel(4096).0,
            stop: CancellationToken::new(),
        }))
    }

    /// All routes: the API under `/v1`, the switches under `/sandbox`.
    pub fn router(self: &Arc<Self>) -> Router {
        routes::router(self)
    }

    /// Serves until `shutdown`, then ends streams and webhook retries and waits for the requests in flight.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        shutdown: impl Future<Output = ()> + Send + 'static,
    ) -> io::Result<()> {
        let stop = self.stop.clone();
        let ended = stop.clone().drop_guard();
        let shutdown = async move {
            shutdown.await;
            stop.cancel();
        };
        let served = axum::serve(listener, self.router()).with_graceful_shutdown(shutdown).await;
        drop(ended);
        served
    }

    /// What happens from now on.
    pub fn journal(&self) -> broadcast::Receiver<Entry> {
        self.journal.subscribe()
    }

    /// A copy of the session as it is now.
    pub fn session(&self, id: &str) -> Option<Session> {
        self.state().sessions.get(id).cloned()
    }

    /// Ids of all sessions, oldest first.
    pub fn sessions(&self) -> Vec<Arc<str>> {
        self.state().order.clone()
    }

    /// Makes a session look as if nothing had happened in it for so long.
    pub fn age(&self, id: &str, by: Duration) {
        if let Some(session) = self.state().sessions.get_mut(id) {
            let seconds = i64::try_from(by.as_secs()).unwrap_or(i64::MAX);
            session.created_at = session.created_at.saturating_sub(seconds);
            session.last_active_at = session.last_active_at.saturating_sub(seconds);
        }
    }

    pub fn counters(&self) -> Counters {
        self.state().counters
    }

    pub fn faults(&self) -> Faults {
        self.state().faults.clone()
    }

    /// Replaces all fault switches.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Waits until the session is as wanted; `None` when it is not there (any more).
    pub async fn until(&self, id: &str, wanted: impl Fn(&Session) -> bool) -> Option<Session> {
        let mut journal = self.journal();
        loop {
            // Asked outside of the lock: what is wanted may depend on more of the sandbox.
            let session = self.session(id)?;
            if wanted(&session) {
                return Some(session);
            }
            // Having missed entries is no matter: the state is looked at, not the entry.
            while let Ok(entry) = journal.recv().await
                && *entry.session != *id
            {}
        }
    }

    /// Waits until the session is idle or failed and has no turn left.
    pub async fn settled(&self, id: &str) -> Option<Session> {
        self.until(id, |session| matches!(session.status, Status::Idle | Status::Failed)).await
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a line of the journal.
    fn note(&self, session: &Arc<str>, what: What) {
        self.record(&mut self.state().counters, session, what);
    }

    fn record(&self, counters: &mut Counters, session: &Arc<str>, what: What) {
        counters.count(&what);
        let _ = self.journal.send(Entry { at: unix_millis(), session: session.clone(), what });
    }

    /// Changes one session and does what follows from it.
    fn change<T>(
        self: &Arc<Self>,
        state: &mut State,
        id: &str,
        change: impl FnOnce(&mut Session, &mut Context<'_>) -> T,
    ) -> Result<T, ApiError> {
        let session = state.sessions.get_mut(id).ok_or_else(|| ApiError::not_found("session", id))?;
        let thinks = state.faults.think_ms > 0;
        let mut cx = Context { now: unix_millis() / 1000, ids: &mut state.ids, thinks, effects: Vec::new() };
        let answer = change(session, &mut cx);
        let (effects, now) = (cx.effects, cx.now);
        let id = session.id.clone();
        for effect in effects {
            match effect {
                Effect::Journal(what) => self.record(&mut state.counters, &id, what),
                Effect::Webhook { event, action } => self.send(state, &id, event, action.as_deref(), now),
                Effect::Think { turn_id } => {
                    self.later(
                        state.faults.think_ms,
                        id.clone(),
                        Box::new(move |session, cx| session.advance(&turn_id, cx)),
                    );
                }
                Effect::Wait { asked } => {
                    let waits = match state.faults.expire_ms {
                        0 => DAY_MS,
                        millis => millis,
                    };
                    if let Some(run) = state.sessions.get_mut(&id).and_then(|session| session.run.as_mut()) {
                        run.expires_at = Some(unix_millis() + waits as i64);
                    }
                    if state.faults.expire_ms == 0 {
                        continue;
                    }
                    self.later(
                        state.faults.expire_ms,
                        id.clone(),
                        Box::new(move |session, cx| session.expire(asked, cx)),
                    );
                }
            }
        }
        Ok(answer)
    }

    fn send(self: &Arc<Self>, state: &mut State, id: &Arc<str>, event: EventType, action: Option<&str>, now: i64) {
        let Some(session) = state.sessions.get(id).filter(|session| session.run.is_none()) else { return };
        if !self.sender.as_ref().is_some_and(|sender| sender.wants(event)) {
            return;
        }
        if state.faults.webhook_drop.hits(&mut state.random) {
            self.record(&mut state.counters, id, What::WebhookDropped { event: event.as_str() });
            return;
        }
        let (webhook_id, event_id) = (state.ids.next("wh"), state.ids.next("evt"));
        let body = webhook::body(&event_id, event, session, action, now);
        let copies = if state.faults.webhook_duplicate.hits(&mut state.random) { 2 } else { 1 };
        let delayed = state.faults.webhook_delay.hits(&mut state.random);
        let delay = Duration::from_millis(if delayed { state.faults.webhook_delay_ms } else { 0 });
        for _ in 0..copies {
            let (webhook_id, body) = (webhook_id.clone(), body.clone());
            let delivery = Delivery { session: id.clone(), webhook_id, event, body, delay };
            let sandbox = self.clone();
            tokio::spawn(async move {
                if let Some(sender) = &sandbox.sender {
                    sandbox.stop.run_until_cancelled(sender.deliver(&sandbox, delivery)).await;
                }
            });
        }
    }

    fn later(self: &Arc<Self>, millis: u64, id: Arc<str>, change: Move) {
        let sandbox = self.clone();
        tokio::spawn(async move {
            let pause = tokio::time::sleep(Duration::from_millis(millis));
            if sandbox.stop.run_until_cancelled(pause).await.is_some() {
                // A session deleted meanwhile has no more moves.
                let _ = sandbox.change(&mut sandbox.state(), &id, change);
            }
        });
    }
}

/// How long a run says that it waits.
const DAY_MS: u64 = 24 * 60 * 60 * 1000;

/// A move that is made later.
type Move = Box<dyn FnOnce(&mut Session, &mut Context<'_>) + Send>;

fn unix_millis() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}
