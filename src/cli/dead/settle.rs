//! Redrive and purge: one pass over the dead messages, slow if wanted, that counts and tells what it does.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use anyhow::Context as _;
use async_trait::async_trait;
use serde_json::json;
use tokio::time::Instant;

use super::{Which, pick::Pick, session};
use crate::{
    cli::{
        Failure,
        show::{Progress, escape, json_line, print},
    },
    queue::{Dead, Fate, Review},
    store::{self, Store},
};

/// What comes back so often goes in circles.
const MAX_REDRIVES: u32 = 5;

#[derive(Clone, Copy, Debug)]
pub(super) enum Way {
    Redrive {
        /// Between two messages.
        rate: Option<Duration>,
        force: bool,
    },
    Purge,
}

pub(super) struct Settle {
    way: Way,
    /// Those asked for by name and not met yet.
    ids: BTreeSet<String>,
    by_id: bool,
    pick: Pick,
    left: u32,
    dry_run: bool,
    json: bool,
    store: Arc<dyn Store>,
    deadlines: Vec<(String, Duration)>,
    next: Instant,
    progress: Progress,
    seen: u32,
    done: u32,
    refused: u32,
    error: Option<store::Error>,
}

impl Settle {
    pub(super) fn new(which: Which, way: Way, store: Arc<dyn Store>, deadlines: Vec<(String, Duration)>) -> Self {
        Self {
            way,
            by_id: !which.ids.is_empty(),
            ids: which.ids.into_iter().collect(),
            pick: Pick::new(which.pick, store.clone(), false),
            left: which.max.map_or(u32::MAX, u32::from),
            dry_run: which.dry_run,
            json: which.json,
            store,
            deadlines,
            next: Instant::now(),
            progress: Progress::new(),
            seen: 0,
            done: 0,
            refused: 0,
            error: None,
        }
    }

    /// Says what was done. `true`: not all that was asked for. `cut_short`: the pass ended before its end.
    pub(super) fn end(&mut self, cut_short: bool) -> Result<bool, Failure> {
        self.progress.clear();
        let verb = match (self.way, self.dry_run) {
            (Way::Redrive { .. }, false) => "redriven",
            (Way::Redrive { .. }, true) => "would be redriven",
            (Way::Purge, false) => "purged",
            (Way::Purge, true) => "would be purged",
        };
        let refused = if self.refused > 0 { format!(", {} refused", self.refused) } else { String::new() };
        eprintln!("{} {verb}{refused}", self.done);
        if let Some(error) = self.error.take() {
            return Err(anyhow::Error::new(error).context("cannot reset the session's calls in the store").into());
        }
        self.pick.ended().context("cannot read the store")?;
        let missing = if cut_short || self.left == 0 { BTreeSet::new() } else { std::mem::take(&mut self.ids) };
        for id in &missing {
            eprintln!("error: there is no dead message {}", escape(id));
        }
        Ok(self.refused > 0 || !missing.is_empty())
    }

    /// Why a message is not given back.
    fn refuses(&self, dead: &Dead) -> Option<String> {
        match self.way {
            Way::Redrive { force: false, .. } if dead.action.is_none() => {
                Some("it cannot be read and would come back: --force redrives it all the same".to_owned())
            }
            Way::Redrive { force: false, .. } if dead.redriven >= MAX_REDRIVES => {
                Some(format!("it came back {} times: --force redrives it once more", dead.redriven))
            }
            _ => None,
        }
    }

    fn tell(&self, dead: &Dead, outcome: &str, why: Option<&str>) {
        self.progress.clear();
        let line = match (self.json, &dead.action) {
            (true, action) => json_line(&json!({
                "id": dead.id,
                "platform": action.as_ref().map(|action| &*action.session.platform),
                "session": action.as_ref().map(|action| &*action.session.session),
                "outcome": outcome,
                "why": why,
            })),
            (false, _) => {
                let why = why.map(|why| format!(": {why}")).unwrap_or_default();
                format!("{}  {}  {outcome}{why}\n", dead.id, session(dead))
            }
        };
        // The work goes on, whether or not somebody reads of it.
        let _ = print(&line);
        self.say();
    }

    fn say(&self) {
        self.progress.say(&format!("looked at {}, settled {}", self.seen, self.done));
    }

    /// Fresh attempts and time for the calls of the session, before the message is live again.
    async fn revive(&self, dead: &Dead) -> store::Result<()> {
        let Some(action) = &dead.action else { return Ok(()) };
        match self.deadlines.iter().find(|(platform, _)| **platform == *action.session.platform) {
            Some((_, deadline)) => self.store.revive(&action.session, *deadline).await,
            None => Ok(()),
        }
    }

    async fn wait_for_turn(&mut self, pause: Duration) {
        tokio::time::sleep_until(self.next).await;
        self.next = Instant::now() + pause;
    }
}

#[async_trait]
impl Review for Settle {
    async fn judge(&mut self, dead: &Dead) -> Fate {
        let over = self.left == 0 || (self.by_id && self.ids.is_empty()) || self.error.is_some() || self.pick.failed();
        if over {
            return Fate::Stop;
        }
        self.seen += 1;
        if self.seen.is_multiple_of(100) {
            self.say();
        }
        if self.by_id && !self.ids.remove(&dead.id) {
            return Fate::Keep;
        }
        if self.pick.picks(dead).await.is_none() {
            return Fate::Keep;
        }
        if let Some(why) = self.refuses(dead) {
            self.refused += 1;
            self.tell(dead, "refused", Some(&why));
            return Fate::Keep;
        }
        self.left -= 1;
        if self.dry_run {
            self.done += 1;
            self.tell(dead, if matches!(self.way, Way::Purge) { "would be purged" } else { "would be redriven" }, None);
            return Fate::Keep;
        }
        match self.way {
            Way::Purge => Fate::Purge,
            Way::Redrive { rate, .. } => {
                if let Some(pause) = rate {
                    self.wait_for_turn(pause).await;
                }
                match self.revive(dead).await {
                    Ok(()) => Fate::Redrive,
                    Err(error) => {
                        self.error = Some(error);
                        Fate::Stop
                    }
                }
            }
        }
    }

    fn settled(&mut self, dead: &Dead, fate: Fate) {
        self.done += 1;
        self.tell(dead, if fate == Fate::Purge { "purged" } else { "redriven" }, None);
    }
}
