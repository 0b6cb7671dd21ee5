#![allow(clippy::unwrap_used)]

use std::sync::Mutex;

use async_trait::async_trait;
use axum::http::Method;
use proptest::prelude::*;
use serde_json::Value;
use tower::ServiceExt as _;

use super::{signature::sign, *};
use crate::{
    platform::WebhookConfig,
    queue::{Consumer, Queue},
};

const KEY: &[u8] = b"0123456789abcdef0123456789abcdef";
const OLD_KEY: &[u8] = b"an old key that is still active.";
const NOW: i64 = 1_790_000_000;
const NUDGE: &str =
    r#"{"type": "agent.session.action_required" , "data":{"id":"sess_1","required_action":{"type":"function_call"}}}"#;

/// Remembers what was published; `Err` while `down`.
#[derive(Default)]
struct Memory {
    down: bool,
    published: Mutex<Vec<ActionRequired>>,
}

#[async_trait]
impl Queue for Memory {
    async fn publish(&self, action: &ActionRequired) -> Result<(), PublishError> {
        if self.down {
            return Err(PublishError::new("no confirm"));
        }
        self.published.lock().unwrap().push(action.clone());
        Ok(())
    }

    async fn consume(&self) -> Box<dyn Consumer> {
        unreachable!("the ingress never consumes")
    }

    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    async fn close(&self) {}
}

fn ingress(queue: Arc<Memory>) -> Ingress {
    let text = |key: &[u8]| String::from_utf8(key.to_vec()).unwrap().into();
    let standard =
        WebhookConfig::Standard { secrets: vec![text(OLD_KEY), text(KEY)], tolerance: Duration::from_secs(300) };
    let platforms = [("openai", standard), ("open", WebhookConfig::Insecure)];
    let platforms = platforms.map(|(name, config)| (name.to_owned(), Verifier::new(&config).unwrap())).into();
    Ingress {
        clock: || UNIX_EPOCH + Duration::from_millis(NOW as u64 * 1000 + 7),
        ..Ingress::new(platforms, queue, Metrics::new(), 1024)
    }
}

fn request(uri: &str, body: impl Into<Body>) -> Request {
    Request::builder().method(Method::POST).uri(uri).body(body.into()).unwrap()
}

fn signed(key: &[u8], body: &[u8]) -> Request {
    let mut request = request("/webhooks/openai", body.to_vec());
    let headers = request.headers_mut();
    headers.insert("webhook-id", "wh_1".parse().unwrap());
    headers.insert("webhook-timestamp", NOW.into());
    headers.insert("webhook-signature", sign(key, "wh_1", NOW, body).parse().unwrap());
    request
}

async fn send(ingress: Ingress, request: Request) -> (StatusCode, HeaderMap, Value) {
    let response = router(ingress).oneshot(request).await.unwrap();
    let (head, body) = response.into_parts();
    let body = axum::body::to_bytes(body, 1024).await.unwrap();
    (head.status, head.headers, serde_json::from_slice(&body).unwrap())
}

/// Status of a request that must not publish anything.
async fn refused(request: Request) -> u16 {
    let queue = Arc::new(Memory::default());
    let (status, _, body) = send(ingress(queue.clone()), request).await;
    assert!(body["error"].is_string(), "{body}");
    assert!(queue.published.lock().unwrap().is_empty());
    status.as_u16()
}

#[tokio::test]
async fn a_verified_nudge_is_published_and_then_answered() {
    let queue = Arc::new(Memory::default());
    let (status, _, body) = send(ingress(queue.clone()), signed(KEY, NUDGE.as_bytes())).await;
    assert_eq!((status, body), (StatusCode::OK, json!({"status": "queued"})));
    let expected = ActionRequired {
        session: SessionKey::new("openai", "sess_1"),
        event: "wh_1".to_owned(),
        accepted_at: NOW * 1000 + 7,
        tries: 0,
        traceparent: telemetry::traceparent(),
    };
    assert_eq!(*queue.published.lock().unwrap(), [expected]);
}

