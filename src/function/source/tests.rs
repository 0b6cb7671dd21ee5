#![allow(clippy::unwrap_used)]

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    http::{HeaderMap, StatusCode},
    routing::{get, post},
};
use serde_json::json;
use tokio::net::TcpListener;

use super::*;
use crate::{
    function::{Registry, tests::echo},
    handler::tests::call,
};

/// A catalogue whose answer can be changed, and a callback that counts.
struct Catalogue {
    url: String,
    at: String,
    answer: Arc<Mutex<(u16, String)>>,
    listed: Arc<Mutex<Vec<HeaderMap>>>,
    called: Arc<Mutex<Vec<(HeaderMap, String)>>>,
}

async fn catalogue() -> Catalogue {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let answer = Arc::new(Mutex::new((200, "{}".to_owned())));
    let (listed, called) = (Arc::<Mutex<Vec<HeaderMap>>>::default(), Arc::<Mutex<Vec<_>>>::default());
    let (answers, lists, calls) = (answer.clone(), listed.clone(), called.clone());
    let router = Router::new()
        .route(
            "/functions",
            get(async move |headers: HeaderMap| {
                lists.lock().unwrap().push(headers);
                let (status, body) = answers.lock().unwrap().clone();
                (StatusCode::from_u16(status).unwrap(), body)
            }),
        )
        .route(
            "/call",
            post(async move |headers: HeaderMap, body: String| {
                calls.lock().unwrap().push((headers, body));
                "done"
            }),
        );
    tokio::spawn(axum::serve(listener, router).into_future());
    Catalogue { url: format!("http://{at}/functions"), at, answer, listed, called }
}

impl Catalogue {
    fn lists(&self, functions: Value) {
        *self.answer.lock().unwrap() = (200, json!({ "functions": functions }).to_string());
    }

    fn source(&self, allow_hosts: &[&str]) -> Source {
        let config = Config {
            url: self.url.clone(),
            ttl: Duration::from_secs(600),
            allow_hosts: allow_hosts.iter().map(|host| (*host).to_owned()).collect(),
            headers: vec![("x-catalogue".into(), "secret".into())],
            hook_key: Some("shared-hook-key".into()),
            platforms: Vec::new(),
            pool: None,
            timeout: Duration::from_secs(10),
            retry: retry::Policy::default(),
            account: None,
        };
        Source::new(0, config, Metrics::new()).unwrap()
    }
}

fn definition(name: &str, url: &str) -> Value {
    json!({ "name": name, "description": "d", "callbackUrl": url, "contentFormat": { "type": "object" } })
}

