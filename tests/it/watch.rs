//! Sessions that are named to be watched by their live stream.

use std::net::SocketAddr;

use actiond::sandbox::Rule;
use serde_json::json;

use crate::{
    over_every_pair,
    proxy::Proxy,
    rig::{Pair, Rig, Setup},
};

over_every_pair!(a_watched_session_is_answered_without_a_webhook_also_after_its_stream_was_cut);

const TOKEN: &str = "a-token-of-the-operator";

async fn start(pair: Pair, intake: &str) -> (Rig, Proxy) {
    let mut rig = Setup::new(pair)
        .http("a", "parameters: { type: object }")
        .platform_key(&format!("intake: {intake}"))
        .extra("sweep: { enabled: false }")
        .prepare()
        .await;
    let base = rig.base_url();
    let address = base.trim_start_matches("http://").trim_end_matches("/v1").to_owned();
    let proxy = Proxy::new(address.clone()).await;
    rig.replace(&address, &proxy.at.to_string());
    rig.replace("admin: { listen: \"127.0.0.1:0\" }", &format!("admin: {{ listen: \"127.0.0.1:0\", token: {TOKEN} }}"));
    rig.start_all().await;
    rig.faults(|f| f.webhook_drop = Rule::ALWAYS);
    (rig, proxy)
}

async fn ask(admin: SocketAddr, method: &str, path: &str, token: Option<&str>) -> u16 {
    let client = actiond::http::client().unwrap();
    let request = client.request(method.parse().unwrap(), format!("http://{admin}/api/sessions/{path}/watch"));
    let request = match token {
        Some(token) => request.bearer_auth(token),
        None => request,
    };
    request.send().await.unwrap().status().as_u16()
}

/// Says something in a session, whose model calls what it says.
async fn say(rig: &Rig, session: &str, script: &str) {
    let event = json!({ "type": "agent.session.input.message", "input": script });
    // Past the proxy: the application has its own way to the platform.
    let client = actiond::http::client().unwrap();
    let request = client.post(format!("{}/agents/sessions/{session}/events", rig.base_url())).bearer_auth("sk-test");
    let request = request.header("OpenAI-Beta", "agents=v1").json(&json!({ "events": [event] }));
    assert!(request.send().await.unwrap().status().is_success());
}

async fn a_watched_session_is_answered_without_a_webhook_also_after_its_stream_was_cut(pair: Pair) {
    let (rig, proxy) = start(pair, "[webhook, stream]").await;
    let worker = rig.worker.as_ref().unwrap();
    let answered = async |id: &str, calls: usize| {
        let session = rig.until(id, |s| s.calls(None).filter(|call| call.posts.accepted == 1).count() == calls).await;
        assert!(session.calls(None).all(|call| call.posts.refused == 0), "{session:#?}");
    };
    // It waits before it is watched: that is looked for when the stream is there.
    let id = rig.session("call a").await;
    let path = format!("openai/{id}");
    assert_eq!(ask(worker.admin, "POST", &path, Some(TOKEN)).await, 202);
    assert_eq!(ask(worker.admin, "POST", &path, Some(TOKEN)).await, 200);
    answered(&id, 1).await;
    say(&rig, &id, "call a then call a").await;
    answered(&id, 3).await;

    proxy.cut();
    say(&rig, &id, "call a").await;
    rig.until(&id, |session| session.calls(None).count() == 4).await;
    proxy.heal();
    answered(&id, 4).await;
    say(&rig, &id, "call a").await;
    answered(&id, 5).await;
    assert_eq!(rig.handler.requests("a").len(), 5);

    worker.metric("actiond_watched_sessions", "", "1").await;
    assert_eq!(ask(worker.admin, "DELETE", &path, Some(TOKEN)).await, 204);
    worker.metric("actiond_watched_sessions", "", "0").await;
    assert_eq!(ask(worker.admin, "DELETE", &path, Some(TOKEN)).await, 404);
}

#[tokio::test]
async fn a_watch_ends_with_its_session() {
    let (rig, proxy) = start(Pair::EmbeddedSqlite, "[webhook, stream]").await;
    let worker = rig.worker.as_ref().unwrap();
    let id = rig.session("call a").await;
    assert_eq!(ask(worker.admin, "POST", &format!("openai/{id}"), Some(TOKEN)).await, 202);
    rig.settled(&id).await;
    let client = actiond::http::client().unwrap();
    let delete = client.delete(format!("{}/agents/sessions/{id}", rig.base_url())).bearer_auth("sk-test");
    assert!(delete.header("OpenAI-Beta", "agents=v1").send().await.unwrap().status().is_success());
    // The platform leaves the stream open; the next connection learns that there is nothing.
    proxy.cut();
    proxy.heal();
    worker.metric("actiond_watched_sessions", "", "0").await;
    worker.told("a watched session is gone").await;
}

#[tokio::test]
async fn whoever_may_not_watch_is_told_why() {
    let (rig, _proxy) = start(Pair::EmbeddedSqlite, "webhook").await;
    let admin = rig.worker.as_ref().unwrap().admin;
    assert_eq!(ask(admin, "POST", "openai/sess_1", None).await, 401);
    assert_eq!(ask(admin, "POST", "openai/sess_1", Some("another")).await, 401);
    assert_eq!(ask(admin, "POST", "nobody/sess_1", Some(TOKEN)).await, 404);
    assert_eq!(ask(admin, "POST", "openai/sess_1", Some(TOKEN)).await, 409, "stream is not in its intake");
    assert_eq!(ask(admin, "POST", "openai/%00", Some(TOKEN)).await, 400);
}
