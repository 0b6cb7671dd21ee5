//! `/login`: the token in a form, a session in a cookie.

use std::sync::Arc;

use axum::{
    Form,
    extract::{Query, State},
    http::{HeaderMap, StatusCode, header::SET_COOKIE},
    response::{AppendHeaders, IntoResponse, Redirect, Response},
};
use maud::{Markup, html};
use serde::Deserialize;

use super::{Failed, Shown, is_local, page::Page};
use crate::api::{Desk, Gate, Problem, Refused};

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct To {
    to: String,
}

impl To {
    fn path(&self) -> &str {
        if is_local(&self.to) { &self.to } else { "/" }
    }
}

pub(super) async fn form(State(desk): State<Arc<Desk>>, Query(to): Query<To>) -> Response {
    if desk.gate.is_open() {
        return Redirect::to("/").into_response();
    }
    Page::bare("Log in").html(&fields(to.path(), false)).into_response()
}

fn fields(to: &str, wrong: bool) -> Markup {
    html! {
        form.card.login method="post" action="/login" {
            h1 { "Log in" }
            @if wrong { p.alarm role="alert" { "That is not the token." } }
            input type="hidden" name="to" value=(to);
            label { "Admin token" input type="password" name="token" required autofocus autocomplete="current-password"; }
            button { "Log in" }
            p.note { "It is " code { "admin.token" } " of the config." }
        }
    }
}

#[derive(Deserialize)]
pub(super) struct Login {
    token: String,
    #[serde(default)]
    to: String,
}

pub(super) async fn login(State(desk): State<Arc<Desk>>, headers: HeaderMap, Form(login): Form<Login>) -> Shown {
    if Gate::is_foreign(&headers) {
        return Err(Problem::from(Refused::Foreign).into());
    }
    let to = To { to: login.to };
    // Behind TLS that somebody else ends.
    let secure = headers.get("x-forwarded-proto").is_some_and(|proto| proto == "https");
    Ok(match desk.gate.login(login.token.trim(), secure) {
        Some(cookie) => (AppendHeaders([(SET_COOKIE, cookie)]), Redirect::to(to.path())).into_response(),
        None => {
            tracing::warn!("somebody tried to log in with a wrong token");
            (StatusCode::UNAUTHORIZED, Page::bare("Log in").html(&fields(to.path(), true))).into_response()
        }
    })
}

pub(super) async fn logout(headers: HeaderMap) -> Result<Response, Failed> {
    if Gate::is_foreign(&headers) {
        return Err(Problem::from(Refused::Foreign).into());
    }
    Ok((AppendHeaders([(SET_COOKIE, Gate::logout())]), Redirect::to("/login")).into_response())
}
