//! A session's notice as an AMQP message, and back.

use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable, LongString},
};

use sha2::{Digest, Sha256};

use super::{super::Dead, connection::short};
use crate::session::ActionRequired;

const PERSISTENT: u8 = 2;
/// Header of a dead message: why it is there.
const REASON: &str = "actiond-reason";
const REASON_MAX: usize = 1024;
/// Header of a dead message: when it was put aside, Unix milliseconds.
const DEAD_AT: &str = "actiond-dead-at";
/// Header of a dead message: its name among the dead.
const DEAD_ID: &str = "actiond-dead-id";
/// Header of a message that was given back to the workers: how often.
const REDRIVEN: &str = "actiond-redriven";
/// What brokers note of a message's past. Given back, it starts anew.
const PAST: &str = "x-";
/// Header of quorum queues, absent on the first delivery.
const DELIVERY_COUNT: &str = "x-delivery-count";

pub(super) fn encode(action: &ActionRequired) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(action)
}

/// The error says where the body is wrong, never what it holds.
pub(super) fn decode(body: &[u8]) -> Result<ActionRequired, String> {
    let action: ActionRequired = serde_json::from_slice(body).map_err(|error| {
        format!(
            "the body is no action ({:?} error at line {} column {})",
            error.classify(),
            error.line(),
            error.column()
        )
    })?;
    // Not every store can keep them, and a session that cannot be postponed would be held for ever.
    let kept = [&*action.session.platform, &*action.session.session, action.traceparent.as_deref().unwrap_or_default()];
    match kept.iter().any(|text| text.chars().any(char::is_control)) {
        true => Err("the body is no action (control characters in an id)".to_owned()),
        false => Ok(action),
    }
}

pub(super) fn properties(action: &ActionRequired) -> BasicProperties {
    let properties = BasicProperties::default()
        .with_delivery_mode(PERSISTENT)
        .with_content_type(short("application/json"))
        .with_message_id(short(&action.event));
    let Some(traceparent) = &action.traceparent else { return properties };
    let mut headers = FieldTable::default();
    headers.insert(short("traceparent"), AMQPValue::LongString(traceparent.as_str().into()));
    properties.with_headers(headers)
}

/// When a message is put aside, and under which name.
pub(super) struct Death {
    at: i64,
    id: String,
}

impl Death {
    pub(super) fn now() -> Self {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        Self {
            at: i64::try_from(now.as_millis()).unwrap_or(i64::MAX),
            id: format!("{:010x}", rand::random::<u64>() >> 24),
        }
    }
}

/// The message as it came, with the reason beside.
pub(super) fn dead(original: &BasicProperties, reason: &str, death: Death) -> BasicProperties {
    let mut headers = original.headers().clone().unwrap_or_default();
    let reason: LongString = reason[..reason.floor_char_boundary(REASON_MAX)].into();
    headers.insert(short(REASON), AMQPValue::LongString(reason));
    headers.insert(short(DEAD_AT), AMQPValue::LongLongInt(death.at));
    headers.insert(short(DEAD_ID), AMQPValue::LongString(death.id.into()));
    original.clone().with_delivery_mode(PERSISTENT).with_headers(headers)
}

/// A message of the dead queue. One that the broker put there itself has only the broker's notes.
pub(super) fn read_dead(properties: &BasicProperties, body: &[u8]) -> Dead {
    let text = |name| match header(properties, name) {
        Some(AMQPValue::LongString(text)) => Some(text.to_string()),
        Some(AMQPValue::ShortString(text)) => Some(text.to_string()),
        _ => None,
    };
    let reason = text(REASON)
        .or_else(|| text("x-first-death-reason").map(|why| format!("put aside by the broker: {why}")))
        .unwrap_or_else(|| "unknown".to_owned());
    let id = text(DEAD_ID).unwrap_or_else(|| {
        let mut hash = Sha256::new().chain_update(body);
        hash.update(properties.message_id().as_ref().map(|id| id.as_str()).unwrap_or_default());
        hash.finalize()[..5].iter().map(|byte| format!("{byte:02x}")).collect()
    });
    Dead {
        id,
        reason,
        action: decode(body).ok(),
        at: number(header(properties, DEAD_AT)).or_else(|| broker_time(properties)),
        redriven: redrives(properties),
        bytes: body.to_vec(),
    }
}

/// When the broker put a message aside.
fn broker_time(properties: &BasicProperties) -> Option<i64> {
    let Some(AMQPValue::FieldArray(deaths)) = header(properties, "x-death") else { return None };
    let Some(AMQPValue::FieldTable(last)) = deaths.as_slice().first() else { return None };
    match last.inner().get("time") {
        Some(AMQPValue::Timestamp(seconds)) => i64::try_from(*seconds).ok()?.checked_mul(1000),
        _ => None,
    }
}

/// The message as it is given back to the workers: as if it were new, but for how often this was done.
pub(super) fn redriven(dead: &BasicProperties) -> BasicProperties {
    let mut headers = FieldTable::default();
    for (name, value) in dead.headers().iter().flat_map(|headers| headers.inner()) {
        if !name.as_str().starts_with(PAST) && ![REASON, DEAD_AT, DEAD_ID].contains(&name.as_str()) {
            headers.insert(name.clone(), value.clone());
        }
    }
    headers.insert(short(REDRIVEN), AMQPValue::LongLongInt(i64::from(redrives(dead)) + 1));
    dead.clone().with_delivery_mode(PERSISTENT).with_headers(headers)
}

fn redrives(properties: &BasicProperties) -> u32 {
    count(header(properties, REDRIVEN))
}

fn header<'p>(properties: &'p BasicProperties, name: &str) -> Option<&'p AMQPValue> {
    properties.headers().as_ref().and_then(|headers| headers.inner().get(name))
}

