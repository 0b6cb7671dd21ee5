//! Posts a call to a URL; the answer is the output.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use bytes::Bytes;
use http::Uri;
use jiff::{Timestamp, tz::Offset};
use reqwest::{
    Method, StatusCode, Url,
    header::{CONTENT_TYPE, HeaderMap, HeaderValue},
};
use serde::Serialize;
use serde_json::{Map, Value};

use super::{
    Body, Call, Error, Handler, HttpConfig, Response, output,
    sign::{Signer, headers},
};
use crate::{
    http::{BodyError, Client, Sender, read_capped, retry_after, uri},
    nonce::Minted,
    session::Output,
};

const IDEMPOTENCY_KEY: &str = "idempotency-key";

pub struct Http {
    sender: Sender,
    uri: Uri,
    headers: HeaderMap,
    timeout: Duration,
    body: Body,
    response: Response,
    max_response: usize,
    signer: Signer,
}

impl Http {
    /// The error says where in the handler's config, and what; never a value.
    pub fn new(config: &HttpConfig, client: Client) -> Result<Self, (String, String)> {
        let url = Url::parse(&config.url).ok().filter(|url| matches!(url.scheme(), "http" | "https"));
        let url = url.ok_or_else(|| ("url".into(), "must be an absolute http or https URL".into()))?;
        Ok(Self {
            sender: client.to(&url),
            uri: uri(&url).map_err(|why| ("url".into(), why.into()))?,
            headers: headers(&config.headers)?,
            timeout: config.timeout,
            body: config.body,
            response: config.response,
            max_response: config.max_response,
            signer: Signer::new(&config.sign).map_err(|(path, why)| (format!("sign.{path}"), why))?,
        })
    }

    /// With a nonce that others send too.
    pub fn with_nonce(self, nonce: Option<Arc<Minted>>) -> Self {
        Self { signer: self.signer.with_nonce(nonce), ..self }
    }

    async fn exchange(&self, call: &Call, now: SystemTime) -> Result<Output, Error> {
        let body = self.body_for(call, now);
        let mut headers = self.headers_for(call);
        self.signer.sign(&call.key.handler_idempotency_key(), &mut headers, body.as_bytes(), now).await?;
        let sent = self.sender.send(Method::POST, self.uri.clone(), headers, body.into()).await;
        let response = sent.map_err(|error| match error.unsent {
            true => Error::retryable(error.to_string()),
            false => Error::unknown(error.to_string()),
        })?;
        match response.status() {
            StatusCode::ACCEPTED if call.result_url.is_some() => return Err(Error::Later),
            StatusCode::ACCEPTED => {
                let detail =
                    "the handler answered 202 (later), but has no address for its result: set ingress.public_url";
                let message = "The function gives its result later, which is not available synchronously.".to_owned();
                return Err(Error::Final { detail: detail.to_owned(), message: Some(message) });
            }
            status if status.is_success() => {}
            status => return Err(refused(status, response.headers(), now)),
        }
        let content_type = response.headers().get(CONTENT_TYPE).cloned();
        let body = read_capped(response, self.max_response).await.map_err(unreadable)?;
        self.output(image_type(content_type.as_ref()), body)
    }

    fn headers_for(&self, call: &Call) -> HeaderMap {
        let mut headers = self.headers.clone();
        let mut insert = |name: &'static str, value: &str| {
            // A value that is no header value is left out: it comes from outside and is in the body too.
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(name, value);
            }
        };
        insert("content-type", "application/json");
        insert(IDEMPOTENCY_KEY, &call.key.handler_idempotency_key());
        insert("actiond-function", &call.function);
        insert("actiond-attempt", &call.attempt.to_string());
        if let Some(url) = &call.result_url {
            insert("actiond-result-url", url);
        }
        if let Some(traceparent) = &call.traceparent {
            insert("traceparent", traceparent);
        }
        headers
    }

    fn body_for(&self, call: &Call, now: SystemTime) -> String {
        match self.body {
            Body::Arguments => call.arguments.text().to_owned(),
            Body::Protocol => envelope(call, now),
        }
    }

    fn output(&self, image: Option<String>, body: Bytes) -> Result<Output, Error> {
        match (self.response, image) {
            // Nothing to say is a success in every form.
            _ if body.is_empty() => Ok(Output::Text(String::new())),
            (Response::Content | Response::Image, _) => output::read(self.response, &body),
            (Response::Text, Some(image)) => Ok(output::image(&image, &body)),
            (Response::Text, None) => output::read(Response::Text, &body),
        }
    }
}

