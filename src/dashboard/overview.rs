//! `/`: what waits, what fails, how long it takes.

use std::sync::Arc;

use axum::{
    extract::{Query, State},
    response::IntoResponse,
};
use maud::{Markup, html};
use serde::Deserialize;

use super::{
    Shown,
    approvals::question,
    chart,
    page::{Page, ago, calls, percent, span},
};
use crate::{
    api::{Desk, Function, Health, Now, Platform, Stats},
    operator::ListCalls,
    store::ApprovalFilter,
};

/// Milliseconds between two looks.
const FRESH: u32 = 2500;
/// Calls of the live tail.
const TAIL: usize = 15;
/// Calls that wait for an approval, as far as they stand here.
const QUESTIONS: usize = 3;
/// States in which a call is on its way.
const ON_THE_WAY: [&str; 5] = ["claimed", "waiting", "retrying", "completed", "submitted"];
/// States that end without the platform having a result of ours.
const ENDED_BADLY: [&str; 2] = ["refused", "obsolete"];

#[derive(Deserialize)]
pub(super) struct Done {
    pub(super) done: Option<String>,
}

pub(super) async fn show(State(desk): State<Arc<Desk>>, Query(Done { done }): Query<Done>) -> Shown {
    let operator = desk.operator()?;
    let stats = desk.stats().await?;
    let functions = desk.functions().await?.functions;
    let waits = desk.approvals(&ApprovalFilter::default(), None).await?.approvals;
    let tail = operator.calls(&ListCalls { limit: TAIL, ..ListCalls::default() }).await?;
    let content = html! {
        h1.away { "Overview" }
        div data-live="now" { (now(&stats.now)) }
        div.questions data-live="questions" {
            @for approval in waits.iter().take(QUESTIONS) { (question(approval, "/")) }
            @if waits.len() > QUESTIONS { p { a href="/approvals" { "All " (waits.len()) " calls that wait for an approval" } } }
        }
        section.charts aria-label="The last hour" data-live="charts" { (charts(&stats)) }
        section.card data-live="functions" { h2 { "Functions" } (table(&functions)) }
        section.card data-live="tail" {
            h2 { "Latest calls" a.more href="/calls" { "All calls" } }
            (calls(&tail.calls))
        }
        section.card data-live="platforms" { h2 { "Platforms" } (platforms(&desk.platforms().platforms)) }
        footer { "actiond " (stats.now.version) " · role " (stats.now.role) " · charts and running calls are this process's, the rest is the store's" }
    };
    Ok(Page::new("Overview", "/", &desk).fresh(FRESH).done(done.as_deref()).html(&content).into_response())
}

/// The figures that tell whether somebody must do something.
fn now(now: &Now) -> Markup {
    let of = |states: &[&str]| states.iter().filter_map(|state| now.calls.get(*state)).sum::<u64>();
    let (on_the_way, held, refused) = (of(&ON_THE_WAY), of(&["interrupted"]), of(&["refused"]));
    let figure = |number: Option<u64>| number.map_or_else(|| "–".to_owned(), |number| number.to_string());
    let class = |number: u64, class: &'static str| if number > 0 { class } else { "" };
    let dead = now.dead.unwrap_or(0);
    html! {
        @if !now.ready {
            p.alarm role="alert" { strong { "Not ready. " } (now.reasons.join(" · ")) }
        }
        ul.tiles {
            li { a href="/calls" { span.figure { (on_the_way) } span.what { "on the way" } } }
            li class=(class(held, "bad")) { a href="/calls?state=interrupted" { span.figure { (held) } span.what { "held for you" } } }
            li class=(class(refused, "bad")) { a href="/calls?state=refused" { span.figure { (refused) } span.what { "refused" } } }
            li class=(class(dead, "bad")) { a href="/dead" { span.figure { (figure(now.dead)) } span.what { "dead letters" } } }
            li { div { span.figure { (figure(now.queue_depth)) } span.what { "in the queue" } } }
            li { div { span.figure { (now.oldest_pending.map_or_else(|| "–".to_owned(), span)) } span.what { "oldest pending" } } }
        }
    }
}

