//! The scripted model's moves in a session. No clock, no socket: what must happen outside is returned as effects.

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{
    journal::What,
    script::{Round, Script, Step},
    session::{
        Accepted, Action, ActionKind, ActionState, Item, ItemKind, Posts, Session, Status, Turn, TurnError, TurnStatus,
    },
    webhook::EventType,
    wire,
};

/// What a move needs from outside, and what it wants done there.
pub(super) struct Context<'a> {
    pub(super) now: i64,
    pub(super) ids: &'a mut Ids,
    /// The model takes its time: a move is asked for, not made.
    pub(super) thinks: bool,
    pub(super) effects: Vec<Effect>,
}

#[derive(Debug)]
pub(super) enum Effect {
    Webhook {
        event: EventType,
        action: Option<String>,
    },
    Journal(What),
    /// Call `Session::advance` with this turn after a while.
    Think {
        turn_id: String,
    },
    /// Call `Session::expire` with this number when the time of a round is up.
    Wait {
        asked: usize,
    },
}

/// Ids that differ within a process and repeat with its seed.
#[derive(Debug)]
pub(super) struct Ids {
    pub(super) seed: u64,
    pub(super) made: u64,
}

impl Ids {
    pub(super) fn next(&mut self, prefix: &str) -> String {
        self.made += 1;
        let digest =
            Sha256::new().chain_update(self.seed.to_be_bytes()).chain_update(self.made.to_be_bytes()).finalize();
        digest[..12].iter().fold(format!("{prefix}_"), |id, byte| id + &format!("{byte:02x}"))
    }
}

impl Session {
    /// A user's message: a new turn, now or after the running one.
    pub(super) fn say(&mut self, text: &str, content: Value, cx: &mut Context<'_>) {
        let script = Script::parse(text);
        let echo = match &script.problem {
            Some(problem) => format!("You said: {text}\n(No call was made: {problem}.)"),
            None => format!("You said: {text}"),
        };
        let turn = Turn {
            id: cx.ids.next("turn"),
            status: TurnStatus::Queued,
            created_at: cx.now,
            started_at: None,
            completed_at: None,
            error: None,
            rounds: script.rounds,
            echo,
        };
        let turn_id = turn.id.clone();
        self.turns.push(turn);
        self.emit_turn(self.turns.len() - 1, "created", cx);
        self.add_item(turn_id, ItemKind::User { content }, cx);
        if !matches!(self.status, Status::InProgress | Status::RequiresAction) {
            self.start_next_turn(cx);
        }
    }

    /// The model's move in its running turn: the next round of calls, failure, or the final answer.
    pub(super) fn advance(&mut self, turn_id: &str, cx: &mut Context<'_>) {
        let running = |turn: &Turn| turn.id == turn_id && turn.status == TurnStatus::InProgress;
        let Some(index) = self.turns.iter().position(running) else { return };
        match self.turns[index].rounds.pop_front() {
            Some(Round::Act(steps)) => self.require(index, steps, None, cx),
            Some(Round::Nested(program, steps)) => self.require(index, steps, Some(program), cx),
            Some(Round::Fail(message)) => {
                self.fail(index, "internal_error", message, cx);
            }
            None => {
                let text = self.final_answer(index);
                self.add_item(turn_id.to_owned(), ItemKind::Assistant { text }, cx);
                self.end_turn(index, TurnStatus::Completed, cx);
            }
        }
    }

    /// Ends the running turn; what was pending in it is dropped.
    pub(super) fn cancel(&mut self, cx: &mut Context<'_>) {
        if let Some(index) = self.running_turn() {
            self.drop_pending();
            self.end_turn(index, TurnStatus::Cancelled, cx);
        }
    }

