//! Compares what the platform, the store and the handlers say of every call.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use actiond::{
    sandbox::{Action, ActionKind, ActionState, Session},
    session::IfInterrupted,
};
use lapin::{
    ConnectionProperties,
    options::QueueDeclareOptions,
    types::{FieldTable, ShortString},
};
use sqlx::{Connection, PgConnection, Row, SqliteConnection};

use super::{
    callee::{Kind, Run, number},
    world::World,
};

/// What was found.
#[derive(Default)]
pub(crate) struct Account {
    pub(crate) sessions: usize,
    pub(crate) calls: usize,
    pub(crate) handler_starts: usize,
    /// Calls that an operator has to decide on.
    pub(crate) held: usize,
    pub(crate) interrupted: usize,
    pub(crate) obsolete: usize,
    pub(crate) dead: u64,
    /// Calls without an accepted result, and what is left undone in store and queue.
    pub(crate) lost: Vec<Finding>,
    /// Handlers started too often or with another key, results that are not the stored one.
    pub(crate) doubled: Vec<Finding>,
    /// How long after the last fault all was done.
    pub(crate) settled_after: Duration,
}

pub(crate) struct Finding {
    pub(crate) session: String,
    pub(crate) what: String,
}

/// State of every call in the store, by session, turn and call id.
type States = HashMap<(String, String, String), String>;

/// What takes longer than this is worth a line.
const SLOW: Duration = Duration::from_secs(8);

