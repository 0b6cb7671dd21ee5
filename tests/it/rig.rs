//! The real program between a sandbox platform and a handler that tests can steer.

use std::{
    collections::HashMap,
    net::SocketAddr,
    process::{ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use actiond::sandbox::{self, Faults, Sandbox, Session, Webhook, generate_secret};
use axum::{
    Router,
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::any,
};
use serde_json::{Value, json};
use sqlx::{Connection as _, Row as _};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::TcpListener,
    process::{Child, Command},
    sync::Notify,
};

use crate::services::{self, tempdir::Folder};

/// Nothing that a test waits for takes this long on a machine that works.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Which queue and which store the program runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pair {
    EmbeddedSqlite,
    RabbitSqlite,
    /// Ingress and worker are two processes.
    RabbitPostgres,
}

/// Runs each story over every pair.
#[macro_export]
macro_rules! over_every_pair {
    ($($story:ident),* $(,)?) => {
        $(mod $story {
            #[tokio::test]
            async fn embedded_sqlite() {
                super::$story($crate::rig::Pair::EmbeddedSqlite).await;
            }
            #[tokio::test]
            async fn rabbitmq_sqlite() {
                super::$story($crate::rig::Pair::RabbitSqlite).await;
            }
            #[tokio::test]
            async fn rabbitmq_postgres() {
                super::$story($crate::rig::Pair::RabbitPostgres).await;
            }
        })*
    };
}

pub(crate) struct Rig {
    pub(crate) sandbox: Arc<Sandbox>,
    pub(crate) handler: Arc<Handler>,
    pub(crate) ingress: Option<Daemon>,
    pub(crate) worker: Option<Daemon>,
    pub(crate) secret: String,
    pub(crate) ingress_at: SocketAddr,
    pub(crate) handler_at: SocketAddr,
    platform_at: SocketAddr,
    config: String,
    folder: Folder,
    pair: Pair,
}

/// What a test may change before the program starts.
pub(crate) struct Setup {
    pair: Pair,
    functions: String,
    platforms: String,
    extra: String,
    platform_keys: String,
    queue_url: Option<String>,
    store_url: Option<String>,
}

impl Setup {
    pub(crate) fn new(pair: Pair) -> Self {
        Self {
            pair,
            functions: String::new(),
            platforms: String::new(),
            extra: String::new(),
            platform_keys: String::new(),
            queue_url: None,
            store_url: None,
        }
    }

    /// An http function of that name with any arguments; `keys` are further YAML lines of it, one per line.
    pub(crate) fn http(self, name: &str, keys: &str) -> Self {
        self.function(
            name,
            &format!(
                "handler: {{ type: http, url: \"http://HANDLER/{name}\", body: arguments, timeout: 20s }}\n{keys}"
            ),
        )
    }

    /// A function whose YAML lines say everything but name and description.
    pub(crate) fn function(mut self, name: &str, keys: &str) -> Self {
        self.functions += &format!("  - name: {name}\n    description: d\n");
        for line in keys.lines().filter(|line| !line.trim().is_empty()) {
            self.functions += &format!("    {line}\n");
        }
        self
    }

    /// One more platform, as a YAML map in one line.
    pub(crate) fn platform(mut self, yaml: &str) -> Self {
        self.platforms += &format!("  - {yaml}\n");
        self
    }

    /// Further YAML at the top level, such as `worker: { … }`.
    pub(crate) fn extra(mut self, yaml: &str) -> Self {
        self.extra += yaml;
        self.extra += "\n";
        self
    }

    /// Further YAML keys of the platform, in one line.
    pub(crate) fn platform_key(mut self, key: &str) -> Self {
        self.platform_keys += &format!("    {key}\n");
        self
    }

    pub(crate) fn queue_url(mut self, url: String) -> Self {
        self.queue_url = Some(url);
        self
    }

    pub(crate) fn store_url(mut self, url: String) -> Self {
        self.store_url = Some(url);
        self
    }

