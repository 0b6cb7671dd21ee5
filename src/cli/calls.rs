//! `actiond calls`: what the ledger holds, and what an operator does about a call that does not go on by itself.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow};
use clap::Subcommand;
use serde_json::{Value, json};

use super::{
    ConfigFile, Failure,
    export::{ExportArgs, export},
    show::{age, escape, json_line, parse_age, print, table, time},
};
use crate::{
    app,
    config::Config,
    http,
    session::{CallKey, Output, SessionKey, ToolResult},
    store::{CallRow, Filter, Reset, STATES, Store},
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
        /// Show the stored result too
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

pub(super) async fn calls(file: &ConfigFile, command: CallsCommand) -> Result<(), Failure> {
    let config = file.load()?;
    let store = app::open_existing(&config.store).await?.store;
    let ledger = Operator { config, store };
    match command {
        CallsCommand::List { filter, limit, after, json } => ledger.list(filter, limit, after, json).await,
        CallsCommand::Export(args) => export(&*ledger.store, args).await,
        CallsCommand::Show { call, body, json } => ledger.show(&call, body, json).await,
        CallsCommand::Retry { calls, json } => {
            ledger.reset_all(&calls, json, |deadline| Reset::Retry { deadline }).await
        }
        CallsCommand::Resubmit { calls, new_key, json } => {
            ledger.reset_all(&calls, json, |_| Reset::Resubmit { new_key }).await
        }
        CallsCommand::Resolve { call, result, json } => ledger.resolve(&call, result, json).await,
    }
}

struct Operator {
    config: Config,
    store: Arc<dyn Store>,
}

impl Operator {
    async fn list(&self, args: FilterArgs, limit: u32, after: Option<String>, json: bool) -> Result<(), Failure> {
        let after = match after {
            Some(name) => Some(self.find(&name).await?),
            None => None,
        };
        let filter = Filter {
            state: args.state,
            function: args.function,
            platform: args.platform,
            session: args.session,
            older_than: args.older_than,
            newer_than: args.newer_than,
            ..Filter::default()
        };
        let limit = limit as usize;
        let mut rows = self.store.calls(&filter, after.as_ref(), limit + 1).await.context(READ)?;
        let more = rows.len() > limit;
        rows.truncate(limit);
        if json {
            return print(&rows.iter().map(|row| json_line(&to_json(row))).collect::<String>());
        }
        let header = ["CALL", "FUNCTION", "STATE", "ATTEMPT", "AGE", "CHANGED", "DETAIL"].map(str::to_owned);
        let mut lines = vec![header.to_vec()];
        lines.extend(rows.iter().map(|row| {
            vec![
                escape(&row.key.to_string()),
                escape(&row.function),
                row.state.clone(),
                row.attempt.to_string(),
                age(row.created_at),
                age(row.updated_at),
                escape(&clip(row.detail.as_deref().unwrap_or_default())),
            ]
        }));
        let Some(last) = rows.last() else {
            eprintln!("no calls");
            return Ok(());
        };
        print(&table(&lines))?;
        if more {
            eprintln!("there are more: --after '{}'", escape(&last.key.to_string()));
        }
        Ok(())
    }

    async fn show(&self, name: &str, with_body: bool, json: bool) -> Result<(), Failure> {
        let row = self.find(name).await?;
        let (body, history) = match self.store.call(&row.key).await.context(READ)? {
            Some(details) => (details.body, details.history),
            None => (None, Vec::new()),
        };
        let body = body.filter(|_| with_body).map(|body| String::from_utf8_lossy(&body).into_owned());
        let mut fields = to_json(&row);
        if let (Some(body), Some(fields)) = (&body, fields.as_object_mut()) {
            fields.insert("body".to_owned(), json!(body));
        }
        if json {
            if let Some(fields) = fields.as_object_mut() {
                fields.insert("history".to_owned(), Value::Array(history));
            }
            return print(&json_line(&fields));
        }
        let lines =
            fields.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()).map(|(name, value)| {
                let shown = value.as_str().map_or_else(|| value.to_string(), escape);
                vec![name.clone(), shown]
            });
        print(&table(&lines.collect::<Vec<_>>()))?;
        print(&format!("\n{}", table(&history.iter().map(event_line).collect::<Vec<_>>())))
    }

    /// Each by itself: one that cannot be changed does not keep the others.
    async fn reset_all(&self, names: &[String], json: bool, reset: impl Fn(Duration) -> Reset) -> Result<(), Failure> {
        let mut failed = false;
        for name in names {
            let done = async {
                let row = self.find(name).await?;
                let reset = reset(self.platform(&row.key.session)?.call_deadline);
                self.reset(&row, &reset, json).await
            };
            if let Err(error) = done.await {
                failed = true;
                eprintln!("error: {error:#}");
            }
        }
        if failed { Err(Failure::Said) } else { Ok(()) }
    }

    async fn resolve(&self, name: &str, result: ResultArgs, json: bool) -> Result<(), Failure> {
        let row = self.find(name).await?;
        let platform = self.platform(&row.key.session)?;
        let adapter = app::adapter(platform, &http::client().context("cannot make an HTTP client")?)?;
        let result = match (result.output, result.error) {
            (Some(text), _) => ToolResult::Success(Output::Text(text)),
            (None, text) => ToolResult::Error(text.unwrap_or_default()),
        };
        let reset = Reset::Resolve {
            success: matches!(result, ToolResult::Success(_)),
            submission: adapter.encode(&row.key, &result, row.next_generation()),
            detail: "resolved by an operator".to_owned(),
        };
        Ok(self.reset(&row, &reset, json).await?)
    }

    async fn reset(&self, row: &CallRow, reset: &Reset, json: bool) -> anyhow::Result<()> {
        let call = row.key.to_string();
        let shown = escape(&call);
        if let Some(why) = row.refuses(reset) {
            return Err(anyhow!("{shown} is {}: {why}", row.state));
        }
        if !self.store.reset(row, reset, &person()).await.context("cannot change the call")? {
            return Err(anyhow!("{shown} changed meanwhile: look at it again, then repeat the command"));
        }
        let (outcome, next) = match reset {
            Reset::Retry { .. } => ("retrying", "its handler runs again"),
            Reset::Resubmit { .. } => ("resubmitted", "its stored result is submitted again"),
            Reset::Resolve { .. } => ("resolved", "the result is stored and will be submitted"),
        };
        let line = match json {
            true => json_line(&json!({ "call": call, "outcome": outcome })),
            false => format!("{shown}  {next}\n"),
        };
        // What is done is done, whether or not somebody reads of it.
        let _ = print(&line);
        Ok(())
    }

    fn platform(&self, session: &SessionKey) -> anyhow::Result<&crate::platform::Config> {
        let found = self.config.platforms.iter().find(|platform| *platform.name == *session.platform);
        found.ok_or_else(|| {
            anyhow!("platform {} is not in the config: no worker would answer", escape(&session.platform))
        })
    }

    async fn find(&self, name: &str) -> anyhow::Result<CallRow> {
        find(&*self.store, name).await
    }
}

