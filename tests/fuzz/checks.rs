//! What holds for any input, whoever sends it. The fuzz targets and the property tests check the same. Each check tells
//! whether the input was taken, so that a test can see that this side is reached too.

use std::{sync::Arc, time::Duration};

use actiond::{
    arguments::Arguments,
    config,
    ingress::{
        event::{self, Event},
        signature::{self, Verifier},
    },
    platform::{AgentsApi, WebhookConfig},
    queue::RabbitMq,
    session::{RequiredAction, SessionKey},
};
use axum::http::{HeaderMap, HeaderValue};

const SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const NOW: i64 = 1_790_000_000;
/// Stands for the right signature of the rest, so that what is accepted is reached too.
const SIGN: &str = "SIGN";

/// Three lines become id, timestamp and signatures, the rest is the body: only what was signed with the key passes.
pub(crate) fn signature(data: &[u8]) -> bool {
    let mut lines = data.splitn(4, |byte| *byte == b'\n');
    let [id, timestamp, signatures, body] = std::array::from_fn(|_| lines.next().unwrap_or_default());
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let key = signature::decode_key(SECRET).expect("a key");
    let sent = text(timestamp).parse().unwrap_or(0);
    let right = signature::sign(&key, &text(id), sent, body);
    let signatures = text(signatures).replace(SIGN, &right);

    let mut headers = HeaderMap::new();
    for (name, value) in
        [("webhook-id", id), ("webhook-timestamp", timestamp), ("webhook-signature", signatures.as_bytes())]
    {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.insert(name, value);
        }
    }
    let standard = WebhookConfig::Standard { secrets: vec![SECRET.into()], tolerance: Duration::from_secs(300) };
    let verifier = Verifier::new(&standard).expect("a usable secret");
    let verified = verifier.verify(&headers, body, NOW);
    if let Ok(verified) = &verified {
        assert_eq!(verified.id.as_bytes(), id);
        assert!((sent - NOW).abs() <= 300, "{sent}");
        // A timestamp with zeros before it is signed as it was written.
        let as_written = sent.to_string().as_bytes() == timestamp;
        assert!(!as_written || signatures.contains(&right[3..]), "{signatures}");
    }
    let shared = WebhookConfig::SharedSecret { header: "webhook-signature".into(), secrets: vec![SECRET.into()] };
    let passed = Verifier::new(&shared).expect("a usable secret").verify(&headers, body, NOW).is_ok();
    assert_eq!(passed, headers.get("webhook-signature").is_some_and(|value| value == SECRET));
    let _ = signature::decode_key(&text(body));
    verified.is_ok()
}

/// A webhook's body names a session that can be asked for, or nothing.
pub(crate) fn event(data: &[u8]) -> bool {
    let Ok(Event::ActionRequired { session, .. }) = event::parse(data) else { return false };
    assert!(!session.is_empty() && session.len() <= 256 && !session.chars().any(char::is_control), "{session:?}");
    true
}

/// A platform's answer becomes calls whose ids can be keys, and each call's arguments are one value or a sentence.
pub(crate) fn session(data: &[u8]) -> bool {
    let key = SessionKey::new("openai", "sess_1");
    let session = AgentsApi::parse_session(&key, data);
    let taken = session.is_some();
    if let Some(session) = session {
        for action in session.required_actions {
            match action {
                RequiredAction::FunctionCall(call) => {
                    for id in [&*call.key.call_id, &call.name] {
                        assert!(!id.is_empty() && id.len() <= 512 && !id.chars().any(char::is_control), "{id:?}");
                    }
                    match Arguments::parse(call.arguments.as_deref()) {
                        Ok(arguments) => {
                            let again: serde_json::Value = serde_json::from_str(arguments.text()).expect("json");
                            assert!(again.is_object() && again == *arguments.value(), "{again}");
                        }
                        Err(sentence) => assert!(!sentence.is_empty()),
                    }
                }
                RequiredAction::Other(other) => {
                    assert!(other.key.kind.bytes().all(|byte| byte.is_ascii_graphic()), "{:?}", other.key.kind);
                }
            }
        }
    }
    if let Some(page) = AgentsApi::parse_page(&Arc::from("openai"), data) {
        let ids = page.sessions.iter().map(|one| &*one.key.session).chain(page.next.as_deref());
        for id in ids {
            assert!(!id.is_empty() && !id.chars().any(char::is_control), "{id:?}");
        }
    }
    taken
}

/// A config file is taken, or refused without showing what the environment holds.
pub(crate) fn config(data: &[u8]) -> bool {
    const HELD: &str = "held-by-the-environment";
    let Ok(text) = std::str::from_utf8(data) else { return false };
    // Reading files is the owner's affair, not the parser's.
    if text.contains("file:") || text.contains(HELD) {
        return false;
    }
    let environment = |name: &str| match name {
        "S" => Some(SECRET.to_owned()),
        _ => Some(HELD.to_owned()),
    };
    let Err(errors) = config::parse(text, &environment) else { return true };
    assert!(!errors.problems().is_empty());
    assert!(!errors.to_string().contains(HELD), "{errors}");
    false
}

/// A message of the queue is an action that goes back as it came, or a reason that does not quote it.
pub(crate) fn message(data: &[u8]) -> bool {
    match RabbitMq::parse_message(data) {
        Ok(action) => {
            let again = serde_json::to_vec(&action).expect("json");
            assert_eq!(RabbitMq::parse_message(&again).as_ref(), Ok(&action));
            true
        }
        Err(reason) => {
            assert!(reason.starts_with("the body is no action (") && reason.len() < 100, "{reason}");
            false
        }
    }
}