    pub(crate) async fn start(self) -> Rig {
        let mut rig = self.prepare().await;
        rig.start_all().await;
        rig
    }

    /// Everything but the program itself.
    pub(crate) async fn prepare(self) -> Rig {
        let folder = Folder::new();
        let bind = async || TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (platform, handler) = (bind().await, bind().await);
        let platform_at = platform.local_addr().unwrap();
        let handler_at = handler.local_addr().unwrap();
        // The ingress' port must be known before it runs and stay the same over restarts.
        let ingress_at = bind().await.local_addr().unwrap();

        let secret = generate_secret();
        let mut webhook = Webhook::new(format!("http://{ingress_at}/webhooks/openai"), secret.clone());
        webhook.retry.initial = Duration::from_millis(100);
        webhook.retry.max = Duration::from_millis(500);
        let sandbox = Sandbox::new(sandbox::Config {
            api_key: "sk-test".into(),
            webhook: Some(webhook),
            seed: rand::random(),
            ..sandbox::Config::default()
        })
        .unwrap();
        tokio::spawn(sandbox.clone().serve(platform, std::future::pending()));
        let steered = Arc::new(Handler::default());
        let router = Router::new().route("/{name}", any(handle)).with_state(steered.clone());
        tokio::spawn(axum::serve(handler, router).into_future());

        let (queue, store) = self.services(&folder).await;
        let config = format!(
            "ingress: {{ listen: \"{ingress_at}\", public_url: \"http://{ingress_at}\" }}\n\
             admin: {{ listen: \"127.0.0.1:0\" }}\n\
             queue: {queue}\n\
             store: {store}\n\
             telemetry: {{ log: json }}\n\
             retry: {{ initial: 50ms, max: 500ms }}\n\
             {extra}\
             platforms:\n  - name: openai\n    type: agents_api\n    base_url: \"http://{platform_at}/v1\"\n    \
             api_key: sk-test\n    webhook: {{ scheme: standard, secrets: [\"{secret}\"] }}\n{platform_keys}\
             {platforms}functions:\n{functions}",
            platform_keys = self.platform_keys,
            extra = self.extra,
            platforms = self.platforms,
            functions = self.functions.replace("HANDLER", &handler_at.to_string()),
        );
        Rig {
            sandbox,
            handler: steered,
            ingress: None,
            worker: None,
            secret,
            ingress_at,
            handler_at,
            platform_at,
            config,
            folder,
            pair: self.pair,
        }
    }

    async fn services(&self, folder: &Folder) -> (String, String) {
        let sqlite = format!("{{ url: \"sqlite://{}/actiond.db\" }}", folder.path());
        let rabbitmq = || {
            let url = self.queue_url.clone().unwrap_or_else(|| services::variable("ACTIOND_TEST_AMQP_URL"));
            let prefix = format!("t{}", uuid::Uuid::now_v7().simple());
            format!("{{ type: rabbitmq, url: \"{url}\", prefix: {prefix}, confirm_timeout: 2s }}")
        };
        match self.pair {
            Pair::EmbeddedSqlite => ("{ type: embedded }".to_owned(), sqlite),
            Pair::RabbitSqlite => (rabbitmq(), sqlite),
            Pair::RabbitPostgres => {
                let url = match &self.store_url {
                    Some(url) => url.clone(),
                    None => services::new_database().await,
                };
                (rabbitmq(), format!("{{ url: \"{url}\", max_connections: 8, timeout: 2s }}"))
            }
        }
    }
}

impl Rig {
    /// SIGKILL to the process that works.
    pub(crate) async fn kill_worker(&mut self) {
        self.worker.take().unwrap().kill().await;
    }

    /// Starts what is not running, and waits until it is ready.
    pub(crate) async fn start_all(&mut self) {
        match self.pair {
            Pair::RabbitPostgres => {
                if self.ingress.is_none() {
                    self.ingress = Some(self.daemon("ingress").await);
                }
                self.start_worker().await;
            }
            _ => self.start_worker().await,
        }
        for daemon in self.ingress.iter().chain(&self.worker) {
            daemon.ready().await;
        }
    }

