//! The store as one call sees it: single questions, grouped underneath by nature.

use std::{collections::HashMap, sync::Arc, time::Duration};

use super::{
    Approvals, Arrival, Arrived, Claim, ClaimRequest, Completion, Due, Mark, Note, Pause, Pruned, Result, Store, Taken,
    Unfinished, group::Group,
};
use crate::session::{CallKey, SessionKey};

/// Questions that share one statement at most.
const BATCH: usize = 128;

/// A cheap handle on a store.
#[derive(Clone)]
pub struct Ledger {
    store: Arc<dyn Store>,
    groups: Arc<Groups>,
}

struct Groups {
    claims: Group<ClaimRequest, Claim>,
    completions: Group<Completion, bool>,
    marks: Group<Mark, bool>,
    dues: Group<Due, ()>,
}

impl Ledger {
    /// Needs a running runtime. `timeout` bounds every statement.
    pub fn new(store: Arc<dyn Store>, timeout: Duration) -> Self {
        let (claims, completions, marks, dues) = (store.clone(), store.clone(), store.clone(), store.clone());
        let groups = Groups {
            claims: Group::spawn(BATCH, timeout, move |batch: Vec<ClaimRequest>| {
                let store = claims.clone();
                async move { store.claim(&batch).await }
            }),
            completions: Group::spawn(BATCH, timeout, move |batch: Vec<Completion>| {
                let store = completions.clone();
                async move {
                    let run = |batch: Vec<Completion>| {
                        let store = store.clone();
                        async move { store.complete(&batch).await }
                    };
                    in_rounds(batch, |completion| &completion.stored.key, run).await
                }
            }),
            marks: Group::spawn(BATCH, timeout, move |batch: Vec<Mark>| {
                let store = marks.clone();
                async move {
                    let run = |batch: Vec<Mark>| {
                        let store = store.clone();
                        async move { store.mark(&batch).await }
                    };
                    in_rounds(batch, |mark| &mark.key, run).await
                }
            }),
            dues: Group::spawn(BATCH, timeout, move |batch: Vec<Due>| {
                let store = dues.clone();
                async move { store.postpone(&batch).await.map(|()| vec![(); batch.len()]) }
            }),
        };
        Self { store, groups: Arc::new(groups) }
    }

    pub async fn claim(&self, request: ClaimRequest) -> Result<Claim> {
        self.groups.claims.ask(request).await
    }

    /// `false`: somebody else holds the call by now.
    pub async fn complete(&self, completion: Completion) -> Result<bool> {
        self.groups.completions.ask(completion).await
    }

    /// `false`: somebody else holds the call by now, or it is settled.
    pub async fn mark(&self, mark: Mark) -> Result<bool> {
        self.groups.marks.ask(mark).await
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

    pub async fn prune(&self, older: Duration, from: i64, limit: usize) -> Result<Pruned> {
        self.store.prune(older, from, limit).await
    }

    pub async fn migrate(&self) -> Result<()> {
        self.store.migrate().await
    }
}

/// A statement touches each call once: of several items of one call, the later ones go in a statement behind the others.
async fn in_rounds<I: Clone, F>(
    batch: Vec<I>,
    key: impl Fn(&I) -> &CallKey,
    mut run: impl FnMut(Vec<I>) -> F,
) -> Result<Vec<bool>>
where
    F: Future<Output = Result<Vec<bool>>>,
{
    let mut seen = HashMap::with_capacity(batch.len());
    let round_of = |item| {
        let round = seen.entry(key(item)).or_insert(0);
        *round += 1;
        *round
    };
    let rounds: Vec<usize> = batch.iter().map(round_of).collect();
    let last = rounds.iter().copied().max().unwrap_or(0);
    if last == 1 {
        return run(batch).await;
    }
    let mut done = vec![false; batch.len()];
    for round in 1..=last {
        let places: Vec<usize> = (0..batch.len()).filter(|place| rounds[*place] == round).collect();
        let answers = run(places.iter().map(|place| batch[*place].clone()).collect()).await?;
        for (place, answer) in places.into_iter().zip(answers) {
            done[place] = answer;
        }
    }
    Ok(done)
}