    /// The time of a round is up: the turn fails, or only the program that asked, unless the session has moved on since
    /// `asked` actions stood there.
    pub(super) fn expire(&mut self, asked: usize, cx: &mut Context<'_>) {
        if self.actions.len() == asked
            && self.pending().next().is_some()
            && let Some(index) = self.running_turn()
        {
            let program = self.pending().find_map(|action| action.program);
            self.drop_pending();
            match program {
                Some(program) if self.run.is_none() => {
                    self.end_program(index, program);
                    self.resume(index, cx);
                }
                _ => self.fail(index, "request_timeout", "The calls were not answered in time".to_owned(), cx),
            }
        }
    }

    /// What a program would have asked for next is not asked for.
    fn end_program(&mut self, turn: usize, program: u32) {
        self.turns[turn].rounds.retain(|round| !matches!(round, Round::Nested(its, _) if *its == program));
    }

    fn drop_pending(&mut self) {
        for action in &mut self.actions {
            if matches!(action.state, ActionState::Pending | ActionState::Lingering(_)) {
                action.state = ActionState::Dropped;
                mark_call_item(&mut self.items, &action.turn_id, &action.id, "incomplete");
            }
        }
    }

    /// One read by GET, after it was answered: a lingering call comes one read nearer to its end.
    pub(super) fn read(&mut self, cx: &mut Context<'_>) {
        self.reads += 1;
        for index in 0..self.actions.len() {
            match self.actions[index].state {
                ActionState::Lingering(reads) if reads > 1 => {
                    self.actions[index].state = ActionState::Lingering(reads - 1)
                }
                ActionState::Lingering(_) => self.apply(index, cx),
                _ => {}
            }
        }
    }

    /// The harness takes over what was accepted; the last one of a round lets the model go on.
    pub(super) fn apply(&mut self, index: usize, cx: &mut Context<'_>) {
        let action = &mut self.actions[index];
        action.state = ActionState::Applied;
        let (turn_id, call_id) = (action.turn_id.clone(), action.id.clone());
        let program = action.program;
        let failure = action.result.as_ref().filter(|accepted| !accepted.result.success);
        let failure = failure.map(|accepted| accepted.result.error.clone().unwrap_or_default());
        if let Some(Accepted { result, .. }) = &action.result {
            let result = result.clone();
            mark_call_item(&mut self.items, &turn_id, &call_id, if result.success { "completed" } else { "failed" });
            self.emit(|session, ids| wire::call_done_event(session, &turn_id, &call_id, ids), cx);
            self.add_item(turn_id.clone(), ItemKind::Output { call_id, result }, cx);
        }
        let Some(index) = self.running_turn() else { return };
        match (failure, program) {
            // A run is a program; nothing in a script catches a failure.
            (Some(message), _) if self.run.is_some() => {
                self.drop_pending();
                return self.fail(index, "program_failed", message, cx);
            }
            (Some(_), Some(program)) => self.end_program(index, program),
            _ => {}
        }
        if self.pending().next().is_none() {
            self.resume(index, cx);
        }
    }

    fn resume(&mut self, index: usize, cx: &mut Context<'_>) {
        self.turns[index].status = TurnStatus::InProgress;
        self.set_status(Status::InProgress, cx);
        self.go_on(self.turns[index].id.clone(), cx);
    }

    fn start_next_turn(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(index) = self.turns.iter().position(|turn| turn.status == TurnStatus::Queued) else { return false };
        self.turns[index].status = TurnStatus::InProgress;
        self.turns[index].started_at = Some(cx.now);
        self.error = None;
        self.emit_turn(index, "in_progress", cx);
        self.set_status(Status::InProgress, cx);
        self.go_on(self.turns[index].id.clone(), cx);
        true
    }

    fn go_on(&mut self, turn_id: String, cx: &mut Context<'_>) {
        if cx.thinks {
            cx.effects.push(Effect::Think { turn_id });
        } else {
            self.advance(&turn_id, cx);
        }
    }

