//! One pending call: claim, validate, call, complete, submit.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use async_trait::async_trait;
use tracing::Instrument;

use super::{
    Account, UnknownFunctions, Worker, approve,
    submit::{Posted, submit},
};
use crate::{
    approval::UNAPPROVED,
    arguments::Arguments,
    function::Function,
    handler, platform,
    retry::Policy,
    session::{ActionRequired, CallKey, FunctionCall, IfInterrupted, RequiredAction, Session, ToolResult},
    store::{self, Claim, ClaimRequest, Completion, Lease, Ledger, Mark, Note, Origin, Stored, Transition},
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
/// How long a call of a paused function waits at least before it is looked at again, and at most twice as long.
const PAUSED_WAIT: Duration = Duration::from_secs(5);
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
fn held(worker: &Worker, left: Duration) -> Duration {
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
async fn still_pending(account: &Account, key: &CallKey) -> bool {
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

/// How a handler's run ended.
enum Ran {
    /// With a result for the agent, and a detail for people.
    Finished(Lease, ToolResult, Option<String>),
    /// Without one: it is tried again, or somebody else has it.
    Again(Duration),
    /// The platform no longer waits for it.
    Gone(Lease),
}

fn expired(lease: Lease) -> Ran {
    Ran::Finished(lease, ToolResult::Error(EXPIRED.to_owned()), Some("deadline passed".to_owned()))
}

/// A call, and what is known around it.
struct Asked<'a> {
    account: &'a Account,
    session: &'a Session,
    call: &'a FunctionCall,
    action: &'a ActionRequired,
    /// Where its result may be posted.
    result_url: Option<String>,
}

/// Validates the arguments and runs the handler under the lease.
async fn run(worker: &Worker, function: &Arc<Function>, asked: Asked<'_>, lease: Lease) -> Ran {
    let Asked { account, session, call, action, result_url } = asked;
    let arguments = Arguments::parse(call.arguments.as_deref())
        .and_then(|arguments| function.schema.check(&arguments).map(|()| arguments));
    let arguments = match arguments {
        Ok(arguments) => arguments,
        Err(sentence) => {
            return Ran::Finished(lease, ToolResult::Error(sentence), Some("invalid arguments".to_owned()));
        }
    };
    if let Err(sentence) = function.may_call(&lease.key.session.platform, &arguments, &session.metadata) {
        return Ran::Finished(lease, ToolResult::Error(sentence), Some("not allowed".to_owned()));
    }
    if let Some(wait) =
        approve::ask_first(worker, function.approval.as_ref(), session, &call.name, &arguments, &lease).await
    {
        return Ran::Again(held(worker, wait));
    }
    if worker.functions.is_paused(&function.name) {
        return postpone(worker, lease, PAUSED_WAIT.mul_f64(1.0 + rand::random::<f64>())).await;
    }
    let slot = match function.limits.enter(Instant::now()) {
        Ok(slot) => slot,
        Err(wait) => return postpone(worker, lease, wait).await,
    };
    if lease.approved && lease.attempt == 1 {
        worker.metrics.approval(&call.name, "approved");
    }
    let span =
        tracing::info_span!("handler", function = call.name, call.id = %call.key.call_id, attempt = lease.attempt);
    let handled = handler::Call {
        key: call.key.clone(),
        function: call.name.clone(),
        arguments,
        attempt: lease.attempt,
        deadline: SystemTime::now().checked_add(lease.deadline),
        metadata: session.metadata.clone(),
        traceparent: span.in_scope(crate::telemetry::traceparent).or_else(|| action.traceparent.clone()),
        result_url,
        if_interrupted: function.if_interrupted,
        note: lease.note.clone(),
        keep: Some(Arc::new(Kept { ledger: worker.ledger.clone(), key: lease.key.clone(), fence: lease.fence })),
    };
    let started = Instant::now();
    worker.metrics.in_flight(1);
    let ended = hold(worker, account, &lease, function.handler.call(&handled)).instrument(span.clone()).await;
    worker.metrics.in_flight(-1);
    let took = started.elapsed();
    worker.metrics.handler(&call.name, took.as_secs_f64());
    match &ended {
        Held::Ended(Err(handler::Error::Overloaded { after, .. })) => slot.overloaded(*after, Instant::now()),
        Held::Ended(_) => slot.answered(Instant::now()),
        _ => drop(slot),
    }
    let _entered = span.enter();
    match ended {
        Held::Ended(Ok(output)) => Ran::Finished(lease, ToolResult::Success(output), None),
        Held::Ended(Err(handler::Error::Final { detail, message })) => {
            tracing::warn!(detail, "the handler failed for good");
            let sentence = message.unwrap_or_else(|| FAILED.to_owned());
            Ran::Finished(lease, ToolResult::Error(sentence), Some(detail))
        }
        Held::Ended(Err(
            handler::Error::Retryable { detail, after } | handler::Error::Overloaded { detail, after },
        )) => {
            drop(_entered);
            retry(worker, function, lease, detail, after, took).await
        }
        Held::Ended(Err(handler::Error::Unknown { detail })) => {
            drop(_entered);
            match function.if_interrupted {
                IfInterrupted::Rerun => retry(worker, function, lease, detail, None, took).await,
                IfInterrupted::Fail | IfInterrupted::Hold => interrupted(worker, lease, detail, took).await,
            }
        }
        Held::Ended(Err(handler::Error::Later)) => {
            drop(_entered);
            wait(worker, function, lease, took).await
        }
        Held::Expired => expired(lease),
        Held::Lost => {
            tracing::warn!("the claim was lost while the handler ran: it was stopped");
            Ran::Again(worker.config.lease)
        }
        Held::Gone => Ran::Gone(lease),
        Held::Stopped => {
            drop(_entered);
            release(worker, lease).await;
            Ran::Again(Duration::ZERO)
        }
    }
}

/// Where a handler keeps its note: in its call's row, as long as it holds the call.
struct Kept {
    ledger: Ledger,
    key: CallKey,
    fence: i64,
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kept({}, {})", self.key, self.fence)
    }
}

#[async_trait]
impl handler::Keep for Kept {
    async fn keep(&self, note: &str) -> bool {
        let note = Note { key: self.key.clone(), fence: self.fence, text: note.to_owned() };
        match self.ledger.note(note).await {
            Ok(kept) => kept,
            Err(error) => {
                tracing::warn!(%error, call.id = %self.key.call_id, "cannot keep a handler's note");
                false
            }
        }
    }
}

/// How a handler's future ended.
enum Held {
    Ended(Result<crate::session::Output, handler::Error>),
    Expired,
    Lost,
    Gone,
    Stopped,
}

/// Polls the handler, renews its claim at a third of the lease, and looks now and then whether the platform still waits;
/// dropping the handler cancels it.
async fn hold(
    worker: &Worker,
    account: &Account,
    lease: &Lease,
    handler: impl Future<Output = Result<crate::session::Output, handler::Error>>,
) -> Held {
    let renewals = async {
        loop {
            tokio::time::sleep(worker.config.lease / 3).await;
            let transition = Transition::Renewed(worker.config.lease);
            let renewal = Mark::new(lease.key.clone(), lease.fence, transition);
            match worker.ledger.mark(renewal).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => tracing::warn!(%error, call.id = %lease.key.call_id, "cannot renew a claim"),
            }
        }
    };
    let gone = async {
        loop {
            tokio::time::sleep(worker.config.recheck).await;
            if !still_pending(account, &lease.key).await {
                return;
            }
        }
    };
    tokio::select! {
        ended = handler => Held::Ended(ended),
        () = tokio::time::sleep(lease.deadline) => Held::Expired,
        () = worker.force.cancelled() => Held::Stopped,
        () = renewals => Held::Lost,
        () = gone => Held::Gone,
    }
}

