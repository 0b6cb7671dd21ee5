//! What an operator can do over HTTP, by hand and with `--server`: who gets in, what is shown, what is changed.

mod strangers;

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    operator::{action, actiond, actiond_with, beside, listed, refused},
    over_every_pair,
    rig::{Daemon, PATIENCE, Pair, Reply, Rig, Setup},
};

over_every_pair!(
    a_refused_result_is_resubmitted_and_a_held_call_resolved_over_http,
    commands_do_over_http_what_they_do_in_the_store,
    a_cancelled_call_is_answered_and_its_handler_stopped,
    a_paused_function_is_not_started_until_it_is_resumed,
    a_call_that_waits_is_approved_or_denied_over_http,
);

const TOKEN: &str = "case-token-case-token";
const OBJECT: &str = "parameters: { type: object }";

async fn start(setup: Setup) -> Rig {
    let mut rig = setup.prepare().await;
    rig.replace("admin: { listen: \"127.0.0.1:0\" }", &format!("admin: {{ listen: \"127.0.0.1:0\", token: {TOKEN} }}"));
    rig.start_all().await;
    rig
}

/// An answer of the API.
#[derive(Debug)]
struct Answer {
    status: u16,
    headers: reqwest::header::HeaderMap,
    body: Value,
}

impl Answer {
    fn error(&self) -> &str {
        assert!(!self.body["error"]["message"].as_str().unwrap().is_empty());
        self.body["error"]["code"].as_str().unwrap()
    }

    fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{self:?}");
        self.body
    }
}

/// Asks with the headers given and no others.
async fn ask(daemon: &Daemon, method: &str, path: &str, headers: &[(&str, &str)], body: Option<Vec<u8>>) -> Answer {
    let client = actiond::http::client().unwrap();
    let mut request = client.request(method.parse().unwrap(), format!("http://{}{path}", daemon.admin));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    if let Some(body) = body {
        request = request.body(body);
    }
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await.unwrap();
    let body =
        serde_json::from_str(&text).unwrap_or_else(|_| panic!("{method} {path} answers no JSON: {status} {text}"));
    Answer { status, headers, body }
}

fn bearer() -> (&'static str, &'static str) {
    ("authorization", "Bearer case-token-case-token")
}

async fn get(rig: &Rig, path: &str) -> Answer {
    ask(rig.worker.as_ref().unwrap(), "GET", path, &[bearer()], None).await
}

async fn post(rig: &Rig, path: &str, body: Value) -> Answer {
    let headers = [bearer(), ("content-type", "application/json")];
    ask(rig.worker.as_ref().unwrap(), "POST", path, &headers, Some(body.to_string().into_bytes())).await
}

