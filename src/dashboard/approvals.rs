//! `/approvals`: the calls that wait for a person, with what the person needs to decide.

use std::sync::Arc;

use axum::{
    Form,
    extract::{Path, Query, State},
    response::IntoResponse,
};
use jiff::Timestamp;
use maud::{Markup, html};
use serde::Deserialize;

use super::{
    Back, Shown, WHO,
    page::{Page, ago, ahead, percent},
};
use crate::{
    api::{Approval, Desk, Problem},
    operator::decode,
    shown::pretty,
    store::{ApprovalFilter, Decide},
};

/// Milliseconds between two looks.
const FRESH: u32 = 3000;

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Wanted {
    cursor: String,
    done: Option<String>,
}

pub(super) async fn list(State(desk): State<Arc<Desk>>, Query(wanted): Query<Wanted>) -> Shown {
    let waits = desk.approvals(&ApprovalFilter::default(), None).await?;
    let cursor = Some(&*wanted.cursor).filter(|cursor| !cursor.is_empty());
    let all = desk.approvals(&ApprovalFilter { all: true, function: None }, cursor).await?;
    let decided: Vec<&Approval> = all.approvals.iter().filter(|approval| approval.state != "pending").collect();
    let content = html! {
        h1 { "Approvals" }
        div.questions data-live="questions" {
            @for approval in &waits.approvals { (question(approval, "/approvals")) }
            @if waits.approvals.is_empty() { section.card { p.empty { "No call waits for you." } } }
            @if waits.next.is_some() { p.note { "There are more: they follow once these are decided." } }
        }
        section.card data-live="decided" {
            h2 { "Decided" }
            (table(&decided))
            @if cursor.is_some() || all.next.is_some() {
                nav.pages aria-label="Pages of decisions" {
                    @if cursor.is_some() { a href="/approvals" { "Newest" } }
                    @if let Some(next) = &all.next { a rel="next" href={ "/approvals?cursor=" (percent(next)) } { "Older" } }
                }
            }
        }
    };
    let page = Page::new("Approvals", "/approvals", &desk).fresh(FRESH).done(wanted.done.as_deref());
    Ok(page.html(&content).into_response())
}

/// What is asked, and the two answers.
pub(super) fn question(approval: &Approval, back: &str) -> Markup {
    html! {
        section.card.question {
            div.asked {
                h2 { a href={ "/calls/" (approval.id) } { (approval.function) } span.more { "decide " (ahead(approval.expires_at)) } }
                p.note { "asked " (ago(approval.asked_at)) " by " span.ids { (approval.platform) " / " (approval.session) } }
                pre tabindex="0" aria-label="Arguments" { (pretty(approval.arguments.as_deref().unwrap_or("{}"))) }
            }
            form method="post" action={ "/approvals/" (approval.id) } {
                input type="hidden" name="back" value=(back);
                input type="hidden" name="asked_at" value=(approval.asked_at);
                label { "Your name" input name="by" maxlength="80" autocomplete="name"; }
                label { "Reason, which the agent reads if you deny" input name="reason" maxlength="1000" autocomplete="off"; }
                // The first button is what the enter key presses.
                button disabled hidden {}
                div.row {
                    button name="decision" value="approve" aria-label={ "Approve " (approval.function) } { "Approve" }
                    button.danger name="decision" value="deny" aria-label={ "Deny " (approval.function) } { "Deny" }
                }
            }
        }
    }
}

fn table(approvals: &[&Approval]) -> Markup {
    html! {
        div.scroll {
            table.calls.decisions {
                @if !approvals.is_empty() {
                    thead { tr { th { "Decision" } th { "Function" } th { "Call" } th { "By" } th { "When" } th.wide { "Reason" } } }
                }
                tbody {
                    @for approval in approvals {
                        tr {
                            td { span class={ "state " (approval.state) } { (approval.state) } }
                            td.name { a href={ "/calls/" (approval.id) } { (approval.function) } }
                            td.ids title=(approval.call) { (approval.platform) " / " (approval.session) }
                            td { (approval.decided_by.as_deref().unwrap_or("–")) }
                            td.when { (ago(approval.decided_at.unwrap_or(approval.expires_at))) }
                            td.wide.detail { (approval.reason.as_deref().unwrap_or_default()) }
                        }
                    }
                }
            }
        }
        @if approvals.is_empty() { p.empty { "Nothing was decided yet." } }
    }
}

#[derive(Deserialize)]
pub(super) struct Choice {
    decision: String,
    asked_at: Option<Timestamp>,
    #[serde(default)]
    by: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    back: String,
}

pub(super) async fn decide(State(desk): State<Arc<Desk>>, Path(id): Path<String>, Form(choice): Form<Choice>) -> Shown {
    let key = decode(&id).ok_or_else(|| Problem::not_found("there is no call with this id"))?;
    let approve = match choice.decision.as_str() {
        "approve" => true,
        "deny" => false,
        _ => return Err(Problem::invalid("say approve or deny").into()),
    };
    let by = if choice.by.trim().is_empty() { WHO.to_owned() } else { choice.by };
    let asked_at = choice.asked_at.map(Timestamp::as_millisecond);
    desk.decide(Decide { key, asked_at, approve, by, reason: Some(choice.reason) }).await?;
    Ok(Back { back: choice.back }.with(if approve { "approved" } else { "denied" }).into_response())
}
