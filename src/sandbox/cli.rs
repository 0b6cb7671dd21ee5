//! `actiond sandbox`: the arguments, and what is printed so that one knows how to go on.

use std::{
    io::{self, Write as _},
    net::SocketAddr,
    time::Duration,
};

use anyhow::Context as _;
use tokio::net::TcpListener;

use super::{Config, EventType, Faults, Flavor, Sandbox, Webhook, generate_secret};

/// Run a local Agents API with a scripted model: the input message says which functions to call
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = SCRIPT_HELP)]
pub struct SandboxArgs {
    /// Address to listen on; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8787")]
    pub listen: SocketAddr,
    /// Key that clients must send
    #[arg(
        long,
        value_name = "KEY",
        env = "ACTIOND_SANDBOX_API_KEY",
        default_value = "sk-sandbox",
        hide_env_values = true
    )]
    pub api_key: String,
    /// Where to send webhooks, such as http://127.0.0.1:8080/webhooks/sandbox; none are sent without it
    #[arg(long, value_name = "URL")]
    pub webhook_url: Option<String>,
    /// Secret that signs webhooks, whsec_ and base64; a new one is made and printed without it
    #[arg(long, value_name = "SECRET", env = "ACTIOND_SANDBOX_WEBHOOK_SECRET", hide_env_values = true)]
    pub webhook_secret: Option<String>,
    /// Session events to send, comma-separated
    #[arg(long, value_name = "EVENTS", value_enum, value_delimiter = ',', default_value = "action-required")]
    pub webhook_events: Vec<EventType>,
    /// First pause before a failed webhook is sent again, in milliseconds; doubles up to one hour
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    pub webhook_retry_ms: u64,
    /// Which platform to behave like; sets the defaults of --require-idempotency-key and --accepted-status
    #[arg(long, value_name = "FLAVOR", value_enum, default_value_t = Flavor::Openai)]
    pub flavor: Flavor,
    /// Refuse result submissions without Idempotency-Key [default: as the flavor]
    #[arg(long)]
    pub require_idempotency_key: bool,
    /// Most input events in one request
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub max_events: usize,
    /// Status of an accepted submission [default: as the flavor]
    #[arg(long, value_name = "STATUS", value_parser = clap::value_parser!(u16).range(200..300))]
    pub accepted_status: Option<u16>,
    /// Ids and chance follow from it; random without it
    #[arg(long)]
    pub seed: Option<u64>,
    #[command(flatten, next_help_heading = "Faults (also POST /sandbox/faults while it runs)")]
    pub faults: Faults,
}

const SCRIPT_HELP: &str = r#"The input message of a session is the model's script:
  lookup_order {"order_id":"42"}                     one call
  lookup_order {"order_id":"42"} & refund {"id":1}   two calls in parallel
  a {"x":1} then b {}                                one after another; so do ; and a new line
  lookup_order#call_0 {"order_id":"42"}              an explicit call id
  call ping / call ping none / call ping "{}"        no arguments / field missing / a JSON string
  lookup_order raw "{\"a\":1}{"                      arguments pasted as they are, legal JSON or not
  await approval                                     an action that is no function call
  program a {} then b {}                             calls of a program: one that fails or expires ends it, not the turn
  fail: out of credit                                the turn fails
With --flavor rebyte, POST /v1/workflow-agents/ANY/runs {"input":"SCRIPT"} starts a workflow run.
Any other text calls nothing and is echoed. The final answer repeats the outputs of the calls."#;

/// Serves until `shutdown`.
///
/// # Errors
/// When the address is taken, or the webhook's URL or secret cannot be read.
pub async fn run(args: SandboxArgs, shutdown: impl Future<Output = ()> + Send + 'static) -> anyhow::Result<()> {
    let listener = TcpListener::bind(args.listen).await.with_context(|| format!("cannot listen on {}", args.listen))?;
    let address = listener.local_addr()?;
    let secret = args.webhook_secret.clone().unwrap_or_else(generate_secret);
    let usage = usage(&args, address, &secret);
    let sandbox = Sandbox::new(config(args, secret))?;
    // Whoever does not read it does not need it.
    let _ = io::stdout().write_all(usage.as_bytes());
    sandbox.serve(listener, shutdown).await.context("the sandbox ended")
}

fn config(args: SandboxArgs, secret: String) -> Config {
    let webhook = args.webhook_url.map(|url| {
        let mut webhook = Webhook::new(url, secret);
        webhook.events = args.webhook_events;
        webhook.retry.initial = Duration::from_millis(args.webhook_retry_ms);
        webhook
    });
    Config {
        api_key: args.api_key.into(),
        webhook,
        faults: args.faults,
        seed: args.seed.unwrap_or_else(rand::random),
        max_events: args.max_events,
        flavor: args.flavor,
        require_idempotency_key: args.require_idempotency_key || args.flavor.requires_key(),
        accepted_status: args.accepted_status.unwrap_or(args.flavor.accepted_status()),
    }
}

fn usage(args: &SandboxArgs, address: SocketAddr, secret: &str) -> String {
    let key = &args.api_key;
    let rebyte = match args.flavor {
        Flavor::Openai => String::new(),
        Flavor::Rebyte => format!(
            r#"start a workflow run:

  curl http://{address}/v1/workflow-agents/wfa_1/runs \
    -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \
    -d '{{"input":"lookup_order {{\"order_id\":\"42\"}}"}}'

"#
        ),
    };
    let webhook = match &args.webhook_url {
        Some(url) => format!("webhook    {url}\nsecret     {secret}\n"),
        None => "webhook    none (--webhook-url sends them)\n".to_owned(),
    };
    format!(
        r#"base url   http://{address}/v1
api key    {key}
{webhook}
start a session that calls a function:

  curl http://{address}/v1/agents/sessions \
    -H 'Authorization: Bearer {key}' -H 'OpenAI-Beta: agents=v1' -H 'Content-Type: application/json' \
    -d '{{"agent":{{"model":"scripted"}},"input":"lookup_order {{\"order_id\":\"42\"}}"}}'

{rebyte}see what became of it:

  curl http://{address}/sandbox/stats -H 'Authorization: Bearer {key}'

`actiond sandbox --help` shows the script language and the fault switches
"#
    )
}