#[tokio::test]
async fn a_rotated_secret_and_a_platform_without_one_are_served() {
    let queue = Arc::new(Memory::default());
    let (status, ..) = send(ingress(queue.clone()), signed(OLD_KEY, NUDGE.as_bytes())).await;
    assert_eq!(status, 200);
    let (status, ..) = send(ingress(queue.clone()), request("/webhooks/open", NUDGE)).await;
    assert_eq!(status, 200);
    assert_eq!(queue.published.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn other_events_are_answered_and_not_published() {
    let queue = Arc::new(Memory::default());
    let (status, _, body) = send(ingress(queue.clone()), signed(KEY, br#"{"type":"response.completed"}"#)).await;
    assert_eq!((status, body), (StatusCode::OK, json!({"status": "ignored"})));
    assert!(queue.published.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_queue_that_is_away_is_503_and_never_200() {
    let queue = Arc::new(Memory { down: true, ..Memory::default() });
    let (status, headers, _) = send(ingress(queue), signed(KEY, NUDGE.as_bytes())).await;
    assert_eq!((status, &headers[RETRY_AFTER]), (StatusCode::SERVICE_UNAVAILABLE, &"5".parse().unwrap()));
}

#[tokio::test]
async fn more_than_there_are_slots_come_again() {
    let full = Ingress { slots: Semaphore::new(0), ..ingress(Arc::default()) };
    let (status, headers, _) = send(full, signed(KEY, NUDGE.as_bytes())).await;
    assert_eq!(status, 503);
    assert!(headers.contains_key(RETRY_AFTER));
}

#[tokio::test]
async fn a_wrong_or_missing_signature_is_401() {
    assert_eq!(refused(signed(b"some other key of enough bytes..", NUDGE.as_bytes())).await, 401);
    assert_eq!(refused(request("/webhooks/openai", NUDGE)).await, 401);
    for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
        let mut request = signed(KEY, NUDGE.as_bytes());
        request.headers_mut().remove(name);
        assert_eq!(refused(request).await, 401, "{name}");
    }
    let late = Ingress { clock: || UNIX_EPOCH + Duration::from_secs(NOW as u64 + 301), ..ingress(Arc::default()) };
    let (status, _, body) = send(late, signed(KEY, NUDGE.as_bytes())).await;
    assert_eq!((status.as_u16(), body), (401, json!({"error": "the timestamp is too old"})));
}

#[tokio::test]
async fn a_signed_body_that_is_no_event_is_400() {
    let climbing = br#"{"type":"agent.session.action_required","data":{"id":".."}}"#;
    for body in [&b""[..], b"[]", b"{}", b"{\"type\":\"\xff\"}", climbing] {
        assert_eq!(refused(signed(KEY, body)).await, 400, "{}", String::from_utf8_lossy(body));
    }
}

#[tokio::test]
async fn a_body_over_the_cap_is_413_announced_or_not() {
    assert_eq!(refused(signed(KEY, &[b' '; 1025])).await, 413);
    assert_eq!(refused(signed(KEY, &[b' '; 1024])).await, 400, "just fits, and is no event");
    let chunks = futures_util::stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 100]));
    assert_eq!(refused(request("/webhooks/openai", Body::from_stream(chunks))).await, 413);
}

#[tokio::test]
async fn a_body_that_does_not_arrive_is_408_or_400() {
    let hanging = Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    let impatient = Ingress { body_timeout: Duration::from_millis(1), ..ingress(Arc::default()) };
    let (status, ..) = send(impatient, request("/webhooks/openai", hanging)).await;
    assert_eq!(status, 408);
    let cut = futures_util::stream::iter([Ok(b"{".to_vec()), Err(std::io::Error::other("reset"))]);
    assert_eq!(refused(request("/webhooks/openai", Body::from_stream(cut))).await, 400);
}

#[tokio::test]
async fn other_paths_are_404_and_other_methods_405() {
    for path in
        ["/", "/webhooks", "/webhooks/", "/webhooks/other", "/webhooks/openai/", "/webhooks/%ff", "/webhooks/a%2Fb"]
    {
        assert_eq!(refused(request(path, NUDGE)).await, 404, "{path}");
    }
    for method in [Method::GET, Method::PUT, Method::DELETE, Method::OPTIONS] {
        let mut request = request("/webhooks/openai", NUDGE);
        *request.method_mut() = method;
        assert_eq!(refused(request).await, 405);
    }
}

#[tokio::test]
async fn a_request_that_has_begun_is_finished_after_shutdown() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut peer = tokio::net::TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let (began, mut begun) = tokio::sync::mpsc::channel::<()>(1);
    let router = router(ingress(Arc::default())).layer(axum::middleware::map_request(move |request: Request| {
        let began = began.clone();
        async move {
            began.send(()).await.unwrap();
            request
        }
    }));
    let server = tokio::spawn(serve(listener, router, async { drop(stopped.await) }));

    let head = format!("POST /webhooks/open HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", NUDGE.len());
    peer.write_all(head.as_bytes()).await.unwrap();
    begun.recv().await.unwrap();
    stop.send(()).unwrap();
    peer.write_all(NUDGE.as_bytes()).await.unwrap();
    let mut answer = String::new();
    peer.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    server.await.unwrap().unwrap();
}

proptest! {
    #[test]
    fn random_requests_are_never_answered_200(
        id in "[ -~]{0,40}",
        timestamp in prop_oneof!["[0-9+-]{0,14}", Just(NOW.to_string())],
        signature in "[ -~]{0,100}",
        body in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut request = request("/webhooks/openai", body);
        request.headers_mut().insert("webhook-id", id.parse().unwrap());
        request.headers_mut().insert("webhook-timestamp", timestamp.parse().unwrap());
        request.headers_mut().insert("webhook-signature", signature.parse().unwrap());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        prop_assert_eq!(runtime.block_on(refused(request)), 401);
    }
}
