//! Posts stored results, and ends what is left of calls that are no longer pending.

use std::time::Duration;

use tracing::Instrument;

use super::{Account, Worker, answer::Answer};
use crate::{
    platform::Submitted,
    retry::Policy,
    session::{ActionRequired, Submission, ToolResult},
    store::{self, Completion, Mark, Stored, Transition, Unfinished},
};

/// A result that was posted, and what the platform replied; only the next read tells whether the call is settled.
pub(super) struct Posted {
    pub(super) stored: Stored,
    pub(super) reply: Reply,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Accepted,
    Unclear,
    Unknown,
    Refused,
}

const TOO_LARGE: &str =
    "The function ran, but its result is too large to be returned. Ask for less data and call it again.";

/// How long a submission that must be repeated waits.
const RESUBMIT: Policy =
    Policy { initial: Duration::from_secs(1), multiplier: 2.0, max: Duration::from_secs(300), max_attempts: u32::MAX };

/// Posts one stored result.
pub(super) async fn submit(
    worker: &Worker,
    account: &Account,
    mut stored: Stored,
    action: &ActionRequired,
) -> store::Result<Answer> {
    if let Some(left) = account.paused() {
        return Ok(Answer::Again(left));
    }
    loop {
        let submitted = post(worker, account, &stored).await;
        let reply = match submitted {
            Submitted::Accepted => {
                account.accept();
                worker.metrics.result_latency(&account.name, age(action.accepted_at));
                Reply::Accepted
            }
            Submitted::Unclear { detail } => {
                tracing::warn!(call.id = %stored.key.call_id, detail, "reading the session again to learn what became of a result");
                Reply::Unclear
            }
            Submitted::Unknown { detail } => {
                tracing::warn!(call.id = %stored.key.call_id, detail, "the platform does not know a call that it listed");
                Reply::Unknown
            }
            Submitted::Refused { detail } => {
                tracing::warn!(call.id = %stored.key.call_id, detail, "a result was refused");
                Reply::Refused
            }
            Submitted::TooLarge { detail } if stored.success => {
                tracing::warn!(call.id = %stored.key.call_id, detail, "a result is too large: telling the agent");
                stored = replace(worker, account, stored, &detail).await?;
                continue;
            }
            Submitted::TooLarge { .. } => Reply::Refused,
            Submitted::Retry { after, detail } => {
                let wait = RESUBMIT.backoff(action.tries.saturating_add(1), after, rand::random());
                tracing::warn!(call.id = %stored.key.call_id, detail, wait = ?wait, "a result was not taken");
                account.fail(&detail);
                return Ok(Answer::Away(wait));
            }
            Submitted::Unauthorized { detail } => return Ok(Answer::Again(account.refuse(&detail))),
            Submitted::Gone => {
                let mark = Mark::new(stored.key, stored.fence, Transition::Obsolete);
                worker.ledger.mark(mark).await?;
                worker.metrics.call(&account.name, &stored.function, "obsolete");
                return Ok(Answer::Ended);
            }
        };
        return Ok(Answer::Posted(Posted { stored, reply }));
    }
}

async fn post(worker: &Worker, account: &Account, stored: &Stored) -> Submitted {
    let span = tracing::info_span!("submit", call.id = %stored.key.call_id, function = stored.function);
    let submitted = account.platform.submit(&stored.key, &stored.submission).instrument(span).await;
    let outcome = match &submitted {
        Submitted::Accepted => "accepted",
        Submitted::Unclear { .. } => "unclear",
        Submitted::Unknown { .. } => "unknown",
        Submitted::Retry { .. } => "retry",
        Submitted::Unauthorized { .. } => "unauthorized",
        Submitted::TooLarge { .. } => "too_large",
        Submitted::Refused { .. } => "refused",
        Submitted::Gone => "gone",
    };
    worker.metrics.submission(&account.name, outcome);
    if let Some(detail) = submitted.detail() {
        tell(worker, stored, outcome, detail).await;
    }
    submitted
}

/// A submission that did not end well, for the call's history only.
async fn tell(worker: &Worker, stored: &Stored, outcome: &str, detail: &str) {
    if let Err(error) = worker.ledger.tell(&stored.key, &format!("submission {outcome}"), detail).await {
        tracing::debug!(%error, "a submission is not in its call's history");
    }
}

/// A result the platform will not take for its size gives way to an error result under the next key.
async fn replace(worker: &Worker, account: &Account, stored: Stored, detail: &str) -> store::Result<Stored> {
    let generation = stored.generation + 1;
    let result = ToolResult::Error(TOO_LARGE.to_owned());
    let submission = account.platform.encode(&stored.key, &result, generation);
    let smaller = Stored { success: false, submission, generation, ..stored };
    let completion = Completion { stored: smaller.clone(), detail: Some(detail.to_owned()), took: None };
    worker.ledger.complete(completion).await?;
    Ok(smaller)
}

/// The same bytes under the next key.
pub(super) async fn rekey(worker: &Worker, stored: Stored) -> store::Result<()> {
    let generation = stored.generation + 1;
    let idempotency_key = stored.key.submission_idempotency_key(generation);
    let submission = Submission { idempotency_key, ..stored.submission };
    let completion = Completion { stored: Stored { submission, generation, ..stored }, detail: None, took: None };
    worker.ledger.complete(completion).await?;
    Ok(())
}

/// A call that is no longer pending. A stored result whose acceptance we did not see is posted once more: only the platform
/// can say whether it had it. Returns when to look again, if the platform cannot say now.
pub(super) async fn close_leftover(
    worker: &Worker,
    account: &Account,
    leftover: Unfinished,
) -> store::Result<Option<Duration>> {
    let transition = match &leftover.stored {
        None => Transition::Obsolete,
        Some(stored) if stored.submissions > 0 => Transition::Settled,
        Some(stored) => match post(worker, account, stored).await {
            Submitted::Accepted => Transition::Settled,
            Submitted::Retry { after, .. } => return Ok(Some(RESUBMIT.backoff(2, after, rand::random()))),
            Submitted::Unauthorized { detail } => return Ok(Some(account.refuse(&detail))),
            _ => Transition::Obsolete,
        },
    };
    if transition == Transition::Obsolete {
        worker.metrics.call(&account.name, &leftover.function, "obsolete");
    }
    worker.ledger.mark(Mark::new(leftover.key, leftover.fence, transition)).await?;
    Ok(None)
}

/// Seconds since `then`, Unix milliseconds.
fn age(then: i64) -> f64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (now.as_millis() as f64 - then as f64).max(0.0) / 1000.0
}
