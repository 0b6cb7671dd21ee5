//! `actiond check --online`, where everything is well and where nothing is.

use axum::{
    Json, Router,
    http::StatusCode,
    routing::{get, post},
};
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpSocket},
    process::Command,
};

use crate::{
    operator::actiond,
    rig::{Pair, Rig, Setup},
    services,
};

const OBJECT: &str = "parameters: { type: object }";

/// The findings, and the status.
async fn findings(rig: &Rig) -> (i32, Vec<Value>) {
    let ended = actiond(rig, "check --online --json").await;
    let lines = ended.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (ended.status, lines)
}

/// Whether there is a finding of that level and area whose text has the words.
fn has(findings: &[Value], level: &str, area: &str, words: &str) -> bool {
    let is_it = |f: &&Value| f["level"] == level && f["area"] == area && f["what"].as_str().unwrap().contains(words);
    findings.iter().any(|finding| is_it(&finding))
}

fn all(findings: &[Value], expected: &[(&str, &str, &str)]) {
    for (level, area, words) in expected {
        assert!(has(findings, level, area, words), "{level} {area} {words}: {findings:#?}");
    }
}

/// An address that nobody listens on, and nobody can as long as the socket lives.
fn closed() -> (TcpSocket, String) {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap().to_string();
    (socket, address)
}

#[tokio::test]
async fn what_works_is_found_to_work() {
    let rig = Setup::new(Pair::RabbitPostgres)
        .http("a", OBJECT)
        .function("upper", "handler: { type: command, command: [tr, a-z, A-Z] }")
        .extra("worker: { pools: [gpu] }")
        .start()
        .await;
    let (status, found) = findings(&rig).await;
    assert_eq!(status, 0, "{found:#?}");
    all(
        &found,
        &[
            ("ok", "queue", "RabbitMQ 3."),
            ("ok", "queue", "5 exchanges and queues"),
            ("ok", "store", "PostgreSQL"),
            ("ok", "store", "up to date"),
            ("ok", "platform openai", "may read sessions"),
            ("ok", "platform openai", "may post events"),
            ("ok", "platform openai", "clock"),
            ("ok", "platform openai", "usual shape"),
            ("warn", "public_url", "an address of this network only"),
            ("ok", "public_url", "the ingress answers there"),
            ("ok", "handlers", "takes connections (a)"),
            ("ok", "handlers", "tr is there (upper)"),
        ],
    );
    assert_eq!(found.iter().filter(|finding| finding["level"] != "ok").count(), 1, "{found:#?}");
    assert!(rig.handler.requests("a").is_empty(), "a connection is no call");

    let human = actiond(&rig, "check --online").await;
    assert!(human.out.contains("is fine") && human.out.contains("\nwarn  public_url"), "{}", human.out);
    assert!(!human.out.contains('\u{1b}'), "colours are for terminals");
}

#[tokio::test]
async fn what_is_away_or_wrong_is_found_with_its_remedy() {
    let [(_one, broker), (_two, database), (_three, host), (_four, other)] = [closed(), closed(), closed(), closed()];
    let mut rig = Setup::new(Pair::RabbitPostgres)
        .queue_url(format!("amqp://user:s3cret@{broker}/%2F"))
        .store_url(format!("postgres://user:s3cret@{database}/x"))
        .function("a", &format!("handler: {{ type: http, url: \"http://{host}/a\" }}"))
        .function("b", "handler: { type: command, command: [no-such-program] }")
        .function("c", &format!("handler: {{ type: http, url: \"http://{other}/c\" }}\npool: gpu"))
        .extra("worker: { pools: [gpu] }")
        .prepare()
        .await;
    rig.replace("api_key: sk-test", "api_key: sk-s3cret");
    let (status, found) = findings(&rig).await;
    assert_eq!(status, 1, "{found:#?}");
    all(
        &found,
        &[
            ("fail", "queue", "the broker cannot be reached"),
            ("fail", "store", "the store cannot be reached"),
            ("fail", "platform openai", "refused (401)"),
            ("warn", "public_url", "nothing answers there"),
            ("fail", "handlers", "cannot be reached: connection refused (a)"),
            ("fail", "handlers", "no-such-program is not there (b)"),
            ("warn", "handlers", "(c)"),
        ],
    );
    let bad = found.iter().filter(|finding| finding["level"] != "ok");
    assert!(
        bad.clone().all(|finding| finding["remedy"].as_str().is_some_and(|remedy| !remedy.is_empty())),
        "{found:#?}"
    );
    assert!(!found.iter().any(|finding| finding.to_string().contains("s3cret")), "{found:#?}");
}

#[tokio::test]
async fn what_is_not_there_yet_is_no_failure_unless_nobody_will_make_it() {
    let mut rig = Setup::new(Pair::RabbitPostgres).http("a", OBJECT).prepare().await;
    let (status, found) = findings(&rig).await;
    assert_eq!(status, 0, "{found:#?}");
    all(&found, &[("warn", "queue", "there is no queue"), ("warn", "store", "no tables of ours yet")]);
    rig.replace("confirm_timeout: 2s", "topology: verify");
    let (status, found) = findings(&rig).await;
    assert_eq!(status, 1, "{found:#?}");
    all(&found, &[("fail", "queue", "there is no exchange"), ("fail", "queue", "there is no queue")]);

    let embedded = Setup::new(Pair::EmbeddedSqlite).http("a", OBJECT).prepare().await;
    let (status, found) = findings(&embedded).await;
    assert_eq!(status, 0, "{found:#?}");
    all(&found, &[("ok", "queue", "embedded"), ("warn", "store", "no tables of ours yet")]);
    assert!(std::fs::metadata(embedded.store_file()).is_err(), "a look makes no file");
    assert_eq!(actiond(&embedded, "migrate").await.status, 0);
    all(&findings(&embedded).await.1, &[("ok", "store", "SQLite 3.")]);
}

#[tokio::test]
async fn a_clock_that_is_off_and_a_key_that_may_too_little_are_found() {
    let stub = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base_url = format!("http://{}/v1", stub.local_addr().unwrap());
    let router = Router::new()
        .route("/v1/agents/sessions", get(|| async { Json(json!({ "object": "list", "data": [] })) }))
        .route("/v1/agents/sessions/{id}/events", post(|| async { StatusCode::FORBIDDEN }));
    tokio::spawn(axum::serve(stub, router).into_future());
    let mut rig = Setup::new(Pair::EmbeddedSqlite).http("a", OBJECT).prepare().await;
    let before = rig.base_url();
    rig.replace(&before, &base_url);
    let output = Command::new(env!("CARGO_BIN_EXE_actiond"))
        .args(["check", "--online", "--json", "--config", &rig.config_file()])
        .envs(services::faketime("+600s"))
        .output()
        .await
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let found: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(output.status.code(), Some(1), "{found:#?}");
    all(
        &found,
        &[
            ("ok", "platform openai", "may read sessions"),
            ("fail", "platform openai", "may not post events (403)"),
            ("fail", "platform openai", "ahead of its, and webhook.tolerance is 300 s"),
        ],
    );
}
