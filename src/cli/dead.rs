//! `actiond dead`: what was put aside, back to the workers or away for good.

mod pick;
mod settle;

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use anyhow::{Context as _, anyhow};
use async_trait::async_trait;
use clap::Subcommand;
use serde_json::{Value, json};

use self::{
    pick::{Pick, PickArgs},
    settle::{Settle, Way},
};
use super::{
    ConfigFile, Failure,
    show::{age, escape, json_line, print, table, time},
};
use crate::{
    app,
    config::Config,
    queue::{Dead, DeadLetters, Fate, Review},
    store::Store,
};

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

/// What every one of the commands works with.
struct Office {
    config: Config,
    store: Arc<dyn Store>,
    letters: Arc<dyn DeadLetters>,
}

pub(super) async fn dead(file: &ConfigFile, command: DeadCommand) -> Result<(), Failure> {
    match &command {
        DeadCommand::Redrive { which, .. } | DeadCommand::Purge { which, .. } => which.check()?,
        _ => {}
    }
    if let DeadCommand::Purge { which, yes: false } = &command
        && !which.dry_run
    {
        return Err(Failure::Config("purge deletes for good: look with --dry-run, then repeat it with --yes".into()));
    }
    let config = file.load()?;
    let opened = app::open_existing(&config.store).await?;
    let letters = app::dead_letters(&config.queue, &opened)?;
    let office = Office { config, store: opened.store, letters };
    match command {
        DeadCommand::List { pick, limit, after, json } => office.list(pick, limit as usize, after, json).await,
        DeadCommand::Show { id, body, json } => office.show(id, body, json).await,
        DeadCommand::Redrive { which, rate, force } => office.settle(which, Way::Redrive { rate, force }).await,
        DeadCommand::Purge { which, .. } => office.settle(which, Way::Purge).await,
    }
}

impl Which {
    fn check(&self) -> Result<(), Failure> {
        match self.ids.is_empty() && !self.all && self.pick.is_any() {
            true => Err(Failure::Config("say which: IDs, a filter such as --platform, or --all".to_owned())),
            false => Ok(()),
        }
    }
}

impl Office {
    async fn list(&self, pick: PickArgs, limit: usize, after: Option<String>, json: bool) -> Result<(), Failure> {
        let mut list = List { pick: Pick::new(pick, self.store.clone(), true), limit, after, found: Vec::new() };
        self.review(&mut list).await?;
        list.pick.ended().context("cannot read the store")?;
        if let Some(id) = list.after {
            return Err(anyhow!("there is no dead message {}", escape(&id)).into());
        }
        let more = list.found.len() > limit;
        list.found.truncate(limit);
        if json {
            return print(&list.found.iter().map(|(dead, known)| json_line(&to_json(dead, known))).collect::<String>());
        }
        let mut lines = vec![["ID", "SESSION", "FUNCTIONS", "AGE", "REDRIVEN", "REASON"].map(str::to_owned).to_vec()];
        lines.extend(list.found.iter().map(|(dead, functions)| {
            vec![
                dead.id.clone(),
                session(dead),
                if functions.is_empty() { "-".to_owned() } else { escape(&functions.join(",")) },
                dead.at.map_or_else(|| "-".to_owned(), age),
                dead.redriven.to_string(),
                escape(&dead.reason),
            ]
        }));
        let Some((last, _)) = list.found.last() else {
            eprintln!("no dead messages");
            return Ok(());
        };
        print(&table(&lines))?;
        if more {
            eprintln!("there are more: --after {}", last.id);
        }
        Ok(())
    }

    async fn show(&self, id: String, body: bool, json: bool) -> Result<(), Failure> {
        let mut find = Find { id, found: None };
        self.review(&mut find).await?;
        let Some(dead) = find.found else {
            return Err(anyhow!("there is no dead message {}", escape(&find.id)).into());
        };
        let functions = pick::functions(&*self.store, &dead).await.context("cannot read the store")?;
        let mut fields = to_json(&dead, &functions);
        if let (true, Some(fields)) = (body, fields.as_object_mut()) {
            fields.insert("body".to_owned(), json!(String::from_utf8_lossy(&dead.bytes)));
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

    async fn settle(&self, which: Which, way: Way) -> Result<(), Failure> {
        let mut settle = Settle::new(which, way, self.store.clone(), self.deadlines());
        let reviewed = self.review(&mut settle).await;
        let failed = settle.end(reviewed.is_err())?;
        reviewed?;
        if failed { Err(Failure::Said) } else { Ok(()) }
    }

    async fn review(&self, review: &mut dyn Review) -> Result<(), Failure> {
        Ok(self.letters.review(review).await.context("cannot go through the dead messages")?)
    }

    /// The time that a platform's calls have.
    fn deadlines(&self) -> Vec<(String, Duration)> {
        self.config.platforms.iter().map(|platform| (platform.name.clone(), platform.call_deadline)).collect()
    }
}

/// Collects what is picked, behind `after`, and one more.
struct List {
    pick: Pick,
    limit: usize,
    after: Option<String>,
    found: Vec<(Dead, Vec<String>)>,
}

#[async_trait]
impl Review for List {
    async fn judge(&mut self, dead: &Dead) -> Fate {
        if self.after.is_some() {
            self.after.take_if(|after| *after == dead.id);
            return Fate::Keep;
        }
        if let Some(functions) = self.pick.picks(dead).await {
            self.found.push((dead.clone(), functions));
        }
        if self.found.len() > self.limit || self.pick.failed() { Fate::Stop } else { Fate::Keep }
    }
}

struct Find {
    id: String,
    found: Option<Dead>,
}

#[async_trait]
impl Review for Find {
    async fn judge(&mut self, dead: &Dead) -> Fate {
        if dead.id != self.id {
            return Fate::Keep;
        }
        self.found = Some(dead.clone());
        Fate::Stop
    }
}

/// `PLATFORM/SESSION`, where the message could be read.
fn session(dead: &Dead) -> String {
    dead.action.as_ref().map_or_else(|| "-".to_owned(), |action| escape(&action.session.to_string()))
}

fn to_json(dead: &Dead, functions: &[String]) -> Value {
    let action = dead.action.as_ref();
    json!({
        "id": dead.id,
        "reason": dead.reason,
        "platform": action.map(|action| &*action.session.platform),
        "session": action.map(|action| &*action.session.session),
        "event": action.map(|action| &action.event),
        "functions": functions,
        "accepted_at": action.map(|action| time(action.accepted_at)),
        "dead_at": dead.at.map(time),
        "redriven": dead.redriven,
        "readable": action.is_some(),
        "size": dead.bytes.len(),
    })
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
