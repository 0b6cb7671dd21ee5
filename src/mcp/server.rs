//! One server and the connection that all calls share: opened by the first, opened again with backoff after it was lost.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use serde_json::{Map, Value};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::{Answer, Config, Error, Link, Tool, connection::Connection};
use crate::{http::Client, retry::Policy};

/// How long opening a connection may take: a program may have to be fetched before it runs.
const OPENING: Duration = Duration::from_secs(60);
/// A connection that lived this long was a good one.
const GOOD: Duration = Duration::from_secs(10);
const BACKOFF: Policy = Policy {
    initial: Duration::from_millis(100),
    multiplier: 2.0,
    max: Duration::from_secs(30),
    max_attempts: u32::MAX,
};

pub struct Server {
    config: Config,
    client: Client,
    state: Mutex<State>,
    changed: Arc<Notify>,
    closing: CancellationToken,
}

enum State {
    /// Not before a time; after so many failures in a row, the last of which was this one.
    Down {
        failures: u32,
        until: Option<Instant>,
        last: Option<Error>,
        plain: bool,
    },
    Opening(watch::Receiver<Option<Opened>>),
    Up {
        connection: Arc<Connection>,
        since: Instant,
        failures: u32,
        lost: bool,
    },
    Closed,
}

type Opened = Result<Arc<Connection>, Error>;

