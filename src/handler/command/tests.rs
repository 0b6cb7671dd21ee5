use std::{path::PathBuf, sync::Arc, time::Instant};

use rustix::process::Pid;
use serde_json::json;

use super::*;
use crate::{
    handler::tests::call,
    process::{PATH, TERM_GRACE},
};

fn config(command: &[&str]) -> CommandConfig {
    CommandConfig {
        command: command.iter().map(|&word| word.to_owned()).collect(),
        env: Vec::new(),
        pass_env: Vec::new(),
        cwd: None,
        timeout: Duration::from_secs(10),
        max_output: 1024 * 1024,
        response: Response::Text,
    }
}

fn sh(script: &str) -> CommandConfig {
    config(&["sh", "-c", script])
}

async fn run(config: &CommandConfig) -> Result<Output, Error> {
    Command::new(config).unwrap().call(&call("{}")).await
}

#[tokio::test]
async fn a_program_may_answer_content_or_an_image() {
    use crate::session::Part;

    let run = async |response, script| run(&CommandConfig { response, ..sh(script) }).await;
    let content = run(Response::Content, r#"echo '[{"type":"input_text","text":"x"}]'"#).await.unwrap();
    assert_eq!(content, Output::Content(vec![Part::Text { text: "x".into() }]));
    assert!(matches!(run(Response::Content, "echo x").await, Err(Error::Final { .. })));
    assert_eq!(run(Response::Content, "true").await.unwrap(), Output::Text(String::new()));
    let image = run(Response::Image, r"printf 'GIF89a\n'").await.unwrap();
    assert_eq!(image, Output::Content(vec![Part::Image { image_url: "data:image/gif;base64,R0lGODlhCg==".into() }]));
    assert!(matches!(run(Response::Image, "echo x").await, Err(Error::Final { .. })));
}

async fn output(script: &str) -> String {
    match run(&sh(script)).await {
        Ok(Output::Text(text)) => text,
        other => panic!("{other:?}"),
    }
}

/// A file for one test; gone at its end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        Self(std::env::temp_dir().join(format!("actiond-{}", uuid::Uuid::now_v7())))
    }

    /// Waits until a program has written its number there: the whole line.
    async fn group(&self) -> Pid {
        loop {
            let text = std::fs::read_to_string(&self.0).unwrap_or_default();
            if let Some(number) = text.strip_suffix('\n') {
                return Pid::from_raw(number.parse().unwrap()).unwrap();
            }
            tokio::task::yield_now().await;
        }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

async fn until_gone(group: Pid) {
    let gone = async {
        while has_members(group) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(Duration::from_secs(10), gone).await.unwrap();
}

/// Whether a process of the group runs. An orphan that has ended counts as a member until init takes note, which may be
/// late: asking the kernel by signal 0 would wait for that.
fn has_members(group: Pid) -> bool {
    let stats = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let stat = std::fs::read_to_string(entry.ok()?.path().join("stat")).ok()?;
        Some(stat.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    });
    let number = group.as_raw_nonzero().to_string();
    stats.into_iter().any(|stat| stat.get(2) == Some(&number) && stat[0] != "Z")
}

#[tokio::test]
async fn arguments_go_in_and_output_comes_out() {
    let call = call(r#"{"id": 2512292042121000001, "q": "a\u0000b"}"#);
    let Ok(Output::Text(text)) = Command::new(&config(&["cat"])).unwrap().call(&call).await else { panic!() };
    assert_eq!(text, call.arguments.text());
}

#[tokio::test]
async fn one_line_end_is_dropped_and_silence_is_an_empty_output() {
    assert_eq!(output("echo done").await, "done");
    assert_eq!(output("printf 'a\\n\\n'").await, "a\n");
    assert_eq!(output("printf 'a\\r\\n'").await, "a");
    assert_eq!(output("printf 'a\\000b'").await, "a\0b");
    assert_eq!(output("true").await, "");
}

#[tokio::test]
async fn large_input_and_output_do_not_block_each_other() {
    let arguments = format!(r#"{{"q":"{}"}}"#, "x".repeat(500_000));
    let Ok(Output::Text(text)) = Command::new(&config(&["cat"])).unwrap().call(&call(&arguments)).await else {
        panic!()
    };
    assert_eq!(text, arguments);
    let unread = Command::new(&sh("echo done")).unwrap().call(&call(&arguments)).await.unwrap();
    assert_eq!(unread, Output::Text("done".into()));
    assert_eq!(output("head -c 500000 /dev/zero >&2; echo done").await, "done");
}

#[tokio::test]
async fn the_environment_is_ours_and_what_the_config_lists() {
    let mut config = config(&["env"]);
    config.env = vec![
        ("TOKEN".into(), "t$HOME".into()),
        ("BAD".into(), "a\0b".into()),
        ("A=B".into(), "x".into()),
        ("ACTIOND_CALL_ID".into(), "forged".into()),
    ];
    config.pass_env = vec!["CARGO_PKG_NAME".into(), "ACTIOND_SURELY_NOT_SET".into()];
    let mut call = call("{}");
    call.deadline = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000));
    call.traceparent = Some("00-1-2-01".into());
    call.metadata = Arc::new(json!({"k": "a\u{0}b"}).as_object().unwrap().clone());
    call.key.turn = "turn\0".into();
    let Ok(Output::Text(text)) = Command::new(&config).unwrap().call(&call).await else { panic!() };
    let mut lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("ACTIOND_DEADLINE=20")).collect();
    lines.sort_unstable();
    let key = format!("ACTIOND_IDEMPOTENCY_KEY={}", call.key.handler_idempotency_key());
    assert_eq!(
        lines,
        [
            "ACTIOND_ATTEMPT=1",
            "ACTIOND_CALL_ID=call_0",
            "ACTIOND_FUNCTION=lookup_order",
            &key,
            r#"ACTIOND_METADATA={"k":"a\u0000b"}"#,
            "ACTIOND_PLATFORM=openai",
            "ACTIOND_SESSION_ID=sess_1",
            "CARGO_PKG_NAME=actiond",
            &format!("PATH={PATH}"),
            "TOKEN=t$HOME",
            "TRACEPARENT=00-1-2-01",
        ]
    );
}

