//! AIVAX calls us: `POST /functions/{platform}` runs a function and answers its text, `GET` lists the functions.
//!
//! AIVAX waits for the answer, sends no call id and drops the body of any answer that is not 2xx. So a call runs at once and
//! within a budget, what a model can mend is a 200 with a sentence, and only a request that is not AIVAX's, or that cannot be
//! taken now, gets another status.

mod envelope;
mod gate;
mod listing;
mod run;

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{
    Json, Router,
    body::HttpBody as _,
    extract::{ConnectInfo, Path, Request, State, rejection::PathRejection},
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use serde_json::json;
use tokio::sync::Semaphore;
use tracing::{Instrument as _, field::Empty, info_span};

use self::{envelope::Callback, gate::Gate, listing::Listing, run::Answer};
use crate::{
    function::{Live, Place},
    metrics::Metrics,
    nonce::Pool,
    platform::{self, AivaxConfig},
    store::Ledger,
};

/// Callbacks looked at at once.
const MAX_IN_FLIGHT: usize = 512;
/// How long a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Metric label of a platform that is not configured.
const UNKNOWN: &str = "unknown";

/// What the routes work with.
pub struct Callbacks {
    /// What this process is called in histories.
    name: Arc<str>,
    accounts: HashMap<String, Account>,
    ledger: Ledger,
    functions: Arc<Live>,
    metrics: Metrics,
    /// Bytes of a request body that are read at most.
    max_body: usize,
    slots: Semaphore,
}

/// One platform of type aivax.
struct Account {
    name: Arc<str>,
    gate: Gate,
    listing: Listing,
    budget: Duration,
}

impl Callbacks {
    /// `None` where no platform is of type aivax. `public_url` is where AIVAX reaches this listener.
    pub fn new(
        platforms: &[platform::Config],
        public_url: &str,
        ledger: Ledger,
        functions: Arc<Live>,
        metrics: Metrics,
        max_body: usize,
    ) -> Option<Self> {
        let pool = Pool::for_this_machine();
        let accounts: HashMap<_, _> = platforms
            .iter()
            .filter_map(|platform| match &platform.kind {
                platform::Kind::Aivax(aivax) => {
                    Some((platform.name.clone(), Account::new(&platform.name, aivax, public_url, &pool)))
                }
                platform::Kind::AgentsApi { .. } | platform::Kind::WorkflowRuns { .. } => None,
            })
            .collect();
        let slots = Semaphore::new(MAX_IN_FLIGHT);
        (!accounts.is_empty()).then_some(Self {
            name: crate::process::name(),
            accounts,
            ledger,
            functions,
            metrics,
            max_body,
            slots,
        })
    }
}

impl Account {
    fn new(name: &str, config: &AivaxConfig, public_url: &str, pool: &Pool) -> Self {
        Self {
            name: name.into(),
            gate: Gate::new(config, pool.clone()),
            listing: Listing::new(callback_url(public_url, name), config.listing_secrets.first()),
            budget: config.budget,
        }
    }
}

/// Where that platform calls.
pub fn callback_url(public_url: &str, platform: &str) -> String {
    format!("{public_url}/functions/{platform}")
}

/// The routes, to be merged into the ingress listener's.
pub fn router(callbacks: Callbacks) -> Router {
    let methods = get(list).post(call).fallback(async || error(StatusCode::METHOD_NOT_ALLOWED, "use post or get"));
    Router::new().route("/functions/{platform}", methods).with_state(Arc::new(callbacks))
}

/// Why a request is not answered 200. The texts are public.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rejected {
    UnknownPlatform,
    /// No nonce.
    Missing,
    /// A nonce or token that is not right, in whatever way.
    Wrong,
    /// This peer failed too often.
    Limited,
    Overloaded,
    TooLarge,
    TooSlow,
    Malformed(&'static str),
    UnknownFunction,
    /// An import may bring the function soon.
    NotImported,
    /// The store is away.
    Unavailable,
}

async fn call(
    State(callbacks): State<Arc<Callbacks>>,
    path: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let name = path.map(|Path(name)| name).unwrap_or_default();
    let known = callbacks.accounts.get_key_value(&name).map_or(UNKNOWN, |(name, _)| name);
    let span = info_span!("callback", platform = known, function = Empty, session.id = Empty, call.id = Empty);
    let answered = answer(callbacks.clone(), &name, request).instrument(span).await;
    match answered {
        Ok(text) => {
            callbacks.metrics.callback(known, "answered");
            ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
        }
        Err(rejected) => refuse(&callbacks.metrics, known, rejected),
    }
}

async fn answer(callbacks: Arc<Callbacks>, name: &str, request: Request) -> Result<String, Rejected> {
    let account = callbacks.accounts.get(name).ok_or(Rejected::UnknownPlatform)?;
    let _slot = callbacks.slots.try_acquire().map_err(|_| Rejected::Overloaded)?;
    let peer = peer(&request);
    let (head, body) = request.into_parts();
    if body.size_hint().lower() > callbacks.max_body as u64 {
        return Err(Rejected::TooLarge);
    }
    account.gate.callback(&head.headers, peer).await?;
    let read = tokio::time::timeout(BODY_TIMEOUT, axum::body::to_bytes(body, callbacks.max_body)).await;
    let body = read.map_err(|_| Rejected::TooSlow)?;
    let body = body.map_err(|_| Rejected::Malformed("the body is too large or not complete"))?;
    let callback = Callback::parse(&body).map_err(Rejected::Malformed)?;
    let here = callbacks.functions.place(&callback.function, name) == Place::Here;
    let Some(function) = callbacks.functions.get(&callback.function, name).filter(|_| here) else {
        if here && callbacks.functions.is_expected(&callback.function) {
            return Err(Rejected::NotImported);
        }
        callbacks.metrics.unknown_function(name);
        return Err(Rejected::UnknownFunction);
    };
    // In a task of its own: AIVAX may hang up, but what a handler began is finished and stored.
    let running = callbacks.clone();
    let account = account.name.clone();
    let task = async move { run::run(&running, &account, &function, callback).await };
    match tokio::spawn(task.in_current_span()).await {
        Ok(Answer::Text(text)) => Ok(text),
        Ok(Answer::Overloaded) => Err(Rejected::Overloaded),
        Ok(Answer::Unavailable) => Err(Rejected::Unavailable),
        Err(_) => {
            tracing::error!("a callback panicked");
            Ok(crate::worker::FAILED.to_owned())
        }
    }
}

async fn list(
    State(callbacks): State<Arc<Callbacks>>,
    path: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let name = path.map(|Path(name)| name).unwrap_or_default();
    let Some((known, account)) = callbacks.accounts.get_key_value(&name) else {
        return refuse(&callbacks.metrics, UNKNOWN, Rejected::UnknownPlatform);
    };
    let peer = peer(&request);
    let admitted = account.gate.listing(request.headers(), request.uri().query(), peer).await;
    if let Err(rejected) = admitted {
        return refuse(&callbacks.metrics, known, rejected);
    }
    callbacks.metrics.callback(known, "listed");
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
    ];
    (headers, account.listing.render(&callbacks.functions, known)).into_response()
}