impl Server {
    /// The error says where in the server's config, and what.
    pub fn new(config: Config, client: Client) -> Result<Self, (String, String)> {
        match &config.link {
            Link::Stdio { command, .. } if command.first().is_none_or(String::is_empty) => {
                return Err(("command".into(), "must name a program".into()));
            }
            _ => {}
        }
        let state = Mutex::new(State::Down { failures: 0, until: None, last: None, plain: false });
        Ok(Self { config, client, state, changed: Arc::default(), closing: CancellationToken::new() })
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Calls a tool. Dropping it tells the server to stop.
    pub async fn call(
        self: &Arc<Self>,
        tool: &str,
        arguments: Map<String, Value>,
        limit: Duration,
    ) -> Result<Answer, Error> {
        self.ask(limit, async |connection| connection.call(tool, arguments).await).await
    }

    /// What became of a task.
    pub async fn task(self: &Arc<Self>, id: &str, limit: Duration) -> Result<Answer, Error> {
        self.ask(limit, async |connection| connection.task(id).await).await
    }

    /// Asks the server to end a task.
    pub async fn cancel_task(self: &Arc<Self>, id: &str, limit: Duration) {
        let asked = self.ask(limit, async |connection| {
            connection.cancel_task(id).await;
            Ok(())
        });
        let _ = asked.await;
    }

    pub async fn tools(self: &Arc<Self>, limit: Duration) -> Result<Vec<Tool>, Error> {
        self.ask(limit, async |connection| connection.tools().await).await
    }

    /// One request over the shared connection, within `limit`.
    async fn ask<T>(
        self: &Arc<Self>,
        limit: Duration,
        request: impl AsyncFnOnce(&Connection) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let until = tokio::time::Instant::now() + limit;
        let opened = tokio::time::timeout_at(until, self.connection()).await;
        let connection = opened.unwrap_or_else(|_| Err(away(&format!("it did not begin within {limit:.1?}"), None)))?;
        match tokio::time::timeout_at(until, request(&connection)).await {
            Ok(Err(error)) => {
                if matches!(error, Error::Refused { .. } | Error::Unknown { .. }) {
                    self.doubt(&connection);
                }
                Err(error)
            }
            Ok(answer) => answer,
            Err(_) => Err(Error::Unknown { detail: format!("there was no answer within {limit:.1?}") }),
        }
    }

    /// Some servers answer a forgotten session with another status than 404: the next call begins a new one. A program of
    /// our own has no sessions, and is left alone as long as it runs.
    fn doubt(&self, doubted: &Arc<Connection>) {
        if matches!(self.config.link, Link::Http { .. })
            && let State::Up { connection, lost, .. } = &mut *self.lock()
            && Arc::ptr_eq(connection, doubted)
        {
            *lost = true;
        }
    }

    /// Returns when the server says that its tools are others now; maybe never.
    pub async fn tools_changed(self: &Arc<Self>) {
        let asked = async {
            match self.connection().await {
                Ok(connection) => connection.tools_changed().await,
                Err(_) => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.changed.notified() => {}
            () = asked => {}
        }
    }

    /// Ends the connection, and its program, for good.
    pub async fn close(&self) {
        let state = std::mem::replace(&mut *self.lock(), State::Closed);
        self.closing.cancel();
        match state {
            State::Up { connection, .. } => connection.close().await,
            State::Opening(mut opening) => {
                let _ = opening.wait_for(Option::is_some).await;
            }
            State::Down { .. } | State::Closed => {}
        }
    }

    /// The connection of this moment, or a new one. Any number of callers wait for one opening, and none of them that gives
    /// up ends it.
    async fn connection(self: &Arc<Self>) -> Opened {
        let mut opening = match &mut *self.lock() {
            State::Up { connection, lost: false, .. } if !connection.is_closed() => return Ok(connection.clone()),
            State::Closed => return Err(away("this process ends", None)),
            State::Opening(opening) => opening.clone(),
            state => {
                let (failures, plain) = state.may_open(Instant::now())?;
                let (sender, opening) = watch::channel(None);
                *state = State::Opening(opening.clone());
                tokio::spawn(self.clone().open(failures, plain, sender));
                opening
            }
        };
        let opened = opening.wait_for(Option::is_some).await;
        opened.ok().and_then(|opened| opened.clone()).unwrap_or_else(|| Err(away("it was not opened", None)))
    }

    async fn open(self: Arc<Self>, failures: u32, plain: bool, sender: watch::Sender<Option<Opened>>) {
        let connecting = Connection::open(&self.config, &self.client, plain, self.changed.clone());
        let opened = tokio::select! {
            opened = connecting => opened.map(Arc::new),
            () = tokio::time::sleep(OPENING) => Err(away(&format!("it did not begin within {OPENING:?}"), None)),
            () = self.closing.cancelled() => Err(away("this process ends", None)),
        };
        let unwanted = {
            let mut state = self.lock();
            match (&*state, &opened) {
                (State::Closed, Ok(connection)) => Some(connection.clone()),
                (State::Closed, Err(_)) => None,
                (_, Ok(connection)) => {
                    tracing::debug!(server = self.config.name, "connected to an MCP server");
                    *state = State::Up { connection: connection.clone(), since: Instant::now(), failures, lost: false };
                    None
                }
                (_, Err(error)) => {
                    let wait = BACKOFF.backoff(failures + 1, None, rand::random());
                    tracing::warn!(server = self.config.name, %error, ?wait, "an MCP server is away");
                    let until = Instant::now().checked_add(wait);
                    let failures = failures.saturating_add(1);
                    *state = State::Down { failures, until, last: Some(error.clone()), plain: !plain };
                    None
                }
            }
        };
        if let Some(connection) = unwanted {
            connection.close().await;
        }
        let _ = sender.send(Some(opened));
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Failures in a row and how to begin, where it is time for a new connection.
    fn may_open(&self, now: Instant) -> Result<(u32, bool), Error> {
        match self {
            Self::Down { failures, until, last, plain } => {
                let left = until.map(|until| until.saturating_duration_since(now)).unwrap_or_default();
                match last {
                    Some(Error::NotSent { detail, .. }) if !left.is_zero() => Err(away(detail, Some(left))),
                    Some(error) if !left.is_zero() => Err(error.clone()),
                    _ => Ok((*failures, *plain)),
                }
            }
            // It was lost: at once again if it had been good, with backoff if not.
            Self::Up { since, failures, .. } => {
                let lived = now.saturating_duration_since(*since);
                if lived >= GOOD {
                    return Ok((0, false));
                }
                let failures = failures.saturating_add(1);
                match BACKOFF.backoff(failures, None, 1.0).saturating_sub(lived) {
                    Duration::ZERO => Ok((failures, false)),
                    left => Err(away("its connection ends again and again", Some(left))),
                }
            }
            Self::Opening(_) | Self::Closed => Err(away("this process ends", None)),
        }
    }
}

fn away(why: &str, after: Option<Duration>) -> Error {
    Error::NotSent { detail: why.to_owned(), after }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn down(left: Duration, last: Option<Error>, now: Instant) -> State {
        State::Down { failures: 3, until: now.checked_add(left), last, plain: true }
    }

    #[test]
    fn a_server_that_failed_is_left_alone_until_its_time() {
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        let not_sent = || away("could not connect", None);
        let waiting = down(second, Some(not_sent()), now).may_open(now).unwrap_err();
        assert_eq!(waiting, away("could not connect", Some(second)));
        assert_eq!(down(second, Some(not_sent()), now).may_open(now + second).unwrap(), (3, true));
        let refused = Error::Refused { detail: "HTTP 401".to_owned() };
        assert_eq!(down(second, Some(refused.clone()), now).may_open(now).unwrap_err(), refused);
        assert_eq!(down(Duration::ZERO, None, now).may_open(now).unwrap(), (3, true));
    }

    #[tokio::test]
    async fn no_opening_outlives_the_server() {
        let link = Link::Stdio { command: vec!["cat".into()], env: vec![], pass_env: vec![], cwd: None };
        let config = Config { name: "s".into(), link, timeout: Duration::from_secs(1), import: None };
        let server = Arc::new(Server::new(config, crate::http::client().unwrap()).unwrap());
        let waiting = server.tools(Duration::from_millis(100)).await.unwrap_err();
        assert!(matches!(waiting, Error::NotSent { .. }), "{waiting:?}");
        server.close().await;
        assert_eq!(server.tools(Duration::from_secs(1)).await.unwrap_err(), away("this process ends", None));
    }

    #[tokio::test]
    async fn a_program_that_cannot_be_started_is_away() {
        let link = Link::Stdio { command: vec!["/no/such/server".into()], env: vec![], pass_env: vec![], cwd: None };
        let config = Config { name: "s".into(), link, timeout: Duration::from_secs(1), import: None };
        let server = Arc::new(Server::new(config, crate::http::client().unwrap()).unwrap());
        let error = server.call("t", Map::new(), Duration::from_secs(5)).await.unwrap_err();
        assert!(matches!(&error, Error::NotSent { detail, .. } if detail.contains("does not start")), "{error:?}");
        let again = server.call("t", Map::new(), Duration::from_secs(5)).await.unwrap_err();
        assert!(matches!(again, Error::NotSent { .. }));
    }
}
