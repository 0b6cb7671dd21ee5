//! `/approvals/{token}`: the page behind a one-time link. Opening it decides nothing; its form does.

use std::{sync::Arc, time::Duration};

use axum::{
    Form, Router,
    extract::{
        DefaultBodyLimit, Path, State,
        rejection::{FormRejection, PathRejection},
    },
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use jiff::Timestamp;
use maud::{DOCTYPE, Markup, html};
use serde::Deserialize;
use tower_http::timeout::TimeoutLayer;

use crate::{
    approval::{self, notify::Links},
    function::Live,
    redact,
    session::CallKey,
    shown::{escape, pretty},
    store::{self, Approval, Decide, Decided, Decision, Ledger},
};

/// Bytes of a form that are read at most.
const MAX_FORM: usize = 16 << 10;
/// How long a form may take to arrive.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What the page works with.
pub struct Approvals {
    pub links: Links,
    pub ledger: Ledger,
    /// For what a function says of itself.
    pub functions: Arc<Live>,
}

/// The route, to be merged into the listener's. A token is a secret: neither it nor the path is logged.
pub fn router(approvals: Approvals) -> Router {
    let other = async || page(StatusCode::METHOD_NOT_ALLOWED, "This is no way to decide", html! {});
    Router::new()
        .route("/approvals/{token}", get(show).post(decide).fallback(other))
        .layer(DefaultBodyLimit::max(MAX_FORM))
        .layer(TimeoutLayer::with_status_code(StatusCode::REQUEST_TIMEOUT, TIMEOUT))
        .with_state(Arc::new(approvals))
}

type Token = Result<Path<String>, PathRejection>;

async fn show(State(approvals): State<Arc<Approvals>>, token: Token) -> Response {
    match approvals.find(token).await {
        Ok((_, approval)) => approvals.shown(StatusCode::OK, &approval),
        Err(response) => response,
    }
}

#[derive(Deserialize)]
struct Choice {
    decision: Verdict,
    #[serde(default)]
    by: String,
    #[serde(default)]
    reason: String,
}

#[derive(Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Approve,
    Deny,
}

async fn decide(
    State(approvals): State<Arc<Approvals>>,
    token: Token,
    form: Result<Form<Choice>, FormRejection>,
) -> Response {
    let (key, approval) = match approvals.find(token).await {
        Ok(found) => found,
        Err(response) => return response,
    };
    let Ok(Form(Choice { decision, by, reason })) = form else {
        return page(StatusCode::BAD_REQUEST, "The form is not complete", html! { p { "Nothing was decided." } });
    };
    let by = if by.trim().is_empty() { "link".to_owned() } else { format!("{by} (link)") };
    let asked_at = Some(approval.asked_at);
    let decision = Decide { key, asked_at, approve: decision == Verdict::Approve, by, reason: Some(reason) };
    match approval::decide(approvals.ledger.approvals(), decision).await {
        Ok(Decided::Done(approval)) => approvals.shown(StatusCode::OK, &approval),
        Ok(Decided::Already(approval)) => approvals.shown(StatusCode::CONFLICT, &approval),
        Ok(Decided::Unknown) => unknown(),
        Err(error) => away(&error),
    }
}

impl Approvals {
    /// What a token of ours names, if it is still that which is asked.
    async fn find(&self, token: Token) -> Result<(CallKey, Approval), Response> {
        let Ok(Path(token)) = token else { return Err(unknown()) };
        let named = self.links.read(&token).await.map_err(|error| away(&error))?;
        let (key, asked_at) = named.ok_or_else(unknown)?;
        let found = self.ledger.approvals().approval(&key).await.map_err(|error| away(&error))?;
        let found = found.filter(|approval| approval.asked_at == asked_at).ok_or_else(unknown)?;
        Ok((key, found))
    }

    fn shown(&self, status: StatusCode, approval: &Approval) -> Response {
        match approval.decision {
            None => page(status, "Approve this call?", self.question(approval)),
            Some(decision) => page(status, title(decision), html! { (told(approval)) (facts(approval)) }),
        }
    }

