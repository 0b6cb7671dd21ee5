//! Sessions and workflow runs that no webhook tells of.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use actiond::sandbox::{self, ActionState, Faults, Flavor, Rule, Sandbox, Session, TurnStatus};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::{
    over_every_pair,
    rig::{PATIENCE, Pair, Reply, Rig, Setup},
};

over_every_pair!(
    a_session_a_run_and_a_polled_session_outlive_their_worker,
    every_fault_ends_in_one_accepted_result_of_a_run,
    a_program_s_calls_are_answered_one_by_one_each_round_in_its_own_time,
);

const KEY: &str = "sk-rebyte";

/// A platform of Rebyte's flavor that sends no webhooks.
struct Rebyte {
    sandbox: Arc<Sandbox>,
    at: SocketAddr,
}

impl Rebyte {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let config =
            sandbox::Config { api_key: KEY.into(), seed: rand::random(), ..sandbox::Config::of(Flavor::Rebyte) };
        let sandbox = Sandbox::new(config).unwrap();
        tokio::spawn(sandbox.clone().serve(listener, std::future::pending()));
        Self { sandbox, at }
    }

    /// Its line in the config, with further keys.
    fn platform(&self, keys: &str) -> String {
        let at = self.at;
        format!(
            "{{ name: rebyte, type: agents_api, flavor: rebyte, base_url: \"http://{at}/v1\", api_key: {KEY}, {keys} }}"
        )
    }

    async fn post(&self, path: &str, body: Value) -> String {
        let request = actiond::http::client().unwrap().post(format!("http://{}/v1{path}", self.at)).bearer_auth(KEY);
        let response = request.header("OpenAI-Beta", "agents=v1").json(&body).send().await.unwrap();
        assert!(response.status().is_success(), "{}", response.status());
        response.json::<Value>().await.unwrap()["id"].as_str().unwrap().to_owned()
    }

    async fn session(&self, script: &str) -> String {
        self.post("/agents/sessions", json!({ "agent": { "model": "scripted" }, "input": script })).await
    }

    async fn run(&self, script: &str) -> String {
        self.post("/workflow-agents/wfa_1/runs", json!({ "input": script })).await
    }

    async fn settled(&self, rig: &Rig, id: &str) -> Session {
        match tokio::time::timeout(PATIENCE, self.sandbox.settled(id)).await {
            Ok(session) => session.unwrap(),
            Err(_) => panic!("{id} is not answered: {:#?}\n{}", self.sandbox.session(id), rig.logs()),
        }
    }

    fn faults(&self, change: impl FnOnce(&mut Faults)) {
        let mut faults = self.sandbox.faults();
        change(&mut faults);
        self.sandbox.set_faults(faults);
    }
}

const POLLED: &str = "intake: poll, poll: { every: 200ms, max: 1s }, workflow_runs: true";
const OBJECT: &str = "parameters: { type: object }";

