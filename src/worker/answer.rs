//! One pending call: claim, validate, call, complete, submit.

use std::time::{Duration, Instant};

use super::{
    Account, UnknownFunctions, Worker, approve,
    run::{Asked, Ran, expired, run},
    submit::{Posted, submit},
};
use crate::{
    approval::UNAPPROVED,
    platform,
    retry::Policy,
    session::{ActionRequired, CallKey, FunctionCall, IfInterrupted, RequiredAction, Session, ToolResult},
    store::{self, Claim, ClaimRequest, Completion, Lease, Mark, Origin, Stored, Transition},
};

/// What a call needs next.
pub(super) enum Answer {
    /// Its result was posted; the next read tells more.
    Posted(Posted),
    /// Look again after this.
    Again(Duration),
    /// The same, because the platform did not take the result.
    Away(Duration),
    /// Nothing from us.
    Ended,
}

/// What the model reads when a handler did not choose its words.
pub(crate) const FAILED: &str = "The function failed and gave no result. The failure was reported to its operators.";
pub(crate) const EXPIRED: &str = "The function did not finish in time and gave no result.";
pub(crate) const INTERRUPTED: &str =
    "The function was interrupted: whether it took effect is unknown. Check before calling it again.";

/// A handler that took longer than this has its call looked up again before the result is submitted.
const STALE: Duration = Duration::from_secs(5);
/// How long a call waits for a function that is not imported yet, before it is looked at again.
const EXPECTED_WAIT: Duration = Duration::from_secs(2);

pub(super) async fn answer(
    worker: &Worker,
    account: &Account,
    session: &Session,
    call: FunctionCall,
    action: &ActionRequired,
    redelivered: bool,
) -> store::Result<Answer> {
    let function = worker.functions.get(&call.name, &account.name);
    if function.is_none() && worker.functions.is_expected(&call.name) {
        return Ok(Answer::Again(EXPECTED_WAIT));
    }
    if function.is_none() {
        worker.metrics.unknown_function(&account.name);
        if worker.config.unknown_functions == UnknownFunctions::Leave {
            tracing::debug!(function = call.name, "a pending call of a function that is not registered is left alone");
            return Ok(Answer::Ended);
        }
    }
    let result_url = match &worker.addresses {
        Some(addresses) => Some(addresses.url(&call.key).await?),
        None => None,
    };
    let request = ClaimRequest {
        key: call.key.clone(),
        function: call.name.clone(),
        lease: worker.config.lease,
        deadline: account.deadline(session),
        if_interrupted: function.as_ref().map_or(IfInterrupted::Rerun, |f| f.if_interrupted),
        takeover: redelivered,
        origin: Origin { by: worker.name.clone(), event: action.event.clone(), accepted_at: action.accepted_at },
    };
    let claim = worker.ledger.claim(request).await?;
    let started = Instant::now();
    let finished = match claim {
        // The platform lists it to the last moment.
        Claim::Run(lease) if lease.deadline.is_zero() => expired(lease),
        Claim::Run(lease) => match function {
            Some(function) => {
                let asked = Asked { account, session, call: &call, action, result_url };
                run(worker, &function, asked, lease).await
            }
            None => Ran::Finished(lease, ToolResult::Error(unknown(&call.name)), Some("not registered".to_owned())),
        },
        Claim::Interrupted(lease) => {
            worker.metrics.call(&account.name, &call.name, "interrupted");
            Ran::Finished(lease, ToolResult::Error(INTERRUPTED.to_owned()), Some("interrupted".to_owned()))
        }
        Claim::Expired(lease) => expired(lease),
        Claim::Denied(lease) => {
            worker.metrics.approval(&call.name, "denied");
            let (sentence, detail) = approve::denied(worker, &lease).await;
            Ran::Finished(lease, ToolResult::Error(sentence), Some(detail))
        }
        Claim::Unapproved(lease) => {
            Ran::Finished(lease, ToolResult::Error(UNAPPROVED.to_owned()), Some("not approved in time".to_owned()))
        }
        Claim::Stored(stored) => return submit(worker, account, stored, action).await,
        Claim::Busy(left) => return Ok(Answer::Again(left.max(Duration::from_millis(100)))),
        Claim::Held(left) => return Ok(Answer::Again(held(worker, left))),
        Claim::Refused => return Ok(Answer::Ended),
    };
    match finished {
        Ran::Finished(lease, result, detail) => {
            let result = account.platform.fitting(result);
            let outcome = if matches!(result, ToolResult::Success(_)) { "success" } else { "error" };
            worker.metrics.call(&account.name, &call.name, outcome);
            let Some(stored) = complete(worker, account, &call, lease, &result, detail, started.elapsed()).await else {
                return Ok(Answer::Again(worker.config.lease));
            };
            if started.elapsed() > STALE && !still_pending(account, &call.key).await {
                return abandon(worker, account, stored.key, stored.fence, &call.name).await;
            }
            submit(worker, account, stored, action).await
        }
        Ran::Again(after) => Ok(Answer::Again(after)),
        Ran::Gone(lease) => abandon(worker, account, lease.key, lease.fence, &call.name).await,
    }
}

