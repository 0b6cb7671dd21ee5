//! `/calls`: the list with its filters, and one call with what happened to it and what can be done.

use std::sync::Arc;

use axum::{
    Form,
    extract::{Path, Query, State},
    response::IntoResponse,
};
use jiff::Timestamp;
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::Value;

use super::{
    Back, Shown, WHO,
    approvals::question,
    page::{Page, ago, ahead, calls, percent, span, state},
};
use crate::{
    api::{Desk, Id, Problem},
    operator::{
        Act, ListCalls, encode,
        view::{CallDetail, instant},
    },
    redact,
    store::{Filter, STATES},
};

const LIMIT: usize = 50;
/// Milliseconds between two looks.
const FRESH: u32 = 3000;

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Wanted {
    state: String,
    function: String,
    platform: String,
    session: String,
    cursor: String,
    done: Option<String>,
}

impl Wanted {
    fn filter(&self) -> Filter {
        let text = |text: &String| Some(text.trim().replace('\0', "")).filter(|text| !text.is_empty());
        Filter {
            state: text(&self.state),
            function: text(&self.function),
            platform: text(&self.platform),
            session: text(&self.session),
            ..Filter::default()
        }
    }

    /// The same question from another place on.
    fn at(&self, cursor: &str) -> String {
        let pairs = [
            ("state", &*self.state),
            ("function", &self.function),
            ("platform", &self.platform),
            ("session", &self.session),
            ("cursor", cursor),
        ];
        let given = pairs.iter().filter(|(_, value)| !value.is_empty());
        let given: Vec<String> = given.map(|(name, value)| format!("{name}={}", percent(value))).collect();
        format!("/calls?{}", given.join("&"))
    }
}

pub(super) async fn list(State(desk): State<Arc<Desk>>, Query(wanted): Query<Wanted>) -> Shown {
    let cursor = Some(wanted.cursor.clone()).filter(|cursor| !cursor.is_empty());
    let is_first = cursor.is_none();
    let list = ListCalls { filter: wanted.filter(), cursor, limit: LIMIT, ..ListCalls::default() };
    let found = desk.operator()?.calls(&list).await?;
    let content = html! {
        h1 { "Calls" }
        (filters(&desk, &wanted))
        section.card data-live="calls" {
            (calls(&found.calls))
            @if !is_first || found.next.is_some() {
                nav.pages aria-label="Pages of calls" {
                    @if !is_first { a href=(wanted.at("")) { "Newest" } }
                    @if let Some(next) = &found.next { a rel="next" href=(wanted.at(next)) { "Older" } }
                }
            }
        }
    };
    let page = Page::new("Calls", "/calls", &desk).done(wanted.done.as_deref());
    let page = if is_first { page.fresh(FRESH) } else { page };
    Ok(page.html(&content).into_response())
}

fn filters(desk: &Desk, wanted: &Wanted) -> Markup {
    let registry = desk.functions.load();
    let mut names: Vec<&str> = registry.names().collect();
    names.sort_unstable();
    html! {
        form.filters method="get" action="/calls" {
            label { "State "
                select name="state" {
                    option value="" { "any" }
                    @for state in STATES { option value=(state) selected[wanted.state == state] { (state) } }
                }
            }
            label { "Function "
                input name="function" list="functions" value=(wanted.function) autocomplete="off" spellcheck="false";
                datalist #functions { @for name in names { option value=(name) {} } }
            }
            label { "Platform "
                select name="platform" {
                    option value="" { "any" }
                    @for platform in &desk.platforms { option value=(platform.name) selected[wanted.platform == platform.name] { (platform.name) } }
                }
            }
            label { "Session " input name="session" value=(wanted.session) autocomplete="off" spellcheck="false"; }
            button { "Show" }
        }
    }
}