    fn question(&self, approval: &Approval) -> Markup {
        let function = self.functions.load().by_name(&approval.function).cloned();
        let arguments = approval.arguments.as_deref().unwrap_or("{}");
        let hidden = function.as_ref().map_or(&[][..], |function| &function.redact);
        html! {
            @if let Some(function) = &function { p { (escape(&function.description)) } }
            (facts(approval))
            h2 { "Arguments" }
            pre { (pretty(&redact::show(hidden, arguments.as_bytes()))) }
            form method="post" {
                label { "Your name" input name="by" maxlength="80" autocomplete="name"; }
                label { "Reason, which the agent reads if you deny" textarea name="reason" rows="3" maxlength="1000" {} }
                // The first button is what the enter key presses.
                button disabled hidden {}
                p.buttons {
                    button.approve name="decision" value="approve" { "Approve" }
                    button.deny name="decision" value="deny" { "Deny" }
                }
            }
        }
    }
}

fn title(decision: Decision) -> &'static str {
    match decision {
        Decision::Approved => "This call was approved",
        Decision::Denied => "This call was denied",
        Decision::Expired => "Nobody decided in time",
        Decision::Withdrawn => "This call needs no decision any more",
    }
}

fn told(approval: &Approval) -> Markup {
    html! {
        @if let Some(by) = &approval.decided_by {
            p { "By " b { (escape(by)) } @if let Some(at) = approval.decided_at { ", " (time(at)) } "." }
        }
        @if let Some(reason) = &approval.reason { p { "Reason: " (escape(reason)) } }
    }
}

fn facts(approval: &Approval) -> Markup {
    let key = &approval.key;
    html! {
        dl {
            dt { "Function" } dd { b { (escape(&approval.function)) } }
            dt { "Session" } dd { (escape(&key.session.to_string())) }
            dt { "Call" } dd { (escape(&key.call_id)) }
            dt { "Asked" } dd { (time(approval.asked_at)) }
            @if approval.decision.is_none() { dt { "Decide before" } dd { (time(approval.expires_at)) } }
        }
    }
}

/// To the second, UTC.
fn time(ms: i64) -> String {
    let at = Timestamp::from_second(ms / 1000).unwrap_or_default();
    at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string()
}

fn unknown() -> Response {
    let text = "It may have been replaced by a newer one, or the call is too long ago.";
    page(StatusCode::NOT_FOUND, "This link leads nowhere", html! { p { (text) } })
}

fn away(error: &store::Error) -> Response {
    tracing::warn!(%error, "an approval cannot be read or decided now");
    let text = "Nothing was decided. Try again in a moment.";
    page(StatusCode::SERVICE_UNAVAILABLE, "The store is not available", html! { p { (text) } })
}

const STYLE: &str = "
    :root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
    body { max-width: 42rem; margin: 2rem auto; padding: 0 1rem }
    h1 { font-size: 1.4rem } h2 { font-size: 1rem }
    dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem } dd { margin: 0; overflow-wrap: anywhere }
    pre { padding: .8rem; border: 1px solid #8888; border-radius: .4rem; white-space: pre-wrap; overflow-wrap: anywhere }
    label { display: block; margin: .8rem 0 } input, textarea { display: block; width: 100%; box-sizing: border-box; font: inherit }
    button { font: inherit; padding: .5rem 1.5rem; border: 1px solid #8888; border-radius: .4rem; color: #fff }
    .buttons { display: flex; gap: 1rem } .approve { background: #176f3b } .deny { background: #a32020 }
";

/// Nothing is loaded from anywhere, nobody frames it, nobody learns its address.
fn page(status: StatusCode, title: &str, content: Markup) -> Response {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                style { (maud::PreEscaped(STYLE)) }
            }
            body { main { h1 { (title) } (content) } }
        }
    };
    let mut response = (status, page.into_string()).into_response();
    for (name, value) in [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CACHE_CONTROL, "no-store"),
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
        ),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::HeaderName::from_static("x-robots-tag"), "noindex"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}