/// When to look again at a call that waits for somebody else: as often as a sweep would, for its session may have been
/// cancelled meanwhile.
pub(super) fn held(worker: &Worker, left: Duration) -> Duration {
    left.min(worker.sweep.every).max(Duration::from_millis(100))
}

/// A call that the platform no longer lists: nothing is submitted for it.
async fn abandon(
    worker: &Worker,
    account: &Account,
    key: CallKey,
    fence: i64,
    function: &str,
) -> store::Result<Answer> {
    tracing::info!(session.id = %key.session.session, call.id = %key.call_id, function, "the call is no longer pending: nothing is submitted");
    worker.metrics.call(&account.name, function, "obsolete");
    worker.ledger.mark(Mark::new(key, fence, Transition::Obsolete)).await?;
    Ok(Answer::Ended)
}

/// Whether the platform still waits for the call; yes where it does not say.
pub(super) async fn still_pending(account: &Account, key: &CallKey) -> bool {
    match account.platform.retrieve(&key.session).await {
        Ok(session) => session.required_actions.iter().any(|action| match action {
            RequiredAction::FunctionCall(call) => call.key == *key,
            RequiredAction::Other(_) => false,
        }),
        Err(platform::Error::Gone) => false,
        Err(_) => true,
    }
}

fn unknown(name: &str) -> String {
    format!("There is no function named {name} here. Do not call it again.")
}

/// Stores the encoded result. `None`: somebody else holds the call by now, or we stop before the store could take it.
async fn complete(
    worker: &Worker,
    account: &Account,
    call: &FunctionCall,
    lease: Lease,
    result: &ToolResult,
    detail: Option<String>,
    took: Duration,
) -> Option<Stored> {
    let stored = Stored {
        key: call.key.clone(),
        function: call.name.clone(),
        fence: lease.fence,
        success: matches!(result, ToolResult::Success(_)),
        submission: account.platform.encode(&call.key, result, lease.generation),
        generation: lease.generation,
        submissions: 0,
    };
    let completion = Completion { stored: stored.clone(), detail, took: Some(took) };
    match persist(worker, || worker.ledger.complete(completion.clone())).await {
        Some(true) => Some(stored),
        Some(false) => {
            tracing::warn!(call.id = %call.key.call_id, "a result came too late: somebody else holds the call, or another result came");
            None
        }
        None => None,
    }
}

/// A result in memory must not be lost because the store is away for a while.
pub(super) async fn persist<T, F>(worker: &Worker, mut write: impl FnMut() -> F) -> Option<T>
where
    F: Future<Output = store::Result<T>>,
{
    for attempt in 1.. {
        match write().await {
            Ok(written) => return Some(written),
            Err(error) => tracing::error!(%error, attempt, "the store is away: holding a result"),
        }
        tokio::select! {
            () = tokio::time::sleep(PERSIST.backoff(attempt, None, rand::random())) => {}
            () = worker.force.cancelled() => return None,
        }
    }
    None
}

const PERSIST: Policy = Policy {
    initial: Duration::from_millis(100),
    multiplier: 2.0,
    max: Duration::from_secs(3),
    max_attempts: u32::MAX,
};
