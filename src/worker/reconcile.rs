//! One look at a session: what the platform says is pending is answered, until nothing of ours is.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Duration,
};

use futures_util::future::{join_all, try_join_all};

use tracing::Instrument;

use super::{
    Account, Worker,
    answer::{Answer, answer},
    others,
    pools::{MISPLACED, REFUSED, hand_back, hand_over},
    submit::{Posted, Reply, close_leftover},
};
use crate::{
    function::Place,
    platform,
    retry::Policy,
    session::{ActionRequired, CallKey, FunctionCall, RequiredAction, Session},
    store::{self, Mark, Transition, Unfinished},
};

/// How a look ended.
pub(super) enum Outcome {
    /// Nothing of ours is pending.
    Done,
    /// Something is: look again after this; `tries` is how often in a row the platform was away.
    Again { after: Duration, tries: u32 },
    /// It can never be worked on: an operator's matter.
    Reject(String),
    /// We were told to stop: the delivery goes back.
    Stopped,
}

/// How long a platform that does not answer is left alone.
const PLATFORM_AWAY: Policy =
    Policy { initial: Duration::from_secs(1), multiplier: 2.0, max: Duration::from_secs(300), max_attempts: u32::MAX };

/// `redelivered`: the last holder's connection died. `resumed`: our own last look broke off, with the store away.
pub(super) async fn reconcile(
    worker: &Worker,
    action: &ActionRequired,
    redelivered: bool,
    resumed: bool,
) -> store::Result<Outcome> {
    let Some(account) = worker.accounts.get(&action.session.platform) else {
        return Ok(Outcome::Reject(format!("platform {} is not configured", action.session.platform)));
    };
    let mut look = Look {
        worker,
        account,
        action,
        redelivered,
        resumed,
        again: None,
        away: false,
        handled: HashSet::new(),
        first: true,
    };
    // Read before the platform is asked: a call that is claimed meanwhile must not look as if it had gone.
    let mut leftovers = look.leftovers().await?;
    let mut posted: Vec<Posted> = Vec::new();
    loop {
        let session = match look.retrieve().await {
            Ok(session) => session,
            Err(after) => {
                look.away = true;
                look.again(after);
                look.confirm(posted, None).await?;
                break;
            }
        };
        let pending = function_calls(session.as_ref());
        look.confirm(posted, Some(&pending)).await?;
        look.close(std::mem::take(&mut leftovers), &pending).await?;
        let (Some(session), fresh) = (session, look.fresh(pending)) else { break };
        posted = look.answer(&session, fresh).await?;
        if posted.is_empty() || worker.force.is_cancelled() {
            break;
        }
    }
    Ok(match look.again {
        _ if worker.force.is_cancelled() => Outcome::Stopped,
        Some(after) => Outcome::Again { after, tries: if look.away { action.tries.saturating_add(1) } else { 1 } },
        None => Outcome::Done,
    })
}

/// The state of one look.
struct Look<'a> {
    worker: &'a Worker,
    account: &'a Account,
    action: &'a ActionRequired,
    redelivered: bool,
    resumed: bool,
    /// When to look again, if at all: the earliest of what the calls asked for.
    again: Option<Duration>,
    /// The platform did not answer as it should: the next wait is longer.
    away: bool,
    /// Calls that this look has dealt with.
    handled: HashSet<CallKey>,
    /// The platform was asked once.
    first: bool,
}

