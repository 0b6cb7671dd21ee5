//! Required actions that are no function calls: counted, logged, told to their receiver; never answered.

use super::{Account, Worker};
use crate::{
    session::{OtherAction, RequiredAction, Session},
    store,
};

/// Tells what was not told yet; whether all of it is. With no receiver there is nothing to tell.
pub(super) async fn tell(worker: &Worker, account: &Account, session: &Session) -> store::Result<bool> {
    let mut told = true;
    for action in others(session) {
        told &= tell_one(worker, account, action).await?;
    }
    Ok(told)
}

fn others(session: &Session) -> impl Iterator<Item = &OtherAction> {
    session.required_actions.iter().filter_map(|action| match action {
        RequiredAction::Other(other) if other.key.kind != OtherAction::UNREADABLE => Some(other),
        RequiredAction::Other(_) | RequiredAction::FunctionCall(_) => None,
    })
}

async fn tell_one(worker: &Worker, account: &Account, action: &OtherAction) -> store::Result<bool> {
    let (kind, id) = (&action.key.kind, &action.key.id);
    let count = |outcome| worker.metrics.other_action(&account.name, kind, outcome);
    let noticed = worker.ledger.actions().notice(&action.key).await?;
    if noticed.is_new {
        tracing::info!(kind, action.id = %id, "the session waits for something that is not ours to answer");
        count("seen");
    }
    let Some(receiver) = account.receiver.as_ref().filter(|_| !noticed.is_forwarded) else { return Ok(true) };
    match receiver.tell(action).await {
        Ok(()) => {
            worker.ledger.actions().forwarded(&action.key).await?;
            count("forwarded");
            Ok(true)
        }
        Err(detail) => {
            tracing::warn!(kind, action.id = %id, detail, "an action was not forwarded: trying again");
            count("failed");
            Ok(false)
        }
    }
}
