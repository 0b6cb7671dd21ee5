//! What a claim on a row that exists already means. Pure: both databases ask here.

use std::time::Duration;

use super::{Arrival, Arrived, Claim, ClaimRequest, Due, Lease, Stored, Transition, Unfinished};
use crate::session::{CallKey, IfInterrupted, Submission};

/// One row of `calls`.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) state: String,
    pub(super) function: String,
    pub(super) attempt: i64,
    pub(super) fence: i64,
    pub(super) until_at: i64,
    pub(super) deadline_at: i64,
    pub(super) success: Option<bool>,
    pub(super) body: Option<Vec<u8>>,
    pub(super) idempotency_key: Option<String>,
    pub(super) generation: i64,
    pub(super) submissions: i64,
    pub(super) note: Option<String>,
    pub(super) approval: Option<String>,
}

/// Either an answer, or a step to take under the row's present fence.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Answer(Claim),
    /// Raise fence and attempt, start a lease, answer with what `Claim` says.
    Take(Claim),
    /// Put it in state `interrupted` for an operator, answer that it is held.
    Hold(Claim),
}

/// `now` is the database's clock in Unix milliseconds.
pub(super) fn judge(request: &ClaimRequest, row: &Row, now: i64) -> Verdict {
    if let Some(stored) = row.stored(&request.key) {
        return match row.state.as_str() {
            "submitted" if row.until_at > now => Verdict::Answer(Claim::Busy(millis(row.until_at - now))),
            "refused" => Verdict::Answer(Claim::Refused),
            _ => Verdict::Answer(Claim::Stored(stored)),
        };
    }
    let left = millis(row.deadline_at - now);
    let lease = Lease {
        key: request.key.clone(),
        fence: row.fence + 1,
        attempt: u32::try_from(row.attempt + 1).unwrap_or(u32::MAX),
        deadline: left,
        generation: u32::try_from(row.generation).unwrap_or(0),
        note: row.note.clone(),
        approved: row.approval.as_deref() == Some("approved"),
    };
    let expired = row.deadline_at <= now;
    let held = row.until_at > now;
    match (row.approval.as_deref(), row.state.as_str()) {
        (Some("pending"), "waiting") if held => return Verdict::Answer(Claim::Held(millis(row.until_at - now))),
        (Some("pending"), "waiting") => return Verdict::Take(Claim::Unapproved(lease)),
        // Nothing was started: whoever held it before, the answer is known.
        (Some("denied" | "expired"), "claimed") if held && !request.takeover => {
            return Verdict::Answer(Claim::Busy(millis(row.until_at - now)));
        }
        (Some("denied"), _) => return Verdict::Take(Claim::Denied(lease)),
        (Some("expired"), _) => return Verdict::Take(Claim::Unapproved(lease)),
        _ => {}
    }
    match row.state.as_str() {
        "claimed" => {
            // A handler that left a note goes on from there: that starts nothing twice.
            let if_interrupted = if row.note.is_some() { IfInterrupted::Rerun } else { request.if_interrupted };
            let rerun = if_interrupted == IfInterrupted::Rerun;
            if row.until_at > now && !(request.takeover && rerun) {
                return Verdict::Answer(Claim::Busy(millis(row.until_at - now)));
            }
            match if_interrupted {
                IfInterrupted::Hold if !expired => Verdict::Hold(Claim::Held(left)),
                IfInterrupted::Hold => Verdict::Take(Claim::Expired(lease)),
                IfInterrupted::Fail => Verdict::Take(Claim::Interrupted(lease)),
                IfInterrupted::Rerun if expired => Verdict::Take(Claim::Expired(lease)),
                IfInterrupted::Rerun => Verdict::Take(Claim::Run(lease)),
            }
        }
        _ if expired => Verdict::Take(Claim::Expired(lease)),
        "retrying" if row.until_at > now => Verdict::Answer(Claim::Busy(millis(row.until_at - now))),
        "waiting" | "interrupted" => Verdict::Answer(Claim::Held(left)),
        _ => Verdict::Take(Claim::Run(lease)),
    }
}

/// What an arrival means that could not be stored: `row` is what stands there.
pub(super) fn judge_late(arrival: &Arrival, row: Option<&Row>) -> Arrived {
    match row {
        None => Arrived::Unknown,
        Some(row) if row.body.as_deref() == Some(&arrival.submission.body) => Arrived::Repeated,
        Some(_) => Arrived::Late,
    }
}

impl Row {
    fn stored(&self, key: &CallKey) -> Option<Stored> {
        Some(Stored {
            key: key.clone(),
            function: self.function.clone(),
            fence: self.fence,
            success: self.success?,
            submission: Submission { body: self.body.clone()?, idempotency_key: self.idempotency_key.clone()? },
            generation: u32::try_from(self.generation).ok()?,
            submissions: u32::try_from(self.submissions).unwrap_or(u32::MAX),
        })
    }

    pub(super) fn unfinished(self, key: CallKey) -> Unfinished {
        let stored = self.stored(&key);
        Unfinished { key, function: self.function, fence: self.fence, stored }
    }
}

impl Arrival {
    /// Its session is to be looked at now.
    pub(super) fn due(&self) -> Due {
        Due {
            session: self.key.session.clone(),
            after: Duration::ZERO,
            tries: 1,
            accepted_at: self.at,
            traceparent: None,
        }
    }
}

impl ClaimRequest {
    /// The lease of whoever claims a call that nobody claimed before.
    pub(super) fn first_lease(&self) -> Lease {
        Lease {
            key: self.key.clone(),
            fence: 1,
            attempt: 1,
            deadline: self.deadline,
            generation: 0,
            note: None,
            approved: false,
        }
    }
}

