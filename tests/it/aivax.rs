//! AIVAX calls us, lists us, and is called by us: the functions that the agents use, through the other door.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use actiond::nonce;
use axum::{Router, http::StatusCode, routing::get};
use serde_json::{Value, json};
use sqlx::Row as _;
use tokio::net::TcpListener;

use crate::{
    over_every_pair,
    proxy::{self, Proxy},
    rig::{Pair, Reply, Rig, Setup},
    services,
};

over_every_pair!(calls_of_every_generation_are_answered, an_equal_call_gets_the_first_answer);

const HOOK_KEY: &str = "hook-key-hook-key";
/// Of the hook key, `$2a$` and cost 12 as AIVAX sends it, made by another implementation.
const NONCE: &str = "$2a$12$exbeE7GJyz23/5lmUsTa9.KuQn2QyA7h/QefHcYQc4XfOkeigFLS6";
pub(crate) const ACCOUNT: &str = "{ name: aivax, type: aivax, hook_keys: [hook-key-of-tomorrow, hook-key-hook-key] }";
/// The newest envelope and the oldest.
const NEWEST: &str = r#"{"type":"tool_call","function":{"name":"view_client","content":{"user_id":"u 1"}},"context":{"externalUserId":"user-1","metadata":{"plan":"pro"},"callSource":"WebChatClient","conversationToken":"token-1","moment":"2026-10-05T03:36:27.1234567+00:00"}}"#;
const OLDEST: &str = r#"{"function":{"name":"list_clients","content":null},"context":{"externalUserId":null,"moment":"2025-06-18T03:36:27"}}"#;

pub(crate) struct Answer {
    status: u16,
    headers: reqwest::header::HeaderMap,
    pub(crate) body: String,
}

async fn post(rig: &Rig, headers: &[(&str, &str)], body: impl Into<Vec<u8>>) -> Answer {
    let client = actiond::http::client().unwrap();
    let mut request = client.post(format!("http://{}/functions/aivax", rig.ingress_at)).body(body.into());
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    answer(request.send().await.unwrap()).await
}

async fn list(rig: &Rig, query: &str, headers: &[(&str, &str)]) -> Answer {
    let client = actiond::http::client().unwrap();
    let mut request = client.get(format!("http://{}/functions/aivax{query}", rig.ingress_at));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    answer(request.send().await.unwrap()).await
}

async fn answer(response: reqwest::Response) -> Answer {
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    Answer { status, headers, body: response.text().await.unwrap() }
}

pub(crate) async fn call(rig: &Rig, body: &str) -> Answer {
    post(rig, &[("x-request-nonce", NONCE)], body).await
}

pub(crate) fn envelope(function: &str, content: Value, context: Value) -> String {
    json!({ "type": "tool_call", "function": { "name": function, "content": content }, "context": context }).to_string()
}

/// State and body of each call of the platform, by the order they came.
async fn rows(rig: &Rig) -> Vec<(String, String, String)> {
    let url = format!("sqlite://{}?mode=ro", rig.store_file());
    let pool = sqlx::SqlitePool::connect(&url).await.unwrap();
    let rows = sqlx::query("SELECT session, state, body FROM calls WHERE platform = 'aivax' ORDER BY created_at")
        .fetch_all(&pool)
        .await
        .unwrap();
    let row = |row: sqlx::sqlite::SqliteRow| {
        let body: Option<Vec<u8>> = row.get("body");
        (row.get("session"), row.get("state"), String::from_utf8(body.unwrap_or_default()).unwrap())
    };
    rows.into_iter().map(row).collect()
}