    fn require(&mut self, turn: usize, steps: Vec<Step>, program: Option<u32>, cx: &mut Context<'_>) {
        let turn_id = self.turns[turn].id.clone();
        for step in steps {
            let (id, kind) = match step {
                Step::Call { name, call_id, arguments } => {
                    let call_id = call_id.unwrap_or_else(|| cx.ids.next("call"));
                    (call_id, ActionKind::FunctionCall { name, arguments })
                }
                Step::Wait { kind } => (cx.ids.next("req"), ActionKind::Other { kind }),
            };
            if let ActionKind::FunctionCall { name, arguments } = kind.clone() {
                let item = ItemKind::Call { call_id: id.clone(), name, arguments, status: "in_progress" };
                self.add_item(turn_id.clone(), item, cx);
            }
            let (state, posts) = (ActionState::Pending, Posts::default());
            self.actions.push(Action { turn_id: turn_id.clone(), id, kind, program, state, result: None, posts });
        }
        self.turns[turn].status = TurnStatus::Waiting;
        cx.effects.push(Effect::Wait { asked: self.actions.len() });
        self.set_status(Status::RequiresAction, cx);
    }

    fn fail(&mut self, index: usize, code: &'static str, message: String, cx: &mut Context<'_>) {
        self.error = Some(message.clone());
        self.turns[index].error = Some(TurnError { code, message });
        self.end_turn(index, TurnStatus::Failed, cx);
    }

    fn end_turn(&mut self, index: usize, status: TurnStatus, cx: &mut Context<'_>) {
        self.turns[index].status = status;
        self.turns[index].completed_at = Some(cx.now);
        self.emit_turn(index, wire::turn_status(status), cx);
        cx.effects.push(Effect::Journal(What::TurnEnded { turn_id: self.turns[index].id.clone(), status }));
        if !self.start_next_turn(cx) {
            self.set_status(if status == TurnStatus::Failed { Status::Failed } else { Status::Idle }, cx);
        }
    }

    fn set_status(&mut self, status: Status, cx: &mut Context<'_>) {
        self.status = status;
        self.last_active_at = cx.now;
        self.emit(|session, ids| wire::session_event(session, wire::status(status), ids), cx);
        let action = self.pending().next().map(|action| wire::action_type(&action.kind).to_owned());
        let event = match status {
            Status::Idle => EventType::Idle,
            Status::InProgress => EventType::InProgress,
            Status::RequiresAction => EventType::ActionRequired,
            Status::Failed => EventType::Failed,
        };
        cx.effects.push(Effect::Webhook { event, action });
        cx.effects.push(Effect::Journal(What::Status(status)));
    }

    fn final_answer(&self, turn: usize) -> String {
        let turn = &self.turns[turn];
        let lines: Vec<String> =
            self.actions.iter().filter(|action| action.turn_id == turn.id).map(wire::answer_line).collect();
        if lines.is_empty() { turn.echo.clone() } else { lines.join("\n") }
    }

    fn add_item(&mut self, turn_id: String, kind: ItemKind, cx: &mut Context<'_>) {
        let item = Item { id: cx.ids.next("item"), turn_id, kind };
        self.emit(|session, ids| wire::item_events(session, &item, ids), cx);
        self.items.push(item);
    }

    fn emit_turn(&self, index: usize, word: &str, cx: &mut Context<'_>) {
        self.emit(|session, ids| wire::turn_event(session, &session.turns[index], word, ids), cx);
    }

    /// Writes frames only for somebody who listens.
    pub(super) fn emit(&self, frames: impl FnOnce(&Self, &mut Ids) -> String, cx: &mut Context<'_>) {
        if let Some(stream) = self.stream.as_ref().filter(|stream| stream.receiver_count() > 0) {
            let _ = stream.send(frames(self, cx.ids).into());
        }
    }
}

fn mark_call_item(items: &mut [Item], turn: &str, id: &str, new: &'static str) {
    for item in items.iter_mut().filter(|item| item.turn_id == turn) {
        if let ItemKind::Call { call_id, status, .. } = &mut item.kind
            && call_id == id
        {
            *status = new;
        }
    }
}