async fn until(wanted: impl AsyncFn() -> bool) {
    let wait = async {
        while !wanted().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("it does not come to that");
}

fn accepted_once(session: &Session) {
    assert!(session.calls(None).all(|call| call.posts.accepted == 1 && call.posts.refused == 0), "{session:#?}");
}

async fn a_session_a_run_and_a_polled_session_outlive_their_worker(pair: Pair) {
    let rebyte = Rebyte::start().await;
    let keys = format!("{OBJECT}\nplatforms: [openai, rebyte]");
    let mut rig = Setup::new(pair).platform(&rebyte.platform(POLLED)).http("a", &keys).start().await;
    rig.handler.reply("a", vec![Reply::new(200, r#"{"n": 1.0}"#); 9]);
    rig.handler.hold();
    let session = rig.session("call a").await;
    let run = rebyte.run(r#"a {"n":1} then a {"n":2} then a {"n":3}"#).await;
    let polled = rebyte.session("call a").await;
    rig.handler.arrived("a", 3).await;
    let worker = rig.worker.as_ref().unwrap();
    for platform in ["rebyte", "rebyte.runs"] {
        let found = format!("actiond_polls_total{{outcome=\"found\",platform=\"{platform}\"}}");
        until(async || worker.admin("/metrics").await.1.contains(&found)).await;
    }
    rig.kill_worker().await;
    rig.start_all().await;
    rig.handler.arrived("a", 6).await;
    rig.handler.release();

    let session = rig.settled(&session).await;
    let (run, polled) = (rebyte.settled(&rig, &run).await, rebyte.settled(&rig, &polled).await);
    for session in [&session, &run, &polled] {
        accepted_once(session);
        assert_eq!(session.turns[0].status, TurnStatus::Completed);
    }
    let results = |session: &Session| {
        let results = session.calls(None).map(|call| call.result.clone().unwrap());
        results.map(|accepted| (accepted.result.output, accepted.idempotency_key.is_some())).collect::<Vec<_>>()
    };
    let raw: Value = serde_json::from_str(r#"{"n": 1.0}"#).unwrap();
    assert_eq!(results(&run), [(raw.clone(), false), (raw.clone(), false), (raw, false)], "JSON, and no key");
    let text = Value::from(r#"{"n": 1.0}"#);
    assert_eq!(results(&session), [(text.clone(), true)]);
    assert_eq!(results(&polled), [(text, true)]);
    assert_eq!(rig.handler.requests("a").len(), 8, "three that were interrupted, and five");
}

async fn every_fault_ends_in_one_accepted_result_of_a_run(pair: Pair) {
    let rebyte = Rebyte::start().await;
    let rig = Setup::new(pair)
        .platform(&rebyte.platform(POLLED))
        .http("a", OBJECT)
        .extra("worker: { confirm_after: 1s }")
        .start()
        .await;
    type Fault = fn(&mut Faults);
    let faults: [(&str, Fault); 6] = [
        ("429", |f| f.submit_429 = Rule::Next(1)),
        ("500", |f| f.submit_500 = Rule::Next(1)),
        ("409", |f| f.submit_409 = Rule::Next(1)),
        ("lost", |f| f.submit_lost = Rule::Next(1)),
        ("linger", |f| f.linger = 2),
        ("retrieve 500", |f| f.retrieve_500 = Rule::Next(1)),
    ];
    let count = faults.len();
    for (name, fault) in faults {
        rebyte.faults(|faults| *faults = Faults::default());
        rebyte.faults(fault);
        let id = rebyte.run("call a then call a").await;
        let run = rebyte.settled(&rig, &id).await;
        assert!(run.calls(None).all(|call| call.posts.accepted == 1), "{name}: {run:#?}");
        assert_eq!(run.turns[0].status, TurnStatus::Completed, "{name}");
    }
    assert_eq!(rig.handler.requests("a").len(), 2 * count, "no handler ran twice");
}

async fn a_program_s_calls_are_answered_one_by_one_each_round_in_its_own_time(pair: Pair) {
    let rebyte = Rebyte::start().await;
    let rig = Setup::new(pair)
        .platform(&rebyte.platform(POLLED))
        .function("slow", "handler: { type: command, command: [sleep, '2.5'] }")
        .http("a", OBJECT)
        .http("held", OBJECT)
        .start()
        .await;
    rebyte.faults(|f| f.expire_ms = 4000);
    let id = rebyte.session("program call slow then call slow & call a then call a").await;
    let session = rebyte.settled(&rig, &id).await;
    accepted_once(&session);
    assert_eq!((session.calls(None).count(), session.turns[0].status), (4, TurnStatus::Completed));
    for call in session.calls(None) {
        let body: Value = serde_json::from_slice(&call.result.as_ref().unwrap().body).unwrap();
        assert_eq!(body["events"].as_array().unwrap().len(), 1);
    }

    // One of two parallel calls is not answered in time: the program ends, the turn goes on.
    rig.handler.hold();
    let id = rebyte.session("program call slow & call held then call a\nsay").await;
    rig.handler.arrived("held", 1).await;
    let session = rebyte.settled(&rig, &id).await;
    let states: Vec<_> = session.calls(None).map(|call| (call.state, call.posts.accepted)).collect();
    assert_eq!(states, [(ActionState::Applied, 1), (ActionState::Dropped, 0)], "{session:#?}");
    assert_eq!(session.turns[0].status, TurnStatus::Completed);
    rig.handler.release();
}

#[tokio::test]
async fn a_run_hears_of_a_call_that_takes_too_long_before_its_wait_is_over() {
    let rebyte = Rebyte::start().await;
    let rig = Setup::new(Pair::EmbeddedSqlite).platform(&rebyte.platform(POLLED)).http("held", "").start().await;
    rebyte.faults(|f| f.expire_ms = 4000);
    rig.handler.hold();
    let id = rebyte.run("call held").await;
    let run = rebyte.settled(&rig, &id).await;
    let call = run.calls(None).next().unwrap();
    assert_eq!((call.posts.accepted, call.state), (1, ActionState::Applied), "{run:#?}");
    assert_eq!(run.error.as_deref(), Some("The function did not finish in time and gave no result."));
}

#[tokio::test]
async fn a_platform_that_is_only_polled_takes_no_webhooks() {
    let rebyte = Rebyte::start().await;
    let rig = Setup::new(Pair::EmbeddedSqlite)
        .platform(&rebyte.platform("intake: [poll], poll: { every: 200ms }"))
        .http("a", OBJECT)
        .start()
        .await;
    let client = actiond::http::client().unwrap();
    for name in ["rebyte", "rebyte.runs"] {
        let url = format!("http://{}/webhooks/{name}", rig.ingress_at);
        assert_eq!(client.post(url).body("{}").send().await.unwrap().status(), 404);
    }
    let id = rebyte.session("call a then call a").await;
    accepted_once(&rebyte.settled(&rig, &id).await);
    let run = rebyte.run("call a").await;
    assert_eq!(rebyte.sandbox.session(&run).unwrap().reads, 0, "nobody asked for runs");
}

#[tokio::test]
async fn polls_slow_down_while_nothing_runs_and_a_sweep_is_not_needed() {
    let rebyte = Rebyte::start().await;
    let rig = Setup::new(Pair::EmbeddedSqlite)
        .platform(&rebyte.platform("intake: poll, poll: { every: 100ms, max: 1s }"))
        .http("a", OBJECT)
        .extra("sweep: { enabled: false }")
        .start()
        .await;
    let begun = std::time::Instant::now();
    until(async || rebyte.sandbox.counters().listed >= 8).await;
    // 100, 200, 400, 800 ms and then a second each, and the scheduler looks every 250 ms.
    assert!(begun.elapsed() > Duration::from_secs(3), "{:?}", begun.elapsed());
    let id = rebyte.session("call a").await;
    accepted_once(&rebyte.settled(&rig, &id).await);
}
