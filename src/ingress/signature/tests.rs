#![allow(clippy::unwrap_used)]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use proptest::prelude::*;

use super::*;

const OPENAI_SECRET: &str = "whsec_RdvaYFYUXuIFuEbvZHwMfYFhUf7aMYjYcmM24+Aj40c=";
const OPENAI_BODY: &[u8] = br#"{"id": "evt_685c059ae3a481909bdc86819b066fb6", "object": "event", "created_at": 1750861210, "type": "response.completed", "data": {"id": "resp_123"}}"#;
const OPENAI_ID: &str = "wh_685c059ae39c8190af8c71ed1022a24d";
const OPENAI_SIGNATURE: &str = "v1,gUAg4R2hWouRZqRQG4uJypNS8YK885G838+EHb4nKBY=";
const OPENAI_TIME: i64 = 1_750_861_210;

const CASE_SECRET: &str = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const CASE_SIGNATURE: &str = "v1,1ELSWN5WfDNTaGSlhzufztWB32enkVatAqA0ypdwWDs=";
const EMPTY_KEY_SIGNATURE: &str = "v1,aAkU42Lzzp0jfBFwmOBoAtH6f5Q0EH6C3LWU5aqsK+Y=";
const CASE_TIME: i64 = 1_790_000_000;

fn standard(secrets: &[&str]) -> Result<Verifier, Vec<(usize, String)>> {
    Verifier::new(&WebhookConfig::Standard {
        secrets: secrets.iter().map(|&secret| secret.into()).collect(),
        tolerance: Duration::from_secs(300),
    })
}

fn shared(header: &str, secrets: &[&str]) -> Result<Verifier, Vec<(usize, String)>> {
    Verifier::new(&WebhookConfig::SharedSecret {
        header: header.to_owned(),
        secrets: secrets.iter().map(|&secret| secret.into()).collect(),
    })
}

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, value.parse().unwrap());
    }
    headers
}

fn signed(id: &str, timestamp: &str, signature: &str) -> HeaderMap {
    headers(&[("webhook-id", id), ("webhook-timestamp", timestamp), ("webhook-signature", signature)])
}

fn openai(timestamp: &str, signature: &str) -> HeaderMap {
    signed(OPENAI_ID, timestamp, signature)
}

fn case(signature: &str) -> HeaderMap {
    signed("wh_case", "1790000000", signature)
}

#[test]
fn the_known_vectors_pass() {
    let verified =
        standard(&[OPENAI_SECRET]).unwrap().verify(&openai("1750861210", OPENAI_SIGNATURE), OPENAI_BODY, OPENAI_TIME);
    assert_eq!(verified, Ok(Verified { id: OPENAI_ID.to_owned(), secret: 0 }));
    assert!(standard(&[CASE_SECRET]).unwrap().verify(&case(CASE_SIGNATURE), b"{}", CASE_TIME).is_ok());

    assert_eq!(sign(&decode_key(OPENAI_SECRET).unwrap(), OPENAI_ID, OPENAI_TIME, OPENAI_BODY), OPENAI_SIGNATURE);
    assert_eq!(sign(&decode_key(CASE_SECRET).unwrap(), "wh_case", CASE_TIME, b"{}"), CASE_SIGNATURE);
    assert_eq!(sign(b"", "wh_case", CASE_TIME, b"{}"), EMPTY_KEY_SIGNATURE);
}

#[test]
fn one_changed_byte_matches_nothing() {
    let verifier = standard(&[OPENAI_SECRET]).unwrap();
    let mut body = OPENAI_BODY.to_vec();
    body.push(b' ');
    assert_eq!(verifier.verify(&openai("1750861210", OPENAI_SIGNATURE), &body, OPENAI_TIME), Err(Refused::NoMatch));
    assert_eq!(
        verifier.verify(&openai("1750861211", OPENAI_SIGNATURE), OPENAI_BODY, OPENAI_TIME),
        Err(Refused::NoMatch)
    );
    let headers = signed("wh_other", "1750861210", OPENAI_SIGNATURE);
    assert_eq!(verifier.verify(&headers, OPENAI_BODY, OPENAI_TIME), Err(Refused::NoMatch));
}

#[test]
fn a_forgery_with_the_empty_key_matches_nothing() {
    let verifier = standard(&[CASE_SECRET]).unwrap();
    assert_eq!(verifier.verify(&case(EMPTY_KEY_SIGNATURE), b"{}", CASE_TIME), Err(Refused::NoMatch));
}

