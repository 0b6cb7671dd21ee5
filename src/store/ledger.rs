//! The store as one call sees it: single questions, which go together underneath.

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::{
    Actions, Approvals, Arrival, Arrived, Claim, ClaimRequest, Completion, Due, Mark, Note, Pause, Pruned, Result,
    Step, Store, Taken, Unfinished, group::Group,
};
use crate::session::{CallKey, SessionKey};

/// Questions that share one statement at most.
const BATCH: usize = 256;

/// A cheap handle on a store.
#[derive(Clone)]
pub struct Ledger {
    store: Arc<dyn Store>,
    groups: Arc<Groups>,
}

struct Groups {
    steps: Group<Step, bool>,
    dues: Group<Due, ()>,
}

impl Ledger {
    /// Needs a running runtime. `timeout` bounds every statement.
    pub fn new(store: Arc<dyn Store>, timeout: Duration) -> Self {
        let (steps, dues) = (store.clone(), store.clone());
        let groups = Groups {
            steps: Group::spawn(BATCH, timeout, move |batch: Vec<Step>| {
                let store = steps.clone();
                async move { take(&*store, batch).await }
            }),
            dues: Group::spawn(BATCH, timeout, move |batch: Vec<Due>| {
                let store = dues.clone();
                async move { store.postpone(&batch).await.map(|()| vec![(); batch.len()]) }
            }),
        };
        Self { store, groups: Arc::new(groups) }
    }

    pub async fn claim(&self, request: ClaimRequest) -> Result<Claim> {
        match self.groups.steps.ask(Step::Claim(request.clone())).await? {
            true => Ok(Claim::Run(request.first_lease())),
            false => self.store.contest(&request).await,
        }
    }

    /// `false`: somebody else holds the call by now.
    pub async fn complete(&self, completion: Completion) -> Result<bool> {
        self.groups.steps.ask(Step::Complete(completion)).await
    }

    /// `false`: somebody else holds the call by now, or it is settled.
    pub async fn mark(&self, mark: Mark) -> Result<bool> {
        self.groups.steps.ask(Step::Mark(mark)).await
    }

    /// `false`: somebody else holds the call by now.
    pub async fn note(&self, note: Note) -> Result<bool> {
        self.store.note(&note).await
    }

    pub async fn tell(&self, call: &CallKey, event: &str, detail: &str) -> Result<()> {
        self.store.tell(call, event, detail).await
    }

    pub async fn postpone(&self, due: Due) -> Result<()> {
        self.groups.dues.ask(due).await
    }

    pub async fn arrive(&self, arrival: &Arrival) -> Result<Arrived> {
        self.store.arrive(arrival).await
    }

    pub async fn secret(&self, name: &str, fresh: &[u8]) -> Result<Vec<u8>> {
        self.store.secret(name, fresh).await
    }

    /// What there is of one call, in whatever state.
    pub async fn find(&self, call: &CallKey) -> Result<Option<Unfinished>> {
        self.store.find(call).await
    }

    pub async fn unfinished(&self, session: &SessionKey) -> Result<Vec<Unfinished>> {
        self.store.unfinished(session).await
    }

    pub async fn stranded(
        &self,
        platform: &str,
        reach: Duration,
        quiet: Duration,
        limit: usize,
    ) -> Result<Vec<SessionKey>> {
        self.store.stranded(platform, reach, quiet, limit).await
    }

    pub async fn in_hand(&self, sessions: &[SessionKey], within: Duration) -> Result<Vec<bool>> {
        self.store.in_hand(sessions, within).await
    }

    pub async fn due(&self, limit: usize, hold: Duration) -> Result<Vec<Taken>> {
        self.store.due(limit, hold).await
    }

    pub async fn forget(&self, taken: &[Taken]) -> Result<()> {
        self.store.forget(taken).await
    }

    pub async fn overdue(&self) -> Result<u64> {
        self.store.overdue().await
    }

    pub async fn oldest_pending(&self) -> Result<Option<Duration>> {
        self.store.oldest_pending().await
    }

    /// The functions that an operator has paused.
    pub async fn pauses(&self) -> Result<Vec<Pause>> {
        self.store.pauses().await
    }

    /// The store itself, for what needs no grouping.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Approvals, each question by itself: a person's pace needs no groups.
    pub fn approvals(&self) -> &dyn Approvals {
        &*self.store
    }

    /// Actions that are no function calls, each question by itself: there are few.
    pub fn actions(&self) -> &dyn Actions {
        &*self.store
    }

    pub async fn prune(&self, older: Duration, from: i64, limit: usize) -> Result<Pruned> {
        self.store.prune(older, from, limit).await
    }

    pub async fn migrate(&self) -> Result<()> {
        self.store.migrate().await
    }
}

/// A statement touches each call once: of several steps of one call, the later ones go in a statement behind the others.
async fn take(store: &dyn Store, steps: Vec<Step>) -> Result<Vec<bool>> {
    let mut seen = HashMap::with_capacity(steps.len());
    let round_of = |step| {
        let round = seen.entry(Step::key(step)).or_insert(0);
        *round += 1;
        *round
    };
    let rounds: Vec<usize> = steps.iter().map(round_of).collect();
    let last = rounds.iter().copied().max().unwrap_or(0);
    if last == 1 {
        return store.take(&steps).await;
    }
    let mut taken = vec![false; steps.len()];
    for round in 1..=last {
        let places: Vec<usize> = (0..steps.len()).filter(|place| rounds[*place] == round).collect();
        let batch: Vec<Step> = places.iter().map(|place| steps[*place].clone()).collect();
        for (place, done) in places.into_iter().zip(store.take(&batch).await?) {
            taken[place] = done;
        }
    }
    Ok(taken)
}
