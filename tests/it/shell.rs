//! What a person at a terminal gets: completions, manual pages, colours and progress, and none of it in a pipe.

use std::process::Stdio;

use tokio::{io::AsyncWriteExt as _, process::Command};

use crate::{
    operator::actiond,
    rig::{Pair, Rig, Setup},
    services::{self, tempdir::Folder},
};

async fn embedded() -> Rig {
    Setup::new(Pair::EmbeddedSqlite).http("a", "parameters: { type: object }").prepare().await
}

/// On a terminal of its own; what it shows.
async fn on_a_terminal(rig: &Rig, words: &str) -> String {
    let output = Command::new(services::variable("ACTIOND_TEST_PYTHON"))
        .args(["-c", "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)", env!("CARGO_BIN_EXE_actiond")])
        .args(words.split(' '))
        .args(["--config", &rig.config_file()])
        .env("TERM", "xterm")
        .env_remove("NO_COLOR")
        .stdin(Stdio::null())
        .output()
        .await
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn colours_and_progress_are_for_terminals() {
    let rig = embedded().await;
    let checked = on_a_terminal(&rig, "check --online").await;
    assert!(checked.contains("\u{1b}[32mok"), "{checked}");
    let migrated = on_a_terminal(&rig, "migrate").await;
    assert!(migrated.contains("\r\u{1b}[Kbringing the schema up to date"), "{migrated}");
    let piped = actiond(&rig, "migrate").await;
    assert_eq!((piped.err.as_str(), piped.out.as_str()), ("", "the store's schema is up to date\n"));
}

#[tokio::test]
async fn completions_are_scripts_that_their_shell_takes() {
    let program = env!("CARGO_BIN_EXE_actiond");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = Command::new(program).args(["completions", shell]).output().await.unwrap();
        let script = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && script.contains("subscription") && script.contains("pool"), "{shell}");
        if shell == "bash" {
            let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
            bash.stdin.take().unwrap().write_all(script.as_bytes()).await.unwrap();
            assert!(bash.wait().await.unwrap().success());
        }
    }
    let unknown = Command::new(program).args(["completions", "tcsh"]).output().await.unwrap();
    assert_eq!(unknown.status.code(), Some(2));
}

#[tokio::test]
async fn every_command_has_a_manual_page() {
    let folder = Folder::new();
    let program = env!("CARGO_BIN_EXE_actiond");
    let run = async |words: &[&str]| Command::new(program).arg("man").args(words).output().await.unwrap();
    let main = String::from_utf8(run(&[]).await.stdout).unwrap();
    assert!(main.contains(".TH actiond 1") && main.contains("actiond\\-serve(1)"), "{main}");
    let listing = String::from_utf8(run(&["calls", "list"]).await.stdout).unwrap();
    assert!(listing.contains("actiond\\-calls\\-list") && listing.contains("\\-\\-older\\-than"), "{listing}");
    let unknown = run(&["calls", "paint"]).await;
    assert_eq!(unknown.status.code(), Some(1));
    assert!(String::from_utf8(unknown.stderr).unwrap().contains("there is no command calls paint"));

    assert!(run(&["--out", folder.path()]).await.status.success());
    for page in ["actiond", "actiond-serve", "actiond-dead-redrive", "actiond-subscription-rotate"] {
        let text = std::fs::read_to_string(format!("{}/{page}.1", folder.path())).unwrap();
        assert!(text.contains(".SH SYNOPSIS"), "{page}");
    }
}
