//! Who sent a webhook: Standard Webhooks v1, a shared value in a header, or nobody asked.

use std::fmt::Write as _;

use axum::http::{HeaderMap, HeaderName};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::platform::WebhookConfig;

/// Header names of one sender family: id, timestamp, signature.
type Family = [HeaderName; 3];

const STANDARD: Family = [
    HeaderName::from_static("webhook-id"),
    HeaderName::from_static("webhook-timestamp"),
    HeaderName::from_static("webhook-signature"),
];
const SVIX: Family = [
    HeaderName::from_static("svix-id"),
    HeaderName::from_static("svix-timestamp"),
    HeaderName::from_static("svix-signature"),
];

/// Shortest key in bytes. Standard Webhooks asks for 24; OpenAI's have 32.
const MIN_KEY: usize = 16;
/// Signatures of one request that are looked at. A rotation sends two.
const MAX_CANDIDATES: usize = 32;
const MAX_ID: usize = 256;

/// Checks the webhooks of one platform. Keys are decoded once, here.
pub struct Verifier {
    scheme: Scheme,
}

enum Scheme {
    Standard { keys: Vec<Hmac<Sha256>>, tolerance: i64 },
    SharedSecret { header: HeaderName, digests: Vec<[u8; 32]> },
    Insecure,
}

/// A webhook that passed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verified {
    /// The delivery's id: the same for every redelivery of one event.
    pub id: String,
    /// Which of the configured secrets matched, so that a rotation can be finished.
    pub secret: usize,
}

/// Why a webhook did not pass. The text is public.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("header {0} is missing")]
    MissingHeader(HeaderName),
    /// Sent twice, too long, or not visible ASCII.
    #[error("header {0} is not usable")]
    BadHeader(HeaderName),
    #[error("the timestamp is not a number of seconds")]
    BadTimestamp,
    #[error("the timestamp is too old")]
    TooOld,
    #[error("the timestamp is in the future")]
    TooNew,
    #[error("no signature matches")]
    NoMatch,
}

impl Verifier {
    /// Decodes the secrets. An error names the index of its secret and never shows the value.
    pub fn new(config: &WebhookConfig) -> Result<Self, Vec<(usize, String)>> {
        let scheme = match config {
            WebhookConfig::Standard { secrets, tolerance } => Scheme::Standard {
                keys: each_secret(secrets, |secret| {
                    let key = decode_key(secret)?;
                    Hmac::new_from_slice(&key).map_err(|e| e.to_string())
                })?,
                tolerance: i64::try_from(tolerance.as_secs()).unwrap_or(i64::MAX),
            },
            WebhookConfig::SharedSecret { header, secrets } => Scheme::SharedSecret {
                header: HeaderName::from_bytes(header.as_bytes())
                    .map_err(|_| vec![(0, format!("{header:?} is no header name"))])?,
                digests: each_secret(secrets, |secret| {
                    let secret = long_enough(without_line_end(secret).as_bytes())?;
                    Ok(Sha256::digest(secret).into())
                })?,
            },
            WebhookConfig::Insecure => Scheme::Insecure,
        };
        Ok(Self { scheme })
    }

    /// Checks the raw bytes as they came, at the time of their arrival (`now`, Unix seconds).
    pub fn verify(&self, headers: &HeaderMap, body: &[u8], now: i64) -> Result<Verified, Refused> {
        match &self.scheme {
            Scheme::Standard { keys, tolerance } => verify_standard(keys, *tolerance, headers, body, now),
            Scheme::SharedSecret { header, digests } => {
                let [sent] = single(headers, [header])?;
                let sent = Sha256::digest(sent.as_bytes());
                let matched = digests.iter().position(|digest| digest.ct_eq(&sent[..]).into());
                let secret = matched.ok_or(Refused::NoMatch)?;
                Ok(Verified { id: unsigned_id(headers, body), secret })
            }
            Scheme::Insecure => Ok(Verified { id: unsigned_id(headers, body), secret: 0 }),
        }
    }
}

fn verify_standard(
    keys: &[Hmac<Sha256>],
    tolerance: i64,
    headers: &HeaderMap,
    body: &[u8],
    now: i64,
) -> Result<Verified, Refused> {
    let family = family(headers);
    let [id, timestamp, signatures] = single(headers, [&family[0], &family[1], &family[2]])?;
    if !is_sane_id(id) {
        return Err(Refused::BadHeader(family[0].clone()));
    }
    check_time(timestamp, tolerance, now)?;
    let candidates = candidates(signatures);
    let matched = keys.iter().position(|key| {
        let mac = key.clone().chain_update(signed_prefix(id, timestamp)).chain_update(body);
        candidates.iter().any(|candidate| mac.clone().verify_slice(candidate).is_ok())
    });
    let secret = matched.ok_or(Refused::NoMatch)?;
    Ok(Verified { id: id.to_owned(), secret })
}

