//! Functions that only some workers run: who runs them, and what happens to them when those workers die.

use std::time::Duration;

use crate::{
    operator::actiond,
    rig::{Daemon, Pair, Reply, Rig, Setup},
};

/// Answers with the name of the process that runs it.
const WHO: &str = "handler: { type: command, command: [sh, -c, 'echo -n ${WHO:-common}'], pass_env: [WHO] }";

fn setup(worker: &str) -> Setup {
    let worker = format!("worker: {{ pools: [gpu, browser], unknown_functions: fail{worker} }}");
    Setup::new(Pair::RabbitPostgres)
        .extra(&worker)
        .http("a", "parameters: { type: object }")
        .http("draw", "pool: gpu")
        .function("who", WHO)
        .function("who_gpu", &format!("{WHO}\npool: gpu"))
        .function("who_browser", &format!("{WHO}\npool: browser"))
}

/// A worker of that pool.
async fn pool(rig: &Rig, name: &str) -> Daemon {
    let variables = [("ACTIOND_POOL", name.to_owned()), ("WHO", name.to_owned())];
    let daemon = rig.daemon_in("worker", &variables).await;
    daemon.ready().await;
    daemon
}

#[tokio::test]
async fn pinned_functions_run_only_in_their_pool_whatever_else_their_session_calls() {
    let rig = setup("").start().await;
    let (gpu, browser) = (pool(&rig, "gpu").await, pool(&rig, "browser").await);
    let session = rig.play("call who & call who_gpu & call who_browser & call a").await;
    assert_eq!(session.answer(), Some("who: common\nwho_gpu: gpu\nwho_browser: browser\na: ok"));
    let session = rig.play("call who_gpu then call who then call who_browser & call who_gpu").await;
    assert_eq!(session.answer(), Some("who_gpu: gpu\nwho: common\nwho_browser: browser\nwho_gpu: gpu"));
    assert!(session.calls(None).all(|call| call.posts.accepted == 1 && call.posts.refused == 0), "{session:#?}");

    let (_, common) = rig.worker.as_ref().unwrap().admin("/metrics").await;
    let handed = |text: &str, pool: &str| {
        let name = format!("actiond_handovers_total{{pool=\"{pool}\"}} ");
        text.lines().find_map(|line| line.strip_prefix(&name)?.parse::<u64>().ok())
    };
    assert!(handed(&common, "gpu") >= Some(3) && handed(&common, "browser") >= Some(2), "{common}");
    for (pool, functions) in [(&gpu, vec!["who_gpu"]), (&browser, vec!["who_browser"])] {
        let (_, metrics) = pool.admin("/metrics").await;
        let mut ran: Vec<&str> = metrics.lines().filter(|line| line.starts_with("actiond_calls_total{")).collect();
        ran.retain(|line| !functions.iter().any(|name| line.contains(&format!("function=\"{name}\""))));
        assert!(ran.is_empty() && !metrics.contains("actiond_handovers_total"), "{metrics}");
    }
}

#[tokio::test]
async fn a_pinned_function_that_fails_is_tried_again_in_its_pool_and_may_answer_later() {
    let rig = setup("").start().await;
    let gpu = pool(&rig, "gpu").await;
    rig.handler.reply("draw", [Reply::new(503, ""), Reply::new(202, "")]);
    let id = rig.session("call draw").await;
    let url = rig.handler.arrived("draw", 2).await[1].result_url.clone();
    gpu.told("the result comes later").await;
    let client = actiond::http::client().unwrap();
    let posted = client.post(&url).header("content-type", "text/plain").body("a picture").send().await.unwrap();
    assert_eq!(posted.status().as_u16(), 200);
    let session = rig.settled(&id).await;
    assert_eq!(session.answer(), Some("draw: a picture"));
    assert_eq!(rig.handler.requests("draw").len(), 2);
}

#[tokio::test]
async fn a_killed_pool_worker_is_made_up_for_at_once() {
    let rig = setup(", lease: 1h").start().await;
    let gpu = pool(&rig, "gpu").await;
    rig.handler.hold();
    let id = rig.session("call who & call draw").await;
    rig.handler.arrived("draw", 1).await;
    rig.until(&id, |session| session.calls(Some("who")).any(|call| call.result.is_some())).await;
    gpu.kill().await;
    let _gpu = pool(&rig, "gpu").await;
    let requests = rig.handler.arrived("draw", 2).await;
    assert_eq!(requests[0].key, requests[1].key, "the callee can tell that it is the same call");
    rig.handler.release();
    let session = rig.settled(&id).await;
    assert_eq!(session.answer(), Some("who: common\ndraw: ok"));
    assert!(session.calls(None).all(|call| call.posts.accepted == 1), "{session:#?}");
}

#[tokio::test]
async fn a_pinned_function_that_must_not_run_twice_is_not_started_twice() {
    let rig = setup(", lease: 2s").http("print", "pool: gpu\nif_interrupted: fail").start().await;
    let gpu = pool(&rig, "gpu").await;
    rig.handler.hold();
    let id = rig.session("call print & call who").await;
    rig.handler.arrived("print", 1).await;
    gpu.kill().await;
    let _gpu = pool(&rig, "gpu").await;
    let session = rig.settled(&id).await;
    let result = &session.calls(Some("print")).next().unwrap().result.as_ref().unwrap().result;
    assert!(!result.success && result.error.as_ref().unwrap().contains("interrupted"), "{result:?}");
    assert_eq!(rig.handler.requests("print").len(), 1);
}