    async fn start_worker(&mut self) {
        if self.worker.is_none() {
            let role = if self.pair == Pair::RabbitPostgres { "worker" } else { "all" };
            self.worker = Some(self.daemon(role).await);
        }
    }

    /// One more process of that role.
    pub(crate) async fn daemon(&self, role: &str) -> Daemon {
        self.daemon_in(role, &[]).await
    }

    /// The same with further variables in its environment.
    pub(crate) async fn daemon_in(&self, role: &str, variables: &[(&str, String)]) -> Daemon {
        Daemon::start(&self.config_file(), role, variables).await
    }

    /// The program's config, for its other commands.
    pub(crate) fn config_file(&self) -> String {
        std::fs::write(self.file(), &self.config).unwrap();
        self.file()
    }

    /// Changes the config that the next process starts with.
    pub(crate) fn replace(&mut self, from: &str, to: &str) {
        assert!(self.config.contains(from), "{from} is not in the config");
        self.config = self.config.replace(from, to);
    }

    /// The platform's, as its clients know it.
    pub(crate) fn base_url(&self) -> String {
        format!("http://{}/v1", self.platform_at)
    }

    /// The config file of the processes.
    pub(crate) fn file(&self) -> String {
        format!("{}/actiond.yaml", self.folder.path())
    }

    pub(crate) fn faults(&self, change: impl FnOnce(&mut Faults)) {
        let mut faults = self.sandbox.faults();
        change(&mut faults);
        self.sandbox.set_faults(faults);
    }

    /// Starts a session whose model follows the script.
    pub(crate) async fn session(&self, script: &str) -> String {
        self.session_with(script, json!({})).await
    }

    pub(crate) async fn session_with(&self, script: &str, metadata: Value) -> String {
        let client = actiond::http::client().unwrap();
        let response = client
            .post(format!("http://{}/v1/agents/sessions", self.platform_at))
            .bearer_auth("sk-test")
            .header("OpenAI-Beta", "agents=v1")
            .json(&json!({ "agent": { "model": "scripted" }, "input": script, "metadata": metadata }))
            .send()
            .await
            .unwrap();
        assert!(response.status().is_success(), "{}", response.status());
        let body: Value = response.json().await.unwrap();
        body["id"].as_str().unwrap().to_owned()
    }

    /// Cancels the session's turn, as its owner would.
    pub(crate) async fn cancel(&self, id: &str) {
        let response = actiond::http::client()
            .unwrap()
            .post(format!("{}/agents/sessions/{id}/events", self.base_url()))
            .bearer_auth("sk-test")
            .header("OpenAI-Beta", "agents=v1")
            .json(&json!({ "events": [{ "type": "agent.session.input.cancel" }] }))
            .send()
            .await
            .unwrap();
        assert!(response.status().is_success(), "{}", response.status());
    }