#[async_trait]
impl Handler for Http {
    async fn call(&self, call: &Call) -> Result<Output, Error> {
        let now = SystemTime::now();
        let limit = call.time_left(self.timeout, now);
        tokio::time::timeout(limit, self.exchange(call, now))
            .await
            .unwrap_or_else(|_| Err(Error::unknown(format!("no answer within {limit:.1?}"))))
    }
}

/// The AIVAX envelope with our ids added in `context`.
#[derive(Serialize)]
struct Envelope<'a> {
    r#type: &'static str,
    function: Function<'a>,
    context: Context<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    content: &'a Value,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Context<'a> {
    external_user_id: Option<&'a str>,
    metadata: Map<String, Value>,
    call_source: &'a str,
    conversation_token: &'a str,
    moment: String,
    platform: &'a str,
    session_id: &'a str,
    turn_id: &'a str,
    call_id: &'a str,
    attempt: u32,
    idempotency_key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    result_url: Option<&'a str>,
}

/// Keys of a session's metadata that say what AIVAX's context says; they fill it and are left out of its `metadata`.
const CONTEXT: [&str; 4] = ["externalUserId", "callSource", "conversationToken", "moment"];

fn envelope(call: &Call, now: SystemTime) -> String {
    let session = &call.key.session;
    let given = |key: &str| call.metadata.get(key).and_then(Value::as_str);
    let text = |value: &Value| Value::String(value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    let fills = |key: &str, value: &Value| CONTEXT.contains(&key) && value.is_string();
    let envelope = Envelope {
        r#type: "tool_call",
        function: Function { name: &call.function, content: call.arguments.value() },
        context: Context {
            external_user_id: ["externalUserId", "external_user_id", "user"].into_iter().find_map(given),
            metadata: call
                .metadata
                .iter()
                .filter(|(key, value)| !fills(key, value))
                .map(|(key, value)| (key.clone(), text(value)))
                .collect(),
            call_source: given("callSource").unwrap_or("actiond"),
            conversation_token: given("conversationToken").unwrap_or(&session.session),
            moment: given("moment")
                .filter(|moment| moment.parse::<Timestamp>().is_ok())
                .map_or_else(|| moment(now), str::to_owned),
            platform: &session.platform,
            session_id: &session.session,
            turn_id: &call.key.turn,
            call_id: &call.key.call_id,
            attempt: call.attempt,
            idempotency_key: call.key.handler_idempotency_key(),
            result_url: call.result_url.as_deref(),
        },
    };
    serde_json::to_string(&envelope).unwrap_or_default()
}

/// `2026-11-30T12:00:00+00:00`
fn moment(now: SystemTime) -> String {
    let now = Timestamp::try_from(now).unwrap_or_default();
    Timestamp::from_second(now.as_second()).unwrap_or_default().display_with_offset(Offset::UTC).to_string()
}

fn refused(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Error {
    let detail = format!("the handler answered {}", status.as_u16());
    match status.as_u16() {
        429 | 503 => Error::Overloaded { detail, after: retry_after(headers, now) },
        408 | 425 | 500..=599 => Error::Retryable { detail, after: retry_after(headers, now) },
        _ => Error::fatal(detail),
    }
}

fn unreadable(error: BodyError) -> Error {
    match error {
        BodyError::TooLarge { cap } => Error::too_large(cap),
        BodyError::Encoded => Error::fatal(error.to_string()),
        BodyError::Transport(_) => Error::unknown(error.to_string()),
    }
}

/// `image/png` of an image's content type, without parameters.
fn image_type(content_type: Option<&HeaderValue>) -> Option<String> {
    let essence = content_type?.to_str().ok()?.split(';').next()?.trim().to_ascii_lowercase();
    let subtype = essence.strip_prefix("image/")?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"+-.".contains(&b);
    (!subtype.is_empty() && subtype.bytes().all(plain)).then_some(essence)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
