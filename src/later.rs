//! Results that come later: the address that a handler is given, and what is done with a result that arrives there.
//!
//! The address names the call and is signed with a key that the store keeps. So it is known before a handler starts, is the
//! same for every attempt, and a result that arrives before its handler has even answered 202 finds its call.

use std::{collections::HashMap, sync::Arc};

use crate::{
    metrics::Metrics,
    platform::Platform,
    session::{CallKey, SessionKey, ToolResult},
    store::{self, Arrival, Arrived, Ledger},
    token::Tokens,
};

/// What the key is called in the store.
const KEY: &str = "results";

/// Makes the addresses of results.
pub struct Addresses {
    tokens: Tokens,
    /// `https://actiond.example.com/results/`
    base: String,
}

impl Addresses {
    /// `public_url` is where the ingress listener is reached from outside.
    pub fn new(ledger: Ledger, public_url: &str) -> Self {
        Self { tokens: Tokens::new(ledger, KEY), base: format!("{public_url}/results/") }
    }

    /// Where the result of this call may be posted. Whoever knows it can answer the call.
    pub async fn url(&self, call: &CallKey) -> store::Result<String> {
        let parts = [&call.session.platform, &call.session.session, &call.turn, &call.call_id];
        Ok(format!("{}{}", self.base, self.tokens.make(&parts.map(|part| &**part)).await?))
    }

    /// The call of a token that we made.
    async fn call(&self, token: &str) -> store::Result<Option<CallKey>> {
        let parts = self.tokens.read(token).await?;
        Ok(parts
            .map(|[platform, session, turn, call_id]| CallKey::new(SessionKey { platform, session }, turn, call_id)))
    }
}

/// Takes results that handlers post.
pub struct Results {
    pub addresses: Arc<Addresses>,
    pub ledger: Ledger,
    /// By the platform's name: results are stored in its form.
    pub platforms: HashMap<Arc<str>, Arc<dyn Platform>>,
    pub metrics: Metrics,
}

impl Results {
    /// The call that a token names; `None` for a token that is not ours.
    pub async fn call(&self, token: &str) -> store::Result<Option<CallKey>> {
        let call = self.addresses.call(token).await?;
        Ok(call.filter(|call| self.platforms.contains_key(&call.session.platform)))
    }

    /// Stores the result of a call once. `at` is Unix milliseconds.
    pub async fn take(&self, call: CallKey, result: ToolResult, at: i64) -> store::Result<Arrived> {
        let Some(platform) = self.platforms.get(&call.session.platform) else { return Ok(Arrived::Unknown) };
        let result = platform.fitting(result);
        let success = matches!(result, ToolResult::Success(_));
        let submission = platform.encode(&call, &result, 0);
        let name = call.session.platform.clone();
        let arrived = self.ledger.arrive(&Arrival { key: call, success, submission, at }).await?;
        if let Arrived::Stored { function } = &arrived {
            self.metrics.call(&name, function, if success { "success" } else { "error" });
        }
        Ok(arrived)
    }
}
