//! The dashboard in a real browser: tests/dashboard.mjs drives Chromium against the program; what it did is checked here.

use std::{process::Stdio, time::Duration};

use actiond::sandbox::Rule;
use tokio::process::Command;

use crate::{
    operator::{listed, put_aside},
    rig::{Pair, Reply, Rig, Setup},
    services::variable,
};

const TOKEN: &str = "browser-token-browser-token";

/// Some functions, and calls in many states.
async fn busy() -> (Rig, String, String) {
    let object = "parameters: { type: object }";
    let setup = Setup::new(Pair::EmbeddedSqlite)
        .http("a", object)
        .http(
            "lookup_order",
            &format!("{object}\nredact: [\"$.card.number\"]\nlimits: {{ concurrency: 8, rate: 50/s }}"),
        )
        .http("refund", &format!("{object}\nif_interrupted: hold\nretry: {{ max_attempts: 2 }}"))
        .http("transfer", &format!("{object}\napproval: {{ required: true }}\nredact: [\"$.iban\"]"))
        .function("shout", "handler: { type: command, command: [tr, a-z, A-Z] }")
        .extra("worker: { max_deliveries: 3, lease: 2s }");
    let mut rig = setup.prepare().await;
    rig.replace("admin: { listen: \"127.0.0.1:0\" }", &format!("admin: {{ listen: \"127.0.0.1:0\", token: {TOKEN} }}"));
    rig.start_all().await;
    let aside = put_aside(&mut rig).await;
    listed(&rig, "dead list --json", 1).await;
    rig.faults(|f| f.webhook_drop = Rule::OFF);

    rig.handler.hold();
    rig.session("call refund").await;
    rig.handler.arrived("refund", 1).await;
    rig.worker.take().unwrap().kill().await;
    rig.start_all().await;
    listed(&rig, "calls list --state interrupted --json", 1).await;
    rig.handler.release();

    let order = r#"{"order_id":"42","status":"shipped","card":{"number":"4111111111111111","holder":"N. N."}}"#;
    rig.handler.reply("lookup_order", [Reply::new(503, ""), Reply::new(200, order), Reply::new(200, order)]);
    for script in
        ["lookup_order {\"order_id\":\"42\"}", "lookup_order {} & shout {\"text\":\"hello\"}", "shout {} & shout {}"]
    {
        rig.play(script).await;
    }
    rig.handler.reply("refund", [Reply::new(500, "no"), Reply::new(500, "no")]);
    rig.play("call refund").await;
    rig.faults(|f| f.submit_422 = Rule::Next(1));
    rig.session("call shout").await;
    listed(&rig, "calls list --state refused --json", 1).await;
    let asks = rig.session(r#"transfer {"amount":250,"iban":"DE89370400440532013000","to":"N. N."}"#).await;
    listed(&rig, "approvals list --json", 1).await;
    (rig, aside, asks)
}

#[tokio::test]
async fn an_operator_works_with_the_dashboard() {
    let (playwright, chromium) = (variable("ACTIOND_TEST_PLAYWRIGHT"), variable("ACTIOND_TEST_CHROMIUM"));
    let (rig, aside, asks) = busy().await;
    let driver = Command::new("node")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/dashboard.mjs"))
        .env("PLAYWRIGHT", playwright)
        .env("CHROMIUM", chromium)
        .env("DASHBOARD", format!("http://{}", rig.worker.as_ref().unwrap().admin))
        .env("TOKEN", TOKEN)
        .env("PLATFORM", rig.base_url())
        .env("SCREENSHOTS", concat!(env!("CARGO_MANIFEST_DIR"), "/target/browser"))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let driven =
        tokio::time::timeout(Duration::from_secs(90), driver).await.expect("the browser does not end").unwrap();
    let said = String::from_utf8_lossy(&driven.stdout).into_owned() + &String::from_utf8_lossy(&driven.stderr);
    assert!(driven.status.success(), "{said}\n{}", rig.logs());
    assert_eq!(rig.settled(&aside).await.answer(), Some("a: ok"), "the dead letter was redriven");
    let approved = rig.settled(&asks).await;
    assert_eq!(approved.calls(None).next().unwrap().posts.accepted, 1, "the approved call's result was accepted");
    assert_eq!(rig.handler.requests("transfer").len(), 1);
    assert_eq!(rig.handler.requests("refund").len(), 3, "what was resolved by hand was not started again");
    assert!(!rig.logs().contains(TOKEN));
}