/// Who connected. Behind a proxy it is the proxy.
fn peer(request: &Request) -> IpAddr {
    let connected = request.extensions().get::<ConnectInfo<SocketAddr>>();
    connected.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |ConnectInfo(address)| address.ip())
}

fn refuse(metrics: &Metrics, platform: &str, rejected: Rejected) -> Response {
    // Missing and wrong read the same: what was wrong helps nobody who is right.
    const WHO: &str = "the request is not authenticated";
    let (outcome, status, message) = match rejected {
        Rejected::UnknownPlatform => ("unknown_platform", StatusCode::NOT_FOUND, "no such platform"),
        Rejected::Missing => ("unauthorized", StatusCode::UNAUTHORIZED, WHO),
        Rejected::Wrong => ("unauthorized", StatusCode::FORBIDDEN, WHO),
        Rejected::Limited => ("limited", StatusCode::TOO_MANY_REQUESTS, "too many failures; come again in a minute"),
        Rejected::Overloaded => ("overloaded", StatusCode::SERVICE_UNAVAILABLE, "too many requests at once"),
        Rejected::TooLarge => ("too_large", StatusCode::PAYLOAD_TOO_LARGE, "the body is too large"),
        Rejected::TooSlow => ("timeout", StatusCode::REQUEST_TIMEOUT, "the body came too slowly"),
        Rejected::Malformed(why) => ("malformed", StatusCode::BAD_REQUEST, why),
        Rejected::UnknownFunction => ("unknown_function", StatusCode::NOT_FOUND, "no such function"),
        Rejected::NotImported => ("not_imported", StatusCode::SERVICE_UNAVAILABLE, "the function is not imported yet"),
        Rejected::Unavailable => ("unavailable", StatusCode::SERVICE_UNAVAILABLE, "the store is not available"),
    };
    metrics.callback(platform, outcome);
    tracing::debug!(platform, outcome, "callback refused");
    let mut response = error(status, message);
    if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("5"));
    }
    response
}

fn error(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({ "error": message }))).into_response()
}

/// The value of a header that must be there exactly once.
fn single<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let mut all = headers.get_all(name).iter();
    match (all.next(), all.next()) {
        (Some(value), None) => value.to_str().ok(),
        _ => None,
    }
}