async fn calls_of_every_generation_are_answered(pair: Pair) {
    let rig = Setup::new(pair)
        .platform(ACCOUNT)
        .function("view_client", "handler: { type: http, url: \"http://HANDLER/view\", body: protocol }")
        .http("list_clients", "")
        .start()
        .await;
    rig.handler.reply("view", [Reply::new(200, "client 1 is there")]);
    let newest = call(&rig, NEWEST).await;
    assert_eq!((newest.status, newest.body.as_str()), (200, "client 1 is there"));
    assert_eq!(newest.headers["content-type"], "text/plain; charset=utf-8");
    let sent = String::from_utf8(rig.handler.requests("view").remove(0).body).unwrap();
    // AIVAX's own words, handed on to a callback in its format.
    let (same, ours) = sent.split_once(r#","platform":"#).unwrap();
    assert_eq!(format!("{same}}}}}"), NEWEST);
    assert!(ours.contains(r#""aivax","sessionId":"token-1""#) && !sent.contains("$2a$"), "{sent}");

    let oldest = call(&rig, OLDEST).await;
    assert_eq!((oldest.status, oldest.body.as_str()), (200, "ok"));
    assert_eq!(rig.handler.requests("list_clients")[0].body, b"{}");
    if pair == Pair::EmbeddedSqlite {
        let rows = rows(&rig).await;
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0], ("token-1".into(), "settled".into(), "client 1 is there".into()));
        assert_eq!((rows[1].1.as_str(), rows[1].2.as_str()), ("settled", "ok"));
    }

    let listed = list(&rig, "", &[("x-request-nonce", NONCE)]).await;
    let listed: Value = serde_json::from_str(&listed.body).unwrap();
    let names: Vec<_> = listed["functions"].as_array().unwrap().iter().map(|f| f["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["list_clients", "view_client"]);
    assert_eq!(listed["functions"][0]["callbackUrl"], format!("http://{}/functions/aivax", rig.ingress_at));
    assert!(!rig.logs().contains("$2a$"), "a nonce was logged");
}

async fn an_equal_call_gets_the_first_answer(pair: Pair) {
    let rig = Setup::new(pair).platform(ACCOUNT).http("add_note", "dedupe: 2m").http("other", "").start().await;
    let context = |token: Value, user: Value| json!({ "conversationToken": token, "externalUserId": user });
    let note = |n: u32, context: Value| envelope("add_note", json!({ "n": n, "a": "x" }), context);
    let first = note(1, context(json!("t_1"), json!("u_1")));
    let again = first.replace(r#""a":"x","n":1"#, r#""n":1,"a":"x""#);
    assert_ne!(first, again);
    rig.handler.reply("add_note", [Reply::new(200, "note 1"), Reply::new(200, "note 2"), Reply::new(200, "note 3")]);
    rig.handler.hold();
    let both = async { tokio::join!(call(&rig, &first), call(&rig, &again)) };
    let release = async {
        rig.handler.arrived("add_note", 1).await;
        rig.handler.release();
    };
    let ((one, two), ()) = tokio::join!(both, release);
    assert_eq!((one.body.as_str(), two.body.as_str()), ("note 1", "note 1"));
    assert_eq!(call(&rig, &first).await.body, "note 1");
    assert_eq!(rig.handler.requests("add_note").len(), 1);

    assert_eq!(call(&rig, &note(2, context(json!("t_1"), json!("u_1")))).await.body, "note 2");
    assert_eq!(call(&rig, &note(1, context(json!("t_2"), json!("u_1")))).await.body, "note 3");
    let by_user = note(1, context(Value::Null, json!("u 1")));
    assert_eq!((call(&rig, &by_user).await.body, call(&rig, &by_user).await.body), ("ok".into(), "ok".into()));
    assert_eq!(rig.handler.requests("add_note").len(), 4);
    // Nobody knows whose these are, so each is a call of its own.
    let anonymous = note(1, context(Value::Null, Value::Null));
    call(&rig, &anonymous).await;
    call(&rig, &anonymous).await;
    assert_eq!(rig.handler.requests("add_note").len(), 6);
    // A function that does not ask for it runs each time.
    let other = envelope("other", json!({}), context(json!("t_1"), Value::Null));
    call(&rig, &other).await;
    call(&rig, &other).await;
    assert_eq!(rig.handler.requests("other").len(), 2);
}

#[tokio::test]
async fn who_is_not_aivax_is_refused_and_told_nothing() {
    let rig = Setup::new(Pair::EmbeddedSqlite).platform(ACCOUNT).http("view_client", "").start().await;
    let of_another_key = nonce::mint("another-key", 10).unwrap();
    let cheap = nonce::mint(HOOK_KEY, 4).unwrap();
    let endless = NONCE.replace("$12$", "$31$");
    let started = Instant::now();
    let mut bodies = Vec::new();
    for (status, headers) in [
        (401, vec![]),
        (401, vec![("x-aivax-nonce", NONCE)]),
        (403, vec![("x-request-nonce", of_another_key.as_str())]),
        (403, vec![("x-request-nonce", &cheap)]),
        (403, vec![("x-request-nonce", &endless)]),
        (403, vec![("x-request-nonce", "")]),
        (403, vec![("x-request-nonce", NONCE), ("x-request-nonce", NONCE)]),
    ] {
        let refused = post(&rig, &headers, NEWEST).await;
        assert_eq!(refused.status, status, "{headers:?}");
        bodies.push(refused.body);
        assert_eq!(list(&rig, "", &headers).await.status, status, "{headers:?}");
    }
    assert!(started.elapsed() < Duration::from_secs(20), "a nonce of cost 31 was hashed");
    assert!(bodies.iter().all(|body| *body == bodies[0]), "{bodies:?}");

    for (status, body) in [
        (400, "{".to_owned()),
        (400, r#"{"gatewayId":"g","moment":"m","event":{"name":"tool.called","data":{}}}"#.to_owned()),
        (404, envelope("no_such_function", json!({}), json!({}))),
        (413, envelope("view_client", json!({ "x": "y".repeat(300_000) }), json!({}))),
    ] {
        assert_eq!(call(&rig, &body).await.status, status, "{}", &body[..body.len().min(80)]);
    }
    assert_eq!(list(&rig, "?key=guess", &[("x-request-nonce", NONCE)]).await.status, 403);
    let client = actiond::http::client().unwrap();
    let url = |path: &str| format!("http://{}{path}", rig.ingress_at);
    let nonce = |request: reqwest::RequestBuilder| request.header("x-request-nonce", NONCE).body(NEWEST).send();
    assert_eq!(nonce(client.post(url("/functions/openai"))).await.unwrap().status(), 404);
    assert_eq!(nonce(client.put(url("/functions/aivax"))).await.unwrap().status(), 405);
    assert_eq!(nonce(client.post(url("/webhooks/aivax"))).await.unwrap().status(), 404);
    assert!(rig.handler.requests("view_client").is_empty());
    assert!(!rig.logs().contains("$2a$"), "a nonce was logged");
}

#[tokio::test]
async fn bad_nonces_by_the_dozen_stop_neither_a_listing_nor_who_is_known() {
    let account = "{ name: aivax, type: aivax, hook_keys: [hook-key-hook-key], listing_key: key-of-the-listing-1, \
                   listing_secret: [token-of-callbacks-1, token-of-callbacks-2] }";
    let rig = Setup::new(Pair::EmbeddedSqlite).platform(account).http("view_client", "").start().await;
    let listed = list(&rig, "?key=key-of-the-listing-1", &[]).await;
    let listed: Value = serde_json::from_str(&listed.body).unwrap();
    let token = listed["functions"][0]["headers"]["Authorization"].as_str().unwrap().to_owned();
    assert_eq!(token, "Bearer token-of-callbacks-1");
    let known = [("x-request-nonce", NONCE), ("authorization", "Bearer token-of-callbacks-2")];
    assert_eq!(post(&rig, &known, NEWEST).await.status, 200);
    for token in ["", "Bearer ", "Bearer token-of-callbacks-3", "token-of-callbacks-1"] {
        let refused = post(&rig, &[("x-request-nonce", NONCE), ("authorization", token)], NEWEST).await;
        assert_eq!(refused.status, 403, "{token}");
    }

    let bad: Vec<String> = (10..40).map(|n| format!("{}{n}", &NONCE[..58])).collect();
    let attack = bad.iter().map(|bad| {
        let (rig, token) = (&rig, &token);
        async move { post(rig, &[("x-request-nonce", bad), ("authorization", token)], NEWEST).await.status }
    });
    let calm = async {
        let started = Instant::now();
        for _ in 0..20 {
            assert_eq!(list(&rig, "?key=key-of-the-listing-1", &[]).await.status, 200);
            assert_eq!(post(&rig, &known, NEWEST).await.status, 200);
        }
        started.elapsed()
    };
    let (statuses, took) = tokio::join!(futures_util::future::join_all(attack), calm);
    assert!(statuses.iter().all(|status| [403, 503].contains(status)), "{statuses:?}");
    assert!(statuses.contains(&503) && statuses.contains(&403), "{statuses:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[tokio::test]
async fn a_peer_that_only_fails_is_not_listened_to_for_a_while() {
    let account = "{ name: aivax, type: aivax, hook_keys: [hook-key-hook-key], cost: { min: 4 } }";
    let rig = Setup::new(Pair::EmbeddedSqlite).platform(account).http("view_client", "").start().await;
    assert_eq!(call(&rig, NEWEST).await.status, 200);
    let mut statuses = Vec::new();
    for n in 10..40 {
        let bad = format!("{}{n}", &NONCE[..58]).replace("$12$", "$04$");
        statuses.push(post(&rig, &[("x-request-nonce", &bad)], NEWEST).await.status);
    }
    let failed = statuses.iter().position(|status| *status == 429).unwrap();
    assert!(failed == 20 && statuses[..20].iter().all(|s| *s == 403) && statuses[20..].iter().all(|s| *s == 429));
    assert_eq!(call(&rig, NEWEST).await.status, 200, "a nonce that passed is known");
}

#[tokio::test]
async fn a_mistake_or_a_failure_is_a_sentence_that_the_model_reads() {
    let account = "{ name: aivax, type: aivax, hook_keys: [hook-key-hook-key], budget: 2s }";
    let keys = "parameters: { type: object, properties: { n: { type: integer } }, additionalProperties: false }";
    let rig = Setup::new(Pair::EmbeddedSqlite).platform(account).http("count_to", keys).start().await;
    let count = |content: Value| envelope("count_to", content, json!({}));
    for content in [json!({ "n": "x" }), json!({ "m": 1 }), json!([1]), json!("x")] {
        let told = call(&rig, &count(content)).await;
        assert!(told.status == 200 && told.body.contains("arguments"), "{} {}", told.status, told.body);
    }
    assert!(rig.handler.requests("count_to").is_empty());
    let explained = json!({ "n": 12345678901234567890u64, "_tool_reason": "why", "_tool_goal": "what" });
    assert_eq!(call(&rig, &count(explained)).await.body, "ok");
    assert_eq!(rig.handler.requests("count_to")[0].body, br#"{"n":12345678901234567890}"#);

    rig.handler.reply("count_to", [Reply::new(503, ""), Reply::new(200, "second time"), Reply::new(404, "secret")]);
    assert_eq!(call(&rig, &count(json!({ "n": 1 }))).await.body, "second time");
    let failed = call(&rig, &count(json!({ "n": 1 }))).await;
    assert!(failed.status == 200 && failed.body.starts_with("The function failed"), "{}", failed.body);
    rig.handler.reply("count_to", [Reply::new(200, "")]);
    assert_eq!(call(&rig, &count(json!({ "n": 1 }))).await.body, "The function ran and returned nothing.");
    rig.handler.hold();
    let late = call(&rig, &count(json!({ "n": 1 }))).await;
    assert!(late.status == 200 && late.body.contains("did not finish in time"), "{}", late.body);
    rig.handler.release();
    let rows = rows(&rig).await;
    assert!(rows.len() == 9 && rows.iter().all(|(_, state, body)| state == "settled" && !body.is_empty()), "{rows:?}");
}

#[tokio::test]
async fn while_the_store_is_away_nothing_is_run() {
    let (proxy, url): (Proxy, String) = proxy::before(&services::new_database().await).await;
    let rig = Setup::new(Pair::RabbitPostgres).store_url(url).platform(ACCOUNT).http("view_client", "").start().await;
    assert_eq!(call(&rig, NEWEST).await.status, 200);
    proxy.cut();
    let away = call(&rig, NEWEST).await;
    assert!(away.status == 503 && away.headers.contains_key("retry-after"), "{}", away.status);
    assert_eq!(rig.handler.requests("view_client").len(), 1);
    proxy.heal();
    let back = async {
        while call(&rig, NEWEST).await.status != 200 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(crate::rig::PATIENCE, back).await.unwrap();
}

/// A catalogue on loopback, and how often it was read.
struct Catalogue {
    at: String,
    answer: Arc<Mutex<(u16, Value)>>,
    reads: Arc<AtomicUsize>,
}

async fn catalogue() -> Catalogue {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = format!("http://{}/functions", listener.local_addr().unwrap());
    let (answer, reads) = (Arc::new(Mutex::new((200, json!({})))), Arc::<AtomicUsize>::default());
    let (answers, counted) = (answer.clone(), reads.clone());
    let route = get(async move || {
        counted.fetch_add(1, Ordering::SeqCst);
        let (status, body) = answers.lock().unwrap().clone();
        (StatusCode::from_u16(status).unwrap(), body.to_string())
    });
    tokio::spawn(axum::serve(listener, Router::new().route("/functions", route)).into_future());
    Catalogue { at, answer, reads }
}

impl Catalogue {
    fn answers(&self, status: u16, functions: Value) {
        *self.answer.lock().unwrap() = (status, json!({ "functions": functions }));
    }

    /// Waits until it has been read so many times more.
    async fn read_again(&self, times: usize) {
        let wanted = self.reads.load(Ordering::SeqCst) + times;
        let read = async {
            while self.reads.load(Ordering::SeqCst) < wanted {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(crate::rig::PATIENCE, read).await.unwrap();
    }
}

fn definition(name: &str, url: &str) -> Value {
    json!({ "name": name, "description": "d", "callbackUrl": url, "contentFormat": { "type": "object" } })
}

#[tokio::test]
async fn imported_functions_are_answered_also_while_their_source_fails() {
    let catalogue = catalogue().await;
    let source = format!("function_sources: [{{ url: \"{}\", ttl: 1s, allow_hosts: [\"127.0.0.1\"] }}]", catalogue.at);
    let mut rig = Setup::new(Pair::EmbeddedSqlite).platform(ACCOUNT).http("ours", "").extra(&source).prepare().await;
    let callback = format!("http://{}/imported", rig.handler_at);
    let mut imported = definition("imported", &callback);
    imported["headers"] = json!({ "Idempotency-Key": "forged", "X-Hidden": "secret" });
    catalogue.answers(200, json!([imported, definition("ours", &callback)]));
    rig.start_all().await;
    catalogue.read_again(1).await;

    let session = rig.play(r#"imported {"n":1} & ours {"n":2}"#).await;
    assert_eq!(session.answer(), Some("imported: ok\nours: ok"));
    let request = rig.handler.requests("imported").remove(0);
    assert!(request.key.starts_with("call-"), "{}", request.key);
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    assert_eq!((&body["type"], &body["function"]["content"]["n"]), (&json!("tool_call"), &json!(1)));
    assert_eq!(rig.handler.requests("ours").len(), 1, "the config's function wins over a source's");
    let listed: Value = serde_json::from_str(&list(&rig, "", &[("x-request-nonce", NONCE)]).await.body).unwrap();
    assert_eq!(listed["functions"].as_array().unwrap().len(), 2);

    catalogue.answers(500, json!([]));
    catalogue.read_again(2).await;
    assert_eq!(rig.play("call imported").await.answer(), Some("imported: ok"));
    let metrics = rig.worker.as_ref().unwrap().admin("/metrics").await.1;
    assert!(metrics.contains(r#"actiond_function_sources_total{outcome="failed""#), "{metrics}");
    assert!(metrics.contains(r#"actiond_function_sources_total{outcome="refused""#), "{metrics}");
}

/// Case 21.
#[tokio::test]
async fn private_addresses_in_disguise_are_never_connected_to() {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = Arc::<AtomicUsize>::default();
    let counted = connections.clone();
    tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let hosts = [
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[2002:7f00:1::1]",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "127.1",
        "0.0.0.0",
        "[::]",
        "[fe80::1%25eth0]",
        "100.64.0.1",
        "localhost.",
    ];
    let catalogue = catalogue().await;
    let names: Vec<String> = (0..hosts.len()).map(|i| format!("f{i}")).collect();
    let urls = hosts.iter().map(|host| format!("http://{host}:{port}/f"));
    catalogue.answers(200, names.iter().zip(urls).map(|(name, url)| definition(name, &url)).collect());
    let source = format!(
        "function_sources: [{{ url: \"{}\", allow_hosts: [localhost], retry: {{ max_attempts: 2 }} }}]",
        catalogue.at
    );
    let mut rig = Setup::new(Pair::EmbeddedSqlite).http("a", "").extra(&source).prepare().await;
    rig.start_all().await;
    let imported = async {
        while !rig.worker.as_ref().unwrap().admin("/metrics").await.1.contains(r#"outcome="fetched""#) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(crate::rig::PATIENCE, imported).await.unwrap();
    let script: Vec<String> = names.iter().map(|name| format!("call {name}")).collect();
    let session = rig.play(&script.join(" & ")).await;
    assert_eq!(session.calls(None).count(), hosts.len());
    for call in session.calls(None) {
        let result = &call.result.as_ref().unwrap().result;
        let error = result.error.as_deref().unwrap_or_default();
        assert!(!result.success && !error.contains("127") && !error.contains("http"), "{call:?}");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 0);
    let metrics = rig.worker.as_ref().unwrap().admin("/metrics").await.1;
    for name in &names {
        let counted = format!(r#"actiond_calls_total{{function="{name}",outcome="error",platform="openai"}} 1"#);
        assert!(metrics.contains(&counted), "{name}\n{metrics}");
        assert!(rig.logs().contains(&format!(r#""function":"{name}""#)), "{name}");
    }
}
