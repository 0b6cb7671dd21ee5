//! `actiond send`: a webhook as a platform would send it, signed and posted, to try an installation.

use std::{
    fmt,
    time::{SystemTime, UNIX_EPOCH},
};

use axum::http::{HeaderMap, HeaderName, HeaderValue, header::CONTENT_TYPE};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;
use uuid::Uuid;

use crate::{
    http::post_webhook,
    ingress::signature::{decode_key, sign},
    platform::WebhookConfig,
};

/// Bytes of an answer that are shown.
const SHOWN: usize = 500;

/// Send a signed test webhook, as a platform does when a session waits for a function.
///
/// Where the call should be answered, the session must exist at the platform: the webhook carries nothing but its id.
#[derive(Clone, Debug, clap::Args)]
pub struct SendArgs {
    /// Webhook address, such as http://127.0.0.1:8080/webhooks/openai [default: the platform's, from the config]
    #[arg(long, value_name = "URL")]
    pub url: Option<String>,
    /// Webhook secret to sign with, whsec_… [default: the platform's, from the config]
    #[arg(long, env = "ACTIOND_WEBHOOK_SECRET", hide_env_values = true, value_name = "SECRET", value_parser = secret)]
    pub secret: Option<SecretString>,
    /// Platform whose address and secret the config knows
    #[arg(long, value_name = "NAME")]
    pub platform: Option<String>,
    /// Id of the session that waits
    #[arg(long, value_name = "ID")]
    pub session: String,
    /// Id of the delivery; send the same one twice to try a duplicate [default: a new one]
    #[arg(long, value_name = "ID")]
    pub id: Option<String>,
}

fn secret(text: &str) -> Result<SecretString, std::convert::Infallible> {
    Ok(text.into())
}

/// A test webhook with everything resolved.
#[derive(Clone, Debug)]
pub struct Send {
    pub url: String,
    pub session: String,
    /// How to authenticate; the first secret is taken.
    pub webhook: WebhookConfig,
    /// The delivery's `webhook-id`.
    pub id: String,
}

/// What the ingress answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub body: String,
}

impl Send {
    /// Posts it, stamped with `now`. The error says why there was no answer.
    pub async fn post(&self, client: &crate::http::Client, now: SystemTime) -> Result<Answer, String> {
        let (headers, body) = self.request(now)?;
        let (status, body) = post_webhook(client, &self.url, headers, body).await?;
        Ok(Answer { status, body })
    }

    fn request(&self, now: SystemTime) -> Result<(HeaderMap, Vec<u8>), String> {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let now = i64::try_from(now).map_err(|_| "the clock is wrong".to_owned())?;
        let body = json!({
            "id": format!("evt_{}", self.id),
            "object": "event",
            "created_at": now,
            "type": "agent.session.action_required",
            "data": {"id": self.session, "required_action": {"type": "function_call"}},
        });
        let body = body.to_string().into_bytes();
        Ok((self.headers(now, &body)?, body))
    }

    fn headers(&self, now: i64, body: &[u8]) -> Result<HeaderMap, String> {
        let mut headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
        headers.insert("webhook-id", value(&self.id)?);
        match &self.webhook {
            WebhookConfig::Standard { secrets, .. } => {
                let key = decode_key(first(secrets)?)?;
                headers.insert("webhook-timestamp", now.into());
                headers.insert("webhook-signature", value(&sign(&key, &self.id, now, body))?);
            }
            WebhookConfig::SharedSecret { header, secrets } => {
                let name = HeaderName::from_bytes(header.as_bytes()).map_err(|e| e.to_string())?;
                headers.insert(name, value(first(secrets)?)?);
            }
            WebhookConfig::Insecure => {}
        }
        Ok(headers)
    }
}

impl Answer {
    /// Whether the webhook was taken.
    pub fn is_success(&self) -> bool {
        (200..300).contains(&self.status)
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = self.body.chars().filter(|c| !c.is_control()).take(SHOWN);
        write!(f, "{} {}", self.status, body.collect::<String>())
    }
}

