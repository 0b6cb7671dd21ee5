//! Required actions that are no function calls: which were seen, which their receiver has.

use std::time::Duration;

use async_trait::async_trait;

use super::Result;
use crate::session::ActionKey;

/// How long such an action is remembered.
pub(super) const KEPT: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// What is known of an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Noticed {
    /// Nobody had noted it before.
    pub is_new: bool,
    pub is_forwarded: bool,
}

#[async_trait]
pub trait Actions: Send + Sync {
    /// Notes an action, for 30 days.
    async fn notice(&self, action: &ActionKey) -> Result<Noticed>;

    /// The receiver of such actions has it.
    async fn forwarded(&self, action: &ActionKey) -> Result<()>;
}
