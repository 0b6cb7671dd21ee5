//! `actiond calls export`: the ledger as JSON Lines, the oldest call first.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, anyhow};
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::{
    Failure, calls,
    show::{Progress, escape, json_line, parse_age, print, time},
};
use crate::store::{CallRow, Details, Filter, STATES, Store};

/// Rows read at once.
const PAGE: usize = 500;

#[derive(clap::Args)]
pub(super) struct ExportArgs {
    /// Calls first seen since: an age such as 24h, or a time such as 2026-11-30T08:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = parse_when)]
    since: Option<i64>,
    /// Calls first seen before; now by default
    #[arg(long, value_name = "WHEN", value_parser = parse_when)]
    until: Option<i64>,
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
    #[command(flatten)]
    with: With,
    /// Go on behind this call, where an export broke off
    #[arg(long, value_name = "CALL")]
    after: Option<String>,
}

#[derive(clap::Args, Clone, Copy)]
struct With {
    /// The stored results too
    #[arg(long = "with-results")]
    results: bool,
    /// What happened to each call too: claims, attempts, submissions, decisions
    #[arg(long = "with-history")]
    history: bool,
}

impl With {
    fn add(self, details: Details, fields: &mut Map<String, Value>) {
        if let Some(body) = details.body.filter(|_| self.results) {
            fields.insert("body".to_owned(), String::from_utf8_lossy(&body).into());
        }
        if self.history {
            fields.insert("history".to_owned(), details.history.into());
        }
    }
}

/// An age or an instant, as Unix milliseconds.
fn parse_when(text: &str) -> Result<i64, String> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time.as_millisecond());
    }
    let age = parse_age(text).map_err(|_| "must be an age such as 24h, or a time such as 2026-11-30T08:00:00Z")?;
    Ok(now().saturating_sub(millis(age)))
}

fn now() -> i64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// Writes every call once, however long it takes: what is first seen meanwhile is not waited for.
pub(super) async fn export(store: &dyn Store, args: ExportArgs) -> Result<(), Failure> {
    let until = args.until.unwrap_or_else(now);
    let filter = Filter {
        state: args.state,
        function: args.function,
        platform: args.platform,
        session: args.session,
        from: args.since,
        to: Some(until),
        oldest_first: true,
        ..Filter::default()
    };
    let mut after = match &args.after {
        Some(name) => Some(calls::find(store, name).await?),
        None => None,
    };
    let (progress, mut count) = (Progress::new(), 0_u64);
    loop {
        let page = page(store, &filter, after.as_ref(), args.with).await;
        let (rows, lines) = page.map_err(|error| {
            progress.clear();
            broken(&error, count, after.as_ref(), until)
        })?;
        progress.clear();
        print(&lines)?;
        count += rows.len() as u64;
        progress.say(&format!("{count} calls"));
        match rows.into_iter().last() {
            Some(last) => after = Some(last),
            None => break,
        }
    }
    progress.clear();
    Ok(())
}

async fn page(
    store: &dyn Store,
    filter: &Filter,
    after: Option<&CallRow>,
    with: With,
) -> anyhow::Result<(Vec<CallRow>, String)> {
    let rows = store.calls(filter, after, PAGE).await.context(calls::READ)?;
    let mut lines = String::new();
    for row in &rows {
        let mut fields = calls::to_json(row);
        if with.results || with.history {
            let details = store.call(&row.key).await.context(calls::READ)?;
            if let (Some(details), Some(fields)) = (details, fields.as_object_mut()) {
                with.add(details, fields);
            }
        }
        lines += &json_line(&fields);
    }
    Ok((rows, lines))
}

/// What is written stays written: the rest follows it.
fn broken(error: &anyhow::Error, count: u64, after: Option<&CallRow>, until: i64) -> anyhow::Error {
    let Some(last) = after else { return anyhow!("{error:#}") };
    let call = escape(&last.key.to_string());
    anyhow!(
        "{error:#}\n{count} calls are written; go on with the same options and  --until {} --after '{call}'",
        time(until)
    )
}
