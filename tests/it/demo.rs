//! `actiond demo`, as somebody meets the program first.

use std::{process::Stdio, time::Duration};

use tokio::{process::Command, time::timeout};

#[tokio::test]
async fn the_demo_ends_by_itself_with_status_0() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_actiond"));
    let child = command.arg("demo").stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true).spawn().unwrap();
    let output = timeout(Duration::from_secs(60), child.wait_with_output()).await.unwrap().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("the agent finished its answer"), "{said}");
}
