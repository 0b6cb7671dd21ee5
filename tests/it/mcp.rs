//! Tools of MCP servers: of one that nobody here wrote, and of one that follows a script.

mod scripted;

use std::{process::Stdio, time::Duration};

use actiond::sandbox::Session;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    process::{Child, Command},
};

use self::scripted::Scripted;
use crate::{
    rig::{PATIENCE, Pair, Rig, Setup},
    services::{self, tempdir::Folder},
};

const OBJECT: &str = "parameters: { type: object }";

fn function(tool: &str, keys: &str) -> String {
    format!("{OBJECT}\nhandler: {{ type: mcp, server: s, tool: {tool} }}\n{keys}")
}

/// The rig with the server `s`, whose YAML keys are given.
fn setup(pair: Pair, server: &str) -> Setup {
    Setup::new(pair).extra(&format!("mcp_servers:\n  - {{ name: s, {server} }}"))
}

/// The one call of a session: whether it succeeded, and what the agent reads.
fn heard(session: &Session) -> (bool, String) {
    let result = session.calls(None).next().unwrap().result.clone().unwrap().result;
    let said = if result.success { result.output } else { result.error.map(Value::from).unwrap_or_default() };
    (result.success, said.as_str().map_or_else(|| said.to_string(), str::to_owned))
}

async fn play(rig: &Rig, script: &str) -> (bool, String) {
    heard(&rig.play(script).await)
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let wait = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    assert!(tokio::time::timeout(PATIENCE, wait).await.is_ok(), "{what}");
}

/// The real server over stdio; each start writes its process id to a line of a file.
fn stdio(folder: &Folder) -> String {
    let (program, pids) = (services::variable("ACTIOND_TEST_MCP_SERVER"), pids(folder));
    let line = format!("echo $$ >> {pids}; exec node {program} stdio");
    format!("command: [sh, -c, '{line}'], pass_env: [PATH]")
}

fn pids(folder: &Folder) -> String {
    format!("{}/pids", folder.path())
}

fn started(folder: &Folder) -> Vec<Pid> {
    let text = std::fs::read_to_string(pids(folder)).unwrap_or_default();
    text.lines().map(|line| Pid::from_raw(line.parse().unwrap()).unwrap()).collect()
}

