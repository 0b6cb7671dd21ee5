//! Asks a person before a handler starts: the call waits without a worker, and its session is due again when somebody
//! has decided or the time is over.

use std::time::Duration;

use super::{Worker, answer::persist};
use crate::{
    approval::{self, notify::Gate},
    arguments::Arguments,
    session::Session,
    store::{self, Ask, Decision, Lease},
};

/// Whether the handler may start, or how long to wait for somebody. What runs is what was approved: other arguments are
/// another question.
pub(super) async fn ask_first(
    worker: &Worker,
    gate: Option<&Gate>,
    session: &Session,
    function: &str,
    arguments: &Arguments,
    lease: &Lease,
) -> Option<Duration> {
    let platform = &lease.key.session.platform;
    let gate = gate.filter(|gate| gate.policy.requires(platform, arguments, &session.metadata))?;
    let digest = approval::digest(arguments);
    if lease.approved {
        let is_approved = async || -> store::Result<bool> {
            let found = worker.ledger.approvals().approval(&lease.key).await?;
            Ok(found.is_some_and(|a| a.decision == Some(Decision::Approved) && a.digest == digest))
        };
        match persist(worker, is_approved).await {
            Some(true) => return None,
            Some(false) => tracing::warn!(call.id = %lease.key.call_id, function, "the call is not as it was approved"),
            None => return Some(Duration::ZERO),
        }
    }
    let ask = Ask {
        key: lease.key.clone(),
        fence: lease.fence,
        function: function.to_owned(),
        arguments: arguments.text().to_owned(),
        digest,
        expires: gate.policy.time(lease.deadline),
        notify: gate.notifier.is_some(),
    };
    match persist(worker, || worker.ledger.approvals().ask(&ask)).await {
        Some(true) => {
            tracing::info!(call = %lease.key, function, expires = ?ask.expires, "the call waits for an approval");
            worker.metrics.approval(function, "asked");
            worker.asked.notify_one();
            Some(ask.expires)
        }
        Some(false) | None => Some(Duration::ZERO),
    }
}

/// The sentence for the model, and a detail for people. A reason that cannot be read now is left out.
pub(super) async fn denied(worker: &Worker, lease: &Lease) -> (String, String) {
    let found = persist(worker, || worker.ledger.approvals().approval(&lease.key)).await.flatten();
    let by = found.as_ref().and_then(|a| a.decided_by.as_deref()).unwrap_or("an operator");
    let reason = found.as_ref().and_then(|a| a.reason.as_deref());
    (approval::denied(reason), format!("denied by {by}"))
}