/// Waits until everything is done, or nothing has moved for so long: what is not done then is lost. A slow machine may have
/// much to catch up with, and gets ten times as long for it.
pub(crate) async fn account(world: &World, patience: Duration) -> Account {
    let start = Instant::now();
    let (mut told, mut left, mut moved) = (false, usize::MAX, start);
    loop {
        let mut account = look(world).await;
        account.settled_after = start.elapsed();
        if account.lost.len() < left {
            (left, moved) = (account.lost.len(), Instant::now());
        }
        if account.lost.is_empty() || moved.elapsed() > patience || start.elapsed() > 10 * patience {
            return account;
        }
        if start.elapsed() > SLOW && !std::mem::replace(&mut told, true) {
            for finding in account.lost.iter().take(5) {
                println!("not done after {} s: {}: {}", SLOW.as_secs(), finding.session, finding.what);
            }
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

async fn look(world: &World) -> Account {
    let mut account = Account::default();
    let (states, due) = store(world).await;
    let runs = world.callee.runs();
    let none = Vec::new();
    for id in world.sandbox.sessions() {
        let Some(session) = world.sandbox.session(&id) else { continue };
        account.sessions += 1;
        for action in session.calls(None) {
            let ActionKind::FunctionCall { name, arguments } = &action.kind else { continue };
            let n = number(arguments.as_ref().unwrap());
            let runs = runs.get(&n).unwrap_or(&none);
            let key = (session.id.to_string(), action.turn_id.clone(), action.id.clone());
            account.call(&session, action, Kind::of(name), n, runs, states.get(&key).map_or("absent", String::as_str));
        }
    }
    for session in due {
        account.lose(&session, "is still due in the store".into());
    }
    let (waiting, dead) = queue(world).await;
    account.dead = dead;
    if waiting + dead > 0 {
        account.lose("-", format!("{waiting} messages wait in the queue, {dead} are dead"));
    }
    account
}

impl Account {
    fn call(&mut self, session: &Session, action: &Action, kind: &Kind, n: u64, runs: &[Run], state: &str) {
        self.calls += 1;
        self.handler_starts += runs.len();
        let about = |what: String| format!("call {n} ({}): {what}; {state}, {:?}", kind.name, action.posts);
        self.starts(session, kind, runs, &about);
        if state == "interrupted" && kind.if_interrupted == IfInterrupted::Hold && action.posts.accepted == 0 {
            self.held += 1;
            return;
        }
        self.obsolete += usize::from(state == "obsolete");
        if action.state != ActionState::Applied || action.posts.accepted == 0 {
            return self.lose(&session.id, about("has no accepted result".into()));
        }
        if !matches!(state, "settled" | "obsolete") {
            self.lose(&session.id, about("is answered, and not settled in the store".into()));
        }
        if action.posts.accepted > 1 || action.posts.refused > 0 {
            self.double(&session.id, about("was answered twice".into()));
        }
        self.result(session, action, kind, runs, &about);
    }

    /// How often the handler was started.
    fn starts(&mut self, session: &Session, kind: &Kind, runs: &[Run], about: &impl Fn(String) -> String) {
        if runs.iter().any(|run| run.key != runs[0].key || run.name != kind.name) {
            self.double(&session.id, about(format!("its runs have different keys: {runs:?}")));
        }
        // A handler that said "try again" may be started again, whatever it is.
        let allowed =
            1 + runs.iter().filter(|run| run.answer.as_ref().is_some_and(|(status, _)| *status == 503)).count();
        if kind.if_interrupted != IfInterrupted::Rerun && runs.len() > allowed {
            self.double(&session.id, about(format!("was started {} times", runs.len())));
        }
    }

    /// A success is what a run of this call answered.
    fn result(
        &mut self,
        session: &Session,
        action: &Action,
        kind: &Kind,
        runs: &[Run],
        about: &impl Fn(String) -> String,
    ) {
        let Some(accepted) = &action.result else { return };
        let result = &accepted.result;
        if !result.success {
            let interrupted = result.error.as_ref().is_some_and(|error| error.contains("interrupted"));
            self.interrupted += usize::from(interrupted);
            if interrupted && kind.if_interrupted != IfInterrupted::Fail || !interrupted && !kind.name.contains("flaky")
            {
                self.lose(&session.id, about(format!("ended in {:?}", result.error)));
            }
            return;
        }
        let answered = |run: &Run| match &run.answer {
            Some((200, text)) => result.output == **text,
            Some(_) => false,
            None => result.output == "done\n" || result.output == "done",
        };
        if !runs.iter().any(answered) {
            self.double(&session.id, about(format!("the result {} is of no run: {runs:?}", result.output)));
        }
    }

    fn lose(&mut self, session: &str, what: String) {
        self.lost.push(Finding { session: session.to_owned(), what });
    }

    fn double(&mut self, session: &str, what: String) {
        self.doubled.push(Finding { session: session.to_owned(), what });
    }
}

/// A sweep's row has no session, and a held call is due at its deadline.
const DUE: &str = "
    SELECT session FROM due
    WHERE session <> '' AND NOT EXISTS
          (SELECT 1 FROM calls
           WHERE calls.platform = due.platform AND calls.session = due.session AND calls.state = 'interrupted')";

/// States of the calls, and the sessions that are due.
async fn store(world: &World) -> (States, Vec<String>) {
    let calls = ask::<4>(world, "SELECT session, turn, call_id, state FROM calls").await;
    let states = calls.into_iter().map(|[session, turn, call_id, state]| ((session, turn, call_id), state)).collect();
    let due = ask::<1>(world, DUE).await;
    (states, due.into_iter().map(|[session]| session).collect())
}

/// Rows of text columns.
async fn ask<const COLUMNS: usize>(world: &World, question: &'static str) -> Vec<[String; COLUMNS]> {
    match &world.servers {
        None => {
            let mut store = SqliteConnection::connect(&world.store_url).await.unwrap();
            let rows = sqlx::query(question).fetch_all(&mut store).await.unwrap();
            rows.iter().map(|row| std::array::from_fn(|column| row.get(column))).collect()
        }
        Some(_) => {
            let mut store = PgConnection::connect(&world.store_url).await.unwrap();
            let rows = sqlx::query(question).fetch_all(&mut store).await.unwrap();
            rows.iter().map(|row| std::array::from_fn(|column| row.get(column))).collect()
        }
    }
}

/// How many messages wait, and how many are dead.
async fn queue(world: &World) -> (u64, u64) {
    let Some(servers) = &world.servers else {
        let rows = ask::<1>(world, "SELECT coalesce(reason, '') FROM queue").await;
        let dead = rows.iter().filter(|[reason]| !reason.is_empty()).count();
        return ((rows.len() - dead) as u64, dead as u64);
    };
    let url = format!("amqp://guest:guest@{}/%2f", servers.broker_addresses[0]);
    let connection = lapin::Connection::connect(&url, ConnectionProperties::default()).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    let mut counts = [0, 0];
    for (count, name) in counts.iter_mut().zip(["sessions", "dead"]) {
        let options = QueueDeclareOptions { passive: true, ..QueueDeclareOptions::default() };
        let name: ShortString = format!("{}.{name}", world.prefix).into();
        let queue = channel.queue_declare(name, options, FieldTable::default()).await.unwrap();
        *count = u64::from(queue.message_count());
    }
    connection.close(200, "looked".into()).await.unwrap();
    (counts[0], counts[1])
}
