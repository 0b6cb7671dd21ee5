//! The public listener: verifies a webhook, publishes its session, and only then answers 2xx.

pub mod approvals;
pub mod event;
pub mod results;
pub mod signature;

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use axum::{
    Json, Router,
    body::{Body, HttpBody as _},
    extract::{Path, Request, State, rejection::PathRejection},
    http::{HeaderMap, StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
    routing::post,
};
use futures_util::StreamExt as _;
use serde_json::json;
use tokio::{net::TcpListener, sync::Semaphore, time::timeout};
use tracing::{Instrument as _, Span, debug, field::Empty, info_span, warn};

use self::{
    event::{Event, Malformed},
    signature::{Refused, Verified, Verifier},
};
use crate::{
    metrics::Metrics,
    queue::{PublishError, SharedQueue},
    session::{ActionRequired, SessionKey},
    telemetry,
};

/// Webhooks looked at at once. With `max_body` it bounds the memory of the listener; the rest is told to come again.
const MAX_IN_FLIGHT: usize = 1024;
/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Seconds after which a sender whom we could not serve may come again.
const RETRY_AFTER_SECONDS: u32 = 5;
/// Metric label and log field of a platform that is not configured: what strangers make up must not become a label.
const UNKNOWN: &str = "unknown";

/// `ingress` in the config.
#[derive(Clone, Debug)]
pub struct Config {
    pub listen: SocketAddr,
    /// Bytes of a request body that are read at most.
    pub max_body: usize,
    /// Where the platforms reach us, for what is printed and handed out.
    pub public_url: Option<String>,
}

/// What the webhook route works with.
pub struct Ingress {
    pub platforms: HashMap<String, Verifier>,
    pub queue: SharedQueue,
    pub metrics: Metrics,
    /// Bytes of a request body that are read at most.
    pub max_body: usize,
    /// How long a body may take to arrive.
    pub body_timeout: Duration,
    /// Webhooks looked at at once.
    pub slots: Semaphore,
    pub clock: fn() -> SystemTime,
}

impl Ingress {
    pub fn new(platforms: HashMap<String, Verifier>, queue: SharedQueue, metrics: Metrics, max_body: usize) -> Self {
        Self {
            platforms,
            queue,
            metrics,
            max_body,
            body_timeout: BODY_TIMEOUT,
            slots: Semaphore::new(MAX_IN_FLIGHT),
            clock: SystemTime::now,
        }
    }
}

/// The routes of the listener. It never answers 3xx or 410, which senders take as more than "not now".
pub fn router(ingress: Ingress) -> Router {
    Router::new()
        .route("/webhooks/{platform}", post(webhook))
        .fallback(async || error(StatusCode::NOT_FOUND, "no such path"))
        .method_not_allowed_fallback(async || error(StatusCode::METHOD_NOT_ALLOWED, "use post"))
        .with_state(Arc::new(ingress))
}

/// Serves until `shutdown` resolves, then finishes the requests that have begun. A peer that never ends its request holds
/// it open: the caller bounds the wait.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let router = router.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, router).with_graceful_shutdown(shutdown).await
}

async fn webhook(
    State(ingress): State<Arc<Ingress>>,
    path: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let named = path.ok().and_then(|Path(name)| ingress.platforms.get_key_value(&name));
    let platform = named.map_or(UNKNOWN, |(name, _)| name.as_str());
    let span = info_span!(
        "webhook",
        platform,
        webhook.id = Empty,
        webhook.secret = Empty,
        session.id = Empty,
        outcome = Empty
    );
    async {
        let outcome = match named {
            Some((platform, verifier)) => ingress.accept(platform, verifier, request).await,
            None => Err(Rejected::UnknownPlatform),
        };
        ingress.answer(platform, outcome)
    }
    .instrument(span)
    .await
}

/// A webhook that is answered 200.
enum Accepted {
    Queued,
    Ignored,
}

/// Why a webhook is not answered 200.
enum Rejected {
    UnknownPlatform,
    Overloaded,
    TooLarge,
    TooSlow,
    /// The connection broke within the body.
    Cut,
    Signature(Refused),
    Malformed(Malformed),
    Unavailable(PublishError),
}

