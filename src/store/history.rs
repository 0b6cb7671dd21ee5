//! What has happened to a call, one entry an event: appended by the statement that moves the call, never changed.
//!
//! A row's history is JSON Lines. The database puts its own clock's `at` (Unix milliseconds) before what is built here.

use std::{sync::Arc, time::Duration};

use serde::Serialize;
use serde_json::Value;

use super::{Ask, Claim, ClaimRequest, Completion, Decide, Mark, Reset, Transition};

/// Nothing is appended to a history of more characters: a call that is tried for weeks must not fill the store.
pub(super) const MOST: i32 = 16 * 1024;
/// Characters of a failure's text that are kept.
const CLIP: usize = 300;

/// Why and where a call is looked at; for its history only.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The process that claims.
    pub by: Arc<str>,
    /// The webhook's id, or what else started the look.
    pub event: String,
    /// When the webhook was accepted, Unix milliseconds.
    pub accepted_at: i64,
}

#[derive(Default, Serialize)]
#[serde(default)]
struct Entry<'a> {
    event: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    accepted_at: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    success: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    took_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    wait_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

impl Entry<'_> {
    /// The line after its `{"at":…,`.
    fn tail(&self) -> String {
        let mut line = serde_json::to_string(self).unwrap_or_default();
        line.push('\n');
        line.split_off(1)
    }
}

/// Of a claim that was given.
pub(super) fn claimed(request: &ClaimRequest, claim: &Claim) -> String {
    let (event, attempt) = match claim {
        Claim::Run(lease) => ("claimed", Some(lease.attempt)),
        Claim::Interrupted(_) => ("interrupted", None),
        Claim::Expired(_) => ("expired", None),
        Claim::Denied(_) => ("answering a denial", None),
        Claim::Unapproved(_) => ("not approved in time", None),
        _ => ("held", None),
    };
    let Origin { by, event: cause, accepted_at } = &request.origin;
    let accepted_at = (*accepted_at > 0).then_some(*accepted_at);
    Entry { event, attempt, by: Some(by), cause: Some(cause), accepted_at, ..Entry::default() }.tail()
}

pub(super) fn completed(completion: &Completion) -> String {
    let Completion { stored, detail, took } = completion;
    let (took_ms, detail) = (took.map(millis), detail.as_deref().map(clip));
    Entry { event: "completed", success: Some(stored.success), took_ms, detail, ..Entry::default() }.tail()
}

/// `None` for what happens too often to be told: a claim that is renewed, a call that waits for its function's limits.
pub(super) fn marked(mark: &Mark) -> Option<String> {
    let (event, wait) = match mark.transition {
        Transition::Renewed(_) | Transition::Postponed(_) => return None,
        Transition::Released => ("released", None),
        Transition::Waiting => ("waiting", None),
        Transition::Retrying(wait) => ("retrying", Some(wait)),
        Transition::Submitted(_) => ("submitted", None),
        Transition::Settled => ("settled", None),
        Transition::Refused => ("refused", None),
        Transition::Obsolete => ("obsolete", None),
    };
    let (took_ms, wait_ms) = (mark.took.map(millis), wait.map(millis));
    Some(Entry { event, took_ms, wait_ms, detail: mark.detail.as_deref().map(clip), ..Entry::default() }.tail())
}

pub(super) fn arrived(success: bool) -> String {
    Entry { event: "arrived", success: Some(success), ..Entry::default() }.tail()
}

/// Of an operator's act.
pub(super) fn reset(reset: &Reset, by: &str) -> String {
    let (event, success, detail) = match reset {
        Reset::Retry { .. } => ("retry", None, None),
        Reset::Resubmit { .. } => ("resubmit", None, None),
        Reset::Resolve { success, detail, .. } => ("resolve", Some(*success), Some(clip(detail))),
    };
    Entry { event, success, detail, by: Some(by), ..Entry::default() }.tail()
}

/// Of a call that waits for a person from now on.
pub(super) fn asked(ask: &Ask) -> String {
    Entry { event: "asked", wait_ms: Some(millis(ask.expires)), ..Entry::default() }.tail()
}

/// Of a person's decision.
pub(super) fn decided(decide: &Decide) -> String {
    let detail = decide.reason.as_deref().map(clip);
    Entry { event: decide.decision(), by: Some(&decide.by), detail, ..Entry::default() }.tail()
}

/// Of what moves no call.
pub(super) fn told(event: &str, detail: &str) -> String {
    Entry { event, detail: Some(clip(detail)), ..Entry::default() }.tail()
}

/// The entries, the oldest first.
pub(super) fn read(lines: &str) -> Vec<Value> {
    lines.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn clip(text: &str) -> String {
    text.chars().take(CLIP).collect()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_tail_completes_the_database_s_clock_to_a_line_of_json() {
        let lines = format!("{{\"at\":7,{}{{\"at\":8,{}", arrived(true), told("retry", "a \"quote\"\nand a line"));
        assert_eq!(
            read(&lines),
            [
                json!({ "at": 7, "event": "arrived", "success": true }),
                json!({ "at": 8, "event": "retry", "detail": "a \"quote\"\nand a line" })
            ]
        );
    }

    #[test]
    fn a_long_failure_is_cut() {
        let entry = &read(&format!("{{\"at\":7,{}", told("x", &"é".repeat(1000))))[0];
        assert_eq!(entry["detail"].as_str().map(|text| text.chars().count()), Some(CLIP));
    }
}
