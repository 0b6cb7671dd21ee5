#![allow(clippy::unwrap_used)]

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
    time::Instant,
};

use tracing::{Callsite, info, info_span, subscriber::with_default};

use super::*;

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Sink {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    fn writer(&self) -> BoxMakeWriter {
        let sink = self.clone();
        BoxMakeWriter::new(move || sink.clone())
    }
}

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn with_otlp(url: String) -> (impl Subscriber + Send + Sync, Guard) {
    crate::http::use_ring();
    let config = Config { log: LogFormat::Json, otlp: Some(url) };
    let (subscriber, guard, problem) = build(&config, Sink::default().writer());
    assert_eq!(problem, None);
    (subscriber, guard)
}

fn work(guard: &Guard) {
    let span = info_span!("reconcile", session.id = "sess_1");
    span.in_scope(|| info!(call.id = "call_1", "result submitted"));
    guard.metrics().webhook("openai", "queued");
}

fn url(listener: &TcpListener) -> String {
    format!("http://{}/", listener.local_addr().unwrap())
}

#[test]
fn what_is_not_logged_is_cut_off_by_its_level_alone() {
    let (subscriber, _guard, _) = build(&Config { log: LogFormat::Json, otlp: None }, Sink::default().writer());
    let hint = subscriber.max_level_hint();
    assert!(hint.is_some_and(|hint| hint <= LevelFilter::INFO), "{hint:?}");
    let (subscriber, _guard) = with_otlp("http://127.0.0.1:9".to_owned());
    let hint = subscriber.max_level_hint();
    assert!(hint.is_some_and(|hint| hint <= LevelFilter::INFO), "{hint:?}");
}

#[test]
fn an_event_after_a_mere_question_is_written() {
    let sink = Sink::default();
    let (subscriber, _guard, _) = build(&Config { log: LogFormat::Json, otlp: None }, sink.writer());
    with_default(subscriber, || {
        for _ in 0..3 {
            info!("said");
            let asked = tracing::callsite! {
                name: "asked", kind: tracing::metadata::Kind::EVENT, target: "driver", level: tracing::Level::DEBUG,
                fields: value
            };
            tracing::dispatcher::get_default(|now| now.enabled(asked.metadata()));
        }
    });
    assert_eq!(sink.text().lines().count(), 3, "{}", sink.text());
}

#[test]
fn json_logs_are_one_flat_line() {
    let sink = Sink::default();
    let (subscriber, guard, _) = build(&Config { log: LogFormat::Json, otlp: None }, sink.writer());
    with_default(subscriber, || work(&guard));
    let lines: Vec<serde_json::Value> = sink.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 1);
    assert_eq!(
        (lines[0]["message"].as_str(), lines[0]["call.id"].as_str()),
        (Some("result submitted"), Some("call_1"))
    );
    assert_eq!(
        (lines[0]["level"].as_str(), lines[0]["target"].as_str()),
        (Some("INFO"), Some("actiond::telemetry::tests"))
    );
}

#[test]
fn text_logs_are_one_line_without_colours_off_a_terminal() {
    let sink = Sink::default();
    let (subscriber, guard, _) = build(&Config { log: LogFormat::Text, otlp: None }, sink.writer());
    with_default(subscriber, || work(&guard));
    let text = sink.text();
    assert!(text.ends_with("result submitted call.id=\"call_1\"\n") && text.lines().count() == 1, "{text}");
}

#[test]
fn without_otlp_spans_are_off_and_there_is_no_trace() {
    let (subscriber, _guard, _) = build(&Config { log: LogFormat::Json, otlp: None }, Sink::default().writer());
    let span = info_span!("reconcile");
    assert!(subscriber.register_callsite(span.metadata().unwrap()).is_never());
    with_default(subscriber, || {
        let span = info_span!("reconcile");
        set_parent(&span, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
        assert_eq!(span.in_scope(traceparent), None);
    });
}

#[test]
fn a_trace_goes_on_from_its_traceparent() {
    let (subscriber, _guard) = with_otlp("http://127.0.0.1:9".into());
    with_default(subscriber, || {
        let parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let span = info_span!("reconcile");
        set_parent(&span, parent);
        let child = span.in_scope(traceparent).unwrap();
        assert!(child.starts_with(&parent[..36]) && child.ends_with("-01") && child != parent, "{child}");
        for bad in ["", "00", "00-00000000000000000000000000000000-b7ad6b7169203331-01", "é"] {
            let span = info_span!("reconcile");
            set_parent(&span, bad);
            assert_eq!(span.in_scope(traceparent).unwrap().len(), parent.len());
        }
        assert_eq!(traceparent(), None);
    });
}

#[tokio::test]
async fn a_collector_gets_spans_logs_and_metrics_at_the_end() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (subscriber, guard) = with_otlp(url(&listener));
    let (sender, mut requests) = mpsc::unbounded_channel();
    thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            let sender = sender.clone();
            thread::spawn(move || answer(stream, |request| sender.send(request).is_ok()));
        }
    });
    with_default(subscriber, || work(&guard));
    guard.shutdown().await;

    let mut found = Vec::new();
    while found.len() < 3 {
        let request = requests.recv().await.unwrap();
        let has = |text: &str| request.windows(text.len()).any(|window| window == text.as_bytes());
        let holds =
            [("/v1/traces ", "reconcile"), ("/v1/logs ", "result submitted"), ("/v1/metrics ", "actiond_webhooks")];
        let (path, _) = holds.iter().find(|(path, text)| has(path) && has(text)).unwrap();
        assert!(has("service.name") && has("actiond") && !found.contains(path));
        found.push(*path);
    }
}

/// Answers 200 to requests with a Content-Length, one after the other.
fn answer(mut stream: TcpStream, seen: impl Fn(Vec<u8>) -> bool) -> Option<()> {
    let mut bytes = Vec::new();
    loop {
        let mut chunk = [0; 4096];
        let read = stream.read(&mut chunk).ok().filter(|n| *n > 0)?;
        bytes.extend_from_slice(&chunk[..read]);
        let Some(head) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let text = String::from_utf8_lossy(&bytes[..head]).to_ascii_lowercase();
        let length: usize = text.split("content-length: ").nth(1)?.lines().next()?.parse().ok()?;
        if bytes.len() >= head + 4 + length {
            seen(std::mem::take(&mut bytes)).then_some(())?;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()?;
        }
    }
}

#[tokio::test]
async fn a_collector_that_never_answers_does_not_hold_the_exit() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (subscriber, guard) = with_otlp(url(&listener));
    with_default(subscriber, || {
        let start = Instant::now();
        (0..1000).for_each(|_| work(&guard));
        assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    });
    let start = Instant::now();
    guard.shutdown().await;
    assert!(start.elapsed() < SHUTDOWN_LIMIT + Duration::from_secs(1), "{:?}", start.elapsed());
}

#[tokio::test]
async fn a_collector_that_is_away_does_not_hold_the_exit() {
    let url = url(&TcpListener::bind("127.0.0.1:0").unwrap());
    let (subscriber, guard) = with_otlp(url);
    with_default(subscriber, || work(&guard));
    let start = Instant::now();
    guard.shutdown().await;
    assert!(start.elapsed() < SHUTDOWN_LIMIT + Duration::from_secs(1), "{:?}", start.elapsed());
}
