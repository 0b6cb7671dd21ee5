use std::{collections::HashMap, sync::Arc};

use axum::{Router, body::Body as Answer, extract::Request, http::response};
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    sync::{Mutex, mpsc},
};

use super::*;
use crate::{
    handler::{Sign, tests::call},
    session::{CallKey, Part, SessionKey},
};

struct Seen {
    headers: HeaderMap,
    body: String,
}

/// A server that answers every request in the same way and says what it saw.
async fn server(status: u16, headers: &[(&'static str, &str)], body: &[u8]) -> (String, mpsc::UnboundedReceiver<Seen>) {
    let (saw, seen) = mpsc::unbounded_channel();
    let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    let body = body.to_vec();
    let url = serve(Router::new().fallback(move |request: Request| {
        let mut answer = response::Builder::new().status(status);
        for (name, value) in &headers {
            answer = answer.header(*name, value);
        }
        let answer = answer.body(Answer::from(body.clone())).unwrap();
        async move {
            let (parts, body) = request.into_parts();
            let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
            let body = String::from_utf8(body.to_vec()).unwrap();
            let _ = saw.send(Seen { headers: parts.headers, body });
            answer
        }
    }))
    .await;
    (url, seen)
}

async fn serve(router: Router) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/agent", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    url
}

fn config(url: String) -> HttpConfig {
    HttpConfig {
        url,
        headers: Vec::new(),
        timeout: Duration::from_secs(10),
        body: Body::Arguments,
        response: Response::Text,
        max_response: 1024,
        sign: Sign::default(),
    }
}

fn handler(config: &HttpConfig) -> Http {
    Http::new(config, crate::http::client().unwrap()).unwrap()
}

async fn answered(status: u16, headers: &[(&'static str, &str)], body: &[u8]) -> Result<Output, Error> {
    let (url, _seen) = server(status, headers, body).await;
    handler(&config(url)).call(&call("{}")).await
}

fn text(text: &str) -> Output {
    Output::Text(text.into())
}

#[tokio::test]
async fn arguments_are_posted_as_they_were_read_with_key_and_trace() {
    let (url, mut seen) = server(200, &[], b"ok").await;
    let mut config = config(url);
    config.headers = vec![("Authorization".into(), "Bearer t".into()), ("X-Name".into(), "é".into())];
    let mut call = call(r#"{"id": 2512292042121000001}"#);
    call.traceparent = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into());
    call.attempt = 3;
    assert_eq!(handler(&config).call(&call).await.unwrap(), text("ok"));

    let Seen { headers, body } = seen.recv().await.unwrap();
    assert_eq!(body, r#"{"id":2512292042121000001}"#);
    let expected = [
        ("content-type", "application/json"),
        ("idempotency-key", &call.key.handler_idempotency_key()),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
        ("actiond-function", "lookup_order"),
        ("actiond-attempt", "3"),
        ("authorization", "Bearer t"),
        ("user-agent", concat!("actiond/", env!("CARGO_PKG_VERSION"))),
    ];
    for (name, value) in expected {
        assert_eq!(headers.get_all(name).iter().collect::<Vec<_>>(), [value], "{name}");
    }
    assert_eq!(headers["x-name"].as_bytes(), "é".as_bytes());
    assert!(!headers.contains_key("accept-encoding"));
}

#[tokio::test]
async fn the_envelope_carries_the_call_and_its_context() {
    let (url, mut seen) = server(200, &[], b"ok").await;
    let config = HttpConfig { body: Body::Protocol, ..config(url) };
    let mut call = call(r#"{"order_id":"42","n":1.10}"#);
    let metadata = json!({"user": "u_1", "plan": 3, "k": "a\u{0}b", "deep": {"a": [1]}});
    call.metadata = Arc::new(metadata.as_object().unwrap().clone());
    handler(&config).call(&call).await.unwrap();

    let body = seen.recv().await.unwrap().body;
    assert!(body.contains(r#""content":{"n":1.10,"order_id":"42"}"#) || body.contains(r#"{"order_id":"42","n":1.10}"#));
    let mut body: Value = serde_json::from_str(&body).unwrap();
    let moment = body["context"].as_object_mut().unwrap().remove("moment").unwrap();
    assert!(moment.as_str().unwrap().ends_with("+00:00"), "{moment}");
    body["function"].as_object_mut().unwrap().remove("content");
    assert_eq!(
        body,
        json!({
            "type": "tool_call",
            "function": {"name": "lookup_order"},
            "context": {
                "externalUserId": "u_1",
                "metadata": {"user": "u_1", "plan": "3", "k": "a\u{0}b", "deep": "{\"a\":[1]}"},
                "callSource": "actiond",
                "conversationToken": "sess_1",
                "platform": "openai",
                "sessionId": "sess_1",
                "turnId": "turn_1",
                "callId": "call_0",
                "attempt": 1,
                "idempotencyKey": call.key.handler_idempotency_key(),
            },
        })
    );
}

#[tokio::test]
async fn a_handler_that_has_an_address_for_its_result_may_answer_later() {
    let (url, mut seen) = server(202, &[], b"ignored").await;
    let config = HttpConfig { body: Body::Protocol, ..config(url) };
    let mut call = call("{}");
    let later = handler(&config).call(&call).await;
    assert!(matches!(&later, Err(Error::Final { detail, .. }) if detail.contains("ingress.public_url")), "{later:?}");
    let Seen { headers, body } = seen.recv().await.unwrap();
    assert!(!headers.contains_key("actiond-result-url") && !body.contains("resultUrl"));

    call.result_url = Some("https://h/results/t".into());
    assert!(matches!(handler(&config).call(&call).await, Err(Error::Later)));
    let Seen { headers, body } = seen.recv().await.unwrap();
    assert_eq!(headers["actiond-result-url"], "https://h/results/t");
    assert!(body.contains(r#""resultUrl":"https://h/results/t""#), "{body}");
}

#[tokio::test]
async fn the_envelope_is_aivax_s_where_the_session_says_what_aivax_would() {
    let (url, mut seen) = server(200, &[], b"ok").await;
    let mut call = call(r#"{"user_id":"example-user-id"}"#);
    call.function = "view_client".into();
    let metadata = json!({"externalUserId": "u_1", "callSource": "WebChatClient", "conversationToken": "t_1",
                          "moment": "2025-05-18T03:36:27+00:00", "plan": "pro"});
    call.metadata = Arc::new(metadata.as_object().unwrap().clone());
    handler(&HttpConfig { body: Body::Protocol, ..config(url) }).call(&call).await.unwrap();
    let body = seen.recv().await.unwrap().body;
    // The seed's envelope byte for byte; our own ids follow within the context.
    let envelope = r#"{"type":"tool_call","function":{"name":"view_client","content":{"user_id":"example-user-id"}},"context":{"externalUserId":"u_1","metadata":{"plan":"pro"},"callSource":"WebChatClient","conversationToken":"t_1","moment":"2025-05-18T03:36:27+00:00","platform":"#;
    assert!(body.starts_with(envelope), "{body}");
}

#[tokio::test]
async fn a_signed_call_carries_a_nonce_and_a_signature_over_its_body() {
    let (url, mut seen) = server(200, &[], b"ok").await;
    let secret = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let sign = Sign { nonce: Some("shared-key-of-both".into()), standard: Some(secret.into()) };
    let config = HttpConfig { sign, headers: vec![("Webhook-Id".into(), "forged".into())], ..config(url) };
    let call = call(r#"{"n":1}"#);
    let handler = handler(&config);
    handler.call(&call).await.unwrap();
    handler.call(&call).await.unwrap();
    let (first, second) = (seen.recv().await.unwrap(), seen.recv().await.unwrap());

    let nonce = first.headers["x-request-nonce"].to_str().unwrap();
    assert!(nonce.starts_with("$2a$12$") && second.headers["x-request-nonce"] == nonce, "{nonce}");
    let nonces = crate::nonce::Verifier::new(vec!["shared-key-of-both".into()], 10..=13, crate::nonce::Pool::new(1));
    assert_eq!(nonces.verify(nonce).await, Ok(()));

    let webhook =
        crate::platform::WebhookConfig::Standard { secrets: vec![secret.into()], tolerance: Duration::from_secs(60) };
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs() as i64;
    let verified = crate::ingress::signature::Verifier::new(&webhook)
        .unwrap()
        .verify(&first.headers, first.body.as_bytes(), now)
        .unwrap();
    assert_eq!(verified.id, call.key.handler_idempotency_key());
}

#[test]
fn the_moment_is_in_whole_seconds_with_an_offset() {
    let now = SystemTime::UNIX_EPOCH + Duration::from_millis(1_747_539_387_999);
    assert_eq!(moment(now), "2025-05-18T03:36:27+00:00");
    assert_eq!(moment(SystemTime::UNIX_EPOCH), "1970-01-01T00:00:00+00:00");
}

#[tokio::test]
async fn nothing_to_say_is_an_empty_output() {
    assert_eq!(answered(200, &[], b"").await.unwrap(), text(""));
    assert_eq!(answered(204, &[], b"").await.unwrap(), text(""));
    assert_eq!(answered(200, &[("content-type", "application/json")], b"null").await.unwrap(), text("null"));
    assert_eq!(answered(200, &[("content-type", "image/png")], b"").await.unwrap(), text(""));
}

#[tokio::test]
async fn text_is_kept_as_it_is() {
    assert_eq!(answered(201, &[], b" a\0b\r\n").await.unwrap(), text(" a\0b\r\n"));
    assert_eq!(answered(200, &[], b"caf\xe9").await.unwrap(), text("caf\u{fffd}"));
}

#[tokio::test]
async fn an_image_becomes_an_image_part() {
    let answer = answered(200, &[("content-type", "Image/PNG; q=1")], b"\x89PNG").await.unwrap();
    let image_url = "data:image/png;base64,iVBORw==".to_owned();
    assert_eq!(answer, Output::Content(vec![Part::Image { image_url }]));
    let odd = answered(200, &[("content-type", "image/a,b")], b"x").await.unwrap();
    assert_eq!(odd, text("x"));
}

#[tokio::test]
async fn a_content_answer_is_an_array_of_parts_or_an_error() {
    let content = async |body: &[u8]| {
        let (url, _seen) = server(200, &[], body).await;
        handler(&HttpConfig { response: Response::Content, ..config(url) }).call(&call("{}")).await
    };
    let parts = br#"[{"type":"input_text","text":"a"},{"type":"input_image","image_url":"https://h/a.png","n":1}]"#;
    let image = Part::Image { image_url: "https://h/a.png".into() };
    assert_eq!(content(parts).await.unwrap(), Output::Content(vec![Part::Text { text: "a".into() }, image]));
    assert_eq!(content(b"").await.unwrap(), text(""));
    let bad: [&[u8]; 4] =
        [b"hello", b"{}", br#"[{"type":"file"}]"#, br#"[{"type":"input_image","image_url":"file:///etc/passwd"}]"#];
    for body in bad {
        assert!(matches!(content(body).await, Err(Error::Final { message: None, .. })));
    }
}

#[tokio::test]
async fn a_status_says_whether_another_attempt_makes_sense() {
    for status in [408, 425, 429, 500, 502, 503, 504, 599] {
        let error = answered(status, &[], b"secret").await.unwrap_err();
        assert!(
            matches!(&error, Error::Retryable { after: None, .. } | Error::Overloaded { after: None, .. }),
            "{status}"
        );
        assert_eq!(matches!(error, Error::Overloaded { .. }), matches!(status, 429 | 503), "{status}");
        assert_eq!(error.to_string(), format!("the handler answered {status}"));
    }
    for status in [300, 302, 304, 400, 401, 404, 409, 422] {
        let error = answered(status, &[("location", "http://127.0.0.1:9/")], b"").await.unwrap_err();
        assert!(matches!(error, Error::Final { message: None, .. }), "{status}");
    }
}

#[tokio::test]
async fn retry_after_is_handed_on() {
    for (value, expected) in
        [("2", Some(2)), ("99999999999", Some(86_400)), ("-3", None), ("120junk", None), ("", None)]
    {
        let error = answered(503, &[("retry-after", value)], b"").await.unwrap_err();
        let Error::Overloaded { after, .. } = error else { panic!("{error:?}") };
        assert_eq!(after, expected.map(Duration::from_secs), "{value}");
    }
}

#[tokio::test]
async fn an_answer_that_is_too_large_or_compressed_is_final() {
    let error = answered(200, &[], &[b'x'; 1025]).await.unwrap_err();
    let Error::Final { message: Some(message), .. } = error else { panic!("{error:?}") };
    assert!(message.contains("too large"), "{message}");
    assert_eq!(answered(200, &[], &[b'x'; 1024]).await.unwrap(), text(&"x".repeat(1024)));
    let error = answered(200, &[("content-encoding", "gzip")], b"\x1f\x8b").await.unwrap_err();
    assert!(matches!(error, Error::Final { .. }), "{error:?}");
}

#[tokio::test]
async fn a_handler_that_is_slow_or_away_is_tried_again() {
    // A server that takes the request and says half of an answer.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.unwrap();
        let _ = socket.read(&mut [0; 1024]).await;
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello").await;
        while socket.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0) {}
    });
    let mut call = call("{}");
    call.deadline = Some(SystemTime::now() + Duration::from_millis(200));
    let error = handler(&config(url)).call(&call).await.unwrap_err();
    assert!(matches!(&error, Error::Unknown { .. }) && error.to_string().starts_with("no answer within"), "{error}");

    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    call.deadline = None;
    let error = handler(&config(format!("http://{free}/"))).call(&call).await.unwrap_err();
    assert!(matches!(error, Error::Retryable { .. }));
    assert_eq!(error.to_string(), "could not connect: connection refused");
}

#[tokio::test]
async fn repeated_call_ids_reach_a_strict_handler_as_different_calls() {
    // Answers a key that it knows with its first answer.
    let answers = Arc::new(Mutex::new(HashMap::<String, String>::new()));
    let url = serve(Router::new().fallback(async move |headers: axum::http::HeaderMap, body: String| {
        let key = headers["idempotency-key"].to_str().unwrap().to_owned();
        answers.lock().await.entry(key).or_insert(body).clone()
    }))
    .await;
    let handler = handler(&config(url));
    let run = async |session: &str, turn: &str, arguments: &str| {
        let mut call = call(arguments);
        call.key = CallKey::new(SessionKey::new("openai", session), turn, "call_0");
        handler.call(&call).await.unwrap()
    };
    assert_eq!(run("sess_A", "turn_1", r#"{"n":1}"#).await, text(r#"{"n":1}"#));
    assert_eq!(run("sess_B", "turn_1", r#"{"n":2}"#).await, text(r#"{"n":2}"#));
    assert_eq!(run("sess_A", "turn_2", r#"{"n":3}"#).await, text(r#"{"n":3}"#));
    assert_eq!(run("sess_A", "turn_1", r#"{"n":1}"#).await, text(r#"{"n":1}"#));
}

#[test]
fn a_bad_config_is_refused_by_path_without_its_values() {
    let refused = |config: &HttpConfig| Http::new(config, crate::http::client().unwrap()).err().unwrap();
    for url in ["", "orders.internal", "ftp://h/", "file:///etc/passwd", "aivax://query-collection"] {
        assert_eq!(refused(&config(url.into())).0, "url");
    }
    for name in ["Content-Type", "host", "Idempotency-Key", "a b", ""] {
        let mut config = config("http://h/".into());
        config.headers = vec![(name.into(), "v".into())];
        assert_eq!(refused(&config).0, format!("headers.{name}"));
    }
    let mut config = config("http://h/".into());
    config.headers = vec![("X-Token".into(), "secret\n".into())];
    let (path, what) = refused(&config);
    assert_eq!(path, "headers.X-Token");
    assert!(!what.contains("secret"));
}