fn charts(stats: &Stats) -> Markup {
    let points = &stats.points;
    html! {
        (chart::results(points))
        (chart::latency("Webhook to result", points, |p| p.result_p50, |p| p.result_p95))
        (chart::latency("Handlers", points, |p| p.handler_p50, |p| p.handler_p95))
        (chart::level("Queue", points, |n| format!("{n:.0}"), |p| p.queue_depth.map(|n| n as f64)))
    }
}

fn table(functions: &[Function]) -> Markup {
    html! {
        div.scroll {
            table.functions {
                thead { tr {
                    th { "Function" } th.number { "Running" } th.number { "Waiting" } th.number { "Settled" } th.number { "Failed" }
                    th.wide { "Limits" } th { span.away { "Pause or resume" } }
                } }
                tbody {
                    @for function in functions { (row(function)) }
                }
            }
        }
        @if functions.is_empty() { p.empty { "No functions are registered." } }
        @else { p.note { "Calls of the last 24 hours." } }
    }
}

fn row(function: &Function) -> Markup {
    let of = |states: &[&str]| states.iter().filter_map(|state| function.calls.get(*state)).sum::<u64>();
    let (waiting, held, failed) = (of(&["waiting", "retrying"]), of(&["interrupted"]), of(&ENDED_BADLY));
    let name = percent(&function.name);
    let (act, word) = if function.paused { ("resume", "Resume") } else { ("pause", "Pause") };
    html! {
        tr.paused[function.paused] {
            td.name {
                a href={ "/calls?function=" (name) } title=(function.description) { (function.name) }
                @if let Some(since) = function.paused_since { " " span.badge.warn { "paused " (ago(since)) } }
                @if held > 0 { " " a.badge.bad href={ "/calls?state=interrupted&function=" (name) } { (held) " held" } }
                @if function.backing_off_ms > 0 { " " span.badge { "backs off " (span(function.backing_off_ms as f64 / 1000.0)) } }
            }
            td.number data-label="running" { (function.running) @if let Some(allowed) = function.allowed { small { " / " (allowed) } } }
            td.number data-label="waiting" { (waiting) }
            td.number data-label="settled" { (of(&["settled"])) }
            td.number data-label="failed" { @if failed > 0 { span.bad-text { (failed) } } @else { "0" } }
            td.wide.limits { (limits(function)) }
            td.act {
                form method="post" action={ "/functions/" (name) "/" (act) } {
                    input type="hidden" name="back" value="/";
                    button.small aria-label={ (word) " " (function.name) } { (word) }
                }
            }
        }
    }
}

fn limits(function: &Function) -> String {
    let at_once = function.concurrency.map(|n| format!("{n} at once"));
    let parts = [at_once, function.rate.clone(), function.adaptive.then(|| "adaptive".to_owned())];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if parts.is_empty() { "–".to_owned() } else { parts.join(", ") }
}

fn platforms(platforms: &[Platform]) -> Markup {
    html! {
        ul.platforms {
            @for platform in platforms {
                @let (class, word) = match platform.health {
                    Health::Ok => ("good", "answers"),
                    Health::Failing => ("warn", "fails"),
                    Health::Refused => ("bad", "refuses our credentials"),
                    Health::Unknown => ("", "not asked yet"),
                };
                li {
                    span class={ "dot " (class) } aria-hidden="true" {}
                    strong { (platform.name) } " " span.soft-text { (platform.kind) } " "
                    span { (word) }
                    @if let Some(at) = platform.last_answer_at { span.soft-text { " · last answer " (ago(at)) } }
                    @if let (Some(detail), Some(at)) = (&platform.detail, platform.last_failure_at) {
                        span.soft-text { " · " (ago(at)) ": " (detail) }
                    }
                }
            }
        }
        @if platforms.is_empty() { p.empty { "No platforms are configured." } }
    }
}