impl Ingress {
    async fn accept(&self, platform: &str, verifier: &Verifier, request: Request) -> Result<Accepted, Rejected> {
        let _slot = self.slots.try_acquire().map_err(|_| Rejected::Overloaded)?;
        let (head, body) = request.into_parts();
        let body = timeout(self.body_timeout, read(body, self.max_body)).await.map_err(|_| Rejected::TooSlow)??;
        let now = (self.clock)().duration_since(UNIX_EPOCH).unwrap_or_default();
        let verified = verify(verifier, &head.headers, &body, now)?;
        match event::parse(&body).map_err(Rejected::Malformed)? {
            Event::Ignored { kind } => {
                debug!(event.kind = %kind.escape_debug(), "webhook ignored");
                Ok(Accepted::Ignored)
            }
            Event::ActionRequired { session, .. } => self.publish(platform, session, verified, now).await,
        }
    }

    async fn publish(
        &self,
        platform: &str,
        session: String,
        verified: Verified,
        now: Duration,
    ) -> Result<Accepted, Rejected> {
        Span::current().record("session.id", &session);
        let action = ActionRequired {
            session: SessionKey::new(platform, session),
            event: verified.id,
            accepted_at: i64::try_from(now.as_millis()).unwrap_or(i64::MAX),
            tries: 0,
            traceparent: telemetry::traceparent(),
        };
        let start = Instant::now();
        let published = self.queue.publish(&action).instrument(info_span!("publish")).await;
        self.metrics.published(start.elapsed().as_secs_f64());
        published.map(|()| Accepted::Queued).map_err(Rejected::Unavailable)
    }

    fn answer(&self, platform: &str, result: Result<Accepted, Rejected>) -> Response {
        let (outcome, response) = match &result {
            Ok(Accepted::Queued) => ("queued", Json(json!({"status": "queued"})).into_response()),
            Ok(Accepted::Ignored) => ("ignored", Json(json!({"status": "ignored"})).into_response()),
            Err(rejected) => refuse(rejected),
        };
        Span::current().record("outcome", outcome);
        self.metrics.webhook(platform, outcome);
        match &result {
            Err(Rejected::Unavailable(reason)) => warn!(%reason, "webhook not queued"),
            _ => debug!(status = response.status().as_u16(), "webhook answered"),
        }
        response
    }
}

/// The whole body, unless it grows past `max` bytes.
async fn read(body: Body, max: usize) -> Result<Vec<u8>, Rejected> {
    if body.size_hint().lower() > max as u64 {
        return Err(Rejected::TooLarge);
    }
    let mut bytes = Vec::new();
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(|_| Rejected::Cut)?;
        if chunk.len() > max - bytes.len() {
            return Err(Rejected::TooLarge);
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn verify(verifier: &Verifier, headers: &HeaderMap, body: &[u8], now: Duration) -> Result<Verified, Rejected> {
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let verified = verifier.verify(headers, body, now).map_err(|reason| {
        debug!(%reason, "webhook refused");
        Rejected::Signature(reason)
    })?;
    Span::current().record("webhook.id", &verified.id).record("webhook.secret", verified.secret);
    Ok(verified)
}

/// Outcome label and answer.
fn refuse(rejected: &Rejected) -> (&'static str, Response) {
    match rejected {
        Rejected::UnknownPlatform => ("unknown_platform", error(StatusCode::NOT_FOUND, "no such platform")),
        Rejected::Overloaded => ("overloaded", later("too many webhooks at once")),
        Rejected::TooLarge => ("too_large", error(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large")),
        Rejected::TooSlow => ("timeout", error(StatusCode::REQUEST_TIMEOUT, "the body came too slowly")),
        Rejected::Cut => ("malformed", error(StatusCode::BAD_REQUEST, "the body is not complete")),
        Rejected::Signature(reason) => ("signature", error(StatusCode::UNAUTHORIZED, &reason.to_string())),
        Rejected::Malformed(reason) => ("malformed", error(StatusCode::BAD_REQUEST, &reason.to_string())),
        Rejected::Unavailable(_) => ("unavailable", later("the queue is not available")),
    }
}

fn later(message: &str) -> Response {
    let mut response = error(StatusCode::SERVICE_UNAVAILABLE, message);
    response.headers_mut().insert(RETRY_AFTER, RETRY_AFTER_SECONDS.into());
    response
}

fn error(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({"error": message}))).into_response()
}

#[cfg(test)]
mod tests;
