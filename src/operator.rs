//! What an operator sees and does, whoever asks: a command beside the program, the API, the dashboard.
//!
//! The rules for what may be done to a call are the store's ([`crate::store::CallRow::refuses`]); here is what leads to them.

mod calls;
mod dead;
mod id;
mod redaction;
mod remote;
pub mod view;

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::sync::{Mutex, MutexGuard};

pub(crate) use self::{
    calls::find,
    id::{cursor, read_cursor},
    remote::percent,
};
pub use self::{
    calls::{Act, ListCalls},
    dead::{Order, Pick, Told, Way},
    id::{decode, encode},
    redaction::Redaction,
    remote::Remote,
};
use crate::{
    queue::{DeadError, DeadLetters},
    session::SessionKey,
    store::{self, Appointment, Store},
    worker::Account,
};

const BAD_CURSOR: &str = "the cursor is none that was given out here";

/// How long a look at the dead messages waits for another one to end.
const REVIEW_PATIENCE: Duration = Duration::from_secs(5);

/// Why something cannot be shown or done. Displays for a person with the store at hand.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    NotFound(String),
    /// The question itself is wrong.
    #[error("{0}")]
    Invalid(String),
    /// Not as things are now.
    #[error("{0}")]
    Conflict(String),
    #[error("cannot reach the store; if it is new, actiond migrate creates its tables: {0}")]
    Store(#[from] store::Error),
    #[error("cannot go through the dead messages: {0}")]
    Dead(#[from] DeadError),
    /// What a server said that was asked, or why it could not be asked.
    #[error("{0}")]
    Server(String),
}

pub type Result<T> = std::result::Result<T, Error>;

/// What an operator works with.
pub struct Operator {
    store: Arc<dyn Store>,
    letters: Arc<dyn DeadLetters>,
    /// By the platform's name; those that have sessions.
    accounts: HashMap<Arc<str>, Arc<Account>>,
    redaction: Redaction,
    /// One look at a time: what one holds, the others would miss.
    reviewing: Mutex<()>,
}

impl Operator {
    pub fn new(
        store: Arc<dyn Store>,
        letters: Arc<dyn DeadLetters>,
        accounts: HashMap<Arc<str>, Arc<Account>>,
        redaction: Redaction,
    ) -> Self {
        Self { store, letters, accounts, redaction, reviewing: Mutex::new(()) }
    }

    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// By the platform's name; those that have sessions.
    pub fn accounts(&self) -> &HashMap<Arc<str>, Arc<Account>> {
        &self.accounts
    }

    /// Sessions that are to be looked at again, the earliest first.
    pub async fn due(&self, cursor: Option<&str>, limit: usize) -> Result<view::DueSessions> {
        let after = match cursor {
            Some(cursor) => Some(place(cursor).ok_or_else(|| Error::Invalid(BAD_CURSOR.to_owned()))?),
            None => None,
        };
        let mut dues = self.store.agenda(after.as_ref(), limit + 1).await?;
        let more = dues.len() > limit;
        dues.truncate(limit);
        let next = dues
            .last()
            .filter(|_| more)
            .map(|last| id::pack(&[&last.at.to_string(), &last.session.platform, &last.session.session]));
        Ok(view::DueSessions { sessions: dues.iter().map(view::DueSession::of).collect(), next })
    }

    fn account(&self, platform: &str) -> Result<&Account> {
        self.accounts.get(platform).map(|account| &**account).ok_or_else(|| {
            let why = "has no sessions here: it is not in the config, or calls functions itself";
            Error::Conflict(format!("platform {platform} {why}; no worker would answer"))
        })
    }

    async fn review(&self) -> Result<MutexGuard<'_, ()>> {
        let busy = || Error::Conflict("the dead messages are being gone through already: try again later".to_owned());
        tokio::time::timeout(REVIEW_PATIENCE, self.reviewing.lock()).await.map_err(|_| busy())
    }
}

/// Where a page of due sessions ended.
fn place(cursor: &str) -> Option<Appointment> {
    let [at, platform, session]: [String; 3] = id::unpack(cursor)?.try_into().ok()?;
    Some(Appointment { session: SessionKey::new(platform, session), at: at.parse().ok()?, tries: 0, accepted_at: 0 })
}
