//! `actiond call`: one function from the shell, through the same validation and handler as in earnest.

use std::{sync::Arc, time::SystemTime};

use anyhow::anyhow;
use serde_json::{Map, Value, json};

use super::{ConfigFile, Failure};
use crate::{
    app,
    config::Config,
    function::Live,
    handler::{Call, Error},
    http,
    mcp::Servers,
    metrics::Metrics,
    session::{Output, ToolResult},
};

#[derive(clap::Args)]
pub(super) struct CallArgs {
    #[command(flatten)]
    config: ConfigFile,
    /// The function's name
    name: String,
    /// Its arguments, a JSON object
    #[arg(long, default_value = "{}", value_name = "JSON")]
    args: String,
    /// Session metadata as the platform would give it, a JSON object
    #[arg(long, default_value = "{}", value_name = "JSON")]
    metadata: String,
    /// The platform to call as [default: the first that the function answers]
    #[arg(long, value_name = "NAME")]
    platform: Option<String>,
}

pub(super) async fn call(args: CallArgs) -> Result<(), Failure> {
    let config = args.config.load()?;
    let guard = crate::telemetry::init(&super::quiet_logs());
    let client = http::client()?;
    let servers = app::servers(&config, &client).map_err(wrong)?;
    let ended = run(args, &config, &client, &servers).await;
    servers.close().await;
    guard.shutdown().await;
    ended.and_then(print)
}

fn wrong(error: anyhow::Error) -> Failure {
    Failure::Config(format!("{error:#}"))
}

async fn run(
    args: CallArgs,
    config: &Config,
    client: &http::Client,
    servers: &Servers,
) -> Result<Result<ToolResult, Error>, Failure> {
    let live = Arc::new(Live::new(app::functions(&config.functions, client, servers).map_err(wrong)?));
    let mut away = None;
    if live.load().by_name(&args.name).is_none() {
        for source in app::sources(config, &Metrics::new()).map_err(wrong)? {
            if let Err(reason) = source.refresh(&live).await {
                eprintln!("warning: {source} gives no functions: {reason}");
            }
        }
    }
    if live.load().by_name(&args.name).is_none() {
        away = app::importer(servers, client, &live, &Metrics::new()).once(&args.name).await.err();
    }
    let functions = live.load();
    let function = functions.by_name(&args.name).ok_or_else(|| {
        let mut names: Vec<&str> = functions.names().collect();
        names.sort_unstable();
        let away = away.map(|away| format!(" ({away})")).unwrap_or_default();
        anyhow!("no function {} in {}; there are: {}{away}", args.name, args.config.path().display(), names.join(", "))
    })?;
    let metadata: Map<String, Value> =
        serde_json::from_str(&args.metadata).map_err(|error| anyhow!("--metadata is not a JSON object: {error}"))?;
    let platform = args.platform.or_else(|| function.platforms.first().cloned()).unwrap_or_else(|| "cli".to_owned());
    let call = Call {
        deadline: SystemTime::now().checked_add(std::time::Duration::from_secs(3600)),
        metadata: Arc::new(metadata),
        ..Call::trial(&platform, &function.name)
    };
    Ok(function.run_once(&args.args, call).await)
}

fn print(result: Result<ToolResult, Error>) -> Result<(), Failure> {
    let (shown, sent) = match result {
        Ok(ToolResult::Success(Output::Text(text))) => (json!({ "success": true, "output": text }), true),
        Ok(ToolResult::Success(Output::Content(parts))) => (json!({ "success": true, "output": parts }), true),
        Ok(ToolResult::Error(sentence)) => (json!({ "success": false, "error": sentence }), false),
        Err(Error::Final { detail, message }) => {
            eprintln!("the handler failed for good: {detail}");
            let error = message.unwrap_or_else(|| crate::worker::FAILED.to_owned());
            (json!({ "success": false, "error": error }), false)
        }
        Err(Error::Later) => {
            return Err(anyhow!("the handler answers later, which only a running actiond can take").into());
        }
        Err(Error::Retryable { detail, .. } | Error::Overloaded { detail, .. } | Error::Unknown { detail }) => {
            return Err(anyhow!("the handler failed and would be tried again: {detail}").into());
        }
    };
    println!("{}", serde_json::to_string_pretty(&shown)?);
    if sent { Ok(()) } else { Err(Failure::Said) }
}