/// The family whose three headers are all there; `webhook-*` where neither is complete, unless only `svix-*` was tried.
fn family(headers: &HeaderMap) -> &'static Family {
    static FAMILIES: [Family; 2] = [STANDARD, SVIX];
    let complete = FAMILIES.iter().find(|family| family.iter().all(|name| headers.contains_key(name)));
    let tried = || FAMILIES.iter().find(|family| family.iter().any(|name| headers.contains_key(name)));
    complete.or_else(tried).unwrap_or(&FAMILIES[0])
}

/// The values of headers that must be there exactly once.
fn single<'a, const N: usize>(headers: &'a HeaderMap, names: [&HeaderName; N]) -> Result<[&'a str; N], Refused> {
    let mut values = [""; N];
    for (value, name) in values.iter_mut().zip(names) {
        let mut all = headers.get_all(name).iter();
        let first = all.next().ok_or_else(|| Refused::MissingHeader(name.clone()))?;
        if all.next().is_some() {
            return Err(Refused::BadHeader(name.clone()));
        }
        *value = first.to_str().map_err(|_| Refused::BadHeader(name.clone()))?;
    }
    Ok(values)
}

fn is_sane_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= MAX_ID && id.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Tolerance is meant both ways and inclusive.
fn check_time(timestamp: &str, tolerance: i64, now: i64) -> Result<(), Refused> {
    let plain = (1..=12).contains(&timestamp.len()) && timestamp.bytes().all(|byte| byte.is_ascii_digit());
    let sent: i64 = timestamp.parse().ok().filter(|_| plain).ok_or(Refused::BadTimestamp)?;
    if now.saturating_sub(sent) > tolerance {
        return Err(Refused::TooOld);
    }
    if sent.saturating_sub(now) > tolerance {
        return Err(Refused::TooNew);
    }
    Ok(())
}

/// What may be a v1 signature. SDKs also take items without a version; items of another version are not ours.
fn candidates(signatures: &str) -> Vec<Vec<u8>> {
    signatures
        .split(' ')
        .filter_map(|item| match item.split_once(',') {
            None => Some(item),
            Some(("v1", signature)) => Some(signature),
            Some(_) => None,
        })
        .filter(|signature| signature.len() == 44)
        .take(MAX_CANDIDATES)
        .filter_map(|signature| BASE64_STANDARD.decode(signature).ok())
        .collect()
}

/// The id of a delivery whose headers nobody signed.
fn unsigned_id(headers: &HeaderMap, body: &[u8]) -> String {
    match single(headers, [&STANDARD[0]]) {
        Ok([id]) if is_sane_id(id) => id.to_owned(),
        _ => Sha256::digest(body)[..16].iter().fold(String::from("body-"), |mut id, byte| {
            let _ = write!(id, "{byte:02x}");
            id
        }),
    }
}

fn each_secret<T>(
    secrets: &[SecretString],
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, Vec<(usize, String)>> {
    if secrets.is_empty() {
        return Err(vec![(0, "at least one secret is needed".to_owned())]);
    }
    let (mut read_secrets, mut errors) = (Vec::new(), Vec::new());
    for (index, secret) in secrets.iter().enumerate() {
        match read(secret.expose_secret()) {
            Ok(secret) => read_secrets.push(secret),
            Err(error) => errors.push((index, error)),
        }
    }
    if errors.is_empty() { Ok(read_secrets) } else { Err(errors) }
}

/// The key of a Standard Webhooks secret: `whsec_` and base64, or the text's own bytes.
pub fn decode_key(secret: &str) -> Result<Vec<u8>, String> {
    let secret = without_line_end(secret);
    let key = match secret.strip_prefix("whsec_") {
        Some(encoded) => BASE64_STANDARD.decode(encoded).map_err(|_| "what follows whsec_ is not base64".to_owned())?,
        None => secret.as_bytes().to_vec(),
    };
    long_enough(&key)?;
    Ok(key)
}

/// Files and shells leave a line end behind a secret; no secret has one.
fn without_line_end(secret: &str) -> &str {
    secret.trim_end_matches(['\r', '\n'])
}

fn long_enough(key: &[u8]) -> Result<&[u8], String> {
    match key.len() {
        0 => Err("the secret is empty".to_owned()),
        1..MIN_KEY => Err(format!("the secret is shorter than {MIN_KEY} bytes")),
        _ => Ok(key),
    }
}

/// The Standard Webhooks v1 signature of a delivery, `v1,` and base64; `timestamp` in Unix seconds.
pub fn sign(key: &[u8], id: &str, timestamp: i64, body: &[u8]) -> String {
    let Ok(mac) = Hmac::<Sha256>::new_from_slice(key) else {
        return String::new(); // HMAC takes keys of any length
    };
    let mac = mac.chain_update(signed_prefix(id, &timestamp.to_string())).chain_update(body);
    format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()))
}

fn signed_prefix(id: &str, timestamp: &str) -> String {
    format!("{id}.{timestamp}.")
}

#[cfg(test)]
mod tests;