/// An id for a new delivery.
pub fn delivery_id() -> String {
    format!("wh_{}", Uuid::now_v7().simple())
}

fn first(secrets: &[SecretString]) -> Result<&str, String> {
    let secret = secrets.first().ok_or("there is no webhook secret")?;
    Ok(secret.expose_secret().trim_end_matches(['\r', '\n']))
}

fn value(text: &str) -> Result<HeaderValue, String> {
    HeaderValue::from_str(text).map_err(|_| "id or secret has characters that no header can carry".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::time::Duration;

    use axum::{Router, body::Bytes, routing::post};
    use clap::Parser;

    use super::*;
    use crate::ingress::{
        event::{self, Event},
        signature::Verifier,
    };

    const NOW: u64 = 1_790_000_000;

    fn now() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(NOW)
    }

    fn standard(secret: &str) -> WebhookConfig {
        WebhookConfig::Standard { secrets: vec![secret.into()], tolerance: Duration::ZERO }
    }

    fn test_webhook(url: String, webhook: WebhookConfig) -> Send {
        Send { url, session: "sess/1 \"é\"".to_owned(), webhook, id: "wh_1".to_owned() }
    }

    #[test]
    fn what_is_sent_is_what_the_ingress_takes() {
        let shared = WebhookConfig::SharedSecret {
            header: "X-Webhook-Secret".to_owned(),
            secrets: vec!["0123456789abcdef\n".into()],
        };
        let standard = standard("whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
        for webhook in [standard, shared, WebhookConfig::Insecure] {
            let send = test_webhook(String::new(), webhook);
            let (headers, body) = send.request(now()).unwrap();
            let verified = Verifier::new(&send.webhook).unwrap().verify(&headers, &body, NOW.try_into().unwrap());
            assert_eq!(verified.unwrap().id, "wh_1");
            let expected = Event::ActionRequired { session: send.session, kind: "function_call".to_owned() };
            assert_eq!(event::parse(&body), Ok(expected));
        }
    }

    #[test]
    fn a_secret_or_id_that_cannot_be_used_is_said_and_not_shown() {
        for secret in ["", "whsec_!!!!"] {
            let error = test_webhook(String::new(), standard(secret)).request(now()).unwrap_err();
            assert!(!error.contains("!!!!"), "{error}");
        }
        let send = Send { id: "a\nb".to_owned(), ..test_webhook(String::new(), WebhookConfig::Insecure) };
        assert!(send.request(now()).is_err());
    }

    #[tokio::test]
    async fn the_answer_is_reported() {
        let router = Router::new().route(
            "/webhooks/openai",
            post(async |body: Bytes| event::parse(&body).map_or("malformed", |_| "queued\u{1b}")),
        );
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async { axum::serve(listener, router).await });
        let client = crate::http::client().unwrap();
        let to = |path: &str| test_webhook(format!("http://{address}{path}"), WebhookConfig::Insecure);

        let answer = to("/webhooks/openai").post(&client, now()).await.unwrap();
        assert_eq!((answer.to_string().as_str(), answer.is_success()), ("200 queued", true));
        let answer = to("/webhooks/other").post(&client, now()).await.unwrap();
        assert_eq!((answer.status, answer.is_success()), (404, false));
        assert!(
            test_webhook("http://127.0.0.1:1/".to_owned(), WebhookConfig::Insecure).post(&client, now()).await.is_err()
        );
    }

    #[test]
    fn the_arguments_keep_the_secret_to_themselves() {
        #[derive(Debug, Parser)]
        struct Cli {
            #[command(flatten)]
            send: SendArgs,
        }
        let cli = Cli::try_parse_from(["send", "--session", "sess_1", "--secret", "whsec_very"]).unwrap();
        assert_eq!(cli.send.secret.as_ref().unwrap().expose_secret(), "whsec_very");
        assert!(!format!("{cli:?}").contains("whsec_very"));
        assert!(Cli::try_parse_from(["send"]).is_err(), "a session is needed");
    }
}
