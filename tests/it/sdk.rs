//! The official Python SDK, unchanged, as the platform's other client.

use actiond::sandbox::{self, Sandbox};
use tokio::{net::TcpListener, process::Command};

use crate::{
    rig::{Pair, Reply, Setup},
    services::variable,
};

async fn drive(base_url: &str, key: &str, script: &str, more: &[&str]) {
    let driver = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sdk/drive.py");
    let output = Command::new(variable("ACTIOND_TEST_PYTHON"))
        .args([driver, base_url, key, script])
        .args(more)
        .env_remove("HTTP_PROXY")
        .output()
        .await
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
}

#[tokio::test]
async fn a_session_of_the_official_sdk_is_answered_from_creation_to_the_final_message() {
    let rig = Setup::new(Pair::EmbeddedSqlite)
        .http("lookup_order", "parameters: { type: object, required: [order_id] }")
        .function("say", "handler: { type: echo }")
        .start()
        .await;
    rig.handler.reply("lookup_order", [Reply::new(200, "shipped"), Reply::new(200, "lost at sea")]);
    let script = r#"lookup_order {"order_id":"42"} & say {"t":"hello"} then lookup_order {"order_id":"43"} then lookup_order {}"#;
    let expected = [
        "--expect",
        "shipped",
        "--expect",
        "hello",
        "--expect",
        "lost at sea",
        "--expect",
        "\"order_id\" is a required",
    ];
    drive(&rig.base_url(), "sk-test", script, &expected).await;
}

#[tokio::test]
async fn every_answer_of_the_sandbox_fits_the_types_of_the_official_sdk() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base_url = format!("http://{}/v1", listener.local_addr().unwrap());
    let sandbox = Sandbox::new(sandbox::Config::default()).unwrap();
    tokio::spawn(sandbox.serve(listener, std::future::pending()));
    drive(&base_url, "sk-sandbox", r#"lookup_order {"order_id":"42"}"#, &["--answer", "--check", "--expect", "42"])
        .await;
}