    /// Runs a statement in the SQLite store; the first column of its rows, which must be text.
    pub(crate) async fn sql(&self, statement: &'static str) -> Vec<String> {
        let url = format!("sqlite://{}/actiond.db", self.folder.path());
        let mut connection = sqlx::SqliteConnection::connect(&url).await.unwrap();
        let rows = sqlx::query(statement).fetch_all(&mut connection).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// The session when its turn has ended.
    pub(crate) async fn settled(&self, id: &str) -> Session {
        match tokio::time::timeout(PATIENCE, self.sandbox.settled(id)).await {
            Ok(session) => session.unwrap(),
            Err(_) => panic!("session {id} is not answered: {:#?}\n{}", self.sandbox.session(id), self.logs()),
        }
    }

    pub(crate) async fn until(&self, id: &str, wanted: impl Fn(&Session) -> bool) -> Session {
        match tokio::time::timeout(PATIENCE, self.sandbox.until(id, wanted)).await {
            Ok(session) => session.unwrap(),
            Err(_) => panic!("session {id} is not as wanted: {:#?}\n{}", self.sandbox.session(id), self.logs()),
        }
    }

    /// Runs the script to its end.
    pub(crate) async fn play(&self, script: &str) -> Session {
        let id = self.session(script).await;
        self.settled(&id).await
    }

    /// Posts a webhook of our own making; the status.
    pub(crate) async fn post(&self, headers: &[(&str, String)], body: Vec<u8>) -> u16 {
        let client = actiond::http::client().unwrap();
        let mut request = client.post(format!("http://{}/webhooks/openai", self.ingress_at)).body(body);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        request.send().await.unwrap().status().as_u16()
    }

    /// A correctly signed webhook for a session.
    pub(crate) fn signed(&self, session: &str, id: &str) -> (Vec<(&'static str, String)>, Vec<u8>) {
        let body = json!({ "id": "evt_1", "object": "event", "created_at": 1, "type": "agent.session.action_required",
                           "data": { "id": session, "required_action": { "type": "function_call" } } })
        .to_string()
        .into_bytes();
        (self.sign(id, now(), &body), body)
    }

    pub(crate) fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> Vec<(&'static str, String)> {
        let key = sandbox::secret_key(&self.secret).unwrap();
        let signature = sandbox::sign(&key, id, timestamp, body);
        vec![
            ("webhook-id", id.to_owned()),
            ("webhook-timestamp", timestamp.to_string()),
            ("webhook-signature", signature),
        ]
    }

    /// Where the SQLite store is.
    pub(crate) fn store_file(&self) -> String {
        format!("{}/actiond.db", self.folder.path())
    }

    pub(crate) fn logs(&self) -> String {
        let daemons = self.ingress.iter().chain(&self.worker);
        daemons.map(|daemon| daemon.log.lock().unwrap().join("\n")).collect::<Vec<_>>().join("\n--\n")
    }
}

pub(crate) fn now() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    i64::try_from(now.as_secs()).unwrap()
}

/// A running `actiond serve`.
pub(crate) struct Daemon {
    child: Child,
    pub(crate) admin: SocketAddr,
    pub(crate) log: Arc<Mutex<Vec<String>>>,
}

impl Daemon {
    /// With further variables in its environment. Dropped before it returns, it kills the process.
    pub(crate) async fn start(config: &str, role: &str, variables: &[(&str, String)]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_actiond"))
            .args(["serve", "--config", config, "--role", role])
            .env_remove("RUST_LOG")
            .env("OTEL_EXPORTER_OTLP_ENDPOINT", "")
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = Arc::new(Mutex::new(Vec::new()));
        let admin = loop {
            let line = lines.next_line().await.unwrap();
            let Some(line) = line else { panic!("actiond ended at start:\n{}", log.lock().unwrap().join("\n")) };
            log.lock().unwrap().push(line.clone());
            let fields: Value = serde_json::from_str(&line).unwrap_or_default();
            if fields["message"] == "actiond runs" {
                break fields["admin"].as_str().unwrap().parse().unwrap();
            }
        };
        let kept = log.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                kept.lock().unwrap().push(line);
            }
        });
        Self { child, admin, log }
    }

    /// Status and body of a path of the admin listener.
    pub(crate) async fn admin(&self, path: &str) -> (u16, String) {
        let client = actiond::http::client().unwrap();
        let response = client.get(format!("http://{}{path}", self.admin)).send().await.unwrap();
        (response.status().as_u16(), response.text().await.unwrap())
    }

    /// Waits until a metric with that label has that value.
    pub(crate) async fn metric(&self, name: &str, label: &str, value: &str) {
        let wait = async {
            loop {
                let (_, text) = self.admin("/metrics").await;
                let wanted =
                    |line: &str| line.starts_with(name) && line.contains(label) && line.ends_with(&format!(" {value}"));
                if text.lines().any(wanted) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, wait).await.is_err() {
            panic!("{name}{{{label}}} is not {value}: {}", self.admin("/metrics").await.1);
        }
    }

    pub(crate) async fn ready(&self) {
        self.readiness(200).await;
    }

    /// Waits until `/health/ready` answers with the status; its body.
    pub(crate) async fn readiness(&self, wanted: u16) -> String {
        let wait = async {
            loop {
                let (status, body) = self.admin("/health/ready").await;
                if status == wanted {
                    return body;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        match tokio::time::timeout(PATIENCE, wait).await {
            Ok(body) => body,
            Err(_) => panic!("readiness is not {wanted}:\n{}", self.log.lock().unwrap().join("\n")),
        }
    }

    /// Waits until a line of the log holds the text.
    pub(crate) async fn told(&self, text: &str) {
        let wait = async {
            while !self.log.lock().unwrap().iter().any(|line| line.contains(text)) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, wait).await.is_err() {
            panic!("{text} is not logged:\n{}", self.log.lock().unwrap().join("\n"));
        }
    }

    /// SIGHUP.
    pub(crate) fn hang_up(&self) {
        let pid = rustix::process::Pid::from_raw(self.child.id().unwrap() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::HUP).unwrap();
    }

    /// SIGKILL.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }

    pub(crate) fn terminate(&self) {
        let pid = rustix::process::Pid::from_raw(self.child.id().unwrap() as i32).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    }

    pub(crate) async fn ended(&mut self) -> ExitStatus {
        tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("actiond does not end").unwrap()
    }
}

/// The handler of every http function.
#[derive(Default)]
pub(crate) struct Handler {
    requests: Mutex<Vec<Request>>,
    replies: Mutex<HashMap<String, Vec<Reply>>>,
    held: AtomicBool,
    changed: Notify,
}

#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) name: String,
    pub(crate) key: String,
    /// Where its result may be posted.
    pub(crate) result_url: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Vec<u8>,
}

#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self { status, headers: Vec::new(), body: body.into() }
    }
}