#[tokio::test]
async fn functions_are_imported_and_called_as_aivax_would() {
    let catalogue = catalogue().await;
    let url = format!("http://{}/call", catalogue.at);
    let mut view = definition("view_client", &url);
    view["headers"] =
        json!({ "Authorization": "Bearer hidden", "Content-Type": "text/plain", "X-Request-Nonce": "mine" });
    catalogue.lists(json!([view]));
    let live = Live::new(Registry::default());
    let source = catalogue.source(&["127.0.0.1"]);
    assert_eq!(source.refresh(&live).await, Ok(1));

    let function = live.get("view_client", "any").unwrap();
    let output = function.handler.call(&call(r#"{"user_id":"u"}"#)).await.unwrap();
    assert_eq!(output, Output::Text("done".into()));
    let (headers, body) = catalogue.called.lock().unwrap().remove(0);
    assert_eq!(headers["authorization"], "Bearer hidden");
    assert_eq!(headers.get_all("content-type").iter().collect::<Vec<_>>(), ["application/json"]);
    assert!(
        body.starts_with(r#"{"type":"tool_call","function":{"name":"lookup_order","content":{"user_id":"u"}}"#),
        "{body}"
    );

    let listed = catalogue.listed.lock().unwrap().remove(0);
    assert_eq!(listed["x-catalogue"], "secret");
    assert_eq!(headers.get_all(nonce::HEADER).iter().collect::<Vec<_>>(), [&listed[nonce::HEADER]]);
    let verifier = nonce::Verifier::new(vec!["shared-hook-key".into()], 12..=12, nonce::Pool::new(1));
    assert_eq!(verifier.verify(listed[nonce::HEADER].to_str().unwrap()).await, Ok(()));
}

#[tokio::test]
async fn what_a_source_gave_stays_while_it_fails() {
    let catalogue = catalogue().await;
    let live = Live::new(Registry::default());
    let source = catalogue.source(&[]);
    catalogue.lists(json!([definition("first", "https://example.com/")]));
    assert_eq!(source.refresh(&live).await, Ok(1));
    let many: Vec<_> = (0..=MAX_FUNCTIONS).map(|i| definition(&format!("f{i}"), "https://example.com/")).collect();
    for (status, body) in [
        (500, String::new()),
        (302, String::new()),
        (200, "[]".into()),
        (200, "<html>".into()),
        (200, "{}".into()),
        (200, json!({ "functions": many }).to_string()),
        (200, format!("{{\"functions\":[],\"x\":\"{}\"}}", "x".repeat(MAX_LISTING))),
    ] {
        *catalogue.answer.lock().unwrap() = (status, body);
        assert!(source.refresh(&live).await.is_err(), "{status}");
        assert!(live.get("first", "any").is_some(), "{status}");
    }
    catalogue.lists(json!([definition("second", "https://example.com/")]));
    assert_eq!(source.refresh(&live).await, Ok(1));
    assert!(live.get("first", "any").is_none() && live.get("second", "any").is_some());
}

#[tokio::test]
async fn a_definition_that_is_wrong_is_refused_alone() {
    let catalogue = catalogue().await;
    let live = Live::new(Registry::new([echo("ours", None)]));
    let url = "https://example.com/";
    let with = |key: &str, value: Value| {
        let mut definition = definition("bad", url);
        definition[key] = value;
        definition
    };
    catalogue.lists(json!([
        definition("good", url),
        definition("good", url),
        definition("ours", url),
        with("name", json!("")),
        with("name", json!("a b")),
        with("name", json!(5)),
        with("description", json!(null)),
        with("description", json!("x".repeat(MAX_DESCRIPTION + 1))),
        with("callbackUrl", json!(null)),
        with("headers", json!({ "X": 5 })),
        with("headers", json!({ "X": "a\nb" })),
        with("headers", json!(["X: a"])),
        with("contentFormat", json!({ "user_id": "guid" })),
        with("contentFormat", json!({ "type": "string" })),
        with("contentFormat", json!({ "type": "object", "properties": 5 })),
        with("contentFormat", json!("x")),
        json!(null),
        json!("x"),
    ]));
    let source = catalogue.source(&[]);
    assert_eq!(source.refresh(&live).await, Ok(1));
    assert!(live.get("ours", "any").unwrap().source.is_none());
    assert!(live.get("bad", "any").is_none());
    let counted = format!("actiond_function_sources_total{{outcome=\"refused\",source=\"0:{}\"}} 17", catalogue.at);
    assert!(source.metrics.render().contains(&counted), "{}", source.metrics.render());
}

#[tokio::test]
async fn older_content_formats_are_understood() {
    let catalogue = catalogue().await;
    let live = Live::new(Registry::default());
    let format = |name: &str, format: Value| {
        let mut definition = definition(name, "https://example.com/");
        definition["contentFormat"] = format;
        definition
    };
    let flag = json!({ "type": "object", "properties": { "on": { "type": "bool" } } });
    catalogue.lists(json!([format("none", json!(null)), format("empty", json!({})), format("flag-1", flag)]));
    assert_eq!(catalogue.source(&[]).refresh(&live).await, Ok(3));
    let check = |name: &str, arguments: &str| live.get(name, "any").unwrap().schema.check(&call(arguments).arguments);
    assert!(check("none", "{}").is_ok() && check("flag-1", r#"{"on":true}"#).is_ok());
    assert!(check("flag-1", r#"{"on":"yes"}"#).is_err());
}

/// Case 21: every disguise of a private address, and not one connection.
#[tokio::test]
async fn a_callback_to_a_private_address_fails_without_a_connection() {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = connections.clone();
    tokio::spawn(async move {
        while listener.accept().await.is_ok() {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let hosts = [
        "127.0.0.1",
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
        "localhost",
        "localhost.",
    ];
    let catalogue = catalogue().await;
    let urls =
        hosts.iter().enumerate().map(|(i, host)| definition(&format!("f{i}"), &format!("http://{host}:{port}/f")));
    catalogue.lists(urls.collect());
    let live = Live::new(Registry::default());
    assert_eq!(catalogue.source(&["example.com"]).refresh(&live).await, Ok(hosts.len()));
    for (i, host) in hosts.iter().enumerate() {
        let function = live.get(&format!("f{i}"), "any").unwrap();
        let error = function.handler.call(&call("{}")).await.unwrap_err();
        assert!(!error.to_string().contains(host) && !error.to_string().contains(&port.to_string()), "{error}");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 0);
    // Allowing one host opens that one.
    assert_eq!(catalogue.source(&["localhost"]).refresh(&live).await, Ok(hosts.len()));
    for (i, host) in hosts.iter().enumerate() {
        let call = live.get(&format!("f{i}"), "any").unwrap();
        let mut asked = crate::handler::tests::call("{}");
        asked.deadline = Some(std::time::SystemTime::now() + Duration::from_millis(300));
        let _ = call.handler.call(&asked).await;
        assert_eq!(connections.load(Ordering::SeqCst) > 0, i >= 14, "{host}");
    }
}

#[test]
fn a_search_url_is_read_with_its_defaults() {
    let id = "0197b0f2-7b1c-7b7e-8a53-000000000000";
    let all = query(&format!("aivax://query-collection?collection-id={id}&top=7&min=0.4&refs")).unwrap();
    assert_eq!((all.collection.as_str(), all.top, all.min, all.references), (id, 7, 0.4, true));
    let least = query(&format!("aivax://query-collection?collection-id={id}")).unwrap();
    assert_eq!((least.top, least.min, least.references, least.reranker.as_str()), (5, 0.2, false, "rrf"));
    let odd = query(&format!("aivax://query-collection?top=1e9&min=-3&refs=&collection-id={id}")).unwrap();
    assert_eq!((odd.top, odd.min, odd.references), (128, 0.01, true));
    for url in [
        "aivax://query-collection",
        "aivax://query-collection?top=5",
        "aivax://query-collection?collection-id=a/b",
        "aivax://other?collection-id=a",
    ] {
        assert!(query(url).is_none(), "{url}");
    }
}
