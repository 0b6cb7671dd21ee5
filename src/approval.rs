//! Asking a person first: which calls wait for an approval, what is done with a decision, and what the model hears of it.

pub mod notify;

use std::time::Duration;

use jiff::Timestamp;
use secrecy::SecretString;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use crate::{
    allow::Rule,
    arguments::Arguments,
    handler::Sign,
    store::{self, Approval, Approvals, Decide, Decided, Decision},
};

/// `approval` of a function in the config.
#[derive(Clone, Debug)]
pub struct Policy {
    pub required: Required,
    pub by: By,
    /// How long somebody may decide. The call's deadline may come first.
    pub expires: Duration,
    pub notify: Option<Notify>,
}

/// Which calls need an approval.
#[derive(Clone, Debug)]
pub enum Required {
    Always,
    /// Those of which it says true, or of which it can say nothing.
    If(Rule),
}

/// Who decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Whoever may use the operator's interfaces.
    Token,
    /// Whoever has the link that the notice carries, too.
    Link,
}

/// Who is told that a call waits.
#[derive(Clone, Debug)]
pub struct Notify {
    pub url: String,
    pub headers: Vec<(String, SecretString)>,
    pub sign: Sign,
    /// Whether the arguments are told too.
    pub arguments: bool,
}

impl Policy {
    /// Whether a person must be asked about this call.
    pub fn requires(&self, platform: &str, arguments: &Arguments, metadata: &Map<String, Value>) -> bool {
        match &self.required {
            Required::Always => true,
            // In doubt somebody is asked.
            Required::If(rule) => rule.says(platform, arguments, metadata) != Some(false),
        }
    }

    /// How long somebody may decide on a call that has so much time left. A tenth of it, a minute at most, is kept for the
    /// handler.
    pub fn time(&self, left: Duration) -> Duration {
        self.expires.min(left - (left / 10).min(Duration::from_secs(60)))
    }
}

/// What names the arguments that were approved.
pub fn digest(arguments: &Arguments) -> Vec<u8> {
    Sha256::digest(arguments.text()).to_vec()
}

/// What the model reads when nobody decided.
pub const UNAPPROVED: &str = "Nobody approved this call in time, so it was not made. Do not repeat it at once: tell the \
                              user that it needs an approval.";
/// What the model reads where nobody can be asked, because the platform does not wait so long.
pub const NO_TIME: &str = "This call needs a person's approval, which cannot be given here. It was not made; do not repeat \
                           it.";

/// What the model reads of a denial.
pub fn denied(reason: Option<&str>) -> String {
    match reason {
        Some(reason) => format!(
            "An operator denied this call: {reason}{} It was not made; do not repeat it unchanged.",
            if reason.ends_with(['.', '!', '?']) { "" } else { "." }
        ),
        None => "An operator denied this call. It was not made; do not repeat it.".to_owned(),
    }
}

/// Characters of a reason or a name that are kept.
const MAX_REASON: usize = 1000;
const MAX_NAME: usize = 100;

/// Decides, whichever way the decision comes: the first one counts, the others are told of it.
pub async fn decide(store: &dyn Approvals, decide: Decide) -> store::Result<Decided> {
    let reason = decide.reason.map(|reason| plain(&reason, MAX_REASON)).filter(|reason| !reason.is_empty());
    let decide = Decide { by: plain(&decide.by, MAX_NAME), reason, ..decide };
    let decided = store.decide(&decide).await?;
    if let Decided::Done(approval) = &decided {
        let (approved, by) = (decide.approve, &decide.by);
        tracing::info!(function = approval.function, call = %approval.key, approved, by, "a person decided on a call");
    }
    Ok(decided)
}

/// What became of a decision that changes nothing, in a sentence.
pub fn told(approval: &Approval) -> String {
    let what = match approval.decision {
        None => "is asked about anew",
        Some(Decision::Approved) => "was approved",
        Some(Decision::Denied) => "was denied",
        Some(Decision::Expired) => "was not decided in time",
        Some(Decision::Withdrawn) => "has ended otherwise",
    };
    let by = approval.decided_by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
    let at = approval.decided_at.and_then(|at| Timestamp::from_millisecond(at).ok());
    let at = at.map(|at| format!(" at {at}")).unwrap_or_default();
    format!("{} {what}{by}{at}: this changes nothing", approval.key)
}

/// On one line, without what a terminal or a model would take for more than text.
fn plain(text: &str, most: usize) -> String {
    let words: Vec<&str> =
        text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|w| !w.is_empty()).collect();
    words.join(" ").chars().take(most).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn policy(required: Required) -> Policy {
        Policy { required, by: By::Token, expires: Duration::from_secs(3600), notify: None }
    }

    #[test]
    fn a_rule_asks_when_it_says_true_and_when_it_can_say_nothing() {
        let arguments = Arguments::parse(Some(r#"{"amount":50}"#)).unwrap();
        for (rule, asks) in [
            ("arguments.amount > 100", false),
            ("arguments.amount > 10", true),
            ("arguments.missing > 10", true),
            ("arguments.amount", true),
            ("platform == 'openai'", true),
        ] {
            let policy = policy(Required::If(Rule::compile(rule).unwrap()));
            assert_eq!(policy.requires("openai", &arguments, &Map::new()), asks, "{rule}");
        }
        assert!(policy(Required::Always).requires("openai", &arguments, &Map::new()));
    }

    #[test]
    fn an_approval_ends_while_there_is_time_for_the_handler() {
        let policy = policy(Required::Always);
        let minutes = |n: u64| Duration::from_secs(60 * n);
        assert_eq!(policy.time(minutes(24 * 60)), minutes(60));
        assert_eq!(policy.time(minutes(60)), minutes(59));
        assert_eq!(policy.time(minutes(5)), Duration::from_secs(270));
        assert_eq!(policy.time(Duration::ZERO), Duration::ZERO);
    }

    #[test]
    fn a_denial_reads_well_with_and_without_a_reason() {
        let told = denied(Some("too much"));
        assert!(told.starts_with("An operator denied this call: too much. It was not made"), "{told}");
        assert!(denied(Some("Really?")).contains("Really? It"), "no full stop is added");
        assert!(denied(None).starts_with("An operator denied this call. It"));
        assert_eq!(plain(" a\n\tb\0\x1b[2J ", 100), "a b [2J");
        assert_eq!(plain(&"é".repeat(200), 100).chars().count(), 100);
    }
}
