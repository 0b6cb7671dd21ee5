//! The processes under test and what stands around them, each line between them a proxy.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use actiond::sandbox::{self, Faults, Sandbox, Webhook, What, generate_secret};
use axum::{Router, middleware};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{
    net::TcpListener,
    sync::{Mutex as Lock, broadcast::error::RecvError},
};

use super::{
    Settings, Target,
    callee::{Callee, KINDS},
    gate::{Gate, Step, platform},
    schedule::{self, Outage, Strike},
    servers::Servers,
    timeline::Timeline,
};
use crate::{
    proxy::Proxy,
    rig::{Daemon, now},
    services::{faketime, tempdir::Folder},
};

pub(crate) const LEASE: Duration = Duration::from_secs(3);

pub(crate) struct World {
    pub(crate) settings: Settings,
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) callee: Arc<Callee>,
    pub(crate) timeline: Arc<Timeline>,
    pub(crate) seats: Vec<Seat>,
    pub(crate) servers: Option<Servers>,
    pub(crate) store_url: String,
    pub(crate) prefix: String,
    /// Sessions of which a webhook was dropped and none was accepted since.
    unheard: Mutex<HashMap<Arc<str>, ()>>,
    platform_at: SocketAddr,
    ingress_at: SocketAddr,
    secret: String,
    _folder: Folder,
}

/// A place for one process.
pub(crate) struct Seat {
    pub(crate) name: &'static str,
    role: &'static str,
    config: String,
    variables: Vec<(&'static str, String)>,
    gate: Arc<Gate>,
    store: Option<Arc<Proxy>>,
    broker: Option<Arc<Proxy>>,
    daemon: Lock<Option<Daemon>>,
}

impl World {
    pub(crate) async fn new(settings: Settings) -> Arc<Self> {
        let folder = Folder::new();
        let timeline = Arc::new(Timeline::new());
        let (platform_at, platform_listener) = bind().await;
        let (ingress_at, _) = bind().await;
        let secret = generate_secret();
        let mut webhook = Webhook::new(format!("http://{ingress_at}/webhooks/openai"), secret.clone());
        webhook.retry.initial = Duration::from_millis(100);
        webhook.retry.max = Duration::from_millis(500);
        let sandbox = Sandbox::new(sandbox::Config {
            api_key: "sk-test".into(),
            webhook: Some(webhook),
            seed: settings.seed,
            ..sandbox::Config::default()
        })
        .unwrap();
        tokio::spawn(sandbox.clone().serve(platform_listener, std::future::pending()));
        let callee = Callee::new(settings.seed, format!("{}/journal", folder.path()), timeline.clone());
        let servers = match settings.target {
            Target::Embedded => None,
            Target::RabbitPostgres => Some(Servers::start(&settings).await),
        };
        let store_url = match &servers {
            Some(servers) => servers.database_url.clone(),
            None => format!("sqlite://{}/actiond.db", folder.path()),
        };
        let mut world = Self {
            prefix: format!("f{}", uuid::Uuid::now_v7().simple()),
            settings,
            sandbox,
            callee,
            timeline,
            seats: Vec::new(),
            servers,
            store_url,
            unheard: Mutex::default(),
            platform_at,
            ingress_at,
            secret,
            _folder: folder,
        };
        let skew = if settings.seed.is_multiple_of(2) { "+90s" } else { "-90s" };
        let seats: &[(&str, &str, Option<&str>)] = match settings.target {
            Target::Embedded => &[("all", "all", None)],
            Target::RabbitPostgres => {
                &[("ingress", "ingress", None), ("worker-1", "worker", None), ("worker-2", "worker", Some(skew))]
            }
        };
        for (name, role, skew) in seats {
            let seat = world.seat(name, role, *skew).await;
            world.seats.push(seat);
        }
        let world = Arc::new(world);
        tokio::spawn(world.clone().listen());
        world
    }

