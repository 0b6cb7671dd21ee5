//! `actiond calls`: what the ledger holds, and what an operator does about a call that does not go on by itself.

use std::time::Duration;

use anyhow::anyhow;
use clap::Subcommand;
use serde_json::{Value, json};

use super::{
    ConfigFile, Failure,
    export::{ExportArgs, export},
    office::{Office, ServerArgs},
    show::{age, escape, json_line, parse_age, print, table},
};
use crate::{
    operator::{self, Act, ListCalls, view},
    store::{CallRow, Filter, STATES, Store},
};

#[derive(Subcommand)]
pub(super) enum CallsCommand {
    /// List calls, the newest first
    #[command(after_help = "Example:  actiond calls list --state refused --platform openai --json\n\n\
                            The next page:  --after with the CALL of the last line")]
    List {
        #[command(flatten)]
        filter: FilterArgs,
        /// Calls at most
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
        /// Only calls behind this one
        #[arg(long, value_name = "CALL")]
        after: Option<String>,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Write calls as JSON Lines, the oldest first
    #[command(after_help = "Example:  actiond calls export --since 24h --state settled > calls.jsonl")]
    Export(ExportArgs),
    /// Show one call
    #[command(after_help = "Example:  actiond calls show openai/sess_1/turn_1/call_1 --body")]
    Show {
        /// PLATFORM/SESSION/TURN/CALL_ID, or a call id that only one call has
        call: String,
        /// Show the stored result too; what the function's redact names is hidden
        #[arg(long)]
        body: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Run the handler again; a result that the platform did not accept is forgotten
    #[command(after_help = "Example:  actiond calls retry openai/sess_1/turn_1/call_1")]
    Retry {
        /// PLATFORM/SESSION/TURN/CALL_ID, or a call id that only one call has
        #[arg(required = true)]
        calls: Vec<String>,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Submit the stored result again: same bytes, the handler does not run
    #[command(
        after_help = "Example:  actiond calls list --state refused --json | jq -r .call | xargs actiond calls resubmit"
    )]
    Resubmit {
        /// PLATFORM/SESSION/TURN/CALL_ID, or a call id that only one call has
        #[arg(required = true)]
        calls: Vec<String>,
        /// Under the next idempotency key: for a platform that repeats its old answer to the old key
        #[arg(long)]
        new_key: bool,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Answer a call that has no result, such as one that is held
    #[command(after_help = "Example:  actiond calls resolve call_1 --output 'refunded, reference 4711'")]
    Resolve {
        /// PLATFORM/SESSION/TURN/CALL_ID, or a call id that only one call has
        call: String,
        #[command(flatten)]
        result: ResultArgs,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Answer a call with an error that says so: its agent goes on, a handler that runs for it is stopped
    #[command(after_help = "Example:  actiond calls cancel call_1 --reason 'the order is closed'")]
    Cancel {
        /// PLATFORM/SESSION/TURN/CALL_ID, or a call id that only one call has
        #[arg(required = true)]
        calls: Vec<String>,
        /// Told to the agent
        #[arg(long, value_name = "TEXT")]
        reason: Option<String>,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
}

#[derive(clap::Args)]
pub(super) struct FilterArgs {
    /// Only calls in this state
    #[arg(long, value_parser = STATES)]
    state: Option<String>,
    /// Only calls of this function
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// Only calls of this platform
    #[arg(long, value_name = "NAME")]
    platform: Option<String>,
    /// Only calls of this session
    #[arg(long, value_name = "ID")]
    session: Option<String>,
    /// Only calls first seen longer ago, such as 1h
    #[arg(long, value_name = "AGE", value_parser = parse_age)]
    older_than: Option<Duration>,
    /// Only calls first seen since, such as 30m
    #[arg(long, value_name = "AGE", value_parser = parse_age)]
    newer_than: Option<Duration>,
}

#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub(super) struct ResultArgs {
    /// The function's output, as text
    #[arg(long, value_name = "TEXT")]
    output: Option<String>,
    /// An error for the model: what is wrong and what to change
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
}

pub(super) async fn calls(file: &ConfigFile, server: &ServerArgs, command: CallsCommand) -> Result<(), Failure> {
    let office = Office::open(server, file).await?;
    match command {
        CallsCommand::List { filter, limit, after, json } => list(&office, filter, limit, after, json).await,
        CallsCommand::Export(args) => export(&office, args).await,
        CallsCommand::Show { call, body, json } => show(&office, &call, body, json).await,
        CallsCommand::Retry { calls, json } => act(&office, &calls, &Act::Retry, json).await,
        CallsCommand::Resubmit { calls, new_key, json } => act(&office, &calls, &Act::Resubmit { new_key }, json).await,
        CallsCommand::Resolve { call, result: ResultArgs { output, error }, json } => {
            act(&office, &[call], &Act::resolve(output, error), json).await
        }
        CallsCommand::Cancel { calls, reason, json } => act(&office, &calls, &Act::Cancel { reason }, json).await,
    }
}

async fn list(office: &Office, args: FilterArgs, limit: u32, after: Option<String>, json: bool) -> Result<(), Failure> {
    let filter = Filter {
        state: args.state,
        function: args.function,
        platform: args.platform,
        session: args.session,
        older_than: args.older_than,
        newer_than: args.newer_than,
        ..Filter::default()
    };
    let list = ListCalls { filter, name: None, after, cursor: None, limit: limit as usize };
    let view::Calls { calls, next } = office.calls(&list).await?;
    if json {
        return print(&calls.iter().map(|call| json_line(&json!(call))).collect::<String>());
    }
    let header = ["CALL", "FUNCTION", "STATE", "ATTEMPT", "AGE", "CHANGED", "DETAIL"].map(str::to_owned);
    let mut lines = vec![header.to_vec()];
    lines.extend(calls.iter().map(|call| {
        vec![
            escape(&call.call),
            escape(&call.function),
            call.state.clone(),
            call.attempt.to_string(),
            age(call.created_at.as_millisecond()),
            age(call.updated_at.as_millisecond()),
            escape(&clip(call.detail.as_deref().unwrap_or_default())),
        ]
    }));
    let Some(last) = calls.last() else {
        eprintln!("no calls");
        return Ok(());
    };
    print(&table(&lines))?;
    if next.is_some() {
        eprintln!("there are more: --after '{}'", escape(&last.call));
    }
    Ok(())
}

async fn show(office: &Office, name: &str, with_body: bool, json: bool) -> Result<(), Failure> {
    let detail = office.show(name).await?;
    let mut fields = json!(detail.call);
    if let (true, Some(body)) = (with_body, detail.result) {
        fields["body"] = Value::String(body);
    }
    if json {
        fields["history"] = Value::Array(detail.history);
        return print(&json_line(&fields));
    }
    let lines = fields.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()).map(|(name, value)| {
        let shown = value.as_str().map_or_else(|| value.to_string(), escape);
        vec![name.clone(), shown]
    });
    print(&table(&lines.collect::<Vec<_>>()))?;
    print(&format!("\n{}", table(&detail.history.iter().map(event_line).collect::<Vec<_>>())))
}

/// One entry of a history: when, what, and what is known of it.
fn event_line(entry: &Value) -> Vec<String> {
    let time = |value: &Value| value.as_i64().map_or_else(String::new, |ms| view::instant(ms).to_string());
    let event = escape(entry["event"].as_str().unwrap_or_default());
    let known = entry.as_object().into_iter().flatten().filter(|(name, _)| !["at", "event"].contains(&name.as_str()));
    let known = known.map(|(name, value)| {
        let value = match (name.as_str(), value) {
            ("accepted_at", value) => time(value),
            (_, Value::String(text)) => escape(text),
            (_, value) => value.to_string(),
        };
        format!("{name}={value}")
    });
    vec![time(&entry["at"]), event, known.collect::<Vec<_>>().join("  ")]
}

/// Each by itself: one that cannot be changed does not keep the others.
async fn act(office: &Office, names: &[String], act: &Act, json: bool) -> Result<(), Failure> {
    let mut failed = false;
    for name in names {
        match office.act(name, act).await {
            Ok(done) => tell(&done, json),
            Err(error) => {
                failed = true;
                eprintln!("error: {}", escape(&error.to_string()));
            }
        }
    }
    if failed { Err(Failure::Said) } else { Ok(()) }
}

fn tell(done: &view::Done, json: bool) {
    let next = match done.outcome.as_str() {
        "retrying" => "its handler runs again",
        "resubmitted" => "its stored result is submitted again",
        "cancelled" => "the agent will be told that it was cancelled",
        _ => "the result is stored and will be submitted",
    };
    let line = match json {
        true => json_line(&json!(done)),
        false => format!("{}  {next}\n", escape(&done.call)),
    };
    // What is done is done, whether or not somebody reads of it.
    let _ = print(&line);
}

/// The call that a person named, in a store at hand.
pub(super) async fn find(store: &dyn Store, name: &str) -> anyhow::Result<CallRow> {
    operator::find(store, name).await.map_err(|error| anyhow!("{}", escape(&error.to_string())))
}

/// Who types, for histories.
pub(super) fn person() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_default();
    format!("cli:{}", if user.is_empty() { "unknown" } else { &user })
}

pub(super) const READ: &str = "cannot read the store; if it is new, actiond migrate creates its tables";

/// What fits in a line; `show` has the rest.
fn clip(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_detail_is_cut_between_characters() {
        assert_eq!(clip(&"é".repeat(61)).chars().count(), 61);
        assert_eq!(clip("short"), "short");
    }
}
