//! Tokens in addresses: a few ids and a signature under a key that the store keeps, so that every process that shares it
//! makes and reads the same ones.

use std::sync::Arc;

use base64::{Engine, prelude::BASE64_URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tokio::sync::OnceCell;

use crate::store::{self, Ledger};

/// Bytes of the signature that a token carries.
const TAG: usize = 16;
/// No token of ours is longer: four ids of 512 bytes.
const MAX_TOKEN: usize = 4096;

/// Makes and reads tokens of one kind.
pub(crate) struct Tokens {
    ledger: Ledger,
    /// What the key is called in the store.
    name: &'static str,
    key: OnceCell<Hmac<Sha256>>,
}

impl Tokens {
    pub(crate) fn new(ledger: Ledger, name: &'static str) -> Self {
        Self { ledger, name, key: OnceCell::new() }
    }

    pub(crate) async fn make(&self, parts: &[&str]) -> store::Result<String> {
        Ok(token(self.key().await?, parts))
    }

    /// The parts of a token that we made.
    pub(crate) async fn read<const N: usize>(&self, token: &str) -> store::Result<Option<[Arc<str>; N]>> {
        Ok(read(self.key().await?, token))
    }

    async fn key(&self) -> store::Result<&Hmac<Sha256>> {
        let read = async || {
            let key = self.ledger.secret(self.name, &rand::random::<[u8; 32]>()).await?;
            Hmac::new_from_slice(&key).map_err(store::Error::new)
        };
        self.key.get_or_try_init(read).await
    }
}

/// Signature, then the parts with their lengths.
fn token(key: &Hmac<Sha256>, parts: &[&str]) -> String {
    let mut ids = Vec::new();
    for id in parts {
        ids.extend_from_slice(&u16::try_from(id.len()).unwrap_or(u16::MAX).to_be_bytes());
        ids.extend_from_slice(id.as_bytes());
    }
    let tag = key.clone().chain_update(&ids).finalize().into_bytes();
    BASE64_URL_SAFE_NO_PAD.encode([&tag[..TAG], &ids].concat())
}

fn read<const N: usize>(key: &Hmac<Sha256>, token: &str) -> Option<[Arc<str>; N]> {
    let bytes = BASE64_URL_SAFE_NO_PAD.decode(token).ok().filter(|_| token.len() <= MAX_TOKEN)?;
    let (tag, mut ids) = bytes.split_at_checked(TAG)?;
    key.clone().chain_update(ids).verify_truncated_left(tag).ok()?;
    let mut parts = Vec::with_capacity(N);
    while let Some((length, rest)) = ids.split_first_chunk() {
        let (id, rest) = rest.split_at_checked(u16::from_be_bytes(*length).into())?;
        ids = rest;
        parts.push(Arc::from(std::str::from_utf8(id).ok()?));
    }
    parts.try_into().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(key: &[u8]) -> Hmac<Sha256> {
        Hmac::new_from_slice(key).unwrap()
    }

    #[test]
    fn a_token_names_its_parts_to_whoever_has_the_key() {
        let call = ["openai", "sess_1", "", "call_0"];
        let token = token(&key(b"k"), &call);
        assert_eq!(read(&key(b"k"), &token), Some(call.map(Into::into)));
        assert_eq!(read::<4>(&key(b"other"), &token), None);
        assert_eq!(read::<3>(&key(b"k"), &token), None);
        assert_eq!(read::<5>(&key(b"k"), &token), None);
        assert!(token.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_'), "{token}");
    }

    #[test]
    fn parts_that_look_alike_when_joined_have_tokens_of_their_own() {
        let key = key(b"k");
        assert_ne!(token(&key, &["p", "ab", "c", "d"]), token(&key, &["p", "a", "bc", "d"]));
    }

    #[test]
    fn a_token_with_one_wrong_character_is_nobody_s() {
        let key = key(b"k");
        let token = token(&key, &["openai", "sess_1", "turn_1", "call_0"]);
        for at in 0..token.len() {
            let mut wrong = token.clone().into_bytes();
            wrong[at] = if wrong[at] == b'A' { b'B' } else { b'A' };
            assert_eq!(read::<4>(&key, std::str::from_utf8(&wrong).unwrap()), None, "at {at}");
        }
        assert_eq!(read::<4>(&key, &token[..token.len() - 4]), None);
    }

    proptest! {
        #[test]
        fn no_token_panics(token in "[A-Za-z0-9_-]{0,200}") {
            prop_assert_eq!(read::<4>(&key(b"k"), &token), None);
        }

        #[test]
        fn everything_is_read_back(parts in prop::array::uniform4("\\PC{0,100}")) {
            let token = token(&key(b"k"), &parts.each_ref().map(String::as_str));
            prop_assert_eq!(read(&key(b"k"), &token), Some(parts.map(Into::into)));
        }
    }
}