/// Notes a failed attempt, or ends the call when it was the last one that fits.
async fn retry(
    worker: &Worker,
    function: &Function,
    lease: Lease,
    detail: String,
    after: Option<Duration>,
    took: Duration,
) -> Ran {
    let wait = function.retry.delay(lease.attempt, after, rand::random());
    let Some(wait) = wait.filter(|wait| *wait < lease.deadline) else {
        tracing::warn!(function = function.name, call.id = %lease.key.call_id, attempt = lease.attempt, detail, "the handler failed for the last time");
        return Ran::Finished(lease, ToolResult::Error(FAILED.to_owned()), Some(detail));
    };
    tracing::warn!(function = function.name, call.id = %lease.key.call_id, attempt = lease.attempt, wait = ?wait, detail, "the handler failed: trying again");
    worker.metrics.call(&lease.key.session.platform, &function.name, "retried");
    let transition = Transition::Retrying(wait);
    let mark = Mark { detail: Some(detail), took: Some(took), ..Mark::new(lease.key, lease.fence, transition) };
    match persist(worker, || worker.ledger.mark(mark.clone())).await {
        Some(_) => Ran::Again(wait),
        None => Ran::Again(Duration::ZERO),
    }
}

/// The function is paused, or its limits let nothing start now: the call goes back into the line, and takes no room meanwhile.
async fn postpone(worker: &Worker, lease: Lease, wait: Duration) -> Ran {
    let wait = wait.min(lease.deadline);
    tracing::debug!(call.id = %lease.key.call_id, ?wait, "the function is paused, or its limits are reached");
    let mark = Mark::new(lease.key, lease.fence, Transition::Postponed(wait));
    match persist(worker, || worker.ledger.mark(mark.clone())).await {
        Some(true) => Ran::Again(wait),
        Some(false) | None => Ran::Again(Duration::ZERO),
    }
}

/// Notes that the result comes later. Whoever waits for it is woken by its arrival, or at the deadline.
async fn wait(worker: &Worker, function: &Function, lease: Lease, took: Duration) -> Ran {
    let mark = Mark { took: Some(took), ..Mark::new(lease.key, lease.fence, Transition::Waiting) };
    match persist(worker, || worker.ledger.mark(mark.clone())).await {
        Some(true) => {
            tracing::info!(call.id = %mark.key.call_id, "the result comes later");
            worker.metrics.call(&mark.key.session.platform, &function.name, "waiting");
            Ran::Again(held(worker, lease.deadline))
        }
        // It is there already.
        Some(false) | None => Ran::Again(Duration::ZERO),
    }
}

/// A handler that may have run, gave no answer, and must not be started again: the claim ends as if its worker had died.
async fn interrupted(worker: &Worker, lease: Lease, detail: String, took: Duration) -> Ran {
    tracing::warn!(call.id = %lease.key.call_id, detail, "the handler gave no answer: whether it took effect is unknown");
    let mark =
        Mark { detail: Some(detail), took: Some(took), ..Mark::new(lease.key, lease.fence, Transition::Released) };
    persist(worker, || worker.ledger.mark(mark.clone())).await;
    Ran::Again(Duration::ZERO)
}

/// Gives a claim back at shutdown; whoever looks next judges it at once.
async fn release(worker: &Worker, lease: Lease) {
    let mark = Mark::new(lease.key, lease.fence, Transition::Released);
    let _ = worker.ledger.mark(mark).await;
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