impl Look<'_> {
    fn again(&mut self, after: Duration) {
        self.again = Some(self.again.map_or(after, |earlier| earlier.min(after)));
    }

    /// What an earlier look began. A webhook that comes for the first time has none worth a read.
    async fn leftovers(&self) -> store::Result<Vec<Unfinished>> {
        match self.redelivered || self.resumed || self.action.tries > 0 {
            true => self.worker.ledger.unfinished(&self.action.session).await,
            false => Ok(Vec::new()),
        }
    }

    /// `Ok(None)`: the session is gone. `Err`: ask again after this.
    async fn retrieve(&self) -> Result<Option<Session>, Duration> {
        if let Some(left) = self.account.paused() {
            return Err(left);
        }
        let error = match self
            .account
            .platform
            .retrieve(&self.action.session)
            .instrument(tracing::info_span!("retrieve"))
            .await
        {
            Ok(session) => {
                self.account.accept();
                return Ok(Some(session));
            }
            Err(error) => error,
        };
        match error {
            platform::Error::Gone => Ok(None),
            platform::Error::Unauthorized { detail } => Err(self.account.refuse(&detail)),
            platform::Error::Retryable { after, detail } => {
                let wait = self.backoff(after);
                tracing::warn!(detail, wait = ?wait, "the platform does not tell what is pending");
                self.account.fail(&detail);
                Err(wait)
            }
        }
    }

    fn backoff(&self, after: Option<Duration>) -> Duration {
        PLATFORM_AWAY.backoff(self.action.tries.saturating_add(1), after, rand::random())
    }

    /// What became of the results that were posted, now that the platform has said what is still pending
    /// (`None`: it did not say).
    async fn confirm(
        &mut self,
        posted: Vec<Posted>,
        pending: Option<&HashMap<CallKey, FunctionCall>>,
    ) -> store::Result<()> {
        let mut marks = Vec::with_capacity(posted.len());
        for Posted { stored, reply } in posted {
            let still = pending.is_none_or(|pending| pending.contains_key(&stored.key));
            let transition = match (reply, still) {
                (Reply::Accepted, false) | (Reply::Unclear, false) => Transition::Settled,
                (Reply::Accepted, true) => {
                    self.again(self.worker.config.confirm_after);
                    Transition::Submitted(self.worker.config.confirm_after)
                }
                (Reply::Unknown | Reply::Refused, false) => Transition::Obsolete,
                (Reply::Unknown, true) => {
                    self.away = true;
                    self.again(self.backoff(None));
                    continue;
                }
                (Reply::Refused, true) if pending.is_some() => {
                    tracing::error!(call.id = %stored.key.call_id, function = stored.function, "the platform refused a result for good");
                    Transition::Refused
                }
                (Reply::Refused, true) => continue,
                (Reply::Unclear, true) => {
                    self.away = true;
                    self.again(self.backoff(None));
                    if self.action.tries > 1 {
                        // A key whose first attempt was interrupted can stay blocked for a day: same bytes, next key.
                        super::submit::rekey(self.worker, stored).await?;
                    }
                    continue;
                }
            };
            if matches!(transition, Transition::Refused | Transition::Obsolete) {
                let outcome = if transition == Transition::Refused { "refused" } else { "obsolete" };
                self.worker.metrics.call(&self.account.name, &stored.function, outcome);
            }
            marks.push(Mark::new(stored.key, stored.fence, transition));
        }
        try_join_all(marks.into_iter().map(|mark| self.worker.ledger.mark(mark))).await?;
        Ok(())
    }

    /// Ends what the ledger still holds of calls that the platform no longer lists.
    async fn close(
        &mut self,
        leftovers: Vec<Unfinished>,
        pending: &HashMap<CallKey, FunctionCall>,
    ) -> store::Result<()> {
        let mut pools = BTreeSet::new();
        for leftover in leftovers.into_iter().filter(|l| !pending.contains_key(&l.key)) {
            match self.worker.functions.place(&leftover.function, &self.account.name) {
                Place::Here => {
                    if let Some(after) = close_leftover(self.worker, self.account, leftover).await? {
                        self.again(after);
                    }
                }
                Place::Pool(pool) => drop(pools.insert(pool)),
                Place::Elsewhere => {}
            }
        }
        // With a try behind it, they read what is left too.
        let action = ActionRequired { tries: self.action.tries.max(1), ..self.action.clone() };
        if !hand_over(self.worker, &action, &pools).await {
            self.again(REFUSED);
        }
        Ok(())
    }

    /// Pending calls that this look has not dealt with yet.
    fn fresh(&mut self, pending: HashMap<CallKey, FunctionCall>) -> Vec<FunctionCall> {
        pending.into_values().filter(|call| self.handled.insert(call.key.clone())).collect()
    }

    /// The calls that are ours. The session is given to whoever has others, before a handler of ours takes its time.
    async fn ours(&mut self, calls: Vec<FunctionCall>) -> Vec<FunctionCall> {
        let (mut ours, mut pools, mut elsewhere) = (Vec::new(), BTreeSet::new(), false);
        for call in calls {
            match self.worker.functions.place(&call.name, &self.account.name) {
                Place::Here => ours.push(call),
                Place::Pool(pool) => drop(pools.insert(pool)),
                Place::Elsewhere => elsewhere = true,
            }
        }
        if !hand_over(self.worker, self.action, &pools).await {
            self.again(REFUSED);
        }
        // Whoever handed it over knows the others, but not those that came since.
        match (elsewhere, std::mem::replace(&mut self.first, false)) {
            (true, true) if ours.is_empty() => self.again(MISPLACED),
            (true, false) if !hand_back(self.worker, self.action).await => self.again(REFUSED),
            _ => {}
        }
        ours
    }

    /// Answers calls at once, each by itself, and tells of what else the session waits for; what was posted must be confirmed.
    async fn answer(&mut self, session: &Session, calls: Vec<FunctionCall>) -> store::Result<Vec<Posted>> {
        let calls = self.ours(calls).await;
        let (worker, account, action, redelivered) = (self.worker, self.account, self.action, self.redelivered);
        let answers = calls.into_iter().map(|call| answer(worker, account, session, call, action, redelivered));
        let (answers, told) = tokio::join!(join_all(answers), others::tell(worker, account, session));
        if !told? {
            self.away = true;
            self.again(self.backoff(None));
        }
        let mut posted = Vec::new();
        for answer in answers {
            match answer? {
                Answer::Posted(post) => posted.push(post),
                Answer::Again(after) => self.again(after),
                Answer::Away(after) => {
                    self.away = true;
                    self.again(after);
                }
                Answer::Ended => {}
            }
        }
        Ok(posted)
    }
}

fn function_calls(session: Option<&Session>) -> HashMap<CallKey, FunctionCall> {
    session
        .into_iter()
        .flat_map(|session| &session.required_actions)
        .filter_map(|action| match action {
            RequiredAction::FunctionCall(call) => Some((call.key.clone(), call.clone())),
            RequiredAction::Other(_) => None,
        })
        .collect()
}
