//! Signed webhooks with retries, as Standard Webhooks v1 and the Agents API have them.

use std::{sync::Arc, time::Duration};

use base64::{Engine, prelude::BASE64_STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use reqwest::{Client, Url, redirect};
use secrecy::{ExposeSecret, SecretString};
use sha2::Sha256;
use tokio::{sync::Semaphore, time::Instant};

use super::{Sandbox, journal::What, json::Object, session::Session};
use crate::retry;

const USER_AGENT: &str = "OpenAI/1.0 (+https://platform.openai.com/docs/webhooks)";
const CONCURRENT: usize = 64;

/// Where session events go.
#[derive(Clone, Debug)]
pub struct Webhook {
    pub url: String,
    /// `whsec_` and the key in base64.
    pub secret: SecretString,
    /// During a rotation: signs beside `secret`.
    pub old_secret: Option<SecretString>,
    pub events: Vec<EventType>,
    /// How long one delivery may take.
    pub timeout: Duration,
    /// Pauses between attempts; `max_attempts` is not looked at, `give_up` ends it.
    pub retry: retry::Policy,
    pub give_up: Duration,
}

impl Webhook {
    /// The platform's habits: action_required only, 5 s for an answer, retries from 1 s doubling to 1 h, for 72 h.
    pub fn new(url: impl Into<String>, secret: impl Into<String>) -> Self {
        Self {
            url: url.into(),
            secret: secret.into().into(),
            old_secret: None,
            events: vec![EventType::ActionRequired],
            timeout: Duration::from_secs(5),
            retry: retry::Policy { max: Duration::from_secs(3600), ..retry::Policy::default() },
            give_up: Duration::from_secs(72 * 3600),
        }
    }
}

/// The session events that can be subscribed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EventType {
    Created,
    ActionRequired,
    InProgress,
    Idle,
    Failed,
}

impl EventType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "agent.session.created",
            Self::ActionRequired => "agent.session.action_required",
            Self::InProgress => "agent.session.in_progress",
            Self::Idle => "agent.session.idle",
            Self::Failed => "agent.session.failed",
        }
    }
}

/// One item of the `webhook-signature` header, `v1,<base64>`. `timestamp` is in Unix seconds.
pub fn sign(key: &[u8], id: &str, timestamp: i64, body: &[u8]) -> String {
    // HMAC takes keys of any length, so there is no error to pass on.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else { return String::new() };
    mac.update(format!("{id}.{timestamp}.").as_bytes());
    mac.update(body);
    format!("v1,{}", BASE64_STANDARD.encode(mac.finalize().into_bytes()))
}

/// The key in a secret: base64 after `whsec_`, else the text's own bytes.
pub fn secret_key(secret: &str) -> Result<Vec<u8>, base64::DecodeError> {
    match secret.strip_prefix("whsec_") {
        Some(encoded) => BASE64_STANDARD.decode(encoded),
        None => Ok(secret.as_bytes().to_vec()),
    }
}

/// A new `whsec_` secret of 32 random bytes.
pub fn generate_secret() -> String {
    format!("whsec_{}", BASE64_STANDARD.encode(rand::random::<[u8; 32]>()))
}

/// One event on its way: the same id and body in every attempt.
pub(super) struct Delivery {
    pub(super) session: Arc<str>,
    pub(super) webhook_id: String,
    pub(super) event: EventType,
    pub(super) body: String,
    pub(super) delay: Duration,
}

/// The event's body, with whole seconds in `created_at`.
pub(super) fn body(id: &str, event: EventType, session: &Session, action: Option<&str>, now: i64) -> String {
    let data = Object::new().text("id", &session.id);
    let data = match event {
        EventType::ActionRequired => {
            let action = Object::new().text("type", action.unwrap_or("function_call"));
            data.raw("required_action", &action.end())
        }
        _ => {
            let environment = &session.environment;
            let data = data.text("environment_type", environment["type"].as_str().unwrap_or("none"));
            environment["id"].as_str().into_iter().fold(data, |data, id| data.text("environment_id", id))
        }
    };
    Object::new()
        .text("id", id)
        .text("object", "event")
        .number("created_at", now)
        .text("type", event.as_str())
        .raw("data", &data.end())
        .end()
}