impl Handler {
    /// Replies to the next requests for that function, in order; `ok` after them.
    pub(crate) fn reply(&self, name: &str, replies: impl IntoIterator<Item = Reply>) {
        self.replies.lock().unwrap().insert(name.to_owned(), replies.into_iter().collect());
    }

    /// Requests are taken and not answered until `release`.
    pub(crate) fn hold(&self) {
        self.held.store(true, Ordering::SeqCst);
    }

    pub(crate) fn release(&self) {
        self.held.store(false, Ordering::SeqCst);
        self.changed.notify_waiters();
    }

    pub(crate) fn requests(&self, name: &str) -> Vec<Request> {
        self.requests.lock().unwrap().iter().filter(|r| r.name == name).cloned().collect()
    }

    /// Waits until so many requests for that function have come.
    pub(crate) async fn arrived(&self, name: &str, count: usize) -> Vec<Request> {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                let requests = self.requests(name);
                if requests.len() >= count {
                    return requests;
                }
                changed.await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.expect("the handler is not called")
    }
}

async fn handle(
    State(handler): State<Arc<Handler>>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let header = |name| headers.get(name).map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default();
    let (key, result_url) = (header("idempotency-key"), header("actiond-result-url"));
    handler.requests.lock().unwrap().push(Request {
        name: name.clone(),
        key,
        result_url,
        headers,
        body: body.to_vec(),
    });
    handler.changed.notify_waiters();
    loop {
        let changed = handler.changed.notified();
        if !handler.held.load(Ordering::SeqCst) {
            break;
        }
        changed.await;
    }
    let reply = match handler.replies.lock().unwrap().get_mut(&name) {
        Some(replies) if !replies.is_empty() => replies.remove(0),
        _ => Reply::new(200, "ok"),
    };
    let mut response = (StatusCode::from_u16(reply.status).unwrap(), reply.body).into_response();
    for (header, value) in reply.headers {
        response.headers_mut().insert(header, value.parse().unwrap());
    }
    response
}
