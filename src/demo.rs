//! `actiond demo`: a platform, an ingress, a worker and three handlers in one process on loopback. Shows each step as it
//! happens, then says what was proved.

mod orders;
mod story;

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, anyhow, bail};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::broadcast, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use self::{
    orders::Orders,
    story::{Line, Story},
};
use crate::{
    admin,
    app::{App, Listeners, Role},
    config::Config,
    function, handler, http, ingress,
    metrics::Metrics,
    platform::{self, WebhookConfig},
    queue, retry,
    sandbox::{self, Faults, Rule, Sandbox, Session, Webhook, generate_secret},
    session::IfInterrupted,
    store, telemetry, worker,
};

/// What the scripted model does: three calls at once, one with wrong arguments, the corrected one.
const SCRIPT: &str = r#"lookup_order {"order_id":"42"} & shout {"text":"thank you"} & ping {"n":1}
lookup_order {"order":43}
lookup_order {"order_id":"43"}"#;

/// One for each time the agent waits, and one copy.
const WEBHOOKS: u64 = 4;

const API_KEY: &str = "sk-demo";
/// The demo ends by itself, whatever happens.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(clap::Args, Clone, Debug)]
#[command(after_help = "No port, account or service is needed; everything it writes is removed when it ends.")]
pub struct DemoArgs {
    /// Print each event as a line of JSON
    #[arg(long)]
    json: bool,
}

/// Runs the demo. An error means that something was not as promised.
pub async fn run(args: DemoArgs) -> anyhow::Result<()> {
    // The story is told on standard output; logs would only repeat it.
    if std::env::var_os("RUST_LOG").is_some() {
        telemetry::init(&telemetry::Config { log: telemetry::LogFormat::Text, otlp: None });
    }
    let folder = Folder::new()?;
    let ended = tokio::time::timeout(PATIENCE, play(&args, &folder)).await;
    ended.map_err(|_| anyhow!("the session was not answered within {PATIENCE:?}; RUST_LOG=info shows why"))?
}

async fn play(args: &DemoArgs, folder: &Folder) -> anyhow::Result<()> {
    let listeners = Listeners { ingress: Some(bind().await?), admin: bind().await? };
    let (platform, orders) = (bind().await?, bind().await?);
    let address = |listener: &TcpListener| listener.local_addr().context("no local address");
    let ingress_at = listeners.ingress.as_ref().map(address).transpose()?.context("no ingress")?;
    let (platform_at, orders_at) = (address(&platform)?, address(&orders)?);

    let secret = generate_secret();
    let sandbox = Sandbox::new(sandbox::Config {
        api_key: API_KEY.into(),
        webhook: Some(Webhook::new(format!("http://{ingress_at}/webhooks/demo"), secret.clone())),
        faults: Faults { webhook_duplicate: Rule::Next(1), ..Faults::default() },
        ..sandbox::Config::default()
    })?;
    let story = Story::new(args.json);
    let orders_log = Orders::new();
    let (stop, ended) = (CancellationToken::new(), CancellationToken::new());
    let running = [
        spawn(sandbox.clone().serve(platform, ended.clone().cancelled_owned())),
        spawn(orders_log.clone().serve(orders, ended.clone().cancelled_owned())),
    ];
    let config = config(folder, ingress_at, platform_at, orders_at, &secret);
    let app = App::build(config, Role::All, Metrics::new()).await?;
    let app = tokio::spawn(app.run(listeners, stop.clone()));

    story.title(&format!("platform on {platform_at}, ingress on {ingress_at}, worker, 3 handlers, one SQLite file"));
    let teller = tokio::spawn(tell(story.clone(), sandbox.clone(), orders_log.events(), ended.clone()));
    let session = converse(platform_at, &sandbox).await?;
    stop.cancel();
    app.await.context("the app panicked")??;
    ended.cancel();
    teller.await.context("the teller panicked")?;
    for task in running {
        task.await.context("a server panicked")??;
    }
    conclude(&story, &session, &sandbox, &orders_log)
}

/// Starts the session as a client of the platform would, and waits for its end.
async fn converse(platform_at: SocketAddr, sandbox: &Sandbox) -> anyhow::Result<Session> {
    let client = http::client()?;
    let body = json!({ "agent": { "model": "scripted" }, "input": SCRIPT });
    let answer: Value = client
        .post(format!("http://{platform_at}/v1/agents/sessions"))
        .bearer_auth(API_KEY)
        .header("OpenAI-Beta", "agents=v1")
        .json(&body)
        .send()
        .await?
        .error_for_status()?
        .json()
        .await?;
    let id = answer["id"].as_str().context("the platform gave no session id")?;
    let all = |_: &Session| sandbox.counters().webhooks_delivered >= WEBHOOKS;
    sandbox.settled(id).await.context("the session vanished")?;
    sandbox.until(id, all).await.context("the session vanished")
}

/// Tells what happens as it happens, until both sources are quiet and the demo has ended.
async fn tell(
    story: Story,
    sandbox: Arc<Sandbox>,
    mut orders: broadcast::Receiver<orders::Event>,
    ended: CancellationToken,
) {
    let mut journal = sandbox.journal();
    loop {
        let line = tokio::select! {
            biased;
            Ok(event) = orders.recv() => Line::from_orders(&event),
            Ok(entry) = journal.recv() => Line::from_platform(&entry, sandbox.session(&entry.session).as_ref()),
            () = ended.cancelled() => return,
        };
        if let Some(line) = line {
            story.line(&line);
        }
    }
}