pub(super) async fn show(
    State(desk): State<Arc<Desk>>,
    Id(key): Id,
    Query(super::overview::Done { done }): Query<super::overview::Done>,
) -> Shown {
    let detail = desk.operator()?.call(&key).await?;
    let asked = desk.approval(&key).await?.filter(|approval| approval.state == "pending");
    let title = format!("{} · {}", detail.call.function, detail.call.state);
    let here = format!("/calls/{}", encode(&key));
    let content = html! {
        p.crumbs { a href="/calls" { "Calls" } " / " a href={ "/calls?session=" (percent(&detail.call.session)) } { (detail.call.session) } }
        div data-live="call" {
            h1 { (detail.call.function) " " (state(&detail.call.state)) }
            @if let Some(why) = &detail.call.detail { p.why { (why) } }
            (facts(&detail))
        }
        div.questions data-live="question" { @if let Some(approval) = &asked { (question(approval, &here)) } }
        div.columns {
            section.card data-live="timeline" { h2 { "What happened" } (timeline(&detail)) }
            section.card data-live="result" { h2 { "Result" } (result(&detail)) }
        }
        section.card data-live="acts" { h2 { "What can be done" } (acts(&detail, &here)) }
    };
    Ok(Page::new(&title, "/calls", &desk).fresh(FRESH).done(done.as_deref()).html(&content).into_response())
}

fn facts(detail: &CallDetail) -> Markup {
    let call = &detail.call;
    let turn = if call.turn.is_empty() { "–" } else { &call.turn };
    html! {
        dl.facts {
            div.long { dt { "Session" } dd.ids { (call.session) } }
            div.long { dt { "Turn" } dd.ids { (turn) } }
            div.long { dt { "Call id" } dd.ids { (call.call_id) } }
            div { dt { "Platform" } dd { (call.platform) } }
            div { dt { "First seen" } dd { (ago(call.created_at)) } }
            div { dt { "Changed" } dd { (ago(call.updated_at)) } }
            div { dt { "Attempts" } dd { (call.attempt) } }
            div { dt { "Accepted" } dd { (match call.submissions { 0 => "not yet".to_owned(), 1 => "once".to_owned(), n => format!("{n} times") }) } }
            @if let Some(until) = call.until_at { div { dt { "Left alone until" } dd { (ahead(until)) } } }
            @if call.state != "settled" { div { dt { "Deadline" } dd { (ahead(call.deadline_at)) } } }
            @if let Some(key) = &call.idempotency_key { div.long { dt { "Submission key" } dd.ids { (key) } } }
        }
    }
}

fn result(detail: &CallDetail) -> Markup {
    let Some(shown) = &detail.result else { return html! { p.empty { "There is no result yet." } } };
    let text = redact::outcome(shown);
    // A value that is JSON is easier to read over several lines.
    let pretty = serde_json::from_str::<Value>(&text).ok().filter(|value| value.is_object() || value.is_array());
    let pretty = pretty.and_then(|value| serde_json::to_string_pretty(&value).ok());
    html! {
        p.note { @if detail.call.success == Some(true) { "A success" } @else { "An error, for the model to read" }
            @if let Some(bytes) = detail.call.body_len { ", " (bytes) " bytes as it is sent" } }
        pre tabindex="0" { (pretty.as_deref().unwrap_or(&text)) }
    }
}

/// The history; of a call that has none, what the row tells.
fn timeline(detail: &CallDetail) -> Markup {
    let call = &detail.call;
    html! {
        ol.timeline {
            @if detail.history.is_empty() {
                li { (moment(call.created_at, None)) div { span.event { "first seen" } } }
                li class=(call.state) { (moment(call.updated_at, Some(call.created_at))) div { span.event { (call.state) } } }
            }
            @for (place, entry) in detail.history.iter().enumerate() {
                @let at = instant(entry["at"].as_i64().unwrap_or_default());
                @let before = place.checked_sub(1).map(|before| instant(detail.history[before]["at"].as_i64().unwrap_or_default()));
                @let event = entry["event"].as_str().unwrap_or_default();
                li class=(event) { (moment(at, before)) div { span.event { (event) } (known(entry, at)) } }
            }
        }
    }
}

/// When, and how long after the moment before.
fn moment(at: Timestamp, before: Option<Timestamp>) -> Markup {
    match before.map(|before| (at.as_millisecond() - before.as_millisecond()) as f64 / 1000.0) {
        Some(after) => html! { time datetime=(at) title=(at) { "+" (span(after)) } },
        None => ago(at),
    }
}

