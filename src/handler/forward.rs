//! Posts required actions that are not ours to answer to a URL.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use reqwest::{
    Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderValue},
};
use serde::Serialize;
use serde_json::value::RawValue;

use super::{Receiver, Sign, sign::Signer};
use crate::{
    http::{Client, describe},
    session::OtherAction,
};

const TIMEOUT: Duration = Duration::from_secs(10);

/// One receiver.
pub struct Forward {
    client: Client,
    url: Url,
    signer: Signer,
}

impl Forward {
    /// The error says where in the config, and what; never a value.
    pub fn new(url: &str, sign: &Sign, client: Client) -> Result<Self, (String, String)> {
        let url = Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        Ok(Self {
            client,
            url: url.ok_or(("url".into(), "must be an absolute http or https URL".into()))?,
            signer: Signer::new(sign).map_err(|(path, why)| (format!("sign.{path}"), why))?,
        })
    }
}

#[derive(Serialize)]
struct Body<'a> {
    r#type: &'static str,
    platform: &'a str,
    session_id: &'a str,
    turn_id: &'a str,
    action: &'a RawValue,
}

#[async_trait]
impl Receiver for Forward {
    async fn tell(&self, action: &OtherAction) -> Result<(), String> {
        let json = serde_json::from_str(&action.json).map_err(|_| "the action is no JSON")?;
        let session = &action.key.session;
        let body = Body {
            r#type: "required_action",
            platform: &session.platform,
            session_id: &session.session,
            turn_id: &action.key.turn,
            action: json,
        };
        let body = serde_json::to_string(&body).map_err(|_| "the action cannot be written")?;
        let id = action.key.idempotency_key();
        let key = HeaderValue::from_str(&id).map_err(|_| "the key is no header value")?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert("idempotency-key", key);
        self.signer
            .sign(&id, &mut headers, body.as_bytes(), SystemTime::now())
            .await
            .map_err(|error| error.to_string())?;
        let request = self.client.post(self.url.clone()).headers(headers).body(body).timeout(TIMEOUT);
        let status = request.send().await.map_err(|error| describe(&error))?.status();
        if status.is_success() { Ok(()) } else { Err(format!("the receiver answered {}", status.as_u16())) }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{
        sync::{Arc, Mutex},
        time::UNIX_EPOCH,
    };

    use axum::{Router, extract::Request};

    use super::*;
    use crate::{
        ingress::signature::Verifier,
        platform::WebhookConfig,
        session::{ActionKey, SessionKey},
    };

    fn action(json: &str) -> OtherAction {
        let session = SessionKey::new("openai", "sess_1");
        let key = ActionKey { session, turn: "turn_1".into(), kind: "mcp_approval_request".into(), id: "req_1".into() };
        OtherAction { key, json: json.into() }
    }

    #[tokio::test]
    async fn an_action_is_posted_as_it_is_listed_under_its_key_and_signed() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let router = Router::new().fallback(async move |request: Request| {
            let (head, body) = request.into_parts();
            let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
            log.lock().unwrap().push((head.headers, body));
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/approvals", listener.local_addr().unwrap());
        tokio::spawn(async { axum::serve(listener, router).await });

        let secret = crate::sandbox::generate_secret();
        let sign = Sign { nonce: None, standard: Some(secret.clone().into()) };
        let forward = Forward::new(&url, &sign, crate::http::client().unwrap()).unwrap();
        let listed = r#"{"type":"mcp_approval_request","request":{"n": 1.50}}"#;
        forward.tell(&action(listed)).await.unwrap();
        let (headers, body) = seen.lock().unwrap().pop().unwrap();
        let expected = r#"{"type":"required_action","platform":"openai","session_id":"sess_1","turn_id":"turn_1","action":{"type":"mcp_approval_request","request":{"n": 1.50}}}"#;
        assert_eq!(body, expected);
        let key = action("{}").key.idempotency_key();
        assert_eq!(headers["idempotency-key"], key.as_str());
        let webhook = WebhookConfig::Standard { secrets: vec![secret.into()], tolerance: Duration::from_secs(60) };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64;
        assert_eq!(Verifier::new(&webhook).unwrap().verify(&headers, &body, now).unwrap().id, key);
    }

    #[tokio::test]
    async fn what_is_not_taken_is_told_without_the_address() {
        let client = crate::http::client().unwrap();
        let forward = Forward::new("http://127.0.0.1:1/x", &Sign::default(), client.clone()).unwrap();
        assert_eq!(forward.tell(&action("{}")).await.unwrap_err(), "could not connect: connection refused");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/x", listener.local_addr().unwrap());
        tokio::spawn(async { axum::serve(listener, Router::new()).await });
        let forward = Forward::new(&url, &Sign::default(), client).unwrap();
        assert_eq!(forward.tell(&action("{}")).await.unwrap_err(), "the receiver answered 404");
    }
}
