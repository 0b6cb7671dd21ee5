//! Results and messages posted to a session: what is fresh, what is a repeat, what is a conflict.

use axum::http::StatusCode;
use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::{
    error::ApiError,
    faults::SubmitFault,
    input::Input,
    journal::{Outcome, What},
    model::{Context, Effect},
    session::{Accepted, ActionKind, ActionState, Session},
};

/// A request to `POST …/events` that has the right form.
pub(super) struct Submission {
    pub(super) inputs: Vec<Input>,
    pub(super) key: Option<String>,
    pub(super) body: Bytes,
}

const MAX_QUEUED_TURNS: usize = 100;

impl Session {
    /// All events of a request, or none of them. An accepted Idempotency-Key with the same body is accepted again without
    /// effect, with another body it is a conflict (409); a refused request leaves its key unused. `linger`: for how many
    /// reads an accepted call still looks pending.
    pub(super) fn submit(
        &mut self,
        submission: &Submission,
        fault: Option<SubmitFault>,
        (linger, retry_after): (u32, u32),
        cx: &mut Context<'_>,
    ) -> Result<(), ApiError> {
        let refused = match fault {
            Some(SubmitFault::RateLimited) => Some(ApiError::rate_limited(retry_after)),
            Some(SubmitFault::Internal) => Some(ApiError::internal()),
            Some(SubmitFault::Conflict) => Some(ApiError::conflict("The session is busy with another request")),
            Some(SubmitFault::Refused) => Some(ApiError::unprocessable()),
            Some(SubmitFault::Race) => submission.calls().next().map(|(_, call_id)| ApiError::unknown_call(call_id)),
            Some(SubmitFault::Lost) | None => None,
        };
        if let Some(error) = refused {
            self.count(submission, error.status, |_| Outcome::Faulted, cx);
            return Err(error);
        }
        if let Err(error) = self.check(submission) {
            self.count(submission, error.status, |_| Outcome::Refused, cx);
            return Err(error);
        }
        let digest: [u8; 32] = Sha256::digest(&submission.body).into();
        let repeated = submission.key.as_ref().is_some_and(|key| self.keys.insert(key.clone(), digest).is_some());
        let answer = match fault {
            Some(SubmitFault::Lost) => Err(ApiError::internal()),
            _ => Ok(()),
        };
        let status = answer.as_ref().map_or_else(|error: &ApiError| error.status, |()| StatusCode::ACCEPTED);
        let fresh =
            |state| if repeated || state != ActionState::Pending { Outcome::Replayed } else { Outcome::Accepted };
        self.count(submission, status, fresh, cx);
        if !repeated {
            for input in &submission.inputs {
                self.take(input, submission, linger, cx);
            }
        }
        answer
    }

