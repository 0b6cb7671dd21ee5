//! Webhook endpoints that clients register: `/v1/webhook_endpoints` and what is below it.

use std::{sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Path, State},
    http::{StatusCode, Uri},
};
use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use super::{
    Sandbox, State as Everything,
    error::ApiError,
    query::Query,
    routes::{Answer, json as answer, read_json},
    webhook::{Delivery, EventType, Sender, Webhook, generate_secret},
};

/// What can be subscribed to. Only the events of sessions ever happen here.
const EVENT_TYPES: [&str; 9] = [
    "agent.session.created",
    "agent.session.action_required",
    "agent.session.in_progress",
    "agent.session.idle",
    "agent.session.failed",
    "agent.environment.ready",
    "agent.environment.failed",
    "agent.environment.suspended",
    "agent.environment.expired",
];
/// Seconds that an old secret signs beside the new one.
const KEPT: i64 = 24 * 3600;

/// One registered endpoint.
pub(super) struct Endpoint {
    id: String,
    name: String,
    url: String,
    event_types: Vec<String>,
    secret: SecretString,
    created_at: i64,
    updated_at: i64,
    sender: Arc<Sender>,
    /// Signs with the old secret too, until this Unix second.
    rotating: Option<(i64, Arc<Sender>)>,
}

impl Endpoint {
    pub(super) fn wants(&self, event: EventType) -> bool {
        self.event_types.iter().any(|wanted| wanted == event.as_str())
    }

    pub(super) fn sender(&self, now: i64) -> Arc<Sender> {
        match &self.rotating {
            Some((until, both)) if now < *until => both.clone(),
            _ => self.sender.clone(),
        }
    }

    fn shown(&self, secret: bool) -> Value {
        let plain = self.secret.expose_secret();
        let mut shown = json!({
            "id": self.id, "object": "webhook_endpoint", "name": self.name, "url": self.url,
            "event_types": self.event_types, "created_at": self.created_at, "updated_at": self.updated_at,
            "signing_secret_hint": format!("whsec_…{}", &plain[plain.len().saturating_sub(4)..]),
        });
        if secret {
            shown["signing_secret"] = plain.into();
        }
        shown
    }
}

pub(super) async fn create(State(sandbox): State<Arc<Sandbox>>, body: Body) -> Answer {
    let request = read_json(body).await?;
    let name = name(&request["name"])?;
    let (url, event_types) = (url(&request["url"])?, event_types(&request["event_types"])?);
    let secret: SecretString = generate_secret().into();
    let now = super::unix_millis() / 1000;
    let sender = sandbox.sender_to(&url, &secret, None)?;
    let state = &mut *sandbox.state();
    let id = state.ids.next("whe");
    let endpoint =
        Endpoint { id, name, url, event_types, secret, created_at: now, updated_at: now, sender, rotating: None };
    let shown = endpoint.shown(true);
    state.endpoints.push(endpoint);
    Ok(answer(StatusCode::OK, shown.to_string()))
}

pub(super) async fn list(State(sandbox): State<Arc<Sandbox>>, uri: Uri) -> Answer {
    let state = sandbox.state();
    let page = Query::parse(&uri).page(state.endpoints.iter(), |e| e.id.clone(), |e| e.shown(false).to_string())?;
    Ok(answer(StatusCode::OK, page))
}

pub(super) async fn retrieve(State(sandbox): State<Arc<Sandbox>>, Path(id): Path<String>) -> Answer {
    Ok(answer(StatusCode::OK, find(&mut sandbox.state(), &id)?.shown(false).to_string()))
}

pub(super) async fn update(State(sandbox): State<Arc<Sandbox>>, Path(id): Path<String>, body: Body) -> Answer {
    let request = read_json(body).await?;
    let is_given = |field: &str| request.get(field).is_some();
    let state = &mut *sandbox.state();
    let endpoint = find(state, &id)?;
    let was = endpoint.shown(false);
    if is_given("name") {
        endpoint.name = name(&request["name"])?;
    }
    if is_given("event_types") {
        endpoint.event_types = event_types(&request["event_types"])?;
    }
    if is_given("url") {
        endpoint.url = url(&request["url"])?;
        endpoint.sender = sandbox.sender_to(&endpoint.url, &endpoint.secret, None)?;
        endpoint.rotating = None;
    }
    if endpoint.shown(false) != was {
        endpoint.updated_at = super::unix_millis() / 1000;
    }
    Ok(answer(StatusCode::OK, endpoint.shown(false).to_string()))
}

pub(super) async fn delete(State(sandbox): State<Arc<Sandbox>>, Path(id): Path<String>) -> Answer {
    let state = &mut *sandbox.state();
    find(state, &id)?;
    state.endpoints.retain(|endpoint| endpoint.id != id);
    let deleted = json!({ "id": id, "object": "webhook_endpoint.deleted", "deleted": true });
    Ok(answer(StatusCode::OK, deleted.to_string()))
}

pub(super) async fn rotate(State(sandbox): State<Arc<Sandbox>>, Path(id): Path<String>, body: Body) -> Answer {
    let request = read_json(body).await?;
    let keeps = request["keep_old_secret_active_for_24_hours"] == true;
    let now = super::unix_millis() / 1000;
    let state = &mut *sandbox.state();
    let endpoint = find(state, &id)?;
    let old = std::mem::replace(&mut endpoint.secret, generate_secret().into());
    endpoint.sender = sandbox.sender_to(&endpoint.url, &endpoint.secret, None)?;
    endpoint.rotating = match keeps {
        true => Some((now + KEPT, sandbox.sender_to(&endpoint.url, &endpoint.secret, Some(old))?)),
        false => None,
    };
    endpoint.updated_at = now;
    Ok(answer(StatusCode::OK, endpoint.shown(true).to_string()))
}

