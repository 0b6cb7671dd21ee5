//! `/dead`: messages that were put aside, given back or deleted.

use std::sync::Arc;

use axum::{
    Form,
    extract::{Query, State},
    response::{IntoResponse, Response},
};
use maud::{Markup, html};
use serde::Deserialize;

use super::{
    Back, Failed, Shown,
    page::{Page, ago, message, percent},
};
use crate::{
    api::{Desk, Problem},
    operator::{Order, Pick, Way, view},
};

const LIMIT: usize = 50;
/// What one click settles at most.
const MAX: u32 = 10_000;

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Wanted {
    platform: String,
    reason: String,
    cursor: String,
    done: Option<String>,
}

impl Wanted {
    fn pick(&self) -> Pick {
        let text = |text: &String| Some(text.trim().replace('\0', "")).filter(|text| !text.is_empty());
        Pick { platform: text(&self.platform), reason: text(&self.reason), ..Pick::default() }
    }

    fn address(&self, cursor: &str) -> String {
        let pairs = [("platform", &*self.platform), ("reason", &self.reason), ("cursor", cursor)];
        let given = pairs.iter().filter(|(_, value)| !value.is_empty());
        let given: Vec<String> = given.map(|(name, value)| format!("{name}={}", percent(value))).collect();
        format!("/dead?{}", given.join("&"))
    }
}

pub(super) async fn list(State(desk): State<Arc<Desk>>, Query(wanted): Query<Wanted>) -> Shown {
    let cursor = Some(wanted.cursor.clone()).filter(|cursor| !cursor.is_empty());
    let found = desk.operator()?.dead(&wanted.pick(), cursor, LIMIT).await?;
    let content = html! {
        h1 { "Dead letters" }
        p.lead { "Messages that no worker could deal with. Put right what killed them, then give them back." }
        form.filters method="get" action="/dead" {
            label { "Reason holds " input name="reason" value=(wanted.reason) autocomplete="off"; }
            label { "Platform " input name="platform" value=(wanted.platform) autocomplete="off" spellcheck="false"; }
            button { "Show" }
        }
        section.card {
            (table(&found.messages, &wanted))
            @if !wanted.cursor.is_empty() || found.next.is_some() {
                nav.pages aria-label="Pages of dead letters" {
                    @if !wanted.cursor.is_empty() { a href=(wanted.address("")) { "Oldest" } }
                    @if let Some(next) = &found.next { a rel="next" href=(wanted.address(next)) { "Newer" } }
                }
            }
        }
        @if !found.messages.is_empty() { (all(&wanted)) }
    };
    // Not looked at again by itself: on a broker, who looks holds the messages.
    Ok(Page::new("Dead letters", "/dead", &desk).done(wanted.done.as_deref()).html(&content).into_response())
}

fn table(messages: &[view::Dead], wanted: &Wanted) -> Markup {
    if messages.is_empty() {
        return html! { p.empty { "No dead letters." } };
    }
    html! {
        div.scroll {
            table.dead {
                thead { tr { th { "Session" } th { "Reason" } th.wide { "Functions" } th { "Dead since" } th.number { "Redriven" } th { span.away { "Redrive or delete" } } } }
                tbody {
                    @for dead in messages {
                        @let session = dead.session_key().unwrap_or_else(|| "cannot be read".to_owned());
                        tr {
                            td.ids title=(dead.id) { (session) }
                            td.reason { (dead.reason) }
                            td.wide { (dead.functions.as_deref().map_or_else(|| "unknown".to_owned(), |names| names.join(", "))) }
                            td.when { @if let Some(at) = dead.dead_at { (ago(at)) } @else { "–" } }
                            td.number { (dead.redriven) }
                            td.act { (one(dead, &session, wanted)) }
                        }
                    }
                }
            }
        }
    }
}

fn one(dead: &view::Dead, session: &str, wanted: &Wanted) -> Markup {
    html! {
        form method="post" action="/dead/settle" {
            input type="hidden" name="id" value=(dead.id);
            input type="hidden" name="back" value=(wanted.address(""));
            button.small name="way" value="redrive" aria-label={ "Redrive " (session) } { "Redrive" }
            details.sure {
                summary { "Delete" }
                button.small.danger name="way" value="purge" aria-label={ "Delete " (session) " for good" } { "For good" }
            }
        }
    }
}

fn all(wanted: &Wanted) -> Markup {
    let which = if wanted.pick().is_any() { "all dead letters" } else { "all that fit the filter" };
    html! {
        form.card.all method="post" action="/dead/settle" {
            input type="hidden" name="platform" value=(wanted.platform);
            input type="hidden" name="reason" value=(wanted.reason);
            input type="hidden" name="all" value="true";
            input type="hidden" name="back" value=(wanted.address(""));
            button name="way" value="redrive" { "Redrive " (which) }
            label.check { input type="checkbox" name="force" value="true"; "also what cannot be read or came back five times" }
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct SettleForm {
    way: String,
    id: Option<String>,
    platform: String,
    reason: String,
    all: bool,
    force: bool,
    back: String,
}

pub(super) async fn settle(State(desk): State<Arc<Desk>>, Form(form): Form<SettleForm>) -> Result<Response, Failed> {
    let (way, word) = match form.way.as_str() {
        // One message by its name is meant, however often it came back.
        "redrive" => (Way::Redrive { pause: None, force: form.force || form.id.is_some() }, "redriven"),
        "purge" if form.id.is_some() => (Way::Purge, "purged"),
        _ => return Err(Problem::invalid("say which message, and what is to be done with it").into()),
    };
    let wanted = Wanted { platform: form.platform, reason: form.reason, ..Wanted::default() };
    let order = Order {
        way,
        ids: form.id.into_iter().collect(),
        pick: wanted.pick(),
        all: form.all,
        max: Some(MAX),
        dry_run: false,
    };
    let settled = desk.operator()?.settle(order, &mut |_| ()).await?;
    let why = settled.broke_off.clone().or_else(|| settled.messages.iter().find_map(|message| message.why.clone()));
    let missing = settled.missing.first().map(|_| "the message is no longer dead".to_owned());
    match why.or(missing) {
        None => Ok(Back { back: form.back }.with(word).into_response()),
        Some(why) => {
            let told = format!("{} {word}, {} refused: {why}", settled.done, settled.refused);
            Ok(Page::new("Not all of them", "/dead", &desk).html(&message("Not all of them", &told)).into_response())
        }
    }
}
