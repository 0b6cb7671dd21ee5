//! Tells somebody that a call waits: a signed webhook, kept with the call and sent again until it is taken or decided.

use std::time::{Duration, SystemTime};

use axum::http::{HeaderMap, HeaderValue};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::RawValue;

use super::{Notify, Policy};
use crate::{
    handler::{Signer, headers},
    http::{Client, post_webhook},
    retry,
    session::{CallKey, SessionKey},
    store::{self, Approval, Ledger},
    token::Tokens,
};

/// What the key is called in the store.
const KEY: &str = "approvals";
/// When a notice that was not taken is sent again.
pub const AGAIN: retry::Policy = retry::Policy {
    initial: Duration::from_secs(1),
    multiplier: 2.0,
    max: Duration::from_secs(300),
    max_attempts: u32::MAX,
};

/// A function's approval, ready to be used.
pub struct Gate {
    pub policy: Policy,
    pub notifier: Option<Notifier>,
}

impl Gate {
    /// The error says where below `approval`, and what.
    pub fn new(policy: &Policy, client: &Client) -> Result<Self, (String, String)> {
        let notifier = policy.notify.as_ref().map(|notify| Notifier::new(notify, client.clone()));
        let notifier = notifier.transpose().map_err(|(path, why)| (format!("notify.{path}"), why))?;
        Ok(Self { policy: policy.clone(), notifier })
    }
}

/// Makes and reads the addresses where a call can be decided.
pub struct Links {
    tokens: Tokens,
    /// `https://actiond.example.com/approvals/`
    base: String,
}

impl Links {
    /// `public_url` is where the ingress listener is reached from outside.
    pub fn new(ledger: Ledger, public_url: &str) -> Self {
        Self { tokens: Tokens::new(ledger, KEY), base: format!("{public_url}/approvals/") }
    }

    /// Whoever knows it can decide, once.
    pub async fn url(&self, approval: &Approval) -> store::Result<String> {
        let CallKey { session, turn, call_id } = &approval.key;
        let asked_at = approval.asked_at.to_string();
        let parts = [&session.platform, &session.session, turn, call_id, asked_at.as_str()];
        Ok(format!("{}{}", self.base, self.tokens.make(&parts).await?))
    }

    /// The call of a token that we made, and when it was asked about.
    pub async fn read(&self, token: &str) -> store::Result<Option<(CallKey, i64)>> {
        Ok(self.tokens.read(token).await?.and_then(|[platform, session, turn, call_id, asked_at]| {
            Some((CallKey::new(SessionKey { platform, session }, turn, call_id), asked_at.parse().ok()?))
        }))
    }
}

/// Sends the notices of one function.
pub struct Notifier {
    client: Client,
    url: String,
    headers: HeaderMap,
    signer: Signer,
    arguments: bool,
}

#[derive(Serialize)]
struct Notice<'a> {
    r#type: &'static str,
    function: &'a str,
    call: String,
    platform: &'a str,
    session_id: &'a str,
    turn_id: &'a str,
    call_id: &'a str,
    asked_at: String,
    expires_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    link: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    arguments: Option<&'a RawValue>,
}

impl Notifier {
    fn new(config: &Notify, client: Client) -> Result<Self, (String, String)> {
        Ok(Self {
            client,
            url: config.url.clone(),
            headers: headers(&config.headers)?,
            signer: Signer::new(&config.sign).map_err(|(path, why)| (format!("sign.{path}"), why))?,
            arguments: config.arguments,
        })
    }

    /// The error says why it was not taken; never where.
    pub async fn send(&self, approval: &Approval, link: Option<&str>, now: SystemTime) -> Result<(), String> {
        let id = approval.key.approval_idempotency_key(approval.asked_at);
        let body = self.body(approval, link);
        let mut headers = self.headers.clone();
        headers.insert("content-type", HeaderValue::from_static("application/json"));
        headers.insert("idempotency-key", HeaderValue::from_str(&id).map_err(|e| e.to_string())?);
        self.signer.sign(&id, &mut headers, &body, now).await.map_err(|e| e.to_string())?;
        match post_webhook(&self.client, &self.url, headers, body).await? {
            (200..300, _) => Ok(()),
            (status, _) => Err(format!("it was answered {status}")),
        }
    }

    fn body(&self, approval: &Approval, link: Option<&str>) -> Vec<u8> {
        let CallKey { session, turn, call_id } = &approval.key;
        let arguments = approval.arguments.as_deref().filter(|_| self.arguments);
        let notice = Notice {
            r#type: "approval_requested",
            function: &approval.function,
            call: approval.key.to_string(),
            platform: &session.platform,
            session_id: &session.session,
            turn_id: turn,
            call_id,
            asked_at: time(approval.asked_at),
            expires_at: time(approval.expires_at),
            link,
            arguments: arguments.and_then(|text| serde_json::from_str(text).ok()),
        };
        serde_json::to_vec(&notice).unwrap_or_default()
    }
}

/// Unix milliseconds as RFC 3339.
fn time(ms: i64) -> String {
    Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |time| time.to_string())
}
