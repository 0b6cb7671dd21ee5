//! `actiond dead`: what was put aside, back to the workers or away for good.

use std::{num::NonZeroU32, time::Duration};

use clap::Subcommand;
use serde_json::{Value, json};

use super::{
    ConfigFile, Failure,
    office::{Office, ServerArgs},
    show::{Progress, age, escape, json_line, parse_age, print, table},
};
use crate::operator::{Order, Pick, Told, Way, view};

#[derive(Subcommand)]
pub(super) enum DeadCommand {
    /// List dead messages, the oldest first
    #[command(after_help = "Example:  actiond dead list --reason 'not configured' --older-than 1h --json\n\n\
                            The next page:  --after with the ID of the last line")]
    List {
        #[command(flatten)]
        pick: PickArgs,
        /// Messages at most
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        limit: u32,
        /// Only messages behind this one
        #[arg(long, value_name = "ID")]
        after: Option<String>,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Show one dead message
    #[command(after_help = "Example:  actiond dead show 4f1d2c3b5a --body")]
    Show {
        /// Its ID as `dead list` shows it
        id: String,
        /// Show its bytes too
        #[arg(long)]
        body: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Give dead messages back to the workers, once what killed them is put right
    #[command(after_help = "Example:  actiond dead redrive --platform openai --dry-run\n          \
                            actiond dead redrive --platform openai --max 1000 --rate 50/s")]
    Redrive {
        #[command(flatten)]
        which: Which,
        /// Not faster than this, such as 50/s or 10/m
        #[arg(long, value_name = "RATE", value_parser = parse_rate)]
        rate: Option<Duration>,
        /// Also what cannot be read, or came back so often that it seems to go in circles
        #[arg(long)]
        force: bool,
    },
    /// Delete dead messages for good
    #[command(after_help = "Example:  actiond dead purge --platform retired --older-than 30d --yes")]
    Purge {
        #[command(flatten)]
        which: Which,
        /// Really
        #[arg(long)]
        yes: bool,
    },
}

/// Which messages a command is about.
#[derive(clap::Args, Clone)]
pub(super) struct PickArgs {
    /// Only messages of this platform
    #[arg(long, value_name = "NAME")]
    platform: Option<String>,
    /// Only messages whose session has a call of this function in the store
    #[arg(long, value_name = "NAME")]
    function: Option<String>,
    /// Only messages whose reason holds this text, in any case
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Only messages put aside longer ago, such as 1h
    #[arg(long, value_name = "AGE", value_parser = parse_age)]
    older_than: Option<Duration>,
    /// Only messages put aside since, such as 30m
    #[arg(long, value_name = "AGE", value_parser = parse_age)]
    newer_than: Option<Duration>,
}

impl From<PickArgs> for Pick {
    fn from(args: PickArgs) -> Self {
        let PickArgs { platform, function, reason, older_than, newer_than } = args;
        Self { platform, function, reason, older_than, newer_than }
    }
}

/// Which messages a command settles.
#[derive(clap::Args)]
pub(super) struct Which {
    /// IDs as `dead list` shows them
    ids: Vec<String>,
    #[command(flatten)]
    pick: PickArgs,
    /// Every dead message
    #[arg(long, conflicts_with = "ids")]
    all: bool,
    /// Messages at most
    #[arg(long, value_name = "N")]
    max: Option<NonZeroU32>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

pub(super) async fn dead(file: &ConfigFile, server: &ServerArgs, command: DeadCommand) -> Result<(), Failure> {
    match &command {
        DeadCommand::Redrive { which, .. } | DeadCommand::Purge { which, .. } => which.check()?,
        _ => {}
    }
    if let DeadCommand::Purge { which, yes: false } = &command
        && !which.dry_run
    {
        return Err(Failure::Config("purge deletes for good: look with --dry-run, then repeat it with --yes".into()));
    }
    let office = Office::open(server, file).await?;
    match command {
        DeadCommand::List { pick, limit, after, json } => {
            list(&office, &pick.into(), limit as usize, after, json).await
        }
        DeadCommand::Show { id, body, json } => show(&office, &id, body, json).await,
        DeadCommand::Redrive { which, rate, force } => {
            settle(&office, which, Way::Redrive { pause: rate, force }).await
        }
        DeadCommand::Purge { which, .. } => settle(&office, which, Way::Purge).await,
    }
}

impl Which {
    fn check(&self) -> Result<(), Failure> {
        match self.ids.is_empty() && !self.all && Pick::from(self.pick.clone()).is_any() {
            true => Err(Failure::Config("say which: IDs, a filter such as --platform, or --all".to_owned())),
            false => Ok(()),
        }
    }
}

async fn list(office: &Office, pick: &Pick, limit: usize, after: Option<String>, json: bool) -> Result<(), Failure> {
    let view::DeadMessages { messages, next } = office.dead(pick, after, limit).await?;
    if messages.iter().any(|dead| dead.functions.is_none()) {
        eprintln!("warning: functions are not shown: cannot read the store");
    }
    if json {
        return print(&messages.iter().map(|dead| json_line(&json!(dead))).collect::<String>());
    }
    let mut lines = vec![["ID", "SESSION", "FUNCTIONS", "AGE", "REDRIVEN", "REASON"].map(str::to_owned).to_vec()];
    lines.extend(messages.iter().map(|dead| {
        let functions = dead.functions.as_deref().filter(|functions| !functions.is_empty());
        vec![
            escape(&dead.id),
            session(dead.session_key()),
            functions.map_or_else(|| "-".to_owned(), |functions| escape(&functions.join(","))),
            dead.dead_at.map_or_else(|| "-".to_owned(), |at| age(at.as_millisecond())),
            dead.redriven.to_string(),
            escape(&dead.reason),
        ]
    }));
    let Some(last) = messages.last() else {
        eprintln!("no dead messages");
        return Ok(());
    };
    print(&table(&lines))?;
    if next.is_some() {
        eprintln!("there are more: --after {}", escape(&last.id));
    }
    Ok(())
}

async fn show(office: &Office, id: &str, body: bool, json: bool) -> Result<(), Failure> {
    let detail = office.dead_message(id).await?;
    let mut fields = json!(detail.message);
    if body {
        fields["body"] = Value::String(detail.body);
    }
    if json {
        return print(&json_line(&fields));
    }
    let lines = fields.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    let lines = lines.map(|(name, value)| {
        let shown = value.as_str().map_or_else(|| value.to_string(), escape);
        vec![name.clone(), shown]
    });
    print(&table(&lines.collect::<Vec<_>>()))
}

/// Says what is done as it is done, then how much it was.
async fn settle(office: &Office, which: Which, way: Way) -> Result<(), Failure> {
    let Which { ids, pick, all, max, dry_run, json } = which;
    let order = Order { way, ids, pick: pick.into(), all, max: max.map(u32::from), dry_run };
    let progress = Progress::new();
    let mut tell = |told: Told<'_>| match told {
        Told::Progress { seen, done } => progress.say(&format!("looked at {seen}, settled {done}")),
        Told::Message(message) => {
            progress.clear();
            // The work goes on, whether or not somebody reads of it.
            let _ = print(&line(message, json));
        }
    };
    let settled = office.settle(order, &mut tell).await;
    progress.clear();
    let settled = settled?;
    let verb = match (way, dry_run) {
        (Way::Redrive { .. }, false) => "redriven",
        (Way::Redrive { .. }, true) => "would be redriven",
        (Way::Purge, false) => "purged",
        (Way::Purge, true) => "would be purged",
    };
    let refused = if settled.refused > 0 { format!(", {} refused", settled.refused) } else { String::new() };
    eprintln!("{} {verb}{refused}", settled.done);
    if let Some(why) = &settled.broke_off {
        eprintln!("error: {}", escape(why));
    }
    if settled.full && max.is_none() {
        eprintln!("there may be more: repeat the command");
    }
    for id in &settled.missing {
        eprintln!("error: there is no dead message {}", escape(id));
    }
    let failed = settled.refused > 0 || settled.broke_off.is_some() || !settled.missing.is_empty();
    if failed { Err(Failure::Said) } else { Ok(()) }
}

fn line(message: &view::SettledMessage, json: bool) -> String {
    if json {
        return json_line(&json!(message));
    }
    let key = message.platform.as_ref().zip(message.session.as_ref());
    let why = message.why.as_ref().map(|why| format!(": {}", escape(why))).unwrap_or_default();
    let key = session(key.map(|(platform, session)| format!("{platform}/{session}")));
    format!("{}  {key}  {}{why}\n", escape(&message.id), message.outcome)
}

/// `PLATFORM/SESSION`, where the message could be read.
fn session(key: Option<String>) -> String {
    key.map_or_else(|| "-".to_owned(), |key| escape(&key))
}

/// `50/s`, `10/m` or `50`, which is a second's: the pause between two.
fn parse_rate(text: &str) -> Result<Duration, String> {
    let (number, seconds) = match text.split_once('/') {
        None | Some((_, "s")) => (text.trim_end_matches("/s"), 1.0),
        Some((number, "m")) => (number, 60.0),
        Some((number, "h")) => (number, 3600.0),
        Some(_) => ("", 0.0),
    };
    match number.parse::<u32>() {
        Ok(number) if number > 0 => Ok(Duration::from_secs_f64(seconds / f64::from(number))),
        _ => Err("must be a count per time such as 50/s or 10/m".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_a_pause() {
        for (text, ms) in [("50/s", 20), ("50", 20), ("60/m", 1000), ("1/h", 3_600_000)] {
            assert_eq!(parse_rate(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["0/s", "-1", "1/d", "", "/s", "x"] {
            assert!(parse_rate(text).is_err(), "{text}");
        }
    }
}
