//! The handler of one call: started under a lease that is renewed, and what its end means.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use async_trait::async_trait;
use tracing::Instrument;

use super::{
    Account, Worker,
    answer::{EXPIRED, FAILED, held, persist, still_pending},
    approve,
};
use crate::{
    arguments::Arguments,
    function::Function,
    handler,
    session::{ActionRequired, CallKey, FunctionCall, IfInterrupted, Session, ToolResult},
    store::{Lease, Ledger, Mark, Note, Transition},
};

/// How long a call of a paused function waits at least before it is looked at again, and at most twice as long.
const PAUSED_WAIT: Duration = Duration::from_secs(5);

/// How a handler's run ended.
pub(super) enum Ran {
    /// With a result for the agent, and a detail for people.
    Finished(Lease, ToolResult, Option<String>),
    /// Without one: it is tried again, or somebody else has it.
    Again(Duration),
    /// The platform no longer waits for it.
    Gone(Lease),
}

pub(super) fn expired(lease: Lease) -> Ran {
    Ran::Finished(lease, ToolResult::Error(EXPIRED.to_owned()), Some("deadline passed".to_owned()))
}

/// A call, and what is known around it.
pub(super) struct Asked<'a> {
    pub(super) account: &'a Account,
    pub(super) session: &'a Session,
    pub(super) call: &'a FunctionCall,
    pub(super) action: &'a ActionRequired,
    /// Where its result may be posted.
    pub(super) result_url: Option<String>,
}

/// Validates the arguments and runs the handler under the lease.
pub(super) async fn run(worker: &Worker, function: &Arc<Function>, asked: Asked<'_>, lease: Lease) -> Ran {
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
