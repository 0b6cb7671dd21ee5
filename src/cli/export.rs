//! `actiond calls export`: the ledger as JSON Lines, the oldest call first.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::anyhow;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Failure,
    office::Office,
    show::{Progress, escape, json_line, parse_age, print, time},
};
use crate::{
    operator::{self, ListCalls, view},
    store::{Filter, STATES},
};

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
    fn add(self, detail: view::CallDetail, fields: &mut Value) {
        if let Some(result) = detail.result.filter(|_| self.results) {
            fields["body"] = result.into();
        }
        if self.history {
            fields["history"] = detail.history.into();
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
pub(super) async fn export(office: &Office, args: ExportArgs) -> Result<(), Failure> {
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
    let mut list = ListCalls { filter, after: args.after.clone(), limit: PAGE, ..ListCalls::default() };
    let (progress, mut count, mut last) = (Progress::new(), 0_u64, args.after);
    loop {
        let page = page(office, &list, args.with).await;
        let (calls, lines) = page.map_err(|error| {
            progress.clear();
            broken(&error, count, last.as_deref(), until)
        })?;
        progress.clear();
        print(&lines)?;
        count += calls.calls.len() as u64;
        progress.say(&format!("{count} calls"));
        last = calls.calls.last().map(|call| call.call.clone()).or(last);
        match calls.next {
            Some(next) => list = ListCalls { after: None, cursor: Some(next), ..list },
            None => break,
        }
    }
    progress.clear();
    Ok(())
}

async fn page(office: &Office, list: &ListCalls, with: With) -> operator::Result<(view::Calls, String)> {
    let calls = office.calls(list).await?;
    let mut lines = String::new();
    for call in &calls.calls {
        let mut fields = json!(call);
        if with.results || with.history {
            match office.detail(&call.id).await {
                Ok(detail) => with.add(detail, &mut fields),
                // Deleted meanwhile, for its age.
                Err(operator::Error::NotFound(_)) => {}
                Err(error) => return Err(error),
            }
        }
        lines += &json_line(&fields);
    }
    Ok((calls, lines))
}

/// What is written stays written: the rest follows it.
fn broken(error: &operator::Error, count: u64, last: Option<&str>, until: i64) -> anyhow::Error {
    let error = escape(&error.to_string());
    let Some(last) = last.map(escape) else { return anyhow!("{error}") };
    anyhow!(
        "{error}\n{count} calls are written; go on with the same options and  --until {} --after '{last}'",
        time(until)
    )
}
