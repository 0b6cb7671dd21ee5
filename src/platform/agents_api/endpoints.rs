//! The webhook endpoints of an account: where the platform sends what, and the secrets it signs with.

use reqwest::{Method, Response, Url};
use secrecy::SecretString;
use serde_json::{Value, json};

use super::AgentsApi;
use crate::{
    http::{describe, read_capped},
    platform::api::{MAX_ERROR, segment},
};

const MAX_ANSWER: usize = 4 << 20;
/// Pages of a list that are read at most.
const MAX_PAGES: usize = 50;
/// Characters of what the platform says that are repeated.
const MAX_MESSAGE: usize = 300;

/// One webhook endpoint, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub id: String,
    pub name: String,
    pub url: String,
    pub event_types: Vec<String>,
    /// What the platform shows of the secret.
    pub hint: Option<String>,
    /// Unix seconds.
    pub created_at: Option<i64>,
    /// Unix seconds; the last change, a rotation included.
    pub updated_at: Option<i64>,
}

/// Why endpoints could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum EndpointsError {
    /// The platform has none to manage, or not this one.
    #[error("the platform knows no such thing")]
    Absent,
    /// 401, 403.
    #[error("the api_key may not manage webhook endpoints: {0}")]
    Unauthorized(String),
    #[error("{0}")]
    Failed(String),
}

impl AgentsApi {
    /// Every endpoint of the account.
    pub async fn endpoints(&self) -> Result<Vec<Endpoint>, EndpointsError> {
        let mut endpoints = Vec::new();
        let mut url = self.api.url("/webhook_endpoints");
        for _ in 0..MAX_PAGES {
            let page = self.manage(Method::GET, url.clone(), None).await?;
            let data = page["data"].as_array().ok_or_else(|| unreadable("no list"))?;
            for item in data {
                endpoints.push(endpoint(item)?);
            }
            match (page["has_more"].as_bool(), endpoints.last()) {
                (Some(true), Some(last)) if !data.is_empty() => {
                    url.query_pairs_mut().clear().append_pair("after", &last.id);
                }
                _ => break,
            }
        }
        Ok(endpoints)
    }

    /// Makes an endpoint; the platform tells its secret this once.
    pub async fn create_endpoint(
        &self,
        name: &str,
        url: &str,
        events: &[String],
    ) -> Result<(Endpoint, SecretString), EndpointsError> {
        let body = json!({ "name": name, "url": url, "event_types": events });
        let made = self.manage(Method::POST, self.api.url("/webhook_endpoints"), Some(body)).await?;
        Ok((endpoint(&made)?, secret(&made)?))
    }

    /// Gives an endpoint a new secret, told this once. The old one signs too for 24 hours, or no longer.
    pub async fn rotate_secret(&self, id: &str, keep_old: bool) -> Result<(Endpoint, SecretString), EndpointsError> {
        let body = json!({ "keep_old_secret_active_for_24_hours": keep_old });
        let rotated = self.manage(Method::POST, self.endpoint_url(id, "/rotate_secret")?, Some(body)).await?;
        Ok((endpoint(&rotated)?, secret(&rotated)?))
    }

    /// Lets the platform send a sample of that event; the status that the endpoint answered.
    pub async fn test_endpoint(&self, id: &str, event: &str) -> Result<u16, EndpointsError> {
        let body = json!({ "event_type": event });
        let tested = self.manage(Method::POST, self.endpoint_url(id, "/test")?, Some(body)).await?;
        let status = tested["status_code"].as_u64().and_then(|status| u16::try_from(status).ok());
        status.ok_or_else(|| unreadable("no status_code"))
    }

    pub async fn delete_endpoint(&self, id: &str) -> Result<(), EndpointsError> {
        self.manage(Method::DELETE, self.endpoint_url(id, "")?, None).await.map(drop)
    }

    fn endpoint_url(&self, id: &str, under: &str) -> Result<Url, EndpointsError> {
        let id = segment(id).ok_or_else(|| EndpointsError::Failed("that is not the id of an endpoint".to_owned()))?;
        Ok(self.api.url(&format!("/webhook_endpoints/{id}{under}")))
    }

    async fn manage(&self, method: Method, url: Url, body: Option<Value>) -> Result<Value, EndpointsError> {
        let mut request = self.api.request(method, url);
        if let Some(body) = body {
            request = request.json(&body);
        }
        let response = request.send().await.map_err(|error| EndpointsError::Failed(describe(&error)))?;
        if !response.status().is_success() {
            return Err(refusal(response).await);
        }
        let body = read_capped(response, MAX_ANSWER).await.map_err(|error| unreadable(&error.to_string()))?;
        serde_json::from_slice(&body).map_err(|_| unreadable("not JSON"))
    }
}

/// What was sent here holds no secret, so what the platform says of it may be repeated.
async fn refusal(response: Response) -> EndpointsError {
    let status = response.status().as_u16();
    let body = read_capped(response, MAX_ERROR).await.unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let message: String = body["error"]["message"].as_str().unwrap_or_default().chars().take(MAX_MESSAGE).collect();
    let detail = if message.is_empty() { format!("status {status}") } else { format!("status {status}: {message}") };
    match status {
        404 | 405 => EndpointsError::Absent,
        401 | 403 => EndpointsError::Unauthorized(detail),
        _ => EndpointsError::Failed(detail),
    }
}

fn endpoint(value: &Value) -> Result<Endpoint, EndpointsError> {
    let text = |field: &str| value[field].as_str().map(str::to_owned);
    let events = value["event_types"].as_array().into_iter().flatten();
    Ok(Endpoint {
        id: text("id").ok_or_else(|| unreadable("an endpoint without id"))?,
        name: text("name").unwrap_or_default(),
        url: text("url").ok_or_else(|| unreadable("an endpoint without url"))?,
        event_types: events.filter_map(|event| event.as_str().map(str::to_owned)).collect(),
        hint: text("signing_secret_hint"),
        created_at: value["created_at"].as_i64(),
        updated_at: value["updated_at"].as_i64(),
    })
}

fn secret(value: &Value) -> Result<SecretString, EndpointsError> {
    let secret = value["signing_secret"].as_str().filter(|secret| !secret.is_empty());
    secret.map(Into::into).ok_or_else(|| unreadable("the platform told no signing_secret: rotate it"))
}

fn unreadable(detail: &str) -> EndpointsError {
    EndpointsError::Failed(format!("the answer cannot be used: {detail}"))
}