/// The call that a person named, by its whole key or by a call id that is unique.
pub(super) async fn find(store: &dyn Store, name: &str) -> anyhow::Result<CallRow> {
    let mut found = Vec::new();
    for key in keys(name) {
        found.extend(store.call(&key).await.context(READ)?.map(|details| details.row));
    }
    if found.is_empty() {
        let filter = Filter { call_id: Some(name.to_owned()), ..Filter::default() };
        found = store.calls(&filter, None, 2).await.context(READ)?;
    }
    match (found.pop(), found.pop()) {
        (Some(row), None) => Ok(row),
        (Some(_), Some(_)) => {
            Err(anyhow!("several calls are named {}: use PLATFORM/SESSION/TURN/CALL_ID", escape(name)))
        }
        (None, _) => Err(anyhow!("there is no call {}", escape(name))),
    }
}

/// One entry of a history: when, what, and what is known of it.
fn event_line(entry: &Value) -> Vec<String> {
    let at = entry["at"].as_i64().map_or_else(String::new, time);
    let event = escape(entry["event"].as_str().unwrap_or_default());
    let known = entry.as_object().into_iter().flatten().filter(|(name, _)| !["at", "event"].contains(&name.as_str()));
    let known = known.map(|(name, value)| {
        let value = match (name.as_str(), value) {
            ("accepted_at", value) => value.as_i64().map_or_else(String::new, time),
            (_, Value::String(text)) => escape(text),
            (_, value) => value.to_string(),
        };
        format!("{name}={value}")
    });
    vec![at, event, known.collect::<Vec<_>>().join("  ")]
}

/// Who types, for histories.
pub(super) fn person() -> String {
    let user = std::env::var("USER").or_else(|_| std::env::var("LOGNAME")).unwrap_or_default();
    format!("cli:{}", if user.is_empty() { "unknown" } else { &user })
}

pub(super) const READ: &str = "cannot read the store; if it is new, actiond migrate creates its tables";

/// Every key that is displayed so: ids may have slashes themselves.
fn keys(name: &str) -> Vec<CallKey> {
    let Some((platform, rest)) = name.split_once('/') else { return Vec::new() };
    let slashes: Vec<usize> = rest.match_indices('/').map(|(at, _)| at).take(12).collect();
    let mut keys = Vec::new();
    for (place, first) in slashes.iter().enumerate() {
        for second in &slashes[place + 1..] {
            let session = SessionKey::new(platform, &rest[..*first]);
            keys.push(CallKey::new(session, &rest[first + 1..*second], &rest[second + 1..]));
        }
    }
    keys
}

/// What fits in a line; `show` has the rest.
fn clip(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// States in which a call is left alone until a time.
const WAITS: [&str; 4] = ["claimed", "waiting", "retrying", "submitted"];

pub(super) fn to_json(row: &CallRow) -> Value {
    json!({
        "call": row.key.to_string(),
        "platform": &*row.key.session.platform,
        "session": &*row.key.session.session,
        "turn": &*row.key.turn,
        "call_id": &*row.key.call_id,
        "function": row.function,
        "state": row.state,
        "attempt": row.attempt,
        "fence": row.fence,
        "generation": row.generation,
        "submissions": row.submissions,
        "success": row.success,
        "approval": row.approval,
        "detail": row.detail,
        "idempotency_key": row.idempotency_key,
        "body_len": row.body_len,
        "created_at": time(row.created_at),
        "updated_at": time(row.updated_at),
        "until_at": WAITS.contains(&row.state.as_str()).then(|| time(row.until_at)),
        "deadline_at": time(row.deadline_at),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_every_key_that_is_displayed_so() {
        let one = keys("openai/sess_1/turn_1/call_1");
        assert_eq!(one, [CallKey::new(SessionKey::new("openai", "sess_1"), "turn_1", "call_1")]);
        let odd = CallKey::new(SessionKey::new("openai", "a/b"), "", "c/d");
        assert!(keys(&odd.to_string()).contains(&odd));
        assert!(keys("call_1").is_empty() && keys("a/b").is_empty());
    }

    #[test]
    fn a_long_detail_is_cut_between_characters() {
        assert_eq!(clip(&"é".repeat(61)).chars().count(), 61);
        assert_eq!(clip("short"), "short");
    }
}
