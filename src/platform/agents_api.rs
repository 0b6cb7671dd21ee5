//! OpenAI's Agents API and whoever speaks it: sessions, their required actions, tool results as input events.

mod wire;

use std::{
    fmt::Write as _,
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;
use reqwest::{
    Client, Method, RequestBuilder, Response, StatusCode, Url,
    header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT},
};
use secrecy::{ExposeSecret, SecretString};
use tracing::{debug, warn};

use super::{Error, Flavor, Page, Platform, Submission, Submitted};
use crate::{
    http::{read_capped, retry_after},
    session::{CallKey, Session, SessionKey, ToolResult},
};

const BETA: (HeaderName, HeaderValue) = (HeaderName::from_static("openai-beta"), HeaderValue::from_static("agents=v1"));
const AGENT: HeaderValue = HeaderValue::from_static(concat!("actiond/", env!("CARGO_PKG_VERSION")));
const TIMEOUT: Duration = Duration::from_secs(30);
const MAX_SESSION: usize = 16 << 20;
/// A list repeats what each session was made of, its tools too.
const MAX_LIST: usize = 64 << 20;
const MAX_ERROR: usize = 64 << 10;
/// A submission stays under 4 MiB with its envelope.
const MAX_SUBMISSION: usize = (4 << 20) - 1024;
const MAX_ID: usize = 512;
/// A call may be listed before it can be answered. The official SDKs wait exactly so long for it.
const REGISTRATION: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(300), Duration::from_millis(600)];

/// One account at one base URL.
pub struct AgentsApi {
    name: Arc<str>,
    base_url: Url,
    headers: HeaderMap,
    client: Client,
    flavor: Flavor,
}

impl AgentsApi {
    /// `base_url` ends before `/agents`. The error says which of the two is unusable; it never shows the key.
    pub fn new(name: &str, base_url: &str, api_key: &SecretString, client: Client) -> Result<Self, String> {
        let url = Url::parse(base_url).map_err(|e| format!("base_url: {e}"))?;
        if !matches!(url.scheme(), "http" | "https") || url.query().is_some() || url.fragment().is_some() {
            return Err("base_url: must be an http or https url without query".to_owned());
        }
        let key = api_key.expose_secret().trim_end_matches(['\r', '\n']);
        if key.is_empty() {
            return Err("api_key: is empty".to_owned());
        }
        let mut authorization = HeaderValue::from_str(&format!("Bearer {key}"))
            .map_err(|_| "api_key: has characters that no header can carry".to_owned())?;
        authorization.set_sensitive(true);
        let headers = HeaderMap::from_iter([(AUTHORIZATION, authorization), (USER_AGENT, AGENT), BETA]);
        Ok(Self { name: name.into(), base_url: url, headers, client, flavor: Flavor::OpenAi })
    }

    /// Speaks to a platform that differs from OpenAI.
    pub fn with_flavor(self, flavor: Flavor) -> Self {
        Self { flavor, ..self }
    }

    /// Reads a session's resource as the API answers it; `None` where the text is none. What one required action carries
    /// cannot hurt the others.
    pub fn parse_session(key: &SessionKey, body: &[u8]) -> Option<Session> {
        wire::session(key, body)
    }

    /// Reads a page of the list of sessions; `None` where the text is none. `platform` becomes part of each key.
    pub fn parse_page(platform: &Arc<str>, body: &[u8]) -> Option<Page> {
        wire::page(platform, body)
    }

    /// Below the base URL, which is parsed once: a host's name costs more than the rest of a request's address.
    fn url(&self, path: &str) -> Url {
        let mut url = self.base_url.clone();
        url.set_path(&format!("{}{path}", self.base_url.path().trim_end_matches('/')));
        url
    }

    fn request(&self, method: Method, url: Url) -> RequestBuilder {
        self.client.request(method, url).headers(self.headers.clone()).timeout(TIMEOUT)
    }

    /// The session's address; `None` where the id cannot be one segment of a path.
    fn session_url(&self, session: &str, under: &str) -> Option<Url> {
        let url = segment(session).map(|id| self.url(&format!("/agents/sessions/{id}{under}")));
        if url.is_none() {
            warn!(platform = %self.name, session.id = %session.escape_debug(), "not the id of a session");
        }
        url
    }

    async fn get(&self, url: Url, cap: usize) -> Result<Bytes, Error> {
        let response = self.request(Method::GET, url).send().await.map_err(|e| Failure::transport(&e).into_error())?;
        if !response.status().is_success() {
            return Err(Failure::read(response).await.into_error());
        }
        read_capped(response, cap).await.map_err(|e| unreadable(&e.to_string()))
    }

    async fn post(&self, url: &Url, submission: &Submission) -> Result<(), Failure> {
        let request = self
            .request(Method::POST, url.clone())
            .header(CONTENT_TYPE, "application/json")
            .header("idempotency-key", &submission.idempotency_key)
            .body(submission.body.clone());
        let response = request.send().await.map_err(|e| Failure::transport(&e))?;
        if response.status().is_success() { Ok(()) } else { Err(Failure::read(response).await) }
    }
}

