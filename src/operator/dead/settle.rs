//! Redrive and purge: one pass over the dead messages, slow if wanted, that counts and tells what it does.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use async_trait::async_trait;
use tokio::time::Instant;

use super::pick::{Pick, Picking};
use crate::{
    operator::view::{Settled, SettledMessage},
    queue::{Dead, DeadError, Fate, Review},
    store::{self, Store},
};

/// What comes back so often goes in circles.
const MAX_REDRIVES: u32 = 5;

/// Messages that the answer lists; each is told of.
const MAX_LISTED: usize = 10_000;

/// Which messages to settle, and how.
#[derive(Clone, Debug)]
pub struct Order {
    pub way: Way,
    /// By their ids; those that fit where empty.
    pub ids: Vec<String>,
    pub pick: Pick,
    /// Every dead message is meant, where neither ids nor a filter say which.
    pub all: bool,
    /// Messages at most.
    pub max: Option<u32>,
    /// Only say what would be done.
    pub dry_run: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Way {
    Redrive {
        /// Between two messages.
        pause: Option<Duration>,
        /// Also what cannot be read, or came back so often that it seems to go in circles.
        force: bool,
    },
    Purge,
}

/// What is told while it is done.
pub enum Told<'a> {
    Message(&'a SettledMessage),
    Progress { seen: u32, done: u32 },
}

pub(super) struct Settle<'a> {
    way: Way,
    /// Those asked for by name and not met yet.
    ids: BTreeSet<String>,
    by_id: bool,
    picking: Picking,
    left: u32,
    dry_run: bool,
    store: Arc<dyn Store>,
    deadlines: Vec<(Arc<str>, Duration)>,
    next: Instant,
    seen: u32,
    settled: Settled,
    error: Option<store::Error>,
    tell: &'a mut (dyn FnMut(Told<'_>) + Send),
}

impl<'a> Settle<'a> {
    pub(super) fn new(
        order: Order,
        store: Arc<dyn Store>,
        deadlines: Vec<(Arc<str>, Duration)>,
        tell: &'a mut (dyn FnMut(Told<'_>) + Send),
    ) -> Self {
        Self {
            way: order.way,
            by_id: !order.ids.is_empty(),
            ids: order.ids.into_iter().collect(),
            picking: Picking::new(order.pick, store.clone(), false),
            left: order.max.unwrap_or(u32::MAX),
            dry_run: order.dry_run,
            store,
            deadlines,
            next: Instant::now(),
            seen: 0,
            settled: Settled::default(),
            error: None,
            tell,
        }
    }

    /// What was done in a pass that ended so.
    pub(super) fn end(mut self, reviewed: Result<(), DeadError>) -> Settled {
        let reset = self.error.take().map(|error| format!("cannot reset the session's calls in the store: {error}"));
        let read = self.picking.ended().err().map(|error| format!("cannot read the store: {error}"));
        let broke = reviewed.err().map(|error| format!("cannot go through the dead messages: {error}"));
        self.settled.broke_off = reset.or(read).or(broke);
        self.settled.full = self.left == 0;
        if self.settled.broke_off.is_none() && self.left > 0 {
            self.settled.missing = self.ids.into_iter().collect();
        }
        self.settled
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

    fn note(&mut self, dead: &Dead, outcome: &str, why: Option<String>) {
        match why {
            Some(_) => self.settled.refused += 1,
            None => self.settled.done += 1,
        }
        let action = dead.action.as_ref();
        let message = SettledMessage {
            id: dead.id.clone(),
            platform: action.map(|action| action.session.platform.to_string()),
            session: action.map(|action| action.session.session.to_string()),
            outcome: outcome.to_owned(),
            why,
        };
        (self.tell)(Told::Message(&message));
        if self.settled.messages.len() < MAX_LISTED {
            self.settled.messages.push(message);
        }
        self.progress();
    }

    fn progress(&mut self) {
        (self.tell)(Told::Progress { seen: self.seen, done: self.settled.done });
    }

    /// Fresh attempts and time for the calls of the session, before the message is live again.
    async fn revive(&mut self, dead: &Dead) -> store::Result<()> {
        let Some(action) = &dead.action else { return Ok(()) };
        match self.deadlines.iter().find(|(platform, _)| *platform == action.session.platform) {
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
impl Review for Settle<'_> {
    async fn judge(&mut self, dead: &Dead) -> Fate {
        let over = self.left == 0 || (self.by_id && self.ids.is_empty());
        if over || self.error.is_some() || self.picking.failed() {
            return Fate::Stop;
        }
        self.seen += 1;
        if self.seen.is_multiple_of(100) {
            self.progress();
        }
        if self.by_id && !self.ids.remove(&dead.id) {
            return Fate::Keep;
        }
        if self.picking.picks(dead).await.is_none() {
            return Fate::Keep;
        }
        if let Some(why) = self.refuses(dead) {
            self.note(dead, "refused", Some(why));
            return Fate::Keep;
        }
        self.left -= 1;
        if self.dry_run {
            self.note(dead, if matches!(self.way, Way::Purge) { "would be purged" } else { "would be redriven" }, None);
            return Fate::Keep;
        }
        match self.way {
            Way::Purge => Fate::Purge,
            Way::Redrive { pause, .. } => {
                if let Some(pause) = pause {
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
        self.note(dead, if fate == Fate::Purge { "purged" } else { "redriven" }, None);
    }
}
