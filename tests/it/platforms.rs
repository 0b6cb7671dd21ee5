//! Agents of three platforms and one set of functions.

use std::{net::SocketAddr, time::Duration};

use actiond::sandbox::{self, Sandbox, Session, Webhook, generate_secret};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    aivax::{self, ACCOUNT},
    over_every_pair,
    rig::{PATIENCE, Pair, Setup},
};

over_every_pair!(three_functions_are_answered_from_three_platforms);

/// A session at a platform that is not the rig's own.
async fn play(sandbox: &Sandbox, at: SocketAddr, script: &str) -> Session {
    let client = actiond::http::client().unwrap();
    let request = client.post(format!("http://{at}/v1/agents/sessions")).bearer_auth("sk-rebyte");
    let body = json!({ "agent": { "model": "scripted" }, "input": script });
    let started = request.header("OpenAI-Beta", "agents=v1").json(&body).send().await.unwrap();
    let started: Value = started.json().await.unwrap();
    let settled = sandbox.settled(started["id"].as_str().unwrap());
    tokio::time::timeout(PATIENCE, settled).await.expect("the session is not answered").unwrap()
}

async fn three_functions_are_answered_from_three_platforms(pair: Pair) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (at, secret) = (listener.local_addr().unwrap(), generate_secret());
    let rebyte = format!(
        "{{ name: rebyte, type: agents_api, flavor: rebyte, base_url: \"http://{at}/v1\", api_key: sk-rebyte, \
         webhook: {{ scheme: standard, secrets: [\"{secret}\"] }} }}"
    );
    let rig = Setup::new(pair)
        .platform(&rebyte)
        .platform(ACCOUNT)
        .http("lookup", "")
        .function("say", "handler: { type: echo }")
        .function("upper", "handler: { type: command, command: [tr, a-z, A-Z] }")
        .start()
        .await;
    let mut webhook = Webhook::new(format!("http://{}/webhooks/rebyte", rig.ingress_at), secret);
    webhook.retry.initial = Duration::from_millis(100);
    let config = sandbox::Config {
        api_key: "sk-rebyte".into(),
        webhook: Some(webhook),
        seed: rand::random(),
        ..sandbox::Config::default()
    };
    let sandbox = Sandbox::new(config).unwrap();
    tokio::spawn(sandbox.clone().serve(listener, std::future::pending()));

    let script = r#"lookup {"n":1} & say {"t":"x"} & upper {"t":"y"}"#;
    let told = "lookup: ok\nsay: {\"t\":\"x\"}\nupper: {\"T\":\"Y\"}";
    let call = async |function: &str, content: Value| {
        aivax::call(&rig, &aivax::envelope(function, content, json!({ "conversationToken": "t" }))).await.body
    };
    let callbacks = async {
        tokio::join!(
            call("lookup", json!({ "n": 1 })),
            call("say", json!({ "t": "x" })),
            call("upper", json!({ "t": "y" }))
        )
    };
    let (openai, rebyte, answers) = tokio::join!(rig.play(script), play(&sandbox, at, script), callbacks);
    for session in [&openai, &rebyte] {
        assert_eq!(session.answer(), Some(told));
        assert!(session.calls(None).all(|call| call.posts.accepted == 1 && call.posts.refused == 0), "{session:#?}");
    }
    assert_eq!(answers, ("ok".to_owned(), r#"{"t":"x"}"#.to_owned(), r#"{"T":"Y"}"#.to_owned()));
    let requests = rig.handler.requests("lookup");
    assert_eq!(requests.len(), 3, "once for each platform");
    assert!(requests.iter().all(|request| request.body == br#"{"n":1}"#));
}
