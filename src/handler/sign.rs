//! How whoever is called can know that a request is ours.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use reqwest::header::{HeaderMap, HeaderValue};
use secrecy::ExposeSecret;

use super::{Error, Sign};
use crate::{
    ingress::signature::{decode_key, sign},
    nonce::{self, Minted},
};

/// `sign` of the config, ready to be used.
pub(super) struct Signer {
    nonce: Option<Arc<Minted>>,
    /// Of Standard Webhooks signatures.
    key: Option<Vec<u8>>,
}

impl Signer {
    /// The error says where in the config, and what; never a value.
    pub(super) fn new(config: &Sign) -> Result<Self, (String, String)> {
        let key = config.standard.as_ref().map(|secret| decode_key(secret.expose_secret())).transpose();
        Ok(Self {
            nonce: config.nonce.clone().map(|key| Arc::new(Minted::new(key))),
            key: key.map_err(|why| ("sign.standard".to_owned(), why))?,
        })
    }

    /// With a nonce that others send too.
    pub(super) fn with_nonce(self, nonce: Option<Arc<Minted>>) -> Self {
        Self { nonce, ..self }
    }

    /// Adds what the receiver checks; `id` is the same in every attempt.
    pub(super) async fn sign(
        &self,
        id: &str,
        headers: &mut HeaderMap,
        body: &str,
        now: SystemTime,
    ) -> Result<(), Error> {
        if let Some(nonce) = &self.nonce {
            let nonce = nonce.get().await.ok_or_else(|| Error::retryable("no nonce could be made"))?;
            let mut value = HeaderValue::from_str(&nonce).map_err(|_| Error::fatal("the nonce is no header value"))?;
            value.set_sensitive(true);
            headers.insert(nonce::HEADER, value);
        }
        if let Some(key) = &self.key {
            let seconds = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
            let seconds = i64::try_from(seconds).unwrap_or_default();
            let signature = sign(key, id, seconds, body.as_bytes());
            let lines = [
                ("webhook-id", id.to_owned()),
                ("webhook-timestamp", seconds.to_string()),
                ("webhook-signature", signature),
            ];
            for (name, value) in lines {
                let value = HeaderValue::from_str(&value).map_err(|_| Error::fatal("the request cannot be signed"))?;
                headers.insert(name, value);
            }
        }
        Ok(())
    }
}