/// Sends a sample, whose session does not exist, once. What a platform answers when nobody is reached is not documented.
pub(super) async fn test(State(sandbox): State<Arc<Sandbox>>, Path(id): Path<String>, body: Body) -> Answer {
    let request = read_json(body).await?;
    let event = event_types(&json!([request["event_type"]]))?.remove(0);
    let now = super::unix_millis() / 1000;
    let (sender, delivery) = {
        let state = &mut *sandbox.state();
        let sender = find(state, &id)?.sender(now);
        let (webhook_id, event_id) = (state.ids.next("wh"), state.ids.next("evt"));
        let data = match event.as_str() {
            "agent.session.action_required" => {
                json!({ "id": "sess_sample", "required_action": { "type": "function_call" } })
            }
            _ if event.starts_with("agent.session.") => json!({ "id": "sess_sample", "environment_type": "none" }),
            _ => json!({ "id": "env_sample" }),
        };
        let sample = json!({ "id": event_id, "object": "event", "created_at": now, "type": event, "data": data });
        let session = "sess_sample".into();
        let (body, kind) = (sample.to_string(), EventType::ActionRequired);
        (sender, Delivery { session, webhook_id, event: kind, body, delay: Duration::ZERO })
    };
    let status = sender.attempt(&delivery).await.map_err(|why| ApiError::invalid(format!("The endpoint: {why}")))?;
    let tested = json!({
        "object": "webhook_endpoint.test", "webhook_endpoint_id": id, "event_type": event, "status_code": status,
        "success": true,
    });
    Ok(answer(StatusCode::OK, tested.to_string()))
}

pub(super) async fn list_event_types() -> Answer {
    Ok(answer(StatusCode::OK, json!({ "object": "list", "data": EVENT_TYPES }).to_string()))
}

impl Sandbox {
    /// With the pauses between attempts that the configured webhook has.
    fn sender_to(&self, url: &str, secret: &SecretString, old: Option<SecretString>) -> Result<Arc<Sender>, ApiError> {
        let mut webhook = Webhook::new(url, secret.expose_secret());
        if let Some(configured) = &self.config.webhook {
            webhook.retry = configured.retry.clone();
        }
        webhook.old_secret = old;
        Sender::new(webhook).map(Arc::new).map_err(|error| ApiError::invalid(error.to_string()))
    }
}

fn find<'a>(state: &'a mut Everything, id: &str) -> Result<&'a mut Endpoint, ApiError> {
    let found = state.endpoints.iter_mut().find(|endpoint| endpoint.id == id);
    found.ok_or_else(|| ApiError::not_found("webhook endpoint", id))
}

fn name(value: &Value) -> Result<String, ApiError> {
    let name = value.as_str().filter(|name| !name.is_empty()).map(str::to_owned);
    name.ok_or_else(|| ApiError::invalid("name: must be a string that is not empty"))
}

/// HTTPS, as at the platform; on this machine, plain HTTP too.
fn url(value: &Value) -> Result<String, ApiError> {
    let parsed = value.as_str().and_then(|text| Url::parse(text).ok());
    let is_local = |url: &Url| matches!(url.host_str(), Some("127.0.0.1" | "localhost" | "[::1]"));
    match parsed {
        Some(url) if url.scheme() == "https" || (url.scheme() == "http" && is_local(&url)) => Ok(url.into()),
        _ => Err(ApiError::invalid("url: must be an HTTPS URL")),
    }
}

fn event_types(value: &Value) -> Result<Vec<String>, ApiError> {
    let wrong =
        || ApiError::invalid("event_types: must be a list of event types; GET /v1/webhook_event_types has them");
    let types = value.as_array().filter(|types| !types.is_empty()).ok_or_else(wrong)?;
    let known = |kind: &Value| kind.as_str().filter(|kind| EVENT_TYPES.contains(kind)).map(str::to_owned);
    types.iter().map(|kind| known(kind).ok_or_else(wrong)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_old_secret_signs_for_a_day_and_no_longer() {
        let sender = |secret: &str| Arc::new(Sender::new(Webhook::new("http://127.0.0.1:1/", secret)).unwrap());
        let (both, alone) = (sender("both"), sender("alone"));
        let endpoint = Endpoint {
            id: "whe_1".into(),
            name: "n".into(),
            url: "http://127.0.0.1:1/".into(),
            event_types: vec!["agent.session.idle".into()],
            secret: "whsec_secret".to_owned().into(),
            created_at: 0,
            updated_at: 0,
            sender: alone.clone(),
            rotating: Some((100, both.clone())),
        };
        assert!(Arc::ptr_eq(&endpoint.sender(99), &both) && Arc::ptr_eq(&endpoint.sender(100), &alone));
        assert!(endpoint.wants(EventType::Idle) && !endpoint.wants(EventType::ActionRequired));
        assert!(!endpoint.shown(false).to_string().contains("whsec_secret"));
    }

    #[test]
    fn urls_are_https_but_for_this_machine() {
        for (text, right) in [
            ("https://a.example/webhooks/x", true),
            ("http://127.0.0.1:8080/x", true),
            ("http://a.example/x", false),
            ("ftp://127.0.0.1/", false),
            ("nonsense", false),
        ] {
            assert_eq!(url(&text.into()).is_ok(), right, "{text}");
        }
        assert!(event_types(&json!(["agent.session.idle", "agent.session.nap"])).is_err());
        assert!(event_types(&json!([])).is_err());
    }
}
