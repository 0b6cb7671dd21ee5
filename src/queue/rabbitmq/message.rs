//! A session's notice as an AMQP message, and back.

use lapin::{
    BasicProperties,
    types::{AMQPValue, FieldTable, LongString},
};

use super::connection::short;
use crate::session::ActionRequired;

const PERSISTENT: u8 = 2;
/// Header of a dead message: why it is there.
const REASON: &str = "actiond-reason";
const REASON_MAX: usize = 1024;
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

/// The message as it came, with the reason beside.
pub(super) fn dead(original: &BasicProperties, reason: &str) -> BasicProperties {
    let mut headers = original.headers().clone().unwrap_or_default();
    let reason: LongString = reason[..reason.floor_char_boundary(REASON_MAX)].into();
    headers.insert(short(REASON), AMQPValue::LongString(reason));
    original.clone().with_delivery_mode(PERSISTENT).with_headers(headers)
}

/// How often a message was delivered before.
pub(super) fn deliveries(properties: &BasicProperties) -> u32 {
    let count = properties.headers().as_ref().and_then(|headers| headers.inner().get(DELIVERY_COUNT));
    let count = match count {
        Some(AMQPValue::LongLongInt(count)) => *count,
        Some(AMQPValue::LongInt(count)) => i64::from(*count),
        Some(AMQPValue::LongUInt(count)) => i64::from(*count),
        Some(AMQPValue::ShortInt(count)) => i64::from(*count),
        Some(AMQPValue::ShortUInt(count)) => i64::from(*count),
        Some(AMQPValue::ShortShortInt(count)) => i64::from(*count),
        Some(AMQPValue::ShortShortUInt(count)) => i64::from(*count),
        _ => 0,
    };
    u32::try_from(count.max(0)).unwrap_or(u32::MAX)
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
        let dead = dead(&properties(&action()), &"x".repeat(5000));
        let headers = dead.headers().clone().unwrap();
        assert!(headers.contains_key("traceparent"));
        let Some(AMQPValue::LongString(reason)) = headers.inner().get(REASON) else { panic!("no reason") };
        assert_eq!(reason.len(), REASON_MAX);
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
