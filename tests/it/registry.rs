//! What the registry of functions does while sessions wait: limits, who may call, rich results, reload.

use serde_json::{Value, json};

use crate::{
    over_every_pair,
    rig::{PATIENCE, Pair, Reply, Rig, Setup},
};

over_every_pair!(
    a_limited_function_answers_everything_in_its_time,
    a_callee_that_has_too_much_to_do_is_left_alone_as_long_as_it_asks,
    a_session_without_the_metadata_may_not_call,
);

async fn a_limited_function_answers_everything_in_its_time(pair: Pair) {
    let keys = "limits: { concurrency: 1 }\nretry: { max_attempts: 1 }";
    let rig = Setup::new(pair).http("a", keys).http("b", "limits: { rate: 4/s }").start().await;
    rig.handler.hold();
    let id = rig.session("a {} & a {} & a {}").await;
    rig.handler.arrived("a", 1).await;
    let other = rig.session("b {} & b {} & b {} & b {} & b {} & b {}").await;
    rig.handler.arrived("b", 4).await;
    assert_eq!(rig.handler.requests("a").len(), 1, "one at a time");
    rig.handler.release();
    for (id, calls) in [(id, 3), (other, 6)] {
        let session = rig.settled(&id).await;
        let fine = session.calls(None).filter(|c| c.result.as_ref().is_some_and(|r| r.result.success)).count();
        assert_eq!(fine, calls, "{session:#?}");
    }
    assert_eq!((rig.handler.requests("a").len(), rig.handler.requests("b").len()), (3, 6));
}

async fn a_callee_that_has_too_much_to_do_is_left_alone_as_long_as_it_asks(pair: Pair) {
    let rig = Setup::new(pair).http("a", "limits: { adaptive: true }\nretry: { max: 5s }").start().await;
    let busy = Reply { headers: vec![("retry-after", "1".to_owned())], ..Reply::new(429, "") };
    rig.handler.reply("a", [busy]);
    let first = rig.session("call a").await;
    rig.handler.arrived("a", 1).await;
    let asked = std::time::Instant::now();
    rig.worker.as_ref().unwrap().told("the handler failed: trying again").await;
    let second = rig.session("call a").await;
    rig.handler.arrived("a", 2).await;
    assert!(asked.elapsed() > std::time::Duration::from_millis(900), "{:?}", asked.elapsed());
    for id in [first, second] {
        assert_eq!(rig.settled(&id).await.answer(), Some("a: ok"));
    }
}

async fn a_session_without_the_metadata_may_not_call(pair: Pair) {
    let rig =
        Setup::new(pair).http("a", "require_metadata: [customer, plan]\nallow: \"arguments.n < 10\"").start().await;
    let id = rig.session_with("call a", json!({ "plan": "secret plan", "customer": "" })).await;
    let session = rig.settled(&id).await;
    let result = session.calls(None).next().unwrap().result.clone().unwrap().result;
    let error = result.error.unwrap();
    assert!(!result.success && error.contains("lack customer.") && !error.contains("plan"), "{error}");
    assert!(rig.handler.requests("a").is_empty());
    let id = rig.session_with("a {\"n\":10} & a {}", json!({ "plan": "p", "customer": "c" })).await;
    let session = rig.settled(&id).await;
    let refused = |r: &str| r.contains("may not call the function with these arguments");
    let errors = session.calls(None).filter_map(|call| call.result.as_ref()?.result.error.clone());
    assert_eq!(errors.filter(|error| refused(error)).count(), 2, "{session:#?}");
    assert!(rig.handler.requests("a").is_empty());
    let id = rig.session_with("a {\"n\":9}", json!({ "plan": "p", "customer": "c" })).await;
    assert_eq!(rig.settled(&id).await.answer(), Some("a: ok"));
}

#[tokio::test]
async fn an_image_that_rebyte_does_not_take_is_told_to_the_model() {
    let setup = Setup::new(Pair::EmbeddedSqlite).platform_key("flavor: rebyte");
    let rig = setup.http("a", "").start().await;
    let image =
        |size| Reply { headers: vec![("content-type", "image/png".to_owned())], ..Reply::new(200, vec![0; size]) };
    rig.handler.reply("a", [image(700_000), image(760_000)]);
    let result = async || rig.play("call a").await.calls(None).next().unwrap().result.clone().unwrap().result;
    let small = result().await;
    assert!(small.success && small.output[0]["type"] == "input_image", "{:?}", small.error);
    let large = result().await;
    let error = large.error.unwrap_or_default();
    assert!(!large.success && error.contains("image is too large") && error.contains("1000000"), "{error}");
}

/// What the echo function answers once the program has looked at its file.
async fn reloaded(rig: &Rig, outcome: &str, count: u32) {
    let line = format!("actiond_config_reloads_total{{outcome=\"{outcome}\"}} {count}");
    let wait = async {
        while !rig.worker.as_ref().unwrap().admin("/metrics").await.1.contains(&line) {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("not {outcome}\n{}", rig.logs()));
}

#[tokio::test]
async fn changed_functions_count_without_a_restart_and_wrong_ones_do_not() {
    let setup = Setup::new(Pair::EmbeddedSqlite).extra("worker: { unknown_functions: fail }");
    let rig = setup.function("a", "handler: { type: echo }").start().await;
    assert_eq!(rig.play("call a").await.answer(), Some("a: {}"));
    let config = std::fs::read_to_string(rig.file()).unwrap();

    // As a ConfigMap is mounted: the file is a link, and what it leads to is swapped.
    let changed = config.replace("{ type: echo }", "{ type: command, command: [echo, new] }");
    let link = |text: &str, name: &str| {
        let target = format!("{}.{name}", rig.file());
        std::fs::write(&target, text).unwrap();
        std::os::unix::fs::symlink(&target, format!("{target}.link")).unwrap();
        std::fs::rename(format!("{target}.link"), rig.file()).unwrap();
    };
    link(&changed, "1");
    reloaded(&rig, "applied", 1).await;
    assert_eq!(rig.play("call a").await.answer(), Some("a: new"));

    link(&changed.replace("[echo, new]", "[]"), "2");
    reloaded(&rig, "refused", 1).await;
    rig.worker.as_ref().unwrap().told("functions[0].handler.command: must begin with the program").await;
    assert_eq!(rig.play("call a").await.answer(), Some("a: new"), "the old ones stay");

    link(&changed.replace("worker: {", "worker: { concurrency: 5,").replace("log: json", "log: text"), "3");
    reloaded(&rig, "unchanged", 1).await;
    rig.worker.as_ref().unwrap().told("changes there need a restart").await;

    std::fs::write(rig.file(), config.replace("name: a", "name: b")).unwrap();
    rig.worker.as_ref().unwrap().hang_up();
    reloaded(&rig, "applied", 2).await;
    let session = rig.play("a {} & b {}").await;
    let output = |name| session.calls(Some(name)).next().unwrap().result.clone().unwrap().result;
    assert_eq!((output("b").output, output("a").success), (Value::from("{}"), false));
}
