//! What we add to a request so that its receiver can know that it is ours, and the headers that a config adds.

use std::{
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::http::{HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};

use super::{Error, Sign};
use crate::{
    ingress::signature::{decode_key, sign},
    nonce::{self, Minted},
};

/// What a receiver must be able to rely on.
const RESERVED: [&str; 8] = [
    "connection",
    "content-length",
    "content-type",
    "host",
    "idempotency-key",
    "trailer",
    "transfer-encoding",
    nonce::HEADER,
];

/// Whether we set that header ourselves, or the connection does.
pub fn is_reserved(header: &str) -> bool {
    RESERVED.contains(&header.to_ascii_lowercase().as_str())
}

/// The error says where below the parent, and what; never a value.
pub(crate) fn headers(config: &[(String, SecretString)]) -> Result<HeaderMap, (String, String)> {
    let mut headers = HeaderMap::new();
    for (name, value) in config {
        let at = |what: &str| (format!("headers.{name}"), what.to_owned());
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| at("is not a header name"))?;
        if RESERVED.contains(&header.as_str()) {
            return Err(at("is set by actiond and cannot be replaced"));
        }
        let mut value = HeaderValue::from_bytes(value.expose_secret().as_bytes())
            .map_err(|_| at("holds a character that no header may have, a line feed perhaps"))?;
        value.set_sensitive(true);
        headers.append(header, value);
    }
    Ok(headers)
}

/// `sign` in the config, ready to be used.
pub(crate) struct Signer {
    nonce: Option<Arc<Minted>>,
    /// Of Standard Webhooks signatures.
    key: Option<Vec<u8>>,
}

impl Signer {
    pub(crate) fn new(config: &Sign) -> Result<Self, (String, String)> {
        Ok(Self {
            nonce: config.nonce.clone().map(|key| Arc::new(Minted::new(key))),
            key: match &config.standard {
                Some(secret) => Some(decode_key(secret.expose_secret()).map_err(|e| ("standard".to_owned(), e))?),
                None => None,
            },
        })
    }

    /// With a nonce that others send too.
    pub(crate) fn with_nonce(self, nonce: Option<Arc<Minted>>) -> Self {
        Self { nonce, ..self }
    }

    /// `id` names the message, whoever sends it again.
    pub(crate) async fn sign(
        &self,
        id: &str,
        headers: &mut HeaderMap,
        body: &[u8],
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
            let signature = sign(key, id, seconds, body);
            for (name, value) in [
                ("webhook-id", id.to_owned()),
                ("webhook-timestamp", seconds.to_string()),
                ("webhook-signature", signature),
            ] {
                let value = HeaderValue::from_str(&value).map_err(|_| Error::fatal("the request cannot be signed"))?;
                headers.insert(name, value);
            }
        }
        Ok(())
    }
}
