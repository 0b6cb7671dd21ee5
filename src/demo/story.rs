//! How the demo tells: a table with times for people, lines of JSON for programs.

use std::{io::Write as _, time::Instant};

use serde_json::{Value, json};

use super::orders;
use crate::sandbox::{ActionKind, ActionState, Entry, Outcome, Session, Status, What};

/// One step that happened.
pub(super) struct Line {
    who: &'static str,
    what: String,
    fields: Value,
}

impl Line {
    /// `None`: not worth a line. `session` is as it is now, for the names of functions.
    pub(super) fn from_platform(entry: &Entry, session: Option<&Session>) -> Option<Self> {
        let line = |who, what: String, fields| Some(Self { who, what, fields });
        match &entry.what {
            What::Created => {
                line("agent", "a session begins".to_owned(), json!({ "event": "created", "session": &*entry.session }))
            }
            What::Status(Status::RequiresAction) => {
                let waiting = session.map(pending).unwrap_or_default();
                line(
                    "agent",
                    format!("calls {} and waits", waiting.join(", ")),
                    json!({ "event": "requires_action", "session": &*entry.session, "functions": waiting }),
                )
            }
            What::WebhookSent { webhook_id, answer, attempt, .. } => {
                let shown = match answer {
                    Ok(status) => status.to_string(),
                    Err(why) => why.clone(),
                };
                line(
                    "webhook",
                    format!("{} answered {shown}", short(webhook_id)),
                    json!({ "event": "webhook", "id": webhook_id, "attempt": attempt, "answer": shown }),
                )
            }
            What::Retrieved { status } => line(
                "worker",
                "reads what is pending".to_owned(),
                json!({ "event": "retrieved", "status": status, "session": &*entry.session }),
            ),
            What::Posted { call_id, status, outcome, .. } => {
                let word = match outcome {
                    Outcome::Accepted => "accepted",
                    Outcome::Replayed => "accepted again, nothing changed",
                    Outcome::Refused => "refused",
                    Outcome::Faulted => "failed",
                };
                let function = session.and_then(|session| function(session, call_id)).unwrap_or("a call");
                line(
                    "worker",
                    format!("submits the result of {function}: {status} {word}"),
                    json!({ "event": "submitted", "call": call_id, "function": function, "status": status, "outcome": word }),
                )
            }
            What::TurnEnded { status, .. } => line(
                "agent",
                format!("ends its turn: {}", format!("{status:?}").to_lowercase()),
                json!({ "event": "turn_ended", "status": format!("{status:?}").to_lowercase() }),
            ),
            _ => None,
        }
    }

    pub(super) fn from_orders(event: &orders::Event) -> Option<Self> {
        let what = match event.status {
            200 => format!("lookup_order {}: 200", event.order_id),
            status => format!("lookup_order {}: {status}, to be tried again", event.order_id),
        };
        let fields = json!({ "event": "handler", "function": "lookup_order", "order_id": event.order_id,
                             "status": event.status, "idempotency_key": event.idempotency_key });
        Some(Self { who: "handler", what, fields })
    }
}

/// Functions whose calls are pending.
fn pending(session: &Session) -> Vec<String> {
    let actions = session.actions.iter().filter(|action| action.state == ActionState::Pending);
    actions.filter_map(|action| name(&action.kind)).map(str::to_owned).collect()
}

fn function<'a>(session: &'a Session, call_id: &str) -> Option<&'a str> {
    session.actions.iter().find(|action| action.id == call_id).and_then(|action| name(&action.kind))
}

fn name(kind: &ActionKind) -> Option<&str> {
    match kind {
        ActionKind::FunctionCall { name, .. } => Some(name),
        ActionKind::Other { .. } => None,
    }
}

/// Ids are long; their ends tell them apart.
fn short(id: &str) -> String {
    let (prefix, rest) = id.split_once('_').unwrap_or(("", id));
    let tail: String = rest.chars().rev().take(6).collect::<Vec<_>>().into_iter().rev().collect();
    format!("{prefix}_…{tail}")
}

/// Where the demo tells.
#[derive(Clone)]
pub(super) struct Story {
    started: Instant,
    json: bool,
}

impl Story {
    pub(super) fn new(json: bool) -> Self {
        Self { started: Instant::now(), json }
    }

    pub(super) fn title(&self, text: &str) {
        match self.json {
            true => self.print(&json!({ "event": "started", "what": text }).to_string()),
            false => self.print(&format!("{text}\n\n  time      who       what")),
        }
    }

    pub(super) fn line(&self, line: &Line) {
        let ms = self.started.elapsed().as_millis();
        if self.json {
            let mut fields = line.fields.clone();
            fields["ms"] = json!(u64::try_from(ms).unwrap_or(u64::MAX));
            return self.print(&fields.to_string());
        }
        self.print(&format!("{ms:>6} ms   {:<8}  {}", line.who, line.what));
    }

    pub(super) fn answer(&self, text: &str) {
        match self.json {
            true => self.print(&json!({ "event": "answer", "text": text }).to_string()),
            false => {
                self.print("\nthe agent's last words:");
                text.lines().for_each(|line| self.print(&format!("  {line}")));
                self.print("\nproved:");
            }
        }
    }

    pub(super) fn proof(&self, held: bool, what: &str) {
        match self.json {
            true => self.print(&json!({ "event": "proof", "held": held, "what": what }).to_string()),
            false => self.print(&format!("  {}  {what}", if held { "yes" } else { "NO " })),
        }
    }

    /// A reader that went away is no reason to fail.
    fn print(&self, text: &str) {
        let _ = writeln!(std::io::stdout(), "{text}");
    }
}