/// Repeats a listing of calls until it has so many; the list.
async fn calls(rig: &Rig, query: &str, count: usize) -> Vec<Value> {
    let wait = async {
        loop {
            let body = get(rig, &format!("/api/calls?{query}")).await.ok();
            let calls = body["calls"].as_array().unwrap();
            if calls.len() == count {
                return calls.clone();
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    match tokio::time::timeout(PATIENCE, wait).await {
        Ok(calls) => calls,
        Err(_) => panic!("{query}: not {count} calls\n{}", rig.logs()),
    }
}

fn id(call: &Value) -> &str {
    call["id"].as_str().unwrap()
}

#[tokio::test]
async fn calls_are_listed_page_by_page_and_filtered() {
    let rig = start(Setup::new(Pair::EmbeddedSqlite).http("a", OBJECT).http("b", OBJECT)).await;
    let mut sessions = Vec::new();
    for script in ["call a", "call b", "call a & call a", "call a"] {
        let session = rig.session(script).await;
        rig.settled(&session).await;
        sessions.push(session);
    }
    let all = calls(&rig, "state=settled", 5).await;
    let mut paged = Vec::new();
    let mut next = String::new();
    loop {
        let page = get(&rig, &format!("/api/calls?limit=2{next}")).await.ok();
        let found = page["calls"].as_array().unwrap().clone();
        assert!(found.len() <= 2);
        paged.extend(found);
        match page["next"].as_str() {
            Some(cursor) => next = format!("&cursor={cursor}"),
            None => break,
        }
    }
    assert_eq!(paged, all);
    assert_eq!(all[0]["session"], *sessions[3], "newest first");

    assert_eq!(calls(&rig, "function=b", 1).await[0]["session"], *sessions[1]);
    calls(&rig, &format!("session={}", sessions[2]), 2).await;
    calls(&rig, "platform=openai&function=a&newer_than=1h", 4).await;
    for nothing in ["older_than=1h", "platform=elsewhere", "state=refused", "function=A", "call=none"] {
        calls(&rig, nothing, 0).await;
    }
    let name = all[1]["call"].as_str().unwrap();
    assert_eq!(calls(&rig, &format!("call={name}"), 1).await[0], all[1]);
    assert_eq!(calls(&rig, &format!("after={name}"), 3).await[..], all[2..]);

    let one = get(&rig, &format!("/api/calls/{}", id(&all[0]))).await.ok();
    assert_eq!((&one["call"], &one["possible"]), (&all[0], &json!([])));
    let events: Vec<_> = one["history"].as_array().unwrap().iter().map(|entry| entry["event"].clone()).collect();
    assert_eq!(events, ["claimed", "completed", "settled"]);
    assert!(one["result"].as_str().unwrap().contains("\"output\":\"ok\""), "{one}");
}

#[tokio::test]
async fn what_is_redacted_is_shown_nowhere() {
    let keys = "parameters: { type: object }\nredact: [\"$.card.number\", \"$.pin\"]";
    let mut rig = start(Setup::new(Pair::EmbeddedSqlite).http("a", keys)).await;
    let output = r#"{"card":{"number":"4111","name":"N"},"pin":7}"#;
    rig.handler.reply("a", [Reply::new(200, output), Reply::new(200, "pin 4111")]);
    let session = rig.play("call a").await;
    assert!(session.answer().unwrap().contains("4111"), "the agent gets all of it");
    rig.play("call a").await;
    for (call, shown) in calls(&rig, "state=settled", 2).await.iter().zip([false, true]) {
        let one = get(&rig, &format!("/api/calls/{}", id(call))).await.ok();
        let result = one["result"].as_str().unwrap();
        assert!(!result.contains("4111") && result.contains("[redacted]"), "{result}");
        assert_eq!(result.contains(r#"\"name\":\"N\""#), shown, "{result}");
        let body = actiond(&rig, &format!("calls show {} --body", call["call"].as_str().unwrap())).await;
        assert!(body.status == 0 && !body.out.contains("4111"), "{}", body.out);
    }

    rig.replace("name: a\n", "name: b\n");
    rig.worker.take().unwrap().kill().await;
    rig.start_all().await;
    for call in calls(&rig, "state=settled", 2).await {
        let one = get(&rig, &format!("/api/calls/{}", id(&call))).await.ok();
        assert_eq!(one["result"], "[redacted]", "nobody knows what may be shown of a function that is gone");
    }
}

async fn a_refused_result_is_resubmitted_and_a_held_call_resolved_over_http(pair: Pair) {
    let keys = "if_interrupted: hold\nparameters: { type: object }";
    let setup = Setup::new(pair).http("a", OBJECT).http("b", keys).extra("worker: { lease: 2s }");
    let mut rig = start(setup).await;
    let (session, name) = refused(&rig).await;
    let call = calls(&rig, &format!("call={name}"), 1).await.remove(0);
    let path = format!("/api/calls/{}", id(&call));
    assert_eq!(get(&rig, &path).await.ok()["possible"], json!(["retry", "resubmit", "resolve", "cancel"]));
    let done = post(&rig, &format!("{path}/resubmit"), json!({ "new_key": true })).await.ok();
    assert_eq!(done, json!({ "call": name, "outcome": "resubmitted" }));
    let answered = rig.settled(&session).await;
    assert_eq!(answered.answer(), Some("a: ok"));
    let posted = answered.calls(None).next().unwrap().result.as_ref().unwrap().idempotency_key.clone().unwrap();
    assert!(posted.ends_with("-1"), "the next key: {posted}");
    calls(&rig, "state=settled", 1).await;
    for act in ["retry", "resubmit", "cancel"] {
        let answer = post(&rig, &format!("{path}/{act}"), json!({})).await;
        assert_eq!((answer.status, answer.error()), (409, "conflict"), "{act}");
    }

    rig.handler.hold();
    let session = rig.session("call b").await;
    rig.handler.arrived("b", 1).await;
    rig.worker.take().unwrap().kill().await;
    rig.start_all().await;
    let held = calls(&rig, "state=interrupted", 1).await.remove(0);
    let path = format!("/api/calls/{}/resolve", id(&held));
    for body in [json!({}), json!({ "output": "a", "error": "b" }), json!({ "output": 1 }), json!({ "output": [{}] })] {
        assert_eq!(post(&rig, &path, body).await.error(), "invalid");
    }
    post(&rig, &path, json!({ "output": "refunded" })).await.ok();
    assert_eq!(rig.settled(&session).await.answer(), Some("b: refunded"));
    assert_eq!(rig.handler.requests("b").len(), 1, "the handler is not started twice");
    rig.handler.release();
}

fn without_ages(table: &str) -> String {
    let is_age = |word: &str| word.strip_suffix('s').is_some_and(|digits| digits.parse::<u32>().is_ok());
    table.split_whitespace().map(|word| if is_age(word) { "AGE" } else { word }).collect::<Vec<_>>().join(" ")
}

async fn commands_do_over_http_what_they_do_in_the_store(pair: Pair) {
    let rig = start(Setup::new(pair).http("a", OBJECT)).await;
    let server = format!("--server http://{} --token {TOKEN}", rig.worker.as_ref().unwrap().admin);
    let (session, name) = refused(&rig).await;
    for words in
        ["calls list --json", "calls list", &format!("calls show {name} --body --json"), &format!("calls show {name}")]
    {
        let (here, there) = (actiond(&rig, words).await, actiond(&rig, &format!("{words} {server}")).await);
        assert!(here.status == 0 && there.status == 0, "{}{}", here.err, there.err);
        // Between the two commands a second may have passed.
        assert_eq!(without_ages(&here.out), without_ages(&there.out), "{words}");
    }
    let words = "calls export --since 1h --with-results --with-history";
    let (here, there) = (actiond(&rig, words).await.lines(), actiond(&rig, &format!("{words} {server}")).await.lines());
    assert_eq!((&here, here[0]["history"].is_array()), (&there, true));
    let stranger = actiond(&rig, &format!("calls list --server http://{}", rig.worker.as_ref().unwrap().admin)).await;
    assert!(stranger.status == 1 && stranger.err.contains("admin.token"), "{}", stranger.err);
    let absent = actiond(&rig, &format!("calls show none {server}")).await;
    assert!(absent.status == 1 && absent.err.contains("there is no call none"), "{}", absent.err);
    let nowhere = actiond(&rig, "calls list --server http://127.0.0.1:1").await;
    assert!(nowhere.status == 1 && nowhere.err.contains("cannot ask http://127.0.0.1:1"), "{}", nowhere.err);
    assert_eq!(actiond(&rig, "calls list --server 127.0.0.1:1").await.status, 2);

    let retried = actiond(&rig, &format!("calls retry {name} --json {server}")).await.lines().remove(0);
    assert_eq!(retried, json!({ "call": name, "outcome": "retrying" }));
    assert_eq!(rig.settled(&session).await.answer(), Some("a: ok"));
    let again = actiond_with(&rig, &format!("calls resolve {name} {server} --error"), &["no"]).await;
    assert!(again.status == 1 && again.err.contains(&format!("{name} ")), "{}", again.err);

    let queue = beside(&rig).await;
    for session in ["sess_1", "sess_2", "sess_3"] {
        queue.publish(&action("elsewhere", session)).await.unwrap();
    }
    queue.close().await;
    let dead = listed(&rig, &format!("dead list --json {server}"), 3).await;
    let shown = actiond(&rig, &format!("dead show {} --body {server}", dead[0]["id"].as_str().unwrap())).await;
    assert!(shown.status == 0 && shown.out.contains("accepted_at"), "{}{}", shown.out, shown.err);
    let page = get(&rig, "/api/dead?limit=2&platform=elsewhere").await.ok();
    let rest = get(&rig, &format!("/api/dead?cursor={}", page["next"].as_str().unwrap())).await.ok();
    assert_eq!((page["messages"].as_array().unwrap().len(), rest["messages"].as_array().unwrap().len()), (2, 1));
    let dry = post(&rig, "/api/dead/redrive", json!({ "all": true, "dry_run": true, "max": 2 })).await.ok();
    assert_eq!((&dry["done"], &dry["full"]), (&json!(2), &json!(true)));
    assert_eq!(dry["messages"][0]["outcome"], "would be redriven");
    let redriven = actiond(&rig, &format!("dead redrive --max 1 --all --rate 50/s {server}")).await;
    assert!(redriven.status == 0 && redriven.err.contains("1 redriven"), "{}{}", redriven.out, redriven.err);
    let before: Vec<_> = dead.iter().map(|dead| dead["id"].clone()).collect();
    let wait = async {
        loop {
            let now = actiond(&rig, &format!("dead list --json {server}")).await.lines();
            if now.len() == 3 && now.iter().any(|dead| !before.contains(&dead["id"])) {
                return now;
            }
        }
    };
    let now = tokio::time::timeout(PATIENCE, wait).await.unwrap();
    assert!(now.iter().any(|dead| dead["redriven"] == 1), "{now:?}");
    let none = post(&rig, "/api/dead/purge", json!({ "ids": ["none"] })).await.ok();
    assert_eq!((&none["done"], &none["missing"]), (&json!(0), &json!(["none"])));
    assert_eq!(actiond(&rig, &format!("dead purge --all --yes {server}")).await.status, 0);
    listed(&rig, &format!("dead list --json {server}"), 0).await;
}

async fn a_cancelled_call_is_answered_and_its_handler_stopped(pair: Pair) {
    let rig = start(Setup::new(pair).http("a", OBJECT).extra("worker: { lease: 1s }")).await;
    rig.handler.hold();
    let session = rig.session("call a").await;
    rig.handler.arrived("a", 1).await;
    let call = calls(&rig, "state=claimed", 1).await.remove(0);
    post(&rig, &format!("/api/calls/{}/cancel", id(&call)), json!({ "reason": "the order is closed" })).await.ok();
    let answer = rig.settled(&session).await;
    let told = answer.answer().unwrap();
    assert!(told.contains("cancelled by its operators") && told.contains("the order is closed"), "{told}");
    let cancelled = calls(&rig, "state=settled", 1).await.remove(0);
    assert_eq!((&cancelled["detail"], &cancelled["success"]), (&json!("cancelled by an operator"), &json!(false)));
    let history = get(&rig, &format!("/api/calls/{}", id(&cancelled))).await.ok()["history"].clone();
    let by_hand = history.as_array().unwrap().iter().find(|entry| entry["event"] == "resolve").unwrap().clone();
    assert_eq!((&by_hand["by"], &by_hand["detail"]), (&json!("api"), &json!("cancelled by an operator")));
    let daemon = rig.worker.as_ref().unwrap();
    daemon.metric("actiond_calls_in_flight", "", "0").await;
    assert_eq!(rig.handler.requests("a").len(), 1);
    rig.handler.release();
}

async fn a_paused_function_is_not_started_until_it_is_resumed(pair: Pair) {
    let rig = start(Setup::new(pair).http("a", OBJECT).http("b", OBJECT)).await;
    let daemon = rig.worker.as_ref().unwrap();
    let second = match pair {
        Pair::RabbitPostgres => Some(rig.daemon("worker").await),
        _ => None,
    };
    let paused = post(&rig, "/api/functions/a/pause", json!({})).await.ok();
    assert_eq!(paused, json!({ "function": "a", "paused": true, "changed": true }));
    assert_eq!(post(&rig, "/api/functions/a/pause", json!({})).await.ok()["changed"], false);
    assert_eq!(post(&rig, "/api/functions/none/pause", json!({})).await.status, 404);
    for daemon in [daemon].into_iter().chain(&second) {
        daemon.metric("actiond_function_paused", "function=\"a\"", "1").await;
        daemon.ready().await;
        assert!(daemon.admin("/health/ready").await.1.contains("\"paused\":[\"a\"]"));
    }
    let session = rig.session("call a & call b").await;
    rig.handler.arrived("b", 1).await;
    let waits = calls(&rig, "state=retrying&function=a", 1).await.remove(0);
    assert_eq!(waits["attempt"], 0);
    assert!(rig.handler.requests("a").is_empty());
    let functions = get(&rig, "/api/functions").await.ok();
    let of =
        |name: &str| functions["functions"].as_array().unwrap().iter().find(|f| f["name"] == name).unwrap().clone();
    assert_eq!((&of("a")["paused"], &of("b")["paused"]), (&json!(true), &json!(false)));
    assert!(of("a")["paused_since"].is_string() && of("a")["calls"]["retrying"] == 1, "{functions}");
    assert_eq!(get(&rig, "/api/stats").await.ok()["now"]["paused"], json!(["a"]));
    let due = get(&rig, "/api/sessions/due").await.ok();
    assert_eq!(due["sessions"][0]["session"], *session, "{due}");

    post(&rig, "/api/functions/a/resume", json!({})).await.ok();
    let answer = rig.settled(&session).await;
    assert!(answer.answer().unwrap().contains("a: ok"));
    daemon.metric("actiond_function_paused", "function=\"a\"", "0").await;
    assert_eq!(rig.handler.requests("a").len(), 1);
}

async fn a_call_that_waits_is_approved_or_denied_over_http(pair: Pair) {
    let keys = "parameters: { type: object }\napproval: { required: true }\nredact: [\"$.card\"]";
    let rig = start(Setup::new(pair).http("a", keys)).await;
    let waiting = async |rig: &Rig| {
        let wait = async {
            loop {
                let waits = get(rig, "/api/approvals").await.ok()["approvals"].clone();
                if let Some(approval) = waits.as_array().unwrap().first() {
                    return approval.clone();
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(PATIENCE, wait).await.unwrap()
    };
    let first = rig.session(r#"call a {"card":"4111","n":1}"#).await;
    let asked = waiting(&rig).await;
    assert_eq!((&asked["session"], &asked["state"]), (&json!(first), &json!("pending")));
    assert_eq!(asked["arguments"], r#"{"card":"[redacted]","n":1}"#);
    let path = format!("/api/approvals/{}", id(&asked));
    let other = json!({ "asked_at": "2020-01-01T00:00:00Z" });
    assert_eq!(post(&rig, &format!("{path}/approve"), other).await.error(), "conflict", "another question was seen");
    let body = json!({ "by": "alice", "reason": "fine", "asked_at": asked["asked_at"] });
    let approved = post(&rig, &format!("{path}/approve"), body).await.ok();
    assert_eq!((&approved["state"], &approved["decided_by"]), (&json!("approved"), &json!("alice")));
    rig.settled(&first).await;
    assert!(String::from_utf8_lossy(&rig.handler.requests("a")[0].body).contains("4111"));
    let again = post(&rig, &format!("{path}/deny"), json!({})).await;
    assert_eq!((again.status, again.error()), (409, "conflict"));
    assert!(again.body["error"]["message"].as_str().unwrap().contains("was approved by alice"));

    let second = rig.session("call a {}").await;
    let asked = waiting(&rig).await;
    post(&rig, &format!("/api/approvals/{}/deny", id(&asked)), json!({ "reason": "too much" })).await.ok();
    assert!(rig.settled(&second).await.answer().unwrap().contains("too much"));
    assert_eq!(rig.handler.requests("a").len(), 1);
    let all = get(&rig, "/api/approvals?all=true").await.ok()["approvals"].clone();
    let states: Vec<_> = all.as_array().unwrap().iter().map(|approval| approval["state"].clone()).collect();
    assert_eq!(states, ["denied", "approved"]);
    assert_eq!((&all[0]["decided_by"], &all[0]["arguments"]), (&json!("api"), &Value::Null));
}

#[tokio::test]
async fn a_pause_outlives_the_process() {
    let mut rig = start(Setup::new(Pair::EmbeddedSqlite).http("a", OBJECT)).await;
    post(&rig, "/api/functions/a/pause", json!({})).await.ok();
    rig.worker.take().unwrap().kill().await;
    let session = rig.session("call a").await;
    rig.start_all().await;
    calls(&rig, "state=retrying", 1).await;
    assert!(rig.handler.requests("a").is_empty());
    post(&rig, "/api/functions/a/resume", json!({})).await.ok();
    rig.settled(&session).await;
}

#[tokio::test]
async fn platforms_and_figures_are_told() {
    let rig = start(Setup::new(Pair::EmbeddedSqlite).http("a", "limits: { concurrency: 3, rate: 50/s }")).await;
    let of = async |rig: &Rig| get(rig, "/api/platforms").await.ok()["platforms"][0].clone();
    rig.play("call a").await;
    let platform = of(&rig).await;
    assert_eq!((platform["name"].as_str(), platform["health"].as_str()), (Some("openai"), Some("ok")));
    let wait = async {
        loop {
            let stats = get(&rig, "/api/stats").await.ok();
            let last = stats["points"].as_array().unwrap().last().unwrap().clone();
            if stats["now"]["calls"]["settled"] == 1 && last["queue_depth"].is_u64() {
                return (stats, last);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let (stats, _) = tokio::time::timeout(PATIENCE, wait).await.unwrap();
    let points = stats["points"].as_array().unwrap();
    let sum = |field: &str| points.iter().map(|point| point[field].as_u64().unwrap()).sum::<u64>();
    assert_eq!((sum("succeeded"), sum("failed"), sum("webhooks")), (1, 0, 1));
    assert!(points.iter().any(|point| point["handler_p95"].is_number() && point["result_p50"].is_number()));
    assert_eq!(
        (&stats["now"]["ready"], &stats["now"]["role"], &stats["now"]["dead"]),
        (&json!(true), &json!("all"), &json!(0))
    );
    let function = get(&rig, "/api/functions").await.ok()["functions"][0].clone();
    assert_eq!(
        (&function["concurrency"], &function["rate"], &function["running"]),
        (&json!(3), &json!("50/s"), &json!(0))
    );

    rig.faults(|f| f.retrieve_500 = actiond::sandbox::Rule::ALWAYS);
    rig.session("call a").await;
    let failing = async {
        while of(&rig).await["health"] != "failing" {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, failing).await.unwrap();
    assert!(of(&rig).await["last_failure_at"].is_string());
}
