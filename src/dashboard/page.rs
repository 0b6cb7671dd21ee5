//! What every page has: its frame, and how times, states and forms look.

use axum::response::Html;
use jiff::Timestamp;
use maud::{DOCTYPE, Markup, html};

use crate::{api::Desk, operator::view::Call};

/// The frame of a page.
pub(super) struct Page<'a> {
    title: &'a str,
    /// Where it is, for the navigation.
    at: &'static str,
    /// Missing on pages that show nothing of the process.
    desk: Option<&'a Desk>,
    /// Milliseconds between two looks of the script; never where none.
    fresh: Option<u32>,
    done: Option<&'a str>,
}

impl<'a> Page<'a> {
    pub(super) fn new(title: &'a str, at: &'static str, desk: &'a Desk) -> Self {
        Self { title, at, desk: Some(desk), fresh: None, done: None }
    }

    pub(super) fn bare(title: &'a str) -> Self {
        Self { title, at: "", desk: None, fresh: None, done: None }
    }

    pub(super) fn fresh(self, every: u32) -> Self {
        Self { fresh: Some(every), ..self }
    }

    /// What a form has done, by the word in the address.
    pub(super) fn done(self, word: Option<&'a str>) -> Self {
        Self { done: word.and_then(sentence), ..self }
    }

    pub(super) fn html(self, content: &Markup) -> Html<String> {
        let link = |path: &'static str, name: &'static str| {
            html! { a href=(path) aria-current=[(self.at == path).then_some("page")] { (name) } }
        };
        let page = html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (self.title) " · actiond" }
                    link rel="icon" href="/icon.svg";
                    link rel="stylesheet" href="/style.css";
                    @if self.fresh.is_some() { script src="/live.js" defer {} }
                }
                body data-fresh=[self.fresh] {
                    a.skip href="#content" { "Skip to content" }
                    header.top {
                        a.brand href="/" { span.mark aria-hidden="true" {} "actiond" }
                        @if let Some(desk) = self.desk {
                            nav aria-label="Pages" {
                                (link("/", "Overview"))
                                (link("/calls", "Calls"))
                                (link("/approvals", "Approvals"))
                                (link("/dead", "Dead letters"))
                            }
                            div.top-end {
                                span #live.live role="status" {}
                                @if !desk.gate.is_open() {
                                    form method="post" action="/logout" { button.quiet { "Log out" } }
                                }
                            }
                        }
                    }
                    main #content {
                        @if let Some(done) = self.done { p.done role="status" { (done) } }
                        (content)
                    }
                }
            }
        };
        Html(page.into_string())
    }
}

/// A word in the address is ours or shows nothing.
fn sentence(word: &str) -> Option<&'static str> {
    Some(match word {
        "paused" => "Paused. Calls that run go on; the others wait until you resume it.",
        "resumed" => "Resumed. What waits goes on within seconds.",
        "retrying" => "The handler runs again.",
        "resubmitted" => "The stored result is submitted again.",
        "resolved" => "The result is stored and will be submitted.",
        "cancelled" => "The agent will be told that the call was cancelled.",
        "approved" => "Approved: the handler starts.",
        "denied" => "Denied: the agent will be told.",
        "redriven" => "Given back to the workers.",
        "purged" => "Deleted.",
        _ => return None,
    })
}

pub(super) fn message(title: &str, text: &str) -> Markup {
    html! {
        section.card.message {
            h1 { (title) }
            p { (text) }
            p { a href="/" { "Back to the overview" } }
        }
    }
}

/// How long ago, the whole time on hover.
pub(super) fn ago(then: Timestamp) -> Markup {
    let seconds = Timestamp::now().as_second().saturating_sub(then.as_second());
    html! { time datetime=(then) title=(then) { (span(seconds.max(0) as f64)) " ago" } }
}

/// How long until then.
pub(super) fn ahead(then: Timestamp) -> Markup {
    let seconds = then.as_second().saturating_sub(Timestamp::now().as_second());
    html! { time datetime=(then) title=(then) {
        @if seconds > 0 { "in " (span(seconds as f64)) } @else { (span(-seconds as f64)) " ago" }
    } }
}

/// `0.25 s`, `45 s`, `12 min`, `3 h`, `5 d`.
pub(super) fn span(seconds: f64) -> String {
    match seconds {
        s if s <= 0.0 => "0 s".to_owned(),
        s if s < 0.1 => format!("{:.0} ms", (s * 1000.0).max(1.0)),
        s if s < 1.0 => format!("{s:.2} s"),
        s if s < 10.0 && s.fract() > 0.05 => format!("{s:.1} s"),
        s if s < 100.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3600.0),
        s => format!("{:.0} d", s / 86_400.0),
    }
}

/// A call's state, with what it means.
pub(super) fn state(state: &str) -> Markup {
    let meaning = match state {
        "claimed" => "its handler runs",
        "waiting" => "its result or a decision comes later",
        "retrying" => "its handler runs again in a while",
        "interrupted" => "its handler may have run; you decide",
        "completed" => "its result is stored and not yet taken",
        "submitted" => "its result was accepted, not yet seen",
        "settled" => "the platform has its result",
        "refused" => "the platform refused its result",
        "obsolete" => "nobody waits for it any more",
        _ => "",
    };
    html! { span class={ "state " (state) } title=(meaning) { (state) } }
}

/// A call's row: state, function, where, when.
pub(super) fn calls(calls: &[Call]) -> Markup {
    html! {
        div.scroll {
            table.calls {
                thead { tr { th { "State" } th { "Function" } th { "Call" } th.number { "Attempt" } th { "First seen" } th.wide { "Detail" } } }
                tbody {
                    @for call in calls {
                        tr {
                            td { (state(&call.state)) }
                            td.name { a href={ "/calls/" (call.id) } { (call.function) } }
                            td.ids title=(call.call) { (call.platform) " / " (call.session) }
                            td.number { (call.attempt) }
                            td.when { (ago(call.created_at)) }
                            td.wide.detail { (call.detail.as_deref().unwrap_or_default()) }
                        }
                    }
                }
            }
        }
        @if calls.is_empty() { p.empty { "No calls." } }
    }
}

/// For a query string.
pub(super) fn percent(text: &str) -> String {
    crate::operator::percent(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_told_in_its_largest_unit() {
        let spans = [0.0, 0.0004, 0.012, 0.25, 1.0, 2.44, 42.4, 100.0, 3600.0, 7200.0, 200_000.0].map(span);
        let told = ["0 s", "1 ms", "12 ms", "0.25 s", "1 s", "2.4 s", "42 s", "2 min", "60 min", "2 h", "2 d"];
        assert_eq!(spans, told.map(str::to_owned));
    }

    #[test]
    fn what_comes_from_outside_is_escaped() {
        let shown = message("a", "<script>\"&").into_string();
        assert!(shown.contains("&lt;script&gt;&quot;&amp;"), "{shown}");
        assert_eq!(sentence("<b>"), None);
    }
}