/// Sends to one endpoint.
pub(super) struct Sender {
    client: Client,
    url: Url,
    keys: Vec<Vec<u8>>,
    config: Webhook,
    slots: Semaphore,
}

impl Sender {
    pub(super) fn new(config: Webhook) -> anyhow::Result<Self> {
        // Somebody else may have installed it already.
        crate::http::use_ring();
        let client = Client::builder()
            .user_agent(USER_AGENT)
            .redirect(redirect::Policy::none())
            .no_proxy()
            .timeout(config.timeout)
            .build()?;
        let url = Url::parse(&config.url).map_err(|error| anyhow::anyhow!("webhook url: {error}"))?;
        anyhow::ensure!(matches!(url.scheme(), "http" | "https"), "webhook url: must be http or https");
        let mut keys = Vec::new();
        for secret in std::iter::once(&config.secret).chain(&config.old_secret) {
            let key = secret_key(secret.expose_secret());
            keys.push(key.map_err(|_| anyhow::anyhow!("webhook secret: must be whsec_ and base64"))?);
        }
        Ok(Self { client, url, keys, config, slots: Semaphore::new(CONCURRENT) })
    }

    pub(super) fn wants(&self, event: EventType) -> bool {
        self.config.events.contains(&event)
    }

    /// Until it is answered 2xx or given up; dropped when the sandbox ends.
    pub(super) async fn deliver(&self, sandbox: &Sandbox, delivery: Delivery) {
        tokio::time::sleep(delivery.delay).await;
        let start = Instant::now();
        for attempt in 1.. {
            let answer = self.attempt(&delivery).await;
            let delivered = matches!(answer, Ok(200..=299));
            let (webhook_id, event) = (delivery.webhook_id.clone(), delivery.event.as_str());
            sandbox.note(&delivery.session, What::WebhookSent { webhook_id, event, attempt, answer });
            if delivered {
                return;
            }
            let pause = self.config.retry.backoff(attempt, None, rand::random());
            if start.elapsed() + pause > self.config.give_up {
                sandbox.note(&delivery.session, What::WebhookGivenUp { webhook_id: delivery.webhook_id });
                return;
            }
            tokio::time::sleep(pause).await;
        }
    }

    pub(super) async fn attempt(&self, delivery: &Delivery) -> Result<u16, String> {
        let _slot = self.slots.acquire().await.map_err(|error| error.to_string())?;
        let timestamp = super::unix_millis() / 1000;
        let signatures: Vec<String> =
            self.keys.iter().map(|key| sign(key, &delivery.webhook_id, timestamp, delivery.body.as_bytes())).collect();
        let request = self
            .client
            .post(self.url.clone())
            .header("content-type", "application/json")
            .header("webhook-id", &delivery.webhook_id)
            .header("webhook-timestamp", timestamp)
            .header("webhook-signature", signatures.join(" "))
            .body(delivery.body.clone());
        match request.send().await {
            Ok(response) => Ok(response.status().as_u16()),
            Err(error) => Err(error.without_url().to_string()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_vector_of_the_official_sdk_is_reproduced() {
        let key = secret_key("whsec_RdvaYFYUXuIFuEbvZHwMfYFhUf7aMYjYcmM24+Aj40c=").unwrap();
        let body = br#"{"id": "evt_685c059ae3a481909bdc86819b066fb6", "object": "event", "created_at": 1750861210, "type": "response.completed", "data": {"id": "resp_123"}}"#;
        let signature = sign(&key, "wh_685c059ae39c8190af8c71ed1022a24d", 1_750_861_210, body);
        assert_eq!(signature, "v1,gUAg4R2hWouRZqRQG4uJypNS8YK885G838+EHb4nKBY=");
    }

    #[test]
    fn the_standard_library_takes_what_is_signed() {
        let secret = generate_secret();
        let signature = sign(&secret_key(&secret).unwrap(), "wh_1", 1_790_000_000, b"{}");
        let theirs = standardwebhooks::Webhook::new(&secret).unwrap().sign("wh_1", 1_790_000_000, b"{}").unwrap();
        assert_eq!(signature, theirs);
    }
}