    async fn seat(&self, name: &'static str, role: &'static str, skew: Option<&str>) -> Seat {
        let (mut store, mut broker) = (None, None);
        let queue = match &self.servers {
            None => "{ type: embedded }".to_owned(),
            Some(servers) => {
                let proxy = Proxy::among(servers.broker_addresses.clone()).await;
                let url = format!("amqp://guest:guest@{}/%2f", proxy.at);
                broker = Some(Arc::new(proxy));
                let prefix = &self.prefix;
                format!("{{ type: rabbitmq, url: \"{url}\", prefix: {prefix}, prefetch: 24, confirm_timeout: 2s }}")
            }
        };
        let mut store_url = self.store_url.clone();
        if self.servers.is_some() {
            let (proxy, url) = crate::proxy::before(&store_url).await;
            (store, store_url) = (Some(Arc::new(proxy)), url);
        }
        let gate = Arc::new(Gate::new(store.clone()));
        let (platform_at, handlers_at) = (bind().await, bind().await);
        let router: Router = self.sandbox.router().layer(middleware::from_fn_with_state(gate.clone(), platform));
        tokio::spawn(axum::serve(platform_at.1, router).into_future());
        tokio::spawn(axum::serve(handlers_at.1, self.callee.router(gate.clone(), name)).into_future());
        let handlers = handlers_at.0.to_string();
        let functions: String = KINDS.iter().map(|kind| kind.config(&handlers, &self.callee.journal)).collect();
        let text = format!(
            "ingress: {{ listen: \"{}\" }}\n\
             admin: {{ listen: \"127.0.0.1:0\" }}\n\
             queue: {queue}\n\
             store: {{ url: \"{store_url}\", timeout: 2s }}\n\
             worker: {{ lease: {}s, confirm_after: 1s, grace_period: 1s, concurrency: 16 }}\n\
             telemetry: {{ log: json }}\n\
             retry: {{ initial: 50ms, max: 500ms }}\n\
             platforms:\n  - name: openai\n    type: agents_api\n    base_url: \"http://{}/v1\"\n    \
             api_key: sk-test\n    webhook: {{ scheme: standard, secrets: [\"{}\"] }}\n\
             functions:\n{functions}",
            self.ingress_at,
            LEASE.as_secs(),
            platform_at.0,
            self.secret,
        );
        let config = format!("{}/{name}.yaml", self._folder.path());
        std::fs::write(&config, text).unwrap();
        let variables = skew.map(faketime).unwrap_or_default();
        Seat { name, role, config, variables, gate, store, broker, daemon: Lock::new(None) }
    }

    /// Writes down what the sandbox tells.
    async fn listen(self: Arc<Self>) {
        let mut journal = self.sandbox.journal();
        loop {
            let entry = match journal.recv().await {
                Ok(entry) => entry,
                Err(RecvError::Lagged(missed)) => panic!("{missed} entries of the sandbox's journal were missed"),
                Err(RecvError::Closed) => return,
            };
            match &entry.what {
                What::WebhookDropped { .. } => drop(self.unheard.lock().unwrap().insert(entry.session.clone(), ())),
                What::WebhookSent { answer: Ok(200), .. } => {
                    self.unheard.lock().unwrap().remove(&entry.session);
                }
                What::Retrieved { status } if *status >= 400 => self.timeline.count("platform: read refused", 1),
                _ => {}
            }
            self.timeline.of(&entry.session, format!("{:?}", entry.what));
        }
    }

    pub(crate) async fn start(&self) {
        for seat in &self.seats {
            self.sit(seat, &mut *seat.daemon.lock().await).await;
        }
        for seat in &self.seats {
            seat.daemon.lock().await.as_ref().unwrap().ready().await;
        }
    }

    async fn sit(&self, seat: &Seat, daemon: &mut Option<Daemon>) {
        if daemon.is_none() {
            let started = Daemon::start(&seat.config, seat.role, &seat.variables).await;
            self.timeline.log(seat.name, started.log.clone());
            self.timeline.note(format!("{} runs", seat.name));
            *daemon = Some(started);
        }
    }

    /// One fault of one process, to the end of it.
    pub(crate) async fn strike(&self, seat: &Seat, strike: Strike, random: &mut StdRng) {
        let name = seat.name;
        let mut daemon = seat.daemon.lock().await;
        match strike {
            Strike::Kill(step, after) => {
                let step = self.reach(seat, step, after).await;
                if let Some(daemon) = daemon.take() {
                    daemon.kill().await;
                    self.timeline.fault(format!("kill {name} at {step}"));
                }
                seat.gate.disarm();
                self.heal(seat);
            }
            Strike::KillAtStart(after) => {
                if let Some(daemon) = daemon.take() {
                    daemon.kill().await;
                }
                let start = Daemon::start(&seat.config, seat.role, &seat.variables);
                drop(tokio::time::timeout(Duration::from_millis(after), start).await);
                self.timeline.fault(format!("kill {name} at start"));
            }
            Strike::Stop => {
                if let Some(mut daemon) = daemon.take() {
                    daemon.terminate();
                    daemon.ended().await;
                    self.timeline.fault(format!("stop {name}"));
                }
            }
            Strike::CutStore(time) => self.disturb(seat, "store", &seat.store, Proxy::cut, time).await,
            Strike::SilenceStore(time) => self.disturb(seat, "store", &seat.store, Proxy::silence, time).await,
            Strike::CutBroker(time) => self.disturb(seat, "broker", &seat.broker, Proxy::cut, time).await,
            Strike::SilenceBroker(time) => self.disturb(seat, "broker", &seat.broker, Proxy::silence, time).await,
        }
        tokio::time::sleep(schedule::pause(random, 0, 300)).await;
        self.sit(seat, &mut daemon).await;
    }