#[tokio::test]
async fn a_real_server_over_stdio_is_called_imported_and_started_again() {
    let folder = Folder::new();
    let server = stdio(&folder) + ", import: { prefix: ev_, only: [echo, get-tiny-image, no-such-tool] }";
    let mut rig = setup(Pair::EmbeddedSqlite, &server)
        .function("sum", &function("get-sum", ""))
        .function("ev_echo", "handler: { type: echo }")
        .start()
        .await;
    assert_eq!(play(&rig, r#"call sum {"a":1,"b":2}"#).await, (true, "The sum of 1 and 2 is 3.".to_owned()));
    let (success, said) = play(&rig, r#"call sum {"a":"x","b":2}"#).await;
    assert!(!success && said.contains("expected number"), "{said}");

    let (success, image) = play(&rig, "call ev_get-tiny-image").await;
    assert!(success && image.contains("data:image/png;base64,"), "{image}");
    assert_eq!(
        play(&rig, r#"call ev_echo {"m":1}"#).await,
        (true, r#"{"m":1}"#.to_owned()),
        "the configured one stays"
    );
    let (_, metrics) = rig.worker.as_ref().unwrap().admin("/metrics").await;
    assert!(metrics.contains(r#"actiond_import_refused_total{reason="clash",server="s"}"#), "{metrics}");

    let first = started(&folder);
    assert_eq!(first.len(), 1, "all of that over one connection");
    kill_process(first[0], Signal::KILL).unwrap();
    assert_eq!(play(&rig, r#"call sum {"a":2,"b":2}"#).await, (true, "The sum of 2 and 2 is 4.".to_owned()));
    let second = started(&folder);
    assert_eq!(second.len(), 2);

    let mut worker = rig.worker.take().unwrap();
    worker.terminate();
    assert!(worker.ended().await.success());
    assert!(test_kill_process(second[1]).is_err(), "the program outlived actiond");
}

#[tokio::test]
async fn a_program_ends_with_a_killed_actiond() {
    let folder = Folder::new();
    let mut rig = setup(Pair::EmbeddedSqlite, &stdio(&folder)).function("sum", &function("get-sum", "")).start().await;
    play(&rig, r#"call sum {"a":1,"b":2}"#).await;
    rig.worker.take().unwrap().kill().await;
    let pid = started(&folder)[0];
    until("the program outlived actiond", || test_kill_process(pid).is_err()).await;
}

#[tokio::test]
async fn imported_functions_are_called_from_the_command_line() {
    let folder = Folder::new();
    let server = stdio(&folder) + ", import: { prefix: ev_ }";
    let rig = setup(Pair::EmbeddedSqlite, &server).function("say", "handler: { type: echo }").prepare().await;
    let call = async |args: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_actiond"))
            .args(["call", "--config", &rig.config_file()])
            .args(args)
            .env_remove("RUST_LOG")
            .output()
            .await
            .unwrap();
        (output.status.code(), serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default())
    };
    let (status, shown) = call(&["ev_echo", "--args", r#"{"message":"hi"}"#]).await;
    assert_eq!((status, shown), (Some(0), json!({ "success": true, "output": "Echo: hi" })));
    let (status, shown) = call(&["ev_echo", "--args", "{}"]).await;
    assert_eq!(status, Some(1), "its schema wants a message");
    assert!(shown["error"].as_str().unwrap().contains("message"), "{shown}");
    assert_eq!(call(&["ev_nothing"]).await.0, Some(1));
    assert!(started(&folder).into_iter().all(|pid| test_kill_process(pid).is_err()), "a program outlived its call");
}

/// The real server over streamable HTTP.
async fn serve(port: u16) -> Child {
    let child = Command::new("node")
        .args([&services::variable("ACTIOND_TEST_MCP_SERVER"), "streamableHttp"])
        .env("PORT", port.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let wait = async {
        while tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.expect("the server does not listen");
    child
}

#[tokio::test]
async fn a_real_server_over_http_may_come_late_and_forget_everything() {
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let server = format!("url: 'http://127.0.0.1:{port}/mcp', import: {{ prefix: ev_ }}");
    let rig = setup(Pair::EmbeddedSqlite, &server)
        .extra("worker: { unknown_functions: fail }")
        .function("sum", &function("get-sum", "retry: { max_attempts: 100, max: 200ms }"))
        .start()
        .await;
    let (early, sum) =
        (rig.session("call ev_echo {\"message\":\"hi\"}").await, rig.session("call sum {\"a\":1,\"b\":2}").await);
    let mut running = serve(port).await;
    assert_eq!(heard(&rig.settled(&sum).await), (true, "The sum of 1 and 2 is 3.".to_owned()));
    assert_eq!(heard(&rig.settled(&early).await), (true, "Echo: hi".to_owned()), "it waited for the import");

    running.kill().await.unwrap();
    let _running = serve(port).await;
    assert_eq!(play(&rig, r#"call sum {"a":2,"b":3}"#).await, (true, "The sum of 2 and 3 is 5.".to_owned()));
    let (success, said) = play(&rig, "call nobody").await;
    assert!(!success && said.contains("no function named nobody"), "{said}");
}

#[tokio::test]
async fn a_forgotten_session_costs_one_new_one_and_the_call_is_sent_again() {
    let server = Scripted::start().await;
    let rig = setup(Pair::EmbeddedSqlite, &server.url())
        .function("ok", &function("ok", "if_interrupted: fail\nretry: { max_attempts: 1 }"))
        .start()
        .await;
    assert_eq!(play(&rig, r#"call ok {"id":12345678901234567890123}"#).await, (true, "done".to_owned()));
    assert_eq!(server.calls("ok")[0]["id"].to_string(), "12345678901234567890123");
    server.forget();
    assert_eq!(play(&rig, "call ok").await, (true, "done".to_owned()));
    assert_eq!((server.initialized(), server.calls("ok").len()), (2, 2));
}

#[tokio::test]
async fn a_server_that_forgets_every_session_ends_in_an_error_result() {
    let server = Scripted::start().await;
    let rig = setup(Pair::EmbeddedSqlite, &server.url())
        .function("ok", &function("ok", "if_interrupted: fail\nretry: { max_attempts: 3 }"))
        .start()
        .await;
    server.forget_always();
    let (success, said) = play(&rig, "call ok").await;
    assert!(!success && said.contains("failed"), "{said}");
    // One to begin with, and one for each attempt.
    assert_eq!((server.initialized(), server.calls("ok").len()), (4, 0));
    assert!(rig.logs().contains("the server forgets every session"), "{}", rig.logs());
}

#[tokio::test]
async fn a_server_that_is_no_server_is_left_alone_between_attempts() {
    let server = Scripted::start().await;
    let nothing = server.url().replace("/mcp", "/nothing");
    let rig = setup(Pair::EmbeddedSqlite, &nothing)
        .function("ok", &function("ok", "if_interrupted: fail\nretry: { max_attempts: 3 }"))
        .start()
        .await;
    let (success, said) = play(&rig, "call ok & call ok & call ok").await;
    assert!(!success && said.contains("failed"), "{said}");
    assert!(server.stray() <= 8, "{} requests for nine attempts", server.stray());
}

#[tokio::test]
async fn what_a_tool_says_reaches_the_agent() {
    let server = Scripted::start().await;
    let mut setup = setup(Pair::EmbeddedSqlite, &server.url());
    for tool in ["broken", "ask", "nonsense", "structured"] {
        setup = setup.function(tool, &function(tool, ""));
    }
    let rig = setup.start().await;
    assert_eq!(play(&rig, "call broken").await, (false, "no such order".to_owned()));
    assert_eq!(play(&rig, "call structured").await, (true, r#"{"n":12345678901234567890123}"#.to_owned()));
    let (success, said) = play(&rig, "call ask").await;
    assert!(!success && said.contains("asked for input"), "{said}");
    let (success, said) = play(&rig, "call nonsense").await;
    assert!(!success && said.contains("no tool nonsense"), "{said}");
    for tool in ["broken", "ask", "nonsense"] {
        assert_eq!(server.calls(tool).len(), 1, "{tool} was tried again");
    }
    assert!(!rig.logs().contains("no such order"), "what a tool says is not logged");
}

#[tokio::test]
async fn a_call_without_an_answer_is_repeated_only_where_it_may_be() {
    let server = Scripted::start().await;
    let slow = |policy| {
        let keys = format!("if_interrupted: {policy}\nretry: {{ max_attempts: 2 }}");
        function("slow", &keys).replace("tool: slow", "tool: slow, timeout: 300ms")
    };
    let rig = setup(Pair::EmbeddedSqlite, &server.url())
        .function("once", &slow("fail"))
        .function("again", &slow("rerun"))
        .start()
        .await;
    let (success, said) = play(&rig, "call once").await;
    assert!(!success && said.contains("whether it took effect is unknown"), "{said}");
    assert_eq!(server.calls("slow").len(), 1);
    let (success, said) = play(&rig, "call again").await;
    assert!(!success && said.contains("failed"), "{said}");
    assert_eq!(server.calls("slow").len(), 3);
    assert_eq!(server.initialized(), 1, "a slow tool does not cost the others their connection");
    until("the server is told that nobody waits", || server.cancelled() == 3).await;
}

#[tokio::test]
async fn tools_that_change_are_imported_again() {
    let server = Scripted::start().await;
    let rig = setup(Pair::EmbeddedSqlite, &(server.url() + ", import: { prefix: x_ }"))
        .extra("worker: { unknown_functions: fail }")
        .function("say", "handler: { type: echo }")
        .start()
        .await;
    assert_eq!(play(&rig, "call x_ok").await, (true, "done".to_owned()));
    assert!(!play(&rig, "call x_new").await.0);
    server.change_tools(&["new"]).await;
    let (_, logs) = (until("tools/list is asked again", || server.listed() >= 2).await, rig.logs());
    until(&logs, || rig.logs().matches("imported the tools").count() == 2).await;
    assert_eq!(play(&rig, "call x_new").await, (true, "done".to_owned()));
    assert!(!play(&rig, "call x_ok").await.0, "what the server does not have any more is gone");
}

#[tokio::test]
async fn a_server_of_the_newest_revision_needs_no_session() {
    let server = Scripted::start().await;
    server.modernize();
    server.finish_tasks();
    let rig = setup(Pair::EmbeddedSqlite, &(server.url() + ", import: { prefix: x_ }"))
        .function("task", &function("task", ""))
        .start()
        .await;
    assert_eq!(play(&rig, "call x_ok").await, (true, "done".to_owned()));
    assert_eq!(play(&rig, "call task").await, (true, "task done".to_owned()));
    assert_eq!((server.initialized(), server.calls("task").len()), (0, 1));
}

/// Over both stores, as the id of the task is kept there.
async fn a_task_is_followed_over_a_restart(pair: Pair) {
    let server = Scripted::start().await;
    let mut rig = setup(pair, &server.url())
        .extra("worker: { lease: 2s }")
        .function("task", &function("task", "if_interrupted: fail"))
        .start()
        .await;
    let id = rig.session("call task").await;
    until("the task is looked at", || server.polls() >= 2).await;
    rig.worker.take().unwrap().kill().await;
    rig.start_all().await;
    let polls = server.polls();
    until("the task is looked at after the restart", || server.polls() > polls).await;
    server.finish_tasks();
    assert_eq!(heard(&rig.settled(&id).await), (true, "task done".to_owned()));
    assert_eq!(server.calls("task").len(), 1, "the tool ran once");
}

crate::over_every_pair!(a_task_is_followed_over_a_restart);