    fn check(&self, submission: &Submission) -> Result<(), ApiError> {
        let digest: [u8; 32] = Sha256::digest(&submission.body).into();
        match submission.key.as_ref().and_then(|key| self.keys.get(key)) {
            Some(used) if *used == digest => return Ok(()),
            Some(_) => return Err(ApiError::conflict("The Idempotency-Key was used with another body")),
            None => {}
        }
        for input in &submission.inputs {
            match input {
                Input::ToolResult { turn_id, call_id, result } => {
                    let index = self.find_call(turn_id, call_id).ok_or_else(|| ApiError::unknown_call(call_id))?;
                    let action = &self.actions[index];
                    if action.program.is_some() && submission.inputs.len() > 1 {
                        return Err(ApiError::invalid("events: a program's call is answered alone in its request"));
                    }
                    let same = action.result.as_ref().is_some_and(|accepted| accepted.result == *result);
                    match action.state {
                        ActionState::Pending => {}
                        ActionState::Dropped => {
                            return Err(ApiError::conflict(format!("Tool call {call_id} is no longer pending")));
                        }
                        _ if same => {}
                        _ => return Err(ApiError::conflict(format!("Tool call {call_id} has another result"))),
                    }
                }
                Input::Approval { request_id } if self.find_request(request_id).is_none() => {
                    return Err(ApiError::invalid(format!("Unknown pending approval request: {request_id}")));
                }
                Input::Message { .. }
                    if self.turns.iter().filter(|t| t.started_at.is_none()).count() >= MAX_QUEUED_TURNS =>
                {
                    return Err(ApiError::conflict("Too many queued messages"));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn take(&mut self, input: &Input, submission: &Submission, linger: u32, cx: &mut Context<'_>) {
        match input {
            Input::Message { text, content } => self.say(text, content.clone(), cx),
            Input::Cancel => self.cancel(cx),
            Input::Approval { request_id } => {
                if let Some(index) = self.find_request(request_id) {
                    self.apply(index, cx);
                }
            }
            Input::ToolResult { turn_id, call_id, result } => {
                let Some(index) = self.find_call(turn_id, call_id) else { return };
                let action = &mut self.actions[index];
                if action.state != ActionState::Pending {
                    return;
                }
                let (body, idempotency_key) = (submission.body.clone(), submission.key.clone());
                action.result = Some(Accepted { result: result.clone(), body, idempotency_key });
                match linger {
                    0 => self.apply(index, cx),
                    reads => action.state = ActionState::Lingering(reads),
                }
            }
        }
    }

    pub(super) fn count(
        &mut self,
        submission: &Submission,
        status: StatusCode,
        outcome: impl Fn(ActionState) -> Outcome,
        cx: &mut Context<'_>,
    ) {
        for (turn_id, call_id) in submission.calls() {
            let action = self.find_call(turn_id, call_id).map(|index| &mut self.actions[index]);
            let outcome = outcome(action.as_ref().map_or(ActionState::Dropped, |action| action.state));
            if let Some(action) = action {
                *match outcome {
                    Outcome::Accepted => &mut action.posts.accepted,
                    Outcome::Replayed => &mut action.posts.replayed,
                    Outcome::Refused => &mut action.posts.refused,
                    Outcome::Faulted => &mut action.posts.faulted,
                } += 1;
            }
            let (turn_id, call_id, status) = (turn_id.to_owned(), call_id.to_owned(), status.as_u16());
            cx.effects.push(Effect::Journal(What::Posted { turn_id, call_id, status, outcome }));
        }
    }

    /// The newest one: a model may repeat its ids.
    fn find_call(&self, turn_id: &str, call_id: &str) -> Option<usize> {
        self.actions.iter().rposition(|action| {
            action.turn_id == turn_id && action.id == call_id && matches!(action.kind, ActionKind::FunctionCall { .. })
        })
    }

    fn find_request(&self, request_id: &str) -> Option<usize> {
        self.actions.iter().position(|action| {
            action.id == request_id
                && action.state == ActionState::Pending
                && matches!(action.kind, ActionKind::Other { .. })
        })
    }
}

impl Submission {
    pub(super) fn calls(&self) -> impl Iterator<Item = (&str, &str)> {
        self.inputs.iter().filter_map(|input| match input {
            Input::ToolResult { turn_id, call_id, .. } => Some((turn_id.as_str(), call_id.as_str())),
            _ => None,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{super::*, *};

    /// A sandbox with one session that waits for `f#call_0`.
    fn waiting(sandbox: &Arc<Sandbox>, script: &str) -> Session {
        let state = &mut *sandbox.state();
        let id: Arc<str> = state.ids.next("sess").into();
        state.sessions.insert(id.clone(), Session::new(id.clone(), 0, Default::default(), Value::Null, Value::Null));
        sandbox.change(state, &id, |session, cx| session.say(script, Value::Null, cx)).unwrap();
        state.sessions[&id].clone()
    }

    fn post(sandbox: &Arc<Sandbox>, session: &Session, output: &str, key: Option<&str>) -> Result<(), u16> {
        let event = serde_json::json!({"type": "agent.session.input.tool_result", "turn_id": session.turns[0].id, "call_id": "call_0", "success": true, "output": output});
        let body = Bytes::from(serde_json::json!({"events": [event]}).to_string());
        let inputs = input::parse(&body, 32).unwrap();
        let submission = Submission { inputs, key: key.map(str::to_owned), body };
        let state = &mut *sandbox.state();
        let fault = state.faults.on_submit(&mut state.random);
        let switches = (state.faults.linger, state.faults.retry_after);
        let answer = sandbox.change(state, &session.id, |session, cx| session.submit(&submission, fault, switches, cx));
        answer.unwrap().map_err(|error| error.status.as_u16())
    }

    fn posts(sandbox: &Arc<Sandbox>, session: &Session) -> Posts {
        sandbox.session(&session.id).unwrap().actions[0].posts
    }

    #[test]
    fn the_same_result_again_is_accepted_and_another_is_a_conflict() {
        let sandbox = Sandbox::new(Config::default()).unwrap();
        let session = waiting(&sandbox, "f#call_0 {} & g {}");
        assert_eq!(post(&sandbox, &session, "1", Some("key")), Ok(()));
        assert_eq!(post(&sandbox, &session, "1", Some("key")), Ok(()));
        assert_eq!(post(&sandbox, &session, "1", None), Ok(()));
        assert_eq!(post(&sandbox, &session, "2", Some("key")), Err(409));
        assert_eq!(post(&sandbox, &session, "2", None), Err(409));
        assert_eq!(posts(&sandbox, &session), Posts { accepted: 1, replayed: 2, refused: 2, faulted: 0 });
        assert_eq!(sandbox.session(&session.id).unwrap().status, Status::RequiresAction);
    }

    #[test]
    fn the_last_result_of_a_round_starts_the_next() {
        let sandbox = Sandbox::new(Config::default()).unwrap();
        let session = waiting(&sandbox, "f#call_0 {} then g {}");
        assert_eq!(post(&sandbox, &session, "1", None), Ok(()));
        let now = sandbox.session(&session.id).unwrap();
        assert_eq!(now.pending().map(wire_name).collect::<Vec<_>>(), ["g"]);
    }

    fn wire_name(action: &Action) -> &str {
        match &action.kind {
            ActionKind::FunctionCall { name, .. } => name,
            ActionKind::Other { kind } => kind,
        }
    }

    #[test]
    fn the_answer_repeats_the_outputs() {
        let sandbox = Sandbox::new(Config::default()).unwrap();
        let session = waiting(&sandbox, "f#call_0 {}");
        assert_eq!(post(&sandbox, &session, "shipped", None), Ok(()));
        let now = sandbox.session(&session.id).unwrap();
        assert_eq!((now.status, now.answer()), (Status::Idle, Some("f: shipped")));
        assert_eq!(sandbox.counters().turns_completed, 1);
    }

    #[test]
    fn what_was_never_asked_is_unknown_and_what_was_cancelled_is_a_conflict() {
        let sandbox = Sandbox::new(Config::default()).unwrap();
        let session = waiting(&sandbox, "g {}");
        assert_eq!(post(&sandbox, &session, "1", None), Err(400));
        let session = waiting(&sandbox, "f#call_0 {}");
        sandbox.change(&mut sandbox.state(), &session.id, |session, cx| session.cancel(cx)).unwrap();
        assert_eq!(post(&sandbox, &session, "1", None), Err(409));
        assert_eq!(sandbox.session(&session.id).unwrap().status, Status::Idle);
    }

    #[test]
    fn a_lingering_call_is_listed_for_so_many_reads() {
        let faults = Faults { linger: 2, ..Faults::default() };
        let sandbox = Sandbox::new(Config { faults, ..Config::default() }).unwrap();
        let session = waiting(&sandbox, "f#call_0 {}");
        assert_eq!(post(&sandbox, &session, "1", Some("key")), Ok(()));
        assert_eq!(post(&sandbox, &session, "1", Some("key")), Ok(()));
        for pending in [1, 1, 0] {
            assert_eq!(sandbox.session(&session.id).unwrap().pending().count(), pending);
            sandbox.change(&mut sandbox.state(), &session.id, |session, cx| session.read(cx)).unwrap();
        }
        assert_eq!(sandbox.session(&session.id).unwrap().answer(), Some("f: 1"));
    }

    #[test]
    fn faults_strike_and_only_a_lost_answer_leaves_the_result_behind() {
        let once = Rule::Next(1);
        let faults = Faults {
            submit_429: once,
            submit_500: once,
            submit_409: once,
            submit_race: once,
            submit_lost: once,
            ..Faults::default()
        };
        let sandbox = Sandbox::new(Config { faults, ..Config::default() }).unwrap();
        let session = waiting(&sandbox, "f#call_0 {}");
        let answers: Vec<_> = (0..6).map(|_| post(&sandbox, &session, "1", Some("key"))).collect();
        assert_eq!(answers, [Err(429), Err(500), Err(409), Err(400), Err(500), Ok(())]);
        assert_eq!(posts(&sandbox, &session), Posts { accepted: 1, replayed: 1, refused: 0, faulted: 4 });
    }
}