/// How often a message was delivered before.
pub(super) fn deliveries(properties: &BasicProperties) -> u32 {
    count(header(properties, DELIVERY_COUNT))
}

fn count(value: Option<&AMQPValue>) -> u32 {
    u32::try_from(number(value).unwrap_or(0).max(0)).unwrap_or(u32::MAX)
}

fn number(value: Option<&AMQPValue>) -> Option<i64> {
    match value? {
        AMQPValue::LongLongInt(count) => Some(*count),
        AMQPValue::LongInt(count) => Some(i64::from(*count)),
        AMQPValue::LongUInt(count) => Some(i64::from(*count)),
        AMQPValue::ShortInt(count) => Some(i64::from(*count)),
        AMQPValue::ShortUInt(count) => Some(i64::from(*count)),
        AMQPValue::ShortShortInt(count) => Some(i64::from(*count)),
        AMQPValue::ShortShortUInt(count) => Some(i64::from(*count)),
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::session::SessionKey;

    fn action() -> ActionRequired {
        ActionRequired {
            session: SessionKey::new("openai", "sess_1"),
            event: "wh_é".repeat(100),
            accepted_at: 1_790_000_000_123,
            tries: 3,
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into()),
        }
    }

    #[test]
    fn an_action_comes_back_as_it_went() {
        assert_eq!(decode(&encode(&action()).unwrap()).unwrap(), action());
    }

    #[test]
    fn a_body_that_is_no_action_is_not_quoted_in_the_error() {
        let error = decode(br#"{"session":"top secret"}"#).unwrap_err();
        assert!(error.contains("line 1") && !error.contains("secret"), "{error}");
    }

    #[test]
    fn ids_that_no_store_keeps_are_no_action() {
        let nul = "sess\0".to_owned();
        for action in [
            ActionRequired { session: SessionKey::new("openai", nul.clone()), ..action() },
            ActionRequired { session: SessionKey::new(nul.clone(), "sess_1"), ..action() },
            ActionRequired { traceparent: Some(nul), ..action() },
        ] {
            assert!(decode(&encode(&action).unwrap()).unwrap_err().contains("control characters"));
        }
    }

    #[test]
    fn a_message_is_persistent_and_carries_id_and_trace() {
        let properties = properties(&action());
        assert_eq!(*properties.delivery_mode(), Some(PERSISTENT));
        assert!(properties.message_id().as_ref().unwrap().as_str().starts_with("wh_é"));
        assert!(properties.headers().as_ref().unwrap().contains_key("traceparent"));
    }

    #[test]
    fn a_dead_message_keeps_its_headers_and_gets_a_bounded_reason() {
        let dead = dead(&properties(&action()), &"x".repeat(5000), Death::now());
        let headers = dead.headers().clone().unwrap();
        assert!(headers.contains_key("traceparent"));
        let Some(AMQPValue::LongString(reason)) = headers.inner().get(REASON) else { panic!("no reason") };
        assert_eq!(reason.len(), REASON_MAX);
    }

    #[test]
    fn a_message_is_redriven_without_its_past_and_counted() {
        let mut headers = properties(&action()).headers().clone().unwrap();
        headers.insert(short(DELIVERY_COUNT), AMQPValue::LongLongInt(21));
        let mut live = properties(&action()).with_headers(headers);
        for times in 0..3 {
            let dead = dead(&live, "why", Death { at: 7, id: "a".into() });
            let read = read_dead(&dead, &encode(&action()).unwrap());
            assert_eq!((read.id.as_str(), read.reason.as_str(), read.at, read.redriven), ("a", "why", Some(7), times));
            assert_eq!(read.action, Some(action()));
            live = redriven(&dead);
            assert_eq!(deliveries(&live), 0);
            let names: Vec<_> = live.headers().as_ref().unwrap().inner().keys().map(|k| k.as_str()).collect();
            assert_eq!(names, [REDRIVEN, "traceparent"]);
        }
    }

    #[test]
    fn what_the_broker_put_aside_itself_can_be_named_and_tells_why() {
        let mut death = FieldTable::default();
        death.insert(short("time"), AMQPValue::Timestamp(1_790_000_000));
        let mut headers = FieldTable::default();
        headers.insert(short("x-first-death-reason"), AMQPValue::LongString("delivery_limit".into()));
        headers.insert(short("x-death"), AMQPValue::FieldArray(vec![AMQPValue::FieldTable(death)].into()));
        let read = read_dead(&BasicProperties::default().with_headers(headers.clone()), b"\0");
        assert_eq!(read.reason, "put aside by the broker: delivery_limit");
        assert_eq!((read.at, read.action.is_none()), (Some(1_790_000_000_000), true));
        assert_eq!(read.id, read_dead(&BasicProperties::default().with_headers(headers), b"\0").id);
        assert_ne!(read.id, read_dead(&BasicProperties::default(), b"1").id);
    }

    #[test]
    fn the_delivery_count_is_read_in_every_width_and_absent_is_zero() {
        assert_eq!(deliveries(&BasicProperties::default()), 0);
        for (value, count) in [
            (AMQPValue::LongLongInt(7), 7),
            (AMQPValue::LongInt(7), 7),
            (AMQPValue::ShortShortUInt(7), 7),
            (AMQPValue::LongLongInt(-1), 0),
            (AMQPValue::LongLongInt(i64::MAX), u32::MAX),
            (AMQPValue::Boolean(true), 0),
        ] {
            let mut headers = FieldTable::default();
            headers.insert(short(DELIVERY_COUNT), value);
            assert_eq!(deliveries(&BasicProperties::default().with_headers(headers)), count);
        }
    }
}