#[tokio::test]
async fn metadata_that_no_environment_holds_is_left_out() {
    let mut call = call("{}");
    call.metadata = Arc::new(json!({"k": "x".repeat(200_000)}).as_object().unwrap().clone());
    let output = Command::new(&sh("echo \"${ACTIOND_METADATA-none}\"")).unwrap().call(&call).await.unwrap();
    assert_eq!(output, Output::Text("none".into()));
}

#[tokio::test]
async fn the_exit_status_says_what_to_do_next() {
    let error = run(&sh("echo secret >&2; exit 75")).await.unwrap_err();
    assert!(matches!(&error, Error::Retryable { after: None, .. }));
    assert_eq!(error.to_string(), "exit status 75 (try again), 7 bytes on standard error");
    let error = run(&sh("echo out; exit 3")).await.unwrap_err();
    assert!(matches!(&error, Error::Final { message: None, .. }));
    assert_eq!(error.to_string(), "exit status 3, 0 bytes on standard error");
    let error = run(&sh("kill -9 $$")).await.unwrap_err();
    assert!(matches!(&error, Error::Unknown { .. }) && error.to_string().starts_with("killed by signal 9"));
}

#[tokio::test]
async fn a_program_that_cannot_start_is_final() {
    for command in [&["/no/such/program"][..], &["/etc"], &["sh\0"], &["no-such-program-anywhere"]] {
        let error = run(&config(command)).await.unwrap_err();
        assert!(matches!(&error, Error::Final { .. }), "{error:?}");
    }
    let cwd = CommandConfig { cwd: Some("/no/such/folder".into()), ..sh("true") };
    assert!(matches!(run(&cwd).await, Err(Error::Final { .. })));
    for again in [11, 12, 23, 24, 26] {
        assert!(matches!(not_started(&io::Error::from_raw_os_error(again)), Error::Retryable { .. }), "{again}");
    }
    assert_eq!(Command::new(&config(&[])).err().unwrap().0, "command");
}

#[tokio::test]
async fn too_much_output_is_final_and_ends_the_program() {
    let scratch = Scratch::new();
    let script = format!("echo $$ > {}; exec cat /dev/zero", scratch.0.display());
    let error = run(&CommandConfig { max_output: 100_000, ..sh(&script) }).await.unwrap_err();
    let Error::Final { message: Some(message), .. } = error else { panic!("{error:?}") };
    assert!(message.contains("too large"));
    until_gone(scratch.group().await).await;
    assert_eq!(run(&CommandConfig { max_output: 4, ..sh("printf abcd") }).await.unwrap(), Output::Text("abcd".into()));
}

#[tokio::test]
async fn a_timeout_ends_the_whole_group() {
    let scratch = Scratch::new();
    let script = format!("echo $$ > {}; sleep 300 & sleep 300", scratch.0.display());
    let error = run(&CommandConfig { timeout: Duration::from_millis(300), ..sh(&script) }).await.unwrap_err();
    assert!(matches!(&error, Error::Unknown { .. }) && error.to_string().contains("did not end within"), "{error}");
    until_gone(scratch.group().await).await;
}

#[tokio::test]
async fn a_program_that_ignores_term_is_killed() {
    let scratch = Scratch::new();
    let script = format!("trap '' TERM; echo $$ > {}; while :; do sleep 1; done", scratch.0.display());
    let started = Instant::now();
    run(&CommandConfig { timeout: Duration::from_millis(300), ..sh(&script) }).await.unwrap_err();
    assert!(started.elapsed() >= TERM_GRACE);
    until_gone(scratch.group().await).await;
}

#[tokio::test]
async fn a_dropped_call_ends_the_whole_group() {
    let scratch = Scratch::new();
    let script = format!("echo $$ > {}; sleep 300 & sleep 300", scratch.0.display());
    let handler = Command::new(&CommandConfig { timeout: Duration::from_secs(300), ..sh(&script) }).unwrap();
    let running = tokio::spawn(async move { handler.call(&call("{}")).await });
    let group = scratch.group().await;
    running.abort();
    until_gone(group).await;
}

#[tokio::test]
async fn a_call_ends_with_its_program_not_with_what_that_left_behind() {
    let started = Instant::now();
    let scratch = Scratch::new();
    let script = format!("echo $$ > {}; sleep 60 & echo done", scratch.0.display());
    assert_eq!(output(&script).await, "done");
    until_gone(scratch.group().await).await;
    // One that keeps no pipe is killed as well.
    let scratch = Scratch::new();
    let script = format!("echo $$ > {}; sleep 60 >/dev/null 2>&1 & echo done", scratch.0.display());
    assert_eq!(output(&script).await, "done");
    until_gone(scratch.group().await).await;
    assert!(started.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn a_process_that_left_the_group_does_not_hold_up_the_call() {
    let started = Instant::now();
    for _ in 0..4 {
        assert_eq!(output("setsid sleep 5 & echo done").await, "done");
    }
    assert!(started.elapsed() < Duration::from_secs(10));
}
