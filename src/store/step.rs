//! What a job writes: steps of many calls, of whatever kind, go together in one commit.

use super::{ClaimRequest, Completion, Mark, Transition};
use crate::session::{CallKey, IfInterrupted};

/// One step of one call.
#[derive(Clone, Debug)]
pub enum Step {
    Claim(ClaimRequest),
    Complete(Completion),
    Mark(Mark),
}

impl Step {
    pub fn key(&self) -> &CallKey {
        match self {
            Self::Claim(request) => &request.key,
            Self::Complete(completion) => &completion.stored.key,
            Self::Mark(mark) => &mark.key,
        }
    }

    /// Whether a database that crashes within a second may forget the step: a handler that may be rerun is, and a call that
    /// is settled is found by a sweep. Anybody sees the step at once all the same.
    pub(super) fn may_be_lost(&self) -> bool {
        match self {
            Self::Claim(request) => request.if_interrupted == IfInterrupted::Rerun,
            Self::Complete(_) => false,
            Self::Mark(mark) => mark.transition == Transition::Settled,
        }
    }
}

/// Steps by their kind, each a row of that kind's part of the statement.
#[derive(Default)]
pub(super) struct Sorted<'a> {
    pub(super) claims: Vec<&'a ClaimRequest>,
    pub(super) completions: Vec<&'a Completion>,
    pub(super) marks: Vec<&'a Mark>,
    /// Of each step its place among those of its kind.
    places: Vec<(Kind, usize)>,
}

#[derive(Clone, Copy)]
enum Kind {
    Claim,
    Complete,
    Mark,
}

impl<'a> Sorted<'a> {
    pub(super) fn new(steps: &'a [Step]) -> Self {
        let mut sorted = Self::default();
        for step in steps {
            let place = match step {
                Step::Claim(request) => (Kind::Claim, push(&mut sorted.claims, request)),
                Step::Complete(completion) => (Kind::Complete, push(&mut sorted.completions, completion)),
                Step::Mark(mark) => (Kind::Mark, push(&mut sorted.marks, mark)),
            };
            sorted.places.push(place);
        }
        sorted
    }

    /// The answer of each step at its own place, from the answers of each kind.
    pub(super) fn answers(&self, claims: &[bool], completions: &[bool], marks: &[bool]) -> Vec<bool> {
        let answer = |(kind, place): &(Kind, usize)| {
            let answers = match kind {
                Kind::Claim => claims,
                Kind::Complete => completions,
                Kind::Mark => marks,
            };
            answers.get(*place).copied().unwrap_or(false)
        };
        self.places.iter().map(answer).collect()
    }
}

fn push<'a, T>(all: &mut Vec<&'a T>, one: &'a T) -> usize {
    all.push(one);
    all.len() - 1
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{session::SessionKey, store::Origin};

    fn claim(if_interrupted: IfInterrupted) -> Step {
        Step::Claim(ClaimRequest {
            key: CallKey::new(SessionKey::new("p", "s"), "t", "c"),
            function: "f".to_owned(),
            lease: Duration::from_secs(30),
            deadline: Duration::from_secs(60),
            if_interrupted,
            takeover: false,
            origin: Origin { by: "w".into(), event: "e".to_owned(), accepted_at: 0 },
        })
    }

    fn mark(transition: Transition) -> Step {
        Step::Mark(Mark::new(CallKey::new(SessionKey::new("p", "s"), "t", "c"), 1, transition))
    }

    #[test]
    fn only_what_a_rerun_or_a_sweep_makes_good_may_be_lost() {
        assert!(claim(IfInterrupted::Rerun).may_be_lost());
        assert!(mark(Transition::Settled).may_be_lost());
        for step in [claim(IfInterrupted::Fail), claim(IfInterrupted::Hold)] {
            assert!(!step.may_be_lost());
        }
        let second = Duration::from_secs(1);
        for transition in [Transition::Renewed(second), Transition::Submitted(second), Transition::Refused] {
            assert!(!mark(transition).may_be_lost());
        }
    }
}
