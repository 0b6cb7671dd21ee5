//! Messages that were put aside: listed, given back to the workers, or deleted for good.

mod pick;
mod settle;

use async_trait::async_trait;

use self::settle::Settle;
pub use self::{
    pick::Pick,
    settle::{Order, Told, Way},
};
use super::{Error, Operator, Result, view};
use crate::queue::{Dead, Fate, Review};

/// Bytes of a message that are shown.
const MAX_BODY: usize = 256 << 10;

impl Operator {
    /// At most `limit` messages, the oldest first, behind the one named `after`.
    pub async fn dead(&self, pick: &Pick, after: Option<String>, limit: usize) -> Result<view::DeadMessages> {
        let turn = self.review().await?;
        let picking = pick::Picking::new(pick.clone(), self.store.clone(), true);
        let mut list = List { picking, limit, after, found: Vec::new() };
        self.letters.review(&mut list).await?;
        drop(turn);
        list.picking.ended()?;
        if let Some(id) = list.after {
            return Err(missing(&id));
        }
        let more = list.found.len() > limit;
        list.found.truncate(limit);
        let next = list.found.last().filter(|_| more).map(|last| last.id.clone());
        Ok(view::DeadMessages { messages: list.found, next })
    }

    pub async fn dead_message(&self, id: &str) -> Result<view::DeadDetail> {
        let turn = self.review().await?;
        let mut find = Find { id, found: None };
        self.letters.review(&mut find).await?;
        drop(turn);
        let dead = find.found.ok_or_else(|| missing(id))?;
        let functions = pick::functions(&*self.store, &dead).await.ok();
        let shown = &dead.bytes[..dead.bytes.len().min(MAX_BODY)];
        Ok(view::DeadDetail {
            message: view::Dead::of(&dead, functions),
            body: String::from_utf8_lossy(shown).into_owned(),
        })
    }

    /// Redrives or purges in one pass over what is dead now; `tell` hears of each message, and now and then how far it is.
    pub async fn settle(&self, order: Order, tell: &mut (dyn FnMut(Told<'_>) + Send)) -> Result<view::Settled> {
        if order.ids.is_empty() && !order.all && order.pick.is_any() {
            return Err(Error::Invalid("say which: ids, a filter such as platform, or all".to_owned()));
        }
        let _turn = self.review().await?;
        let deadlines = self.accounts.values().map(|account| (account.name.clone(), account.call_deadline)).collect();
        let mut settle = Settle::new(order, self.store.clone(), deadlines, tell);
        let reviewed = self.letters.review(&mut settle).await;
        let settled = settle.end(reviewed);
        tracing::info!(done = settled.done, refused = settled.refused, "an operator settled dead messages");
        Ok(settled)
    }
}

fn missing(id: &str) -> Error {
    Error::NotFound(format!("there is no dead message {id}"))
}

/// Collects what is picked, behind `after`, and one more.
struct List {
    picking: pick::Picking,
    limit: usize,
    after: Option<String>,
    found: Vec<view::Dead>,
}

#[async_trait]
impl Review for List {
    async fn judge(&mut self, dead: &Dead) -> Fate {
        if self.after.is_some() {
            self.after.take_if(|after| *after == dead.id);
            return Fate::Keep;
        }
        if let Some(functions) = self.picking.picks(dead).await {
            self.found.push(view::Dead::of(dead, functions));
        }
        if self.found.len() > self.limit || self.picking.failed() { Fate::Stop } else { Fate::Keep }
    }
}

struct Find<'a> {
    id: &'a str,
    found: Option<Dead>,
}

#[async_trait]
impl Review for Find<'_> {
    async fn judge(&mut self, dead: &Dead) -> Fate {
        if dead.id != self.id {
            return Fate::Keep;
        }
        self.found = Some(dead.clone());
        Fate::Stop
    }
}
