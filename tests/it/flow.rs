//! From the webhook to the accepted result, over every queue and store.

use actiond::sandbox::{ActionState, Rule, TurnStatus};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
};

use crate::{
    over_every_pair,
    rig::{Pair, Reply, Setup},
};

over_every_pair!(
    parallel_calls_and_rounds_are_answered_once,
    a_failing_handler_is_tried_again_with_the_same_key,
    a_model_s_mistakes_are_answered_so_that_it_can_act,
    copies_of_a_webhook_cost_no_second_run,
    every_fault_of_the_platform_ends_in_one_accepted_result,
    a_call_that_lingers_after_its_result_is_not_run_again,
    an_unregistered_function_is_left_alone,
    nul_characters_go_through_unharmed,
    call_ids_that_repeat_are_kept_apart,
    a_lost_webhook_is_made_up_for_by_the_next,
);

const OBJECT: &str = "parameters: { type: object }";

async fn parallel_calls_and_rounds_are_answered_once(pair: Pair) {
    let rig = Setup::new(pair)
        .http("a", OBJECT)
        .function("say", "handler: { type: echo }")
        .function("upper", "handler: { type: command, command: [tr, a-z, A-Z] }")
        .start()
        .await;
    rig.handler.reply("a", [Reply::new(200, "first"), Reply::new(200, "second")]);
    let session = rig.play(r#"a {"n":1} & say {"t":"x"} & upper {"t":"y"} then a {"n":2}"#).await;
    assert_eq!(session.answer(), Some("a: first\nsay: {\"t\":\"x\"}\nupper: {\"T\":\"Y\"}\na: second"));
    assert_eq!(session.calls(None).count(), 4);
    assert!(session.calls(None).all(|call| call.posts.accepted == 1 && call.posts.refused == 0), "{session:#?}");
    let bodies: Vec<_> = rig.handler.requests("a").into_iter().map(|r| String::from_utf8(r.body).unwrap()).collect();
    assert_eq!(bodies, [r#"{"n":1}"#, r#"{"n":2}"#]);
}

async fn a_failing_handler_is_tried_again_with_the_same_key(pair: Pair) {
    let rig = Setup::new(pair).http("a", "retry: { max_attempts: 3 }").start().await;
    rig.handler.reply("a", [Reply::new(503, ""), Reply::new(429, ""), Reply::new(200, "third time")]);
    let session = rig.play("call a").await;
    assert_eq!(session.answer(), Some("a: third time"));
    let keys: Vec<_> = rig.handler.requests("a").into_iter().map(|r| r.key).collect();
    assert_eq!(keys.len(), 3);
    assert!(keys[0].starts_with("call-") && keys.iter().all(|key| *key == keys[0]), "{keys:?}");

    rig.handler
        .reply("a", [Reply::new(500, "secret one"), Reply::new(500, ""), Reply::new(500, ""), Reply::new(500, "")]);
    let session = rig.play("call a").await;
    let result = session.calls(None).next().unwrap().result.clone().unwrap().result;
    assert!(!result.success && !result.error.as_ref().unwrap().contains("secret"), "{result:?}");
    assert_eq!(rig.handler.requests("a").len(), 6, "three attempts, then the agent hears of it");

    rig.handler.reply("a", [Reply::new(404, "")]);
    rig.play("call a").await;
    assert_eq!(rig.handler.requests("a").len(), 7, "a final status is not tried again");
}

async fn a_model_s_mistakes_are_answered_so_that_it_can_act(pair: Pair) {
    let keys = r#"parameters: { type: object, properties: { order_id: { type: string, pattern: "^[0-9]+$" } }, required: [order_id] }"#;
    let rig = Setup::new(pair).http("a", keys).start().await;
    let wrong = [
        r#"{"order_id":7}"#,
        "{}",
        r#""{\"order_id\":\"42\"}{\"order_id\":\"43\"}""#,
        r#""{\"order_id\":\"42\"} Done.""#,
        r#""```json\n{\"order_id\":\"42\"}\n```""#,
        r#""[{\"order_id\":\"42\"}]""#,
        r#""\"42\"""#,
        r#"{"order_id":"../admin","order_id":"42"}"#,
        r#""{\"order_id\":\"42\",\"order_id\":\"../admin\"}""#,
        r#"{"order_id":1e400}"#,
    ];
    let script: Vec<String> = wrong.iter().map(|arguments| format!("call a {arguments}")).collect();
    let session = rig.play(&script.join(" & ")).await;
    assert_eq!(session.calls(None).count(), wrong.len());
    for call in session.calls(None) {
        let result = &call.result.as_ref().unwrap().result;
        let error = result.error.as_deref().unwrap_or_default();
        assert!(!result.success && error.len() > 20, "{call:?}");
    }
    assert!(rig.handler.requests("a").is_empty());
    let session = rig.play(r#"call a "{\"order_id\":\"42\"}\n""#).await;
    assert_eq!(session.answer(), Some("a: ok"));
    assert_eq!(rig.handler.requests("a")[0].body, br#"{"order_id":"42"}"#);
}

async fn copies_of_a_webhook_cost_no_second_run(pair: Pair) {
    let rig = Setup::new(pair).http("a", OBJECT).start().await;
    rig.handler.hold();
    let id = rig.session("call a").await;
    rig.handler.arrived("a", 1).await;
    let copies = (0..46).map(|n| {
        let (headers, body) = rig.signed(&id, if n % 2 == 0 { "wh_same" } else { "wh_other" });
        let rig = &rig;
        async move { rig.post(&headers, body).await }
    });
    let statuses = futures_util::future::join_all(copies).await;
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    rig.handler.release();
    let session = rig.settled(&id).await;
    assert_eq!(session.calls(None).next().unwrap().posts.accepted, 1);
    rig.play("call a").await;
    assert_eq!(rig.handler.requests("a").len(), 2, "one for each session");
}

async fn every_fault_of_the_platform_ends_in_one_accepted_result(pair: Pair) {
    let rig = Setup::new(pair).http("a", OBJECT).extra("worker: { confirm_after: 1s }").start().await;
    type Fault = fn(&mut actiond::sandbox::Faults);
    let faults: [(&str, Fault); 7] = [
        ("429", |f| f.submit_429 = Rule::Next(1)),
        ("500", |f| f.submit_500 = Rule::Next(1)),
        ("409", |f| f.submit_409 = Rule::Next(1)),
        ("race", |f| f.submit_race = Rule::Next(2)),
        ("lost", |f| f.submit_lost = Rule::Next(1)),
        ("retrieve 500", |f| f.retrieve_500 = Rule::Next(1)),
        ("retrieve 429", |f| f.retrieve_429 = Rule::Next(1)),
    ];
    for (name, fault) in faults {
        rig.faults(fault);
        let session = rig.play("call a").await;
        let call = session.calls(None).next().unwrap();
        assert_eq!(call.posts.accepted, 1, "{name}: {call:?}");
        assert_eq!(call.posts.refused, 0, "{name}: {call:?}");
        assert_eq!(session.turns[0].status, TurnStatus::Completed, "{name}");
    }
    assert_eq!(rig.handler.requests("a").len(), faults.len(), "no handler ran twice");
}

async fn a_call_that_lingers_after_its_result_is_not_run_again(pair: Pair) {
    let rig = Setup::new(pair).http("a", OBJECT).extra("worker: { confirm_after: 300ms }").start().await;
    rig.faults(|f| f.linger = 3);
    let id = rig.session("call a").await;
    let session = rig.settled(&id).await;
    let call = session.calls(None).next().unwrap();
    assert!(call.posts.replayed >= 1, "submitted again after confirm_after: {call:?}");
    assert_eq!((call.posts.accepted, call.posts.refused), (1, 0));
    assert_eq!(rig.handler.requests("a").len(), 1);
}

async fn an_unregistered_function_is_left_alone(pair: Pair) {
    let rig = Setup::new(pair).http("a", OBJECT).start().await;
    let id = rig.session("call nobody & call a & await approval").await;
    let session = rig.until(&id, |session| session.calls(Some("a")).any(|call| call.result.is_some())).await;
    let left = session.calls(Some("nobody")).next().unwrap();
    assert_eq!((left.state, left.posts.accepted), (ActionState::Pending, 0));
    let worker = rig.worker.as_ref().unwrap();
    let (_, metrics) = worker.admin("/metrics").await;
    assert!(metrics.contains("actiond_unknown_function_total{platform=\"openai\"}"), "{metrics}");
}

async fn nul_characters_go_through_unharmed(pair: Pair) {
    let rig =
        Setup::new(pair).http("a", OBJECT).function("env", "handler: { type: command, command: [cat] }").start().await;
    rig.handler.reply("a", [Reply::new(200, b"a\0b".to_vec())]);
    let script = r#"call a {"q":"a\u0000b"} & call env {"q":"c\u0000d"}"#;
    let id = rig.session_with(script, json!({ "k": "a\0b" })).await;
    let session = rig.settled(&id).await;
    let output = |name| session.calls(Some(name)).next().unwrap().result.as_ref().unwrap().result.output.clone();
    assert_eq!(output("a"), Value::from("a\0b"));
    assert_eq!(output("env"), Value::from(r#"{"q":"c\u0000d"}"#));
    assert_eq!(rig.handler.requests("a")[0].body, br#"{"q":"a\u0000b"}"#);
    assert_eq!(rig.handler.requests("a").len(), 1);
}

async fn call_ids_that_repeat_are_kept_apart(pair: Pair) {
    let rig = Setup::new(pair).http("a", OBJECT).start().await;
    rig.handler.reply("a", (1..=3).map(|n| Reply::new(200, n.to_string())));
    let mut answers = Vec::new();
    for script in [r#"a#call_0 {"n":1}"#, r#"a#call_0 {"n":2}"#, r#"a#call_0 {"n":3}"#] {
        answers.push(rig.play(script).await.answer().unwrap().to_owned());
    }
    assert_eq!(answers, ["a: 1", "a: 2", "a: 3"]);
    let mut keys: Vec<_> = rig.handler.requests("a").into_iter().map(|r| r.key).collect();
    keys.dedup();
    assert_eq!(keys.len(), 3);
    assert!(keys.iter().all(|key| key.is_ascii() && key.len() < 128));
}

async fn a_lost_webhook_is_made_up_for_by_the_next(pair: Pair) {
    let rig = Setup::new(pair).http("a", OBJECT).start().await;
    rig.faults(|f| f.webhook_drop = Rule::Next(1));
    let id = rig.session("call a").await;
    let (headers, body) = rig.signed(&id, "wh_late");
    assert_eq!(rig.post(&headers, body).await, 200);
    let session = rig.settled(&id).await;
    assert_eq!(session.answer(), Some("a: ok"));
}

/// A name that nobody resolves but the proxy, which stands before everything except this machine.
#[tokio::test]
async fn a_handler_behind_a_proxy_is_reached_through_it() {
    let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", proxy.local_addr().unwrap());
    let asked = tokio::spawn(async move {
        let (mut socket, _) = proxy.accept().await.unwrap();
        let mut request = vec![0; 4096];
        let length = socket.read(&mut request).await.unwrap();
        socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nfar").await.unwrap();
        String::from_utf8_lossy(&request[..length]).into_owned()
    });
    let far =
        "handler: { type: http, url: 'http://orders.invalid/agent', body: arguments }\nparameters: { type: object }";
    let mut rig = Setup::new(Pair::EmbeddedSqlite).function("far", far).prepare().await;
    let variables = [("HTTP_PROXY", address), ("NO_PROXY", "127.0.0.1,localhost".to_owned())];
    rig.worker = Some(rig.daemon_in("all", &variables).await);
    assert_eq!(rig.play("call far").await.answer(), Some("far: far"));
    assert!(asked.await.unwrap().starts_with("POST http://orders.invalid/agent HTTP/1.1\r\n"));
}