/// A transition in columns.
pub(super) struct Move {
    pub(super) state: &'static str,
    /// Milliseconds from now for `until_at`.
    pub(super) until: i64,
    /// 1 where a submission was accepted.
    pub(super) accepted: i64,
    /// -1 where the attempt did not take place.
    pub(super) attempts: i64,
}

impl Move {
    pub(super) fn of(transition: Transition) -> Self {
        let (state, until, accepted) = match transition {
            Transition::Renewed(lease) => ("claimed", in_millis(lease), 0),
            Transition::Released => ("claimed", 0, 0),
            Transition::Waiting => ("waiting", 0, 0),
            Transition::Postponed(after) | Transition::Retrying(after) => ("retrying", in_millis(after), 0),
            Transition::Submitted(confirm) => ("submitted", in_millis(confirm), 1),
            Transition::Settled => ("settled", 0, 1),
            Transition::Refused => ("refused", 0, 0),
            Transition::Obsolete => ("obsolete", 0, 0),
        };
        let attempts = if matches!(transition, Transition::Postponed(_)) { -1 } else { 0 };
        Self { state, until, accepted, attempts }
    }
}

pub(super) fn millis(ms: i64) -> Duration {
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// Whole milliseconds of a duration, for a column.
pub(super) fn in_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX / 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{session::SessionKey, store::Origin};

    const NOW: i64 = 1000;

    fn request(if_interrupted: IfInterrupted, takeover: bool) -> ClaimRequest {
        ClaimRequest {
            key: CallKey::new(SessionKey::new("openai", "sess_1"), "turn_1", "call_1"),
            function: "f".to_owned(),
            lease: Duration::from_secs(30),
            deadline: Duration::from_secs(60),
            if_interrupted,
            takeover,
            origin: Origin { by: "w".into(), event: String::new(), accepted_at: 0 },
        }
    }

    fn row(state: &str, approval: Option<&str>, until_at: i64) -> Row {
        Row {
            state: state.to_owned(),
            function: "f".to_owned(),
            attempt: 0,
            fence: 3,
            until_at,
            deadline_at: NOW + 100,
            success: None,
            body: None,
            idempotency_key: None,
            generation: 0,
            submissions: 0,
            note: None,
            approval: approval.map(str::to_owned),
        }
    }

    fn judged(row: &Row) -> [Verdict; 3] {
        let requests = [(IfInterrupted::Rerun, false), (IfInterrupted::Fail, false), (IfInterrupted::Hold, true)];
        requests.map(|(if_interrupted, takeover)| judge(&request(if_interrupted, takeover), row, NOW))
    }

    #[test]
    fn a_call_that_waits_for_a_person_is_held_until_then_and_no_longer() {
        let held = Verdict::Answer(Claim::Held(Duration::from_millis(5)));
        assert!(judged(&row("waiting", Some("pending"), NOW + 5)).iter().all(|verdict| *verdict == held));
        for at in [NOW, NOW - 5] {
            let verdicts = judged(&row("waiting", Some("pending"), at));
            assert!(
                verdicts.iter().all(|v| matches!(v, Verdict::Take(Claim::Unapproved(l)) if l.fence == 4)),
                "{verdicts:?}"
            );
        }
        let over = Row { deadline_at: NOW, ..row("waiting", Some("pending"), NOW) };
        assert!(
            matches!(judged(&over)[0], Verdict::Take(Claim::Unapproved(_))),
            "the reason is told, not the deadline"
        );
    }

    #[test]
    fn what_was_not_approved_is_answered_so_whoever_held_it() {
        for state in ["retrying", "claimed"] {
            let verdicts = judged(&row(state, Some("denied"), NOW));
            assert!(verdicts.iter().all(|v| matches!(v, Verdict::Take(Claim::Denied(_)))), "{state}: {verdicts:?}");
            let verdicts = judged(&row(state, Some("expired"), NOW));
            assert!(verdicts.iter().all(|v| matches!(v, Verdict::Take(Claim::Unapproved(_)))), "{state}: {verdicts:?}");
        }
        let [rerun, fail, taken_over] = judged(&row("claimed", Some("denied"), NOW + 5));
        let busy = Verdict::Answer(Claim::Busy(Duration::from_millis(5)));
        assert!(rerun == busy && fail == busy, "somebody answers it");
        assert!(matches!(taken_over, Verdict::Take(Claim::Denied(_))), "whoever did has died");
    }

    #[test]
    fn an_approved_call_is_judged_as_any_other_and_knows_it() {
        let [rerun, ..] = judged(&row("retrying", Some("approved"), NOW));
        assert!(matches!(rerun, Verdict::Take(Claim::Run(lease)) if lease.approved && lease.attempt == 1));
        let [rerun, fail, hold] = judged(&row("claimed", Some("approved"), NOW));
        assert!(matches!(rerun, Verdict::Take(Claim::Run(_))));
        assert!(matches!(fail, Verdict::Take(Claim::Interrupted(_))));
        assert!(matches!(hold, Verdict::Hold(Claim::Held(_))));
        let [later, ..] = judged(&row("waiting", Some("approved"), NOW));
        assert!(matches!(later, Verdict::Answer(Claim::Held(_))), "its handler said that the result comes later");
        let [again, ..] = judged(&row("obsolete", Some("pending"), NOW + 5));
        assert!(matches!(again, Verdict::Take(Claim::Run(lease)) if !lease.approved), "it is asked about anew");
    }
}
