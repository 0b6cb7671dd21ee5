//! The page that an operator leaves open, rendered here: overview, calls, one call, dead messages. Works without script; a small
//! one keeps it fresh.

mod approvals;
mod calls;
mod chart;
mod dead;
mod login;
mod overview;
mod page;

use std::sync::Arc;

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request, State},
    http::{HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Redirect, Response},
    routing::{get, post},
};
use serde::Deserialize;

use self::page::{Page, percent};
use crate::api::{Desk, Name, Problem, Refused};

const STYLE: &str = include_str!("dashboard/style.css");
const SCRIPT: &str = include_str!("dashboard/live.js");
const ICON: &str = include_str!("dashboard/icon.svg");
/// Who an operator is in a call's history.
const WHO: &str = "dashboard";
const MAX_FORM: usize = 4 << 20;

/// Nothing from elsewhere, nothing inline, in no frame.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
    form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// `/` and what hangs below it.
pub fn router(desk: Arc<Desk>) -> Router {
    let pages = Router::new()
        .route("/", get(overview::show))
        .route("/calls", get(calls::list))
        .route("/calls/{id}", get(calls::show))
        .route("/calls/{id}/{act}", post(calls::act))
        .route("/approvals", get(approvals::list))
        .route("/approvals/{id}", post(approvals::decide))
        .route("/dead", get(dead::list))
        .route("/dead/settle", post(dead::settle))
        .route("/functions/{name}/pause", post(pause))
        .route("/functions/{name}/resume", post(resume))
        .layer(middleware::from_fn_with_state(desk.clone(), guard));
    let open = Router::new()
        .route("/login", get(login::form).post(login::login))
        .route("/logout", post(login::logout))
        .route("/style.css", get(|| async { asset("text/css; charset=utf-8", STYLE) }))
        .route("/icon.svg", get(|| async { asset("image/svg+xml", ICON) }))
        .route("/live.js", get(|| async { asset("text/javascript; charset=utf-8", SCRIPT) }));
    pages.merge(open).layer(DefaultBodyLimit::max(MAX_FORM)).layer(middleware::map_response(harden)).with_state(desk)
}

fn asset(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, kind)], text).into_response()
}

async fn harden(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in [
        ("content-security-policy", POLICY),
        ("x-content-type-options", "nosniff"),
        // Not `no-referrer`: forms would then say that they come from nowhere.
        ("referrer-policy", "same-origin"),
        ("cache-control", "no-store"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    response
}

async fn guard(State(desk): State<Arc<Desk>>, request: Request, next: Next) -> Response {
    match desk.gate.judge(request.method(), request.headers()) {
        Ok(()) => next.run(request).await,
        Err(Refused::Unauthorized) => {
            let wanted = request.uri().path_and_query().map_or("/", |wanted| wanted.as_str());
            let back = if request.method() == Method::GET { wanted } else { "/" };
            Redirect::to(&format!("/login?to={}", percent(back))).into_response()
        }
        Err(refused @ Refused::Foreign) => Failed(Problem::from(refused)).into_response(),
    }
}

/// A page that could not be shown, or something that could not be done.
struct Failed(Problem);

impl<E: Into<Problem>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self(error.into())
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let Problem { status, message, .. } = self.0;
        let title = match status {
            StatusCode::NOT_FOUND => "Not there",
            StatusCode::CONFLICT | StatusCode::BAD_REQUEST => "Not done",
            StatusCode::FORBIDDEN => "Not allowed",
            _ => "Not now",
        };
        (status, Page::bare(title).html(&page::message(title, &message))).into_response()
    }
}

type Shown = Result<Response, Failed>;

/// What a form says about where to go afterwards.
#[derive(Deserialize)]
struct Back {
    #[serde(default)]
    back: String,
}

impl Back {
    /// A path of ours, with a word of what was done.
    fn with(&self, done: &str) -> Redirect {
        let path = if is_local(&self.back) { &self.back } else { "/" };
        let path = path.split('#').next().unwrap_or(path);
        let kept: Vec<&str> = path.split(['?', '&']).skip(1).filter(|pair| !pair.starts_with("done=")).collect();
        let base = path.split('?').next().unwrap_or("/");
        let query = kept.into_iter().map(str::to_owned).chain([format!("done={}", percent(done))]);
        Redirect::to(&format!("{base}?{}", query.collect::<Vec<_>>().join("&")))
    }
}

/// Whether a redirect there stays here.
fn is_local(path: &str) -> bool {
    path.starts_with('/') && !path[1..].starts_with(['/', '\\']) && path.bytes().all(|b| b.is_ascii_graphic())
}

async fn pause(state: State<Arc<Desk>>, name: Name, form: axum::Form<Back>) -> Shown {
    set_paused(state, name, form, true).await
}

async fn resume(state: State<Arc<Desk>>, name: Name, form: axum::Form<Back>) -> Shown {
    set_paused(state, name, form, false).await
}

async fn set_paused(
    State(desk): State<Arc<Desk>>,
    Name(name): Name,
    axum::Form(back): axum::Form<Back>,
    paused: bool,
) -> Shown {
    desk.set_paused(&name, paused).await?;
    Ok(back.with(if paused { "paused" } else { "resumed" }).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_leads_back_to_a_page_of_ours_only() {
        let to = |back: &str| {
            let response = Back { back: back.to_owned() }.with("paused").into_response();
            response.headers()["location"].clone()
        };
        for (back, expected) in [
            ("/calls?state=settled&done=retrying", "/calls?state=settled&done=paused"),
            ("/", "/?done=paused"),
            ("", "/?done=paused"),
            ("//evil.example", "/?done=paused"),
            ("/\\evil.example", "/?done=paused"),
            ("https://evil.example/", "/?done=paused"),
            ("/a\nb", "/?done=paused"),
        ] {
            assert_eq!(to(back), expected, "{back}");
        }
    }
}
