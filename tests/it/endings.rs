//! What ends a call other than its handler: a cancelled turn, a deadline, a delivery held too long.

use std::time::Duration;

use crate::{
    over_every_pair,
    rig::{Pair, Reply, Setup},
    services::tempdir::Folder,
};

over_every_pair!(
    a_cancelled_turn_stops_its_handler_and_gets_no_result,
    a_call_that_takes_too_long_is_answered_before_the_platform_gives_up,
    a_handler_that_outlives_its_delivery_is_answered_all_the_same,
    a_held_call_is_not_started_again_and_ends_at_its_deadline,
    a_held_call_whose_handler_gave_no_answer_is_not_started_again,
);

async fn a_cancelled_turn_stops_its_handler_and_gets_no_result(pair: Pair) {
    let rig = Setup::new(pair).http("a", "").extra("worker: { recheck: 200ms }").start().await;
    rig.handler.hold();
    let id = rig.session("call a").await;
    rig.handler.arrived("a", 1).await;
    rig.cancel(&id).await;
    let worker = rig.worker.as_ref().unwrap();
    worker.metric("actiond_calls_total", "outcome=\"obsolete\"", "1").await;
    rig.handler.release();
    let session = rig.settled(&id).await;
    let posts = session.calls(None).next().unwrap().posts;
    assert_eq!((posts.accepted, posts.refused), (0, 0));
    rig.play("call a").await;
}

async fn a_call_that_takes_too_long_is_answered_before_the_platform_gives_up(pair: Pair) {
    let mut rig = Setup::new(pair).http("slow", "").http("failing", "retry: { max_attempts: 100 }").prepare().await;
    rig.replace("api_key: sk-test", "api_key: sk-test\n    call_deadline: 2s");
    rig.start_all().await;
    rig.handler.reply("failing", vec![Reply::new(503, ""); 100]);
    let id = rig.session("call failing").await;
    let failed = rig.settled(&id).await;
    rig.handler.hold();
    let id = rig.session("call slow").await;
    let slow = rig.settled(&id).await;
    for session in [failed, slow] {
        let call = session.calls(None).next().unwrap();
        let result = &call.result.as_ref().unwrap().result;
        assert!(!result.success && result.error.is_some(), "{call:?}");
        assert_eq!(call.posts.accepted, 1);
    }
}

async fn a_handler_that_outlives_its_delivery_is_answered_all_the_same(pair: Pair) {
    let mut rig = Setup::new(pair).http("a", "").extra("worker: { max_hold: 200ms, lease: 1s }").start().await;
    rig.handler.hold();
    let id = rig.session("call a").await;
    rig.handler.arrived("a", 1).await;
    // Long enough for the lease to be renewed and the session to be due a few times: the handler must not start again.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(rig.handler.requests("a").len(), 1);
    rig.handler.release();
    rig.settled(&id).await;

    rig.handler.hold();
    let id = rig.session("call a").await;
    rig.handler.arrived("a", 2).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    rig.kill_worker().await;
    rig.start_all().await;
    rig.handler.arrived("a", 3).await;
    rig.handler.release();
    let session = rig.settled(&id).await;
    assert_eq!(session.calls(None).next().unwrap().posts.accepted, 1);
}

async fn a_held_call_is_not_started_again_and_ends_at_its_deadline(pair: Pair) {
    let mut rig = Setup::new(pair).http("a", "if_interrupted: hold").extra("worker: { lease: 1s }").prepare().await;
    rig.replace("api_key: sk-test", "api_key: sk-test\n    call_deadline: 5s");
    rig.start_all().await;
    rig.handler.hold();
    let id = rig.session("call a").await;
    rig.handler.arrived("a", 1).await;
    rig.kill_worker().await;
    rig.start_all().await;
    let session = rig.settled(&id).await;
    let result = &session.calls(None).next().unwrap().result.as_ref().unwrap().result;
    assert!(!result.success && result.error.as_ref().unwrap().contains("in time"), "{result:?}");
    assert_eq!(rig.handler.requests("a").len(), 1);
}

async fn a_held_call_whose_handler_gave_no_answer_is_not_started_again(pair: Pair) {
    let folder = Folder::new();
    let starts = format!("{}/starts", folder.path());
    let program = format!("command: [sh, -c, 'echo one >> {starts}; sleep 20'], timeout: 300ms");
    let keys = format!("handler: {{ type: command, {program} }}\nif_interrupted: hold");
    let mut rig = Setup::new(pair).function("a", &keys).extra("worker: { lease: 1s }").prepare().await;
    rig.replace("api_key: sk-test", "api_key: sk-test\n    call_deadline: 5s");
    rig.start_all().await;
    let session = rig.play("call a").await;
    let result = &session.calls(None).next().unwrap().result.as_ref().unwrap().result;
    assert!(!result.success && result.error.as_ref().unwrap().contains("in time"), "{result:?}");
    assert_eq!(std::fs::read_to_string(&starts).unwrap(), "one\n");
}