#[test]
fn secrets_that_are_no_key_are_refused_by_index_and_not_shown() {
    let errors =
        standard(&[CASE_SECRET, "whsec_!!!!", "", "whsec_", "whsec_AAEC", "tiny", "whsec_AAECAwQFBgcICQoLDA0OD"])
            .err()
            .unwrap();
    assert_eq!(errors.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
    assert!(errors.iter().all(|(_, text)| !text.contains("!!!!") && !text.contains("AAEC") && !text.contains("tiny")));
    assert!(standard(&[]).is_err());
    assert!(shared("x-webhook-secret", &[""]).is_err());
    assert!(shared("not a name", &["0123456789abcdef"]).is_err());
}

#[test]
fn a_line_feed_after_a_secret_is_no_part_of_it() {
    for secret in [format!("{CASE_SECRET}\n"), format!("{CASE_SECRET}\r\n")] {
        assert!(standard(&[&secret]).unwrap().verify(&case(CASE_SIGNATURE), b"{}", CASE_TIME).is_ok());
    }
    assert_eq!(decode_key("a raw secret of text\n").unwrap(), b"a raw secret of text");
    let verifier = shared("x-webhook-secret", &["0123456789abcdef\n"]).unwrap();
    assert!(verifier.verify(&headers(&[("x-webhook-secret", "0123456789abcdef")]), b"", 0).is_ok());
}

#[test]
fn any_secret_and_any_signature_may_match() {
    let (old, new) = ("whsec_b2xkIG9sZCBvbGQgb2xkIG9sZCBvbGQgb2xk", CASE_SECRET);
    let verifier = standard(&[old, new]).unwrap();
    let by_old = sign(&decode_key(old).unwrap(), "wh_case", CASE_TIME, b"{}");
    let matched = |signature: &str| verifier.verify(&case(signature), b"{}", CASE_TIME).map(|verified| verified.secret);
    assert_eq!(matched(&by_old), Ok(0));
    assert_eq!(matched(CASE_SIGNATURE), Ok(1));
    assert_eq!(matched(&format!("{by_old} {CASE_SIGNATURE}")), Ok(0));
    assert_eq!(matched(&format!("v1a,AAAA v2,{0} v1,x v1, , {CASE_SIGNATURE}", &CASE_SIGNATURE[3..])), Ok(1));
    assert_eq!(matched(&CASE_SIGNATURE[3..]), Ok(1), "without a version");
    assert_eq!(matched(&format!("v2,{}", &CASE_SIGNATURE[3..])), Err(Refused::NoMatch));
    assert_eq!(matched(&format!("{CASE_SIGNATURE}=")), Err(Refused::NoMatch));
    assert_eq!(matched(""), Err(Refused::NoMatch));
}

#[test]
fn no_more_than_32_signatures_are_looked_at() {
    let verifier = standard(&[CASE_SECRET]).unwrap();
    let wrong = EMPTY_KEY_SIGNATURE;
    let at = |before: usize| {
        let signatures = format!("{}{CASE_SIGNATURE}", format!("{wrong} ").repeat(before));
        verifier.verify(&case(&signatures), b"{}", CASE_TIME).is_ok()
    };
    assert!(at(31));
    assert!(!at(32));
}

#[test]
fn the_tolerance_is_inclusive_both_ways() {
    let verifier = standard(&[CASE_SECRET]).unwrap();
    let at = |now: i64| verifier.verify(&case(CASE_SIGNATURE), b"{}", now).map(|_| ());
    assert_eq!(at(CASE_TIME + 300), Ok(()));
    assert_eq!(at(CASE_TIME + 301), Err(Refused::TooOld));
    assert_eq!(at(CASE_TIME - 300), Ok(()));
    assert_eq!(at(CASE_TIME - 301), Err(Refused::TooNew));
    assert_eq!(at(i64::MIN), Err(Refused::TooNew));
    assert_eq!(at(i64::MAX), Err(Refused::TooOld));
}

#[test]
fn a_timestamp_is_digits_only() {
    let verifier = standard(&[CASE_SECRET]).unwrap();
    let key = decode_key(CASE_SECRET).unwrap();
    for timestamp in ["", "+1790000000", "-1", "1790000000.0", "1_790", "1e9", "0x1", "99999999999999999999999", "now"]
    {
        let headers = signed("wh_case", timestamp, &sign(&key, "wh_case", CASE_TIME, b"{}"));
        assert_eq!(verifier.verify(&headers, b"{}", CASE_TIME), Err(Refused::BadTimestamp), "{timestamp:?}");
    }
}

#[test]
fn all_three_headers_come_once_and_from_one_family() {
    let verifier = standard(&[CASE_SECRET]).unwrap();
    let verify = |pairs: &[(&'static str, &str)]| verifier.verify(&headers(pairs), b"{}", CASE_TIME).map(|_| ());
    let missing = |name: &'static str| Err(Refused::MissingHeader(HeaderName::from_static(name)));
    let bad = |name: &'static str| Err(Refused::BadHeader(HeaderName::from_static(name)));
    let (id, time) = ("wh_case", "1790000000");

    assert_eq!(verify(&[("svix-id", id), ("svix-timestamp", time), ("svix-signature", CASE_SIGNATURE)]), Ok(()));
    assert_eq!(verify(&[]), missing("webhook-id"));
    assert_eq!(verify(&[("webhook-id", id), ("webhook-signature", CASE_SIGNATURE)]), missing("webhook-timestamp"));
    assert_eq!(verify(&[("webhook-id", id), ("webhook-timestamp", time)]), missing("webhook-signature"));
    assert_eq!(verify(&[("svix-id", id), ("svix-timestamp", time)]), missing("svix-signature"));
    assert_eq!(
        verify(&[("webhook-id", id), ("svix-timestamp", time), ("svix-signature", CASE_SIGNATURE)]),
        missing("webhook-timestamp")
    );
    for twice in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        let mut all = case(CASE_SIGNATURE);
        let value = all[twice].clone();
        all.append(twice, value);
        assert_eq!(verifier.verify(&all, b"{}", CASE_TIME).map(|_| ()), bad(twice));
    }
    for id in ["", "a b", &"x".repeat(257)] {
        let all = [("webhook-id", id), ("webhook-timestamp", time), ("webhook-signature", CASE_SIGNATURE)];
        assert_eq!(verify(&all), bad("webhook-id"));
    }
}

#[test]
fn a_shared_secret_must_be_equal() {
    let verifier = shared("X-Webhook-Secret", &["0123456789abcdef", "fedcba9876543210"]).unwrap();
    let verify = |pairs: &[(&'static str, &str)]| verifier.verify(&headers(pairs), b"{}", 0);
    let name = HeaderName::from_static("x-webhook-secret");
    assert_eq!(verify(&[]), Err(Refused::MissingHeader(name)));
    assert_eq!(verify(&[("x-webhook-secret", "0123456789abcde")]), Err(Refused::NoMatch));
    assert_eq!(verify(&[("x-webhook-secret", "")]), Err(Refused::NoMatch));
    let id = "body-44136fa355b3678a1146ad16f7e8649e".to_owned();
    assert_eq!(verify(&[("x-webhook-secret", "fedcba9876543210")]), Ok(Verified { id, secret: 1 }));
    let named = verify(&[("x-webhook-secret", "0123456789abcdef"), ("webhook-id", "wh_1")]);
    assert_eq!(named, Ok(Verified { id: "wh_1".to_owned(), secret: 0 }));
}

#[test]
fn insecure_takes_whatever_comes() {
    let verifier = Verifier::new(&WebhookConfig::Insecure).unwrap();
    assert_eq!(verifier.verify(&headers(&[("webhook-id", "wh_1")]), b"", 0).unwrap().id, "wh_1");
    assert!(verifier.verify(&headers(&[("webhook-id", "not sane")]), b"", 0).unwrap().id.starts_with("body-"));
}

proptest! {
    /// `standardwebhooks` is the reference implementation; it knows only the clock of the machine.
    #[test]
    fn the_reference_library_agrees(key in proptest::collection::vec(any::<u8>(), 16..70), id in "[!-~]{1,64}", body in ".{0,200}") {
        let now = i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap();
        let theirs = standardwebhooks::Webhook::from_bytes(key.clone()).unwrap();
        let ours = standard(&[&format!("whsec_{}", BASE64_STANDARD.encode(&key))]).unwrap();

        let signature = sign(&key, &id, now, body.as_bytes());
        prop_assert_eq!(&signature, &theirs.sign(&id, now, body.as_bytes()).unwrap());
        let headers = signed(&id, &now.to_string(), &signature);
        prop_assert!(theirs.verify(body.as_bytes(), &headers).is_ok());
        prop_assert!(ours.verify(&headers, body.as_bytes(), now).is_ok());
    }

    #[test]
    fn any_bytes_are_refused_without_panic(
        id in proptest::collection::vec(32u8.., 0..40),
        timestamp in "[0-9+. -]{0,20}",
        signature in proptest::collection::vec(32u8..127, 0..200),
        body in proptest::collection::vec(any::<u8>(), 0..50),
        now in any::<i64>(),
    ) {
        let mut headers = HeaderMap::new();
        for (name, value) in [("webhook-id", &id[..]), ("webhook-timestamp", timestamp.as_bytes()), ("webhook-signature", &signature)] {
            if let Ok(value) = axum::http::HeaderValue::from_bytes(value) {
                headers.append(name, value);
            }
        }
        prop_assert!(standard(&[CASE_SECRET]).unwrap().verify(&headers, &body, now).is_err());
    }
}