#[async_trait]
impl Platform for AgentsApi {
    async fn retrieve(&self, session: &SessionKey) -> Result<Session, Error> {
        let url = self.session_url(&session.session, "").ok_or(Error::Gone)?;
        let body = self.get(url, MAX_SESSION).await?;
        Self::parse_session(session, &body).ok_or_else(|| unreadable("the answer is no session"))
    }

    async fn list(&self, after: Option<&str>) -> Result<Page, Error> {
        let mut url = self.url("/agents/sessions");
        let after = after.map(|after| format!("&after={}", escape(after))).unwrap_or_default();
        url.set_query(Some(&format!("limit=100&order=desc{after}")));
        let body = self.get(url, MAX_LIST).await?;
        Self::parse_page(&self.name, &body).ok_or_else(|| unreadable("the answer is no list of sessions"))
    }

    fn fitting(&self, result: ToolResult) -> ToolResult {
        self.flavor.fitting(result)
    }

    fn encode(&self, call: &CallKey, result: &ToolResult, generation: u32) -> Submission {
        Submission {
            body: wire::tool_result(call, result),
            idempotency_key: call.submission_idempotency_key(generation),
        }
    }

    async fn submit(&self, call: &CallKey, submission: &Submission) -> Submitted {
        if submission.body.len() > MAX_SUBMISSION {
            return Submitted::TooLarge { detail: format!("more than {MAX_SUBMISSION} bytes") };
        }
        let Some(url) = self.session_url(&call.session.session, "/events") else {
            return Submitted::Gone;
        };
        for wait in REGISTRATION {
            match self.post(&url, submission).await {
                Ok(()) => return Submitted::Accepted,
                Err(failure) if failure.unknown_call => tokio::time::sleep(wait).await,
                Err(failure) => return failure.into_submitted(),
            }
        }
        self.post(&url, submission).await.map_or_else(Failure::into_submitted, |()| Submitted::Accepted)
    }
}

fn unreadable(detail: &str) -> Error {
    Error::Retryable { after: None, detail: detail.to_owned() }
}

/// An answer that is no success, or none at all.
struct Failure {
    status: Option<StatusCode>,
    after: Option<Duration>,
    /// The call is not registered yet, or will never be: only its session tells which.
    unknown_call: bool,
    /// Status and code. Never the message, which may repeat what was sent.
    detail: String,
}

impl Failure {
    /// The error's own text would hold the address.
    fn transport(error: &reqwest::Error) -> Self {
        let detail = match error {
            e if e.is_timeout() => "no answer in time",
            e if e.is_connect() => "no connection",
            e if e.is_builder() => "the request cannot be built",
            _ => "the connection broke",
        };
        Self { status: None, after: None, unknown_call: false, detail: detail.to_owned() }
    }

    async fn read(response: Response) -> Self {
        let status = response.status();
        let after = retry_after(response.headers(), SystemTime::now());
        let request_id = response.headers().get("x-request-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
        let error = read_capped(response, MAX_ERROR).await.ok().and_then(|body| wire::error(&body)).unwrap_or_default();
        let mut detail = format!("status {}", status.as_u16());
        if let Some(code) = &error.code {
            let _ = write!(detail, " {code}");
        }
        debug!(%detail, request.id = request_id, "the platform refused a request");
        let unknown_call = status == StatusCode::BAD_REQUEST && error.unknown_call;
        Self { status: Some(status), after, unknown_call, detail }
    }

    fn into_error(self) -> Error {
        match self.status.map(|status| status.as_u16()) {
            Some(404) => Error::Gone,
            Some(401 | 403) => Error::Unauthorized { detail: self.detail },
            _ => Error::Retryable { after: self.after, detail: self.detail },
        }
    }

    fn into_submitted(self) -> Submitted {
        let Self { status, after, unknown_call, detail } = self;
        match status.map(|status| status.as_u16()) {
            _ if unknown_call => Submitted::Unknown { detail },
            Some(401 | 403) => Submitted::Unauthorized { detail },
            Some(404) => Submitted::Gone,
            Some(409) => Submitted::Unclear { detail },
            Some(413) => Submitted::TooLarge { detail },
            Some(402 | 408 | 425 | 429) | None => Submitted::Retry { after, detail },
            Some(400..500) => Submitted::Refused { detail },
            Some(_) => Submitted::Retry { after, detail },
        }
    }
}

/// The id as exactly one segment of a path. Dots alone would be taken for a step in the path, escaped or not.
fn segment(id: &str) -> Option<String> {
    let climbs = id.bytes().all(|byte| byte == b'.'); // also true for nothing at all
    if climbs || id.len() > MAX_ID || id.chars().any(char::is_control) {
        return None;
    }
    Some(escape(id))
}

/// Everything but unreserved characters becomes `%XX`.
fn escape(id: &str) -> String {
    id.bytes().fold(String::with_capacity(id.len()), |mut escaped, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
        escaped
    })
}

#[cfg(test)]
mod tests;
