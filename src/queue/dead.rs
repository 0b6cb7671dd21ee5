//! The dead letters seam: what was put aside, seen and settled by an operator, while the program runs or not.

use async_trait::async_trait;

use crate::session::ActionRequired;

/// A message that was put aside.
#[derive(Clone, Debug, PartialEq)]
pub struct Dead {
    /// Names it as long as it is dead.
    pub id: String,
    /// Why it was put aside.
    pub reason: String,
    /// `None` where the bytes are no action.
    pub action: Option<ActionRequired>,
    /// When it was put aside, Unix milliseconds; `None` where nobody noted it.
    pub at: Option<i64>,
    /// How often an operator gave it back to the workers before.
    pub redriven: u32,
    pub bytes: Vec<u8>,
}

/// What a dead message comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Keep,
    /// Back to the workers: durable in the live queue before it leaves the dead one.
    Redrive,
    /// Deleted for good.
    Purge,
    /// Keep it, and look at no further ones.
    Stop,
}

/// Decides over dead messages, one after the other.
#[async_trait]
pub trait Review: Send {
    /// May take its time, to go slowly.
    async fn judge(&mut self, dead: &Dead) -> Fate;

    /// `fate`, a redrive or a purge, is done.
    fn settled(&mut self, dead: &Dead, fate: Fate) {
        let _ = (dead, fate);
    }
}

/// The dead messages could not be read or settled. What was settled before stays so; the rest is where it was.
#[derive(Debug, thiserror::Error)]
#[error("{reason}")]
pub struct DeadError {
    pub reason: String,
}

impl DeadError {
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into() }
    }
}

#[async_trait]
pub trait DeadLetters: Send + Sync {
    /// Goes once through the messages that are dead now, oldest first, and does with each what `review` says.
    async fn review(&self, review: &mut dyn Review) -> Result<(), DeadError>;
}