    /// Waits until the process is in that step; the step it is struck in.
    async fn reach(&self, seat: &Seat, step: Step, after: u64) -> Step {
        let after = Duration::from_millis(after);
        match (step, &seat.broker) {
            (Step::Anywhere, _) | (Step::Publish, None) => Step::Anywhere,
            (Step::Publish, Some(broker)) => {
                broker.silence();
                tokio::time::sleep(after.max(Duration::from_millis(100))).await;
                step
            }
            _ => match tokio::time::timeout(Duration::from_secs(2), seat.gate.arm(step)).await {
                Ok(Ok(())) => {
                    tokio::time::sleep(after).await;
                    step
                }
                _ => Step::Anywhere,
            },
        }
    }

    async fn disturb(
        &self,
        seat: &Seat,
        what: &str,
        line: &Option<Arc<Proxy>>,
        disturbance: impl Fn(&Proxy),
        time: u64,
    ) {
        let Some(line) = line else { return };
        self.timeline.fault(format!("disturb the {what} of {}", seat.name));
        disturbance(line);
        tokio::time::sleep(Duration::from_millis(time)).await;
        line.heal();
    }

    fn heal(&self, seat: &Seat) {
        for line in seat.store.iter().chain(&seat.broker) {
            line.heal();
        }
    }

    pub(crate) async fn broker_outage(&self, outage: Outage, time: Duration) {
        let Some(servers) = &self.servers else { return };
        self.timeline.fault(format!("broker: {outage:?}").to_lowercase());
        servers.broker_outage(outage, time, &self.prefix).await;
        self.timeline.note("the broker is back");
    }

    pub(crate) async fn database_outage(&self, outage: Outage, time: Duration) {
        let Some(servers) = &self.servers else { return };
        self.timeline.fault(format!("database: {outage:?}").to_lowercase());
        servers.database_outage(outage, time).await;
        self.timeline.note("the database is back");
    }

    /// Ends all faults, starts what is down, and sends the webhooks that were never sent.
    pub(crate) async fn calm(&self) {
        self.sandbox.set_faults(Faults::default());
        for seat in &self.seats {
            seat.gate.disarm();
            self.heal(seat);
        }
        self.start().await;
        self.timeline.note("all faults have ended");
        let mut random = StdRng::seed_from_u64(self.settings.seed);
        let unheard: Vec<_> = self.unheard.lock().unwrap().keys().cloned().collect();
        for session in unheard {
            while !self.post(&session, &format!("wh_late_{:x}", random.random::<u64>())).await {
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
            self.timeline.fault("webhook: late");
        }
    }

    /// Starts a session; its id, unless the platform refused.
    pub(crate) async fn session(&self, client: &actiond::http::Client, script: &str) -> Option<Arc<str>> {
        let response = client
            .post(format!("http://{}/v1/agents/sessions", self.platform_at))
            .bearer_auth("sk-test")
            .header("OpenAI-Beta", "agents=v1")
            .json(&serde_json::json!({ "agent": { "model": "scripted" }, "input": script }))
            .send()
            .await
            .ok()?;
        let body: serde_json::Value = response.json().await.ok()?;
        let id: Arc<str> = body["id"].as_str()?.into();
        self.timeline.of(&id, format!("asked: {script}"));
        Some(id)
    }

    /// Posts a webhook of our own for the session; whether it was accepted.
    pub(crate) async fn post(&self, session: &str, id: &str) -> bool {
        let body = serde_json::json!({ "id": "evt_1", "object": "event", "created_at": 1,
            "type": "agent.session.action_required",
            "data": { "id": session, "required_action": { "type": "function_call" } } })
        .to_string();
        let (key, at) = (sandbox::secret_key(&self.secret).unwrap(), now());
        let sent = actiond::http::client()
            .unwrap()
            .post(format!("http://{}/webhooks/openai", self.ingress_at))
            .header("webhook-id", id)
            .header("webhook-timestamp", at.to_string())
            .header("webhook-signature", sandbox::sign(&key, id, at, body.as_bytes()))
            .timeout(Duration::from_secs(5))
            .body(body)
            .send()
            .await;
        sent.is_ok_and(|response| response.status() == 200)
    }
}

async fn bind() -> (SocketAddr, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    (listener.local_addr().unwrap(), listener)
}
