//! What a job writes: steps of many calls, of whatever kind, go together in one commit.

use super::{ClaimRequest, Completion, Mark};
use crate::session::CallKey;

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
