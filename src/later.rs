//! Results that come later: the address that a handler is given, and what is done with a result that arrives there.
//!
//! The address names the call and is signed with a key that the store keeps. So it is known before a handler starts, is the
//! same for every attempt, and a result that arrives before its handler has even answered 202 finds its call.

use std::{collections::HashMap, sync::Arc};

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::sync::OnceCell;

use crate::{
    metrics::Metrics,
    platform::Platform,
    session::{CallKey, SessionKey, ToolResult},
    store::{self, Arrival, Arrived, Ledger},
};

/// What the key is called in the store.
const KEY: &str = "results";
/// Bytes of the signature that a token carries.
const TAG: usize = 16;
/// No token of ours is longer: four ids of 512 bytes.
const MAX_TOKEN: usize = 4096;

/// Makes the addresses of results.
pub struct Addresses {
    ledger: Ledger,
    /// `https://actiond.example.com/results/`
    base: String,
    key: OnceCell<Hmac<Sha256>>,
}

impl Addresses {
    /// `public_url` is where the ingress listener is reached from outside.
    pub fn new(ledger: Ledger, public_url: &str) -> Self {
        Self { ledger, base: format!("{public_url}/results/"), key: OnceCell::new() }
    }

    /// Where the result of this call may be posted. Whoever knows it can answer the call.
    pub async fn url(&self, call: &CallKey) -> store::Result<String> {
        Ok(format!("{}{}", self.base, token(self.key().await?, call)))
    }

    /// The call of a token that we made.
    async fn call(&self, token: &str) -> store::Result<Option<CallKey>> {
        Ok(read(self.key().await?, token))
    }

    async fn key(&self) -> store::Result<&Hmac<Sha256>> {
        let read = async || {
            let key = self.ledger.secret(KEY, &rand::random::<[u8; 32]>()).await?;
            Hmac::new_from_slice(&key).map_err(store::Error::new)
        };
        self.key.get_or_try_init(read).await
    }
}

/// Signature, then the four ids with their lengths.
fn token(key: &Hmac<Sha256>, call: &CallKey) -> String {
    let mut ids = Vec::new();
    for id in [&call.session.platform, &call.session.session, &call.turn, &call.call_id] {
        ids.extend_from_slice(&u16::try_from(id.len()).unwrap_or(u16::MAX).to_be_bytes());
        ids.extend_from_slice(id.as_bytes());
    }
    let tag = key.clone().chain_update(&ids).finalize().into_bytes();
    BASE64_URL_SAFE_NO_PAD.encode([&tag[..TAG], &ids].concat())
}

fn read(key: &Hmac<Sha256>, token: &str) -> Option<CallKey> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(token).ok().filter(|_| token.len() <= MAX_TOKEN)?;
    let (tag, mut ids) = bytes.split_at_checked(TAG)?;
    key.clone().chain_update(ids).verify_truncated_left(tag).ok()?;
    let mut next = || {
        let (length, rest) = ids.split_first_chunk()?;
        let (id, rest) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
        ids = rest;
        Some(Arc::<str>::from(std::str::from_utf8(id).ok()?))
    };
    let (platform, session) = (next()?, next()?);
    Some(CallKey::new(SessionKey { platform, session }, next()?, next()?))
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(key: &[u8]) -> Hmac<Sha256> {
        Hmac::new_from_slice(key).unwrap()
    }

    fn call(parts: [&str; 4]) -> CallKey {
        CallKey::new(SessionKey::new(parts[0], parts[1]), parts[2], parts[3])
    }

    #[test]
    fn a_token_names_its_call_to_whoever_has_the_key() {
        let call = call(["openai", "sess_1", "", "call_0"]);
        let token = token(&key(b"k"), &call);
        assert_eq!(read(&key(b"k"), &token), Some(call));
        assert_eq!(read(&key(b"other"), &token), None);
        assert!(token.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'), "{token}");
    }

    #[test]
    fn ids_that_look_alike_when_joined_have_tokens_of_their_own() {
        let key = key(b"k");
        assert_ne!(token(&key, &call(["p", "ab", "c", "d"])), token(&key, &call(["p", "a", "bc", "d"])));
    }

    #[test]
    fn a_token_with_one_wrong_character_is_nobody_s() {
        let key = key(b"k");
        let token = token(&key, &call(["openai", "sess_1", "turn_1", "call_0"]));
        for at in 0..token.len() {
            let mut wrong = token.clone().into_bytes();
            wrong[at] = if wrong[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(read(&key, std::str::from_utf8(&wrong).unwrap()), None, "at {at}");
        }
        assert_eq!(read(&key, &token[..token.len() - 4]), None);
    }

    proptest! {
        #[test]
        fn no_token_panics(token in "[A-Za-z0-9_-]{0,200}") {
            prop_assert_eq!(read(&key(b"k"), &token), None);
        }

        #[test]
        fn every_call_is_read_back(parts in prop::array::uniform4("\\PC{0,100}")) {
            let call = call([&parts[0], &parts[1], &parts[2], &parts[3]]);
            prop_assert_eq!(read(&key(b"k"), &token(&key(b"k"), &call)), Some(call));
        }
    }
}
