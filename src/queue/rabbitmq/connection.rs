//! Making one connection, noticing its loss, and how long to wait before the next.

use std::{pin::pin, time::Duration};

use futures_util::StreamExt;
use lapin::{Connection, ConnectionProperties, ErrorKind, Event, types::ShortString, uri::AMQPUri};
use secrecy::{ExposeSecret, SecretString};
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::retry::Policy;

/// Of any single exchange of frames with the broker.
pub(super) const RPC_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const HEARTBEAT_SECONDS: u16 = 10;
/// Bytes. The library keeps 64 frames of buffer a connection: 8 MiB at the broker's default, 1 MiB at this; our messages
/// have a few hundred bytes.
const FRAME_MAX: u32 = 16 * 1024;
/// A connection that ends sooner counts as one more failed attempt. Longer than `CONNECT_TIMEOUT`.
const SETTLED_AFTER: Duration = Duration::from_secs(20);

/// Why there is no connection.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) reason: String,
    /// Waiting does not help: somebody has to change something.
    pub(super) operator: bool,
}

impl Failure {
    pub(super) fn away(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), operator: false }
    }

    pub(super) fn operator(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), operator: true }
    }
}

impl From<lapin::Error> for Failure {
    fn from(error: lapin::Error) -> Self {
        match error.kind() {
            ErrorKind::ProtocolError(error) => Self::away(error.get_message().to_string()),
            _ => Self::away(error.to_string()),
        }
    }
}

/// Without the library's own recovery: a fresh connection is the one thing that is known to work after every failure.
pub(super) async fn connect(url: &SecretString, role: &str) -> Result<Connection, Failure> {
    let mut uri: AMQPUri = url
        .expose_secret()
        .parse()
        .map_err(|_| Failure::operator("queue.url is not an amqp:// or amqps:// url with host and vhost"))?;
    uri.query.heartbeat.get_or_insert(HEARTBEAT_SECONDS);
    uri.query.frame_max.get_or_insert(FRAME_MAX);
    uri.query.connection_timeout.get_or_insert(CONNECT_TIMEOUT.as_millis() as u64);
    let properties = ConnectionProperties::default().with_connection_name(format!("actiond {role}").into());
    within(CONNECT_TIMEOUT, "connecting", Connection::connect_uri(uri, properties)).await
}

/// Waits for the broker, but not for ever.
pub(super) async fn within<T>(
    limit: Duration,
    what: &str,
    work: impl Future<Output = lapin::Result<T>>,
) -> Result<T, Failure> {
    match timeout(limit, work).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(Failure::away(format!("{what} took longer than {} s", limit.as_secs()))),
    }
}

/// Returns when the connection is gone. `blocked` hears of the broker's alarms: it takes no publishes during one.
pub(super) async fn lost(connection: &Connection, mut blocked: impl FnMut(Option<String>)) -> Failure {
    let mut events = pin!(connection.events_listener());
    let mut failure = Failure::away("the connection was closed");
    // The events say it at once, and the look at the state makes sure.
    let mut look = interval(Duration::from_secs(1));
    look.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while connection.status().connected() {
        tokio::select! {
            event = events.next() => match event {
                Some(Event::Error(error)) => failure = error.into(),
                Some(Event::ConnectionBlocked(reason)) => blocked(Some(reason)),
                Some(Event::ConnectionUnblocked) => blocked(None),
                Some(_) => {}
                None => break,
            },
            _ = look.tick() => {}
        }
    }
    failure
}

/// Says goodbye, after everything that was sent before has been dealt with by the broker.
pub(super) async fn close(connection: &Connection) {
    if let Err(failure) = within(RPC_TIMEOUT, "closing", connection.close(200, short("closing"))).await {
        tracing::debug!(reason = failure.reason, "the connection did not close in order");
    }
}

/// Jittered exponential backoff without an end: 100 ms to 5 s.
pub(super) struct Retries {
    policy: Policy,
    failed: u32,
}

impl Retries {
    pub(super) fn new() -> Self {
        let (initial, max) = (Duration::from_millis(100), Duration::from_secs(5));
        Self { policy: Policy { initial, multiplier: 2.0, max, max_attempts: u32::MAX }, failed: 0 }
    }

    /// How long to wait after a connection that lived so long, the time to make it included.
    pub(super) fn delay(&mut self, lived: Duration, random: f64) -> Duration {
        self.failed = if lived > SETTLED_AFTER { 1 } else { self.failed.saturating_add(1) };
        self.policy.backoff(self.failed, None, random)
    }
}

/// At most 255 bytes go into AMQP's short strings; ids come from outside and may be longer.
pub(super) fn short(text: &str) -> ShortString {
    ShortString::try_new(&text[..text.floor_char_boundary(255)]).unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_characters() {
        assert_eq!(short("id").as_str(), "id");
        assert_eq!(short(&"é".repeat(200)).as_str(), "é".repeat(127));
    }

    #[test]
    fn the_delay_grows_to_its_limit_and_starts_over_after_a_connection_that_lasted() {
        let mut retries = Retries::new();
        let delays: Vec<_> = (0..8).map(|_| retries.delay(Duration::ZERO, 1.0).as_millis()).collect();
        assert_eq!(delays, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(retries.delay(CONNECT_TIMEOUT, 0.0).as_millis(), 2500);
        assert_eq!(retries.delay(Duration::from_secs(60), 1.0).as_millis(), 100);
    }

    #[tokio::test]
    async fn a_url_that_is_none_is_not_repeated_in_the_error() {
        let failure = connect(&SecretString::from("http://guest:secret@host"), "test").await.unwrap_err();
        assert!(failure.operator && !failure.reason.contains("secret"), "{}", failure.reason);
    }
}