/// Says what was proved, or fails.
fn conclude(story: &Story, session: &Session, sandbox: &Sandbox, orders: &Orders) -> anyhow::Result<()> {
    let counters = sandbox.counters();
    let calls: Vec<_> = session.calls(None).collect();
    let once = calls.iter().filter(|call| call.posts.accepted == 1 && call.posts.refused == 0).count();
    let attempts = orders.attempts();
    let of = |order: &str| attempts.iter().filter(|a| a.order_id == order).collect::<Vec<_>>();
    let retried = of("42");
    let same_key = retried.iter().all(|a| a.idempotency_key == retried[0].idempotency_key);
    let proofs = [
        (calls.len() == 5 && once == 5, format!("{once} of {} calls got exactly one accepted result", calls.len())),
        (
            counters.webhooks_delivered == WEBHOOKS,
            format!(
                "{} webhooks were delivered, one of them twice; no handler ran twice for it",
                counters.webhooks_delivered
            ),
        ),
        (
            retried.len() == 2 && same_key,
            format!("order 42 failed once and was retried with the same idempotency key ({} requests)", retried.len()),
        ),
        (
            of("43").len() == 1 && attempts.len() == 3,
            "the call with wrong arguments never reached its handler; the agent was told what to change".to_owned(),
        ),
        (session.answer().is_some(), "the agent finished its answer".to_owned()),
    ];
    story.answer(session.answer().unwrap_or("none"));
    let failed = proofs.iter().filter(|(held, _)| !held).count();
    for (held, what) in proofs {
        story.proof(held, &what);
    }
    if failed > 0 {
        bail!("{failed} of the promises did not hold");
    }
    Ok(())
}

fn config(
    folder: &Folder,
    ingress_at: SocketAddr,
    platform_at: SocketAddr,
    orders_at: SocketAddr,
    secret: &str,
) -> Config {
    let second = Duration::from_secs(1);
    Config {
        mcp_servers: Vec::new(),
        ingress: ingress::Config { listen: ingress_at, max_body: 256 << 10, public_url: None },
        admin: admin::Config { listen: ingress_at, token: None },
        queue: queue::Config::Embedded,
        store: store::Config {
            url: format!("sqlite://{}/actiond.db", folder.0.display()).into(),
            max_connections: 1,
            timeout: second * 10,
            retention: None,
        },
        worker: worker::Config {
            concurrency: 8,
            grace_period: second * 5,
            lease: second * 30,
            confirm_after: second * 30,
            recheck: second * 30,
            max_hold: second * 600,
            max_deliveries: 100,
            unknown_functions: worker::UnknownFunctions::Leave,
            pools: Vec::new(),
        },
        sweep: worker::sweep::Config { enabled: false, every: second * 300, window: second * 3600 },
        telemetry: telemetry::Config { log: telemetry::LogFormat::Text, otlp: None },
        platforms: vec![platform::Config {
            name: "demo".to_owned(),
            kind: platform::Kind::AgentsApi {
                base_url: format!("http://{platform_at}/v1"),
                api_key: API_KEY.into(),
                flavor: platform::Flavor::OpenAi,
            },
            call_deadline: second * 60,
            intake: platform::Intake {
                webhook: Some(WebhookConfig::Standard { secrets: vec![secret.into()], tolerance: second * 300 }),
                ..platform::Intake::default()
            },
            forward: None,
        }],
        functions: vec![
            function(
                "lookup_order",
                json!({
                    "type": "object",
                    "properties": { "order_id": { "type": "string" } },
                    "required": ["order_id"],
                    "additionalProperties": false
                }),
                handler::Config::Http(handler::HttpConfig {
                    url: format!("http://{orders_at}/orders"),
                    headers: Vec::new(),
                    timeout: second * 5,
                    body: handler::Body::Arguments,
                    response: handler::Response::Text,
                    max_response: 1 << 20,
                    sign: handler::Sign::default(),
                }),
            ),
            function(
                "shout",
                json!({ "type": "object" }),
                handler::Config::Command(handler::CommandConfig {
                    command: ["tr", "a-z", "A-Z"].map(str::to_owned).to_vec(),
                    env: Vec::new(),
                    pass_env: Vec::new(),
                    cwd: None,
                    timeout: second * 5,
                    max_output: 1 << 20,
                    response: handler::Response::Text,
                }),
            ),
            function("ping", json!({ "type": "object" }), handler::Config::Echo),
        ],
        function_sources: Vec::new(),
    }
}

fn function(name: &str, parameters: Value, handler: handler::Config) -> function::Config {
    function::Config {
        name: name.to_owned(),
        description: String::new(),
        parameters,
        deferred: false,
        handler,
        if_interrupted: IfInterrupted::Rerun,
        retry: retry::Policy { initial: Duration::from_millis(300), ..retry::Policy::default() },
        limits: crate::limits::Config::default(),
        require_metadata: Vec::new(),
        allow: None,
        approval: None,
        platforms: Vec::new(),
        dedupe: None,
        redact: Vec::new(),
        pool: None,
    }
}

async fn bind() -> anyhow::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen on loopback")
}

fn spawn(server: impl Future<Output = std::io::Result<()>> + Send + 'static) -> JoinHandle<std::io::Result<()>> {
    tokio::spawn(server)
}

/// A folder that goes with the demo.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new() -> anyhow::Result<Self> {
        let path = std::env::temp_dir().join(format!("actiond-demo-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(&path).context("cannot make a temporary folder")?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
