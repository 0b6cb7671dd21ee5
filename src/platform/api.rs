//! What every adapter that speaks HTTP shares: authorized requests, what their failures mean, ids as path segments.

use std::{
    fmt::Write as _,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::Uri;
use reqwest::{
    Method, RequestBuilder, Response, StatusCode, Url,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, USER_AGENT},
};
use secrecy::{ExposeSecret, SecretString};
use tracing::{debug, warn};

use super::{Error, Submitted, wire};
use crate::http::{Client, SendError, Sender, date, read_capped, retry_after};

pub(super) const AGENT: HeaderValue = HeaderValue::from_static(concat!("actiond/", env!("CARGO_PKG_VERSION")));
const TIMEOUT: Duration = Duration::from_secs(30);
pub(super) const MAX_ERROR: usize = 64 << 10;
const MAX_ID: usize = 512;

/// What a read came back with.
pub(super) struct Answer {
    pub(super) body: Bytes,
    /// The platform's own clock where it tells, so that ours may be wrong.
    pub(super) now: SystemTime,
}

/// One account at one base URL.
pub(super) struct Api {
    base_url: Url,
    /// The same without a slash at its end: what paths are appended to.
    base: String,
    headers: HeaderMap,
    client: Client,
    sender: Sender,
}

impl Api {
    /// The error says which of base URL and key is unusable; it never shows the key.
    pub(super) fn new(base_url: &str, api_key: &SecretString, client: Client) -> Result<Self, String> {
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
        let headers = HeaderMap::from_iter([(AUTHORIZATION, authorization), (USER_AGENT, AGENT)]);
        let base = url.as_str().trim_end_matches('/').to_owned();
        Ok(Self { sender: client.to(&url), base_url: url, base, headers, client })
    }

    /// Sends this with every request too.
    pub(super) fn with_header(mut self, (name, value): (HeaderName, HeaderValue)) -> Self {
        self.headers.insert(name, value);
        self
    }

    /// Below the base URL.
    pub(super) fn url(&self, path: &str) -> Url {
        let mut url = self.base_url.clone();
        url.set_path(&format!("{}{path}", self.base_url.path().trim_end_matches('/')));
        url
    }

    pub(super) fn request(&self, method: Method, url: Url) -> RequestBuilder {
        self.client.request(method, url).headers(self.headers.clone())
    }

    /// `path` is below the base URL and may have a query; both are escaped where they have to be.
    pub(super) async fn get(&self, path: &str, cap: usize) -> Result<Answer, Error> {
        let get = async {
            let response = self.send(Method::GET, path, self.headers.clone(), Bytes::new()).await?;
            // Its date has whole seconds: what it waits for must rather end early than late.
            let now = date(response.headers()).map_or_else(SystemTime::now, |date| date + Duration::from_secs(1));
            let body = read_capped(response, cap).await.map_err(|e| Failure::unclear(&e.to_string()))?;
            Ok(Answer { body, now })
        };
        tokio::time::timeout(TIMEOUT, get).await.unwrap_or_else(|_| Err(Failure::late())).map_err(Failure::into_error)
    }

    /// A stream of events, which has no end of its own.
    pub(super) async fn stream(&self, path: &str) -> Result<Response, Error> {
        let request = self.request(Method::GET, self.url(path)).header(ACCEPT, "text/event-stream").send();
        let answered = tokio::time::timeout(TIMEOUT, request).await;
        let response = answered.map_err(|_| Failure::late().into_error())?;
        let response = response.map_err(|e| Failure::transport(&e).into_error())?;
        if response.status().is_success() { Ok(response) } else { Err(Failure::read(response).await.into_error()) }
    }

    /// Posts JSON, under a key where there is one.
    pub(super) async fn post(&self, path: &str, body: Bytes, idempotency_key: Option<&str>) -> Result<(), Failure> {
        let mut headers = self.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(key) = idempotency_key {
            headers.insert("idempotency-key", HeaderValue::from_str(key).map_err(|_| Failure::unbuilt())?);
        }
        let post = self.send(Method::POST, path, headers, body);
        tokio::time::timeout(TIMEOUT, post).await.unwrap_or_else(|_| Err(Failure::late())).map(drop)
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<crate::http::Answer, Failure> {
        let uri: Uri = format!("{}{path}", self.base).parse().map_err(|_| Failure::unbuilt())?;
        let response = self.sender.send(method, uri, headers, body).await.map_err(|e| Failure::unsent(&e))?;
        if response.status().is_success() { Ok(response) } else { Err(Failure::read(response).await) }
    }
}

/// The path of `under` what stands under `path` with that id; `None` where the id cannot be one segment of a path.
pub(super) fn path_of(path: &str, id: &str, under: &str) -> Option<String> {
    let whole = segment(id).map(|id| format!("{path}/{id}{under}"));
    if whole.is_none() {
        warn!(session.id = %id.escape_debug(), "not the id of a session");
    }
    whole
}

pub(super) fn unreadable(detail: &str) -> Error {
    Error::Retryable { after: None, detail: detail.to_owned() }
}

/// An answer that is no success, or none at all.
pub(super) struct Failure {
    status: Option<StatusCode>,
    after: Option<Duration>,
    /// The call is not registered yet, or will never be: only its session tells which.
    pub(super) unknown_call: bool,
    /// Status and code. Never the message, which may repeat what was sent.
    detail: String,
}

impl Failure {
    /// The error's own text would hold the address.
    fn transport(error: &reqwest::Error) -> Self {
        match error {
            e if e.is_timeout() => Self::late(),
            e if e.is_builder() => Self::unbuilt(),
            e if e.is_connect() => Self::unclear("no connection"),
            _ => Self::unclear("the connection broke"),
        }
    }

    fn unsent(error: &SendError) -> Self {
        Self::unclear(if error.unsent { "no connection" } else { "the connection broke" })
    }

    fn unbuilt() -> Self {
        Self::unclear("the request cannot be built")
    }

    fn late() -> Self {
        Self::unclear("no answer in time")
    }

    /// Nobody can tell what became of the request.
    fn unclear(detail: &str) -> Self {
        Self { status: None, after: None, unknown_call: false, detail: detail.to_owned() }
    }

    async fn read<B>(response: impl Into<http::Response<B>>) -> Self
    where
        B: http_body::Body<Data = Bytes> + Unpin,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let response = response.into();
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

    pub(super) fn into_submitted(self) -> Submitted {
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
pub(super) fn segment(id: &str) -> Option<String> {
    let climbs = id.bytes().all(|byte| byte == b'.'); // also true for nothing at all
    if climbs || id.len() > MAX_ID || id.chars().any(char::is_control) {
        return None;
    }
    Some(escape(id))
}

/// Everything but unreserved characters becomes `%XX`.
pub(super) fn escape(id: &str) -> String {
    id.bytes().fold(String::with_capacity(id.len()), |mut escaped, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            let _ = write!(escaped, "%{byte:02X}");
        }
        escaped
    })
}