/// What an entry tells beside its event.
fn known(entry: &Value, at: Timestamp) -> Markup {
    let text = |name: &str| entry[name].as_str();
    let seconds = |name: &str| {
        entry[name].as_u64().map(|ms| if ms == 0 { "under 1 ms".to_owned() } else { span(ms as f64 / 1000.0) })
    };
    let since_webhook = entry["accepted_at"].as_i64().map(|accepted| (at.as_millisecond() - accepted) as f64 / 1000.0);
    html! {
        @if let Some(success) = entry["success"].as_bool() { span class=(if success { "good-text" } else { "bad-text" }) { (if success { "success" } else { "error" }) } }
        @if let Some(attempt) = entry["attempt"].as_u64() { span { "attempt " (attempt) } }
        @if let Some(took) = seconds("took_ms") { span { "took " (took) } }
        @if let Some(wait) = seconds("wait_ms") { span { "again in " (wait) } }
        @for name in ["reason", "status"] { @if let Some(value) = text(name) { span { (name) " " (value) } } }
        @if let Some(cause) = text("cause") { span.soft-text { @if cause == "due" { "was due" } @else { "woken by " (cause) } } }
        @if let Some(since) = since_webhook.filter(|since| *since > 0.0) { span.soft-text { (span(since)) " after the webhook" } }
        @if let Some(by) = text("by") { span.soft-text { "by " (by) } }
        @if let Some(detail) = text("detail") { div.why { (detail) } }
    }
}

fn acts(detail: &CallDetail, here: &str) -> Markup {
    let can = |act: &str| detail.possible.iter().any(|possible| possible == act);
    let back = html! { input type="hidden" name="back" value=(here); };
    html! {
        @if detail.possible.is_empty() { p.empty { "Nothing: the platform has its result." } }
        div.acts {
            @if can("retry") {
                form method="post" action={ (here) "/retry" } { (back) button { "Retry" } span.soft-text { "The handler runs again." } }
            }
            @if can("resubmit") {
                form method="post" action={ (here) "/resubmit" } {
                    (back) button { "Resubmit" } span.soft-text { "The same bytes again; the handler does not run." }
                    label.check { input type="checkbox" name="new_key" value="true"; "under the next idempotency key" }
                }
            }
            @if can("resolve") {
                form.tall method="post" action={ (here) "/resolve" } {
                    (back)
                    label { "Answer it by hand" textarea name="text" rows="3" required spellcheck="false" {} }
                    div.row {
                        button name="as" value="output" { "Send as output" }
                        button.quiet name="as" value="error" { "Send as error" }
                    }
                }
            }
            @if can("cancel") {
                form method="post" action={ (here) "/cancel" } {
                    (back)
                    label { "Why, told to the agent " input name="reason" autocomplete="off"; }
                    button.danger { "Cancel the call" }
                }
            }
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct ActForm {
    back: String,
    new_key: bool,
    text: String,
    #[serde(rename = "as")]
    kind: String,
    reason: String,
}

pub(super) async fn act(
    State(desk): State<Arc<Desk>>,
    Path((id, name)): Path<(String, String)>,
    Form(form): Form<ActForm>,
) -> Shown {
    let key = crate::operator::decode(&id).ok_or_else(|| Problem::not_found("there is no call with this id"))?;
    let act = match (name.as_str(), form.kind.as_str()) {
        ("retry", _) => Act::Retry,
        ("resubmit", _) => Act::Resubmit { new_key: form.new_key },
        ("cancel", _) => Act::Cancel { reason: Some(form.reason) },
        ("resolve", "error") => Act::resolve(None, Some(form.text)),
        ("resolve", _) => Act::resolve(Some(form.text), None),
        _ => return Err(Problem::not_found("there is no such page").into()),
    };
    let done = desk.operator()?.act(&key, &act, WHO).await?;
    Ok(Back { back: form.back }.with(&done.outcome).into_response())
}