#[tokio::test]
async fn a_death_in_the_common_queue_takes_nothing_over_in_a_pool_that_lives() {
    let mut rig = setup(", lease: 1h").start().await;
    let (one, other) = (pool(&rig, "gpu").await, pool(&rig, "gpu").await);
    rig.handler.hold();
    let id = rig.session("call a & call draw").await;
    rig.handler.arrived("draw", 1).await;
    rig.handler.arrived("a", 1).await;
    rig.kill_worker().await;
    rig.start_all().await;
    rig.handler.arrived("a", 2).await;
    // The broker takes turns: one worker holds the call, the copy went to the other one.
    for daemon in [&one, &other] {
        let delivered = async {
            while !daemon.admin("/metrics").await.1.contains("\nactiond_last_delivery_age_seconds ") {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(crate::rig::PATIENCE, delivered).await.expect("a worker got nothing");
    }
    rig.handler.release();
    let session = rig.settled(&id).await;
    assert_eq!(session.answer(), Some("a: ok\ndraw: ok"));
    assert_eq!(rig.handler.requests("draw").len(), 1, "its worker lived");
    assert!(session.calls(None).all(|call| call.posts.accepted == 1), "{session:#?}");
}

#[tokio::test]
async fn a_pool_without_workers_is_told_of_and_its_sessions_wait_for_it() {
    let rig = setup("").start().await;
    let id = rig.session("call who & call draw").await;
    rig.until(&id, |session| session.calls(Some("who")).any(|call| call.result.is_some())).await;
    let common = rig.worker.as_ref().unwrap();
    common.metric("actiond_pool_sessions", "pool=\"gpu\"", "1").await;
    common.metric("actiond_pool_workers", "pool=\"gpu\"", "0").await;
    common.told("sessions wait for a pool without workers").await;
    assert_eq!(common.admin("/health/ready").await.0, 200, "its own work goes on");
    assert!(rig.handler.requests("draw").is_empty());
    let _gpu = pool(&rig, "gpu").await;
    assert_eq!(rig.settled(&id).await.answer(), Some("who: common\ndraw: ok"));
    common.told("the pool has workers again").await;
}

#[tokio::test]
async fn what_an_earlier_look_left_behind_is_ended_by_the_pool() {
    let rig = setup(", recheck: 1h").start().await;
    let gpu = pool(&rig, "gpu").await;
    rig.handler.reply("draw", [Reply { headers: vec![("retry-after", "2".to_owned())], ..Reply::new(503, "") }]);
    let id = rig.session("call draw").await;
    gpu.told("the handler failed: trying again").await;
    rig.cancel(&id).await;
    gpu.metric("actiond_calls_total", "outcome=\"obsolete\"", "1").await;
    assert_eq!(rig.handler.requests("draw").len(), 1);
}

#[tokio::test]
async fn tools_of_a_pool_s_server_are_asked_for_and_called_there_alone() {
    let server = crate::services::variable("ACTIOND_TEST_MCP_SERVER");
    let folder = crate::services::tempdir::Folder::new();
    let line = format!("echo $WHO >> {}/who; exec node {server} stdio", folder.path());
    let import = "import: { prefix: ev_, only: [echo], pool: gpu }";
    let servers =
        format!("mcp_servers:\n  - {{ name: s, command: [sh, -c, '{line}'], pass_env: [PATH, WHO], {import} }}");
    let rig = setup("").extra(&servers).start().await;
    let id = rig.session(r#"call ev_echo {"message":"hi"} & call ev_nothing & call who"#).await;
    let _gpu = pool(&rig, "gpu").await;
    let session = rig.settled(&id).await;
    let said = |name| {
        let result = session.calls(Some(name)).next().unwrap().result.clone().unwrap().result;
        (result.success, result.error.unwrap_or_else(|| result.output.to_string()))
    };
    assert!(said("ev_echo").0 && said("ev_echo").1.contains("hi"), "{:?}", said("ev_echo"));
    assert!(said("ev_nothing").1.contains("There is no function named ev_nothing"), "{:?}", said("ev_nothing"));
    let who = std::fs::read_to_string(format!("{}/who", folder.path())).unwrap();
    assert_eq!(who, "gpu\n", "the program was started in other processes too");
}

#[tokio::test]
async fn one_process_without_a_pool_runs_everything() {
    for pair in [Pair::EmbeddedSqlite, Pair::RabbitSqlite] {
        let setup = Setup::new(pair).extra("worker: { pools: [gpu] }").http("a", "parameters: { type: object }");
        let rig = setup.http("draw", "pool: gpu").start().await;
        assert_eq!(rig.play("call a & call draw").await.answer(), Some("a: ok\ndraw: ok"));
    }
}

#[tokio::test]
async fn a_pool_that_cannot_be_is_refused_at_start() {
    let rig = setup("").prepare().await;
    for (words, part) in [
        ("serve --role worker --pool printer", "--pool printer: must be the name of a pool in worker.pools"),
        ("serve --role ingress --pool gpu", "--role ingress has no worker"),
    ] {
        let ended = actiond(&rig, words).await;
        assert!(ended.status == 2 && ended.err.contains(part), "{words}: {} {}", ended.status, ended.err);
    }
    let embedded = Setup::new(Pair::EmbeddedSqlite).extra("worker: { pools: [gpu] }").http("a", "").prepare().await;
    let ended = actiond(&embedded, "serve --pool gpu").await;
    assert!(ended.status == 2 && ended.err.contains("--pool needs queue.type: rabbitmq"), "{}", ended.err);
}
