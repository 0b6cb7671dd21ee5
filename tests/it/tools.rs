//! `actiond tools`: what is pasted into a platform.

use std::{
    io::Write as _,
    process::{Command, Output, Stdio},
};

use serde_json::{Value, json};

use crate::services::{tempdir::Folder, variable};

const CONFIG: &str = r#"
platforms:
  - { name: openai, type: agents_api, base_url: "https://api.openai.com/v1", api_key: k, webhook: { insecure: true } }
  - { name: rebyte, type: agents_api, base_url: "https://api.rebyte.ai/v1", api_key: k, webhook: { insecure: true } }
functions:
  - name: lookup_order
    description: Look up an order and its delivery status by order ID.
    deferred: true
    parameters:
      type: object
      properties: { order_id: { type: string } }
      required: [order_id]
      additionalProperties: false
    handler: { type: echo }
  - { name: refund, description: Refund an order., deferred: true, platforms: [openai], handler: { type: echo } }
  - { name: ping, handler: { type: echo } }
"#;

fn tools(args: &[&str]) -> Output {
    let folder = Folder::new();
    let file = format!("{}/actiond.yaml", folder.path());
    std::fs::write(&file, CONFIG).unwrap();
    Command::new(env!("CARGO_BIN_EXE_actiond")).arg("tools").args(args).args(["--config", &file]).output().unwrap()
}

fn printed(args: &[&str]) -> String {
    let output = tools(args);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn refused(args: &[&str]) -> String {
    let output = tools(args);
    assert!(!output.status.success() && output.stdout.is_empty(), "{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_platform_is_given_its_own_functions() {
    let names = |platform| {
        let tools: Value = serde_json::from_str(&printed(&["--platform", platform])).unwrap();
        let name = |tool: &Value| tool.get("name").unwrap_or(&tool["type"]).clone();
        tools.as_array().unwrap().iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(names("openai"), ["tool_search", "lookup_order", "refund", "ping"]);
    assert_eq!(names("rebyte"), ["tool_search", "lookup_order", "ping"]);
    assert!(refused(&["--platform", "nobody"]).contains("there are: openai, rebyte"));
    assert!(refused(&[]).contains("--platform openai or rebyte"));
}

#[test]
fn the_official_sdk_accepts_what_is_printed() {
    let python = variable("ACTIOND_TEST_PYTHON");
    let mut checker = Command::new(&python)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sdk/tools.py"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("ACTIOND_TEST_PYTHON is no Python ({error}): run the tests with ./tests/run"));
    let declared = printed(&["--platform", "openai", "--json"]);
    assert_eq!(declared.lines().count(), 1);
    checker.stdin.take().unwrap().write_all(declared.as_bytes()).unwrap();
    let output = checker.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "tool_search lookup_order refund ping");
}

#[test]
fn a_search_is_previewed() {
    let found = printed(&["search", "order status"]);
    assert!(found.lines().next().unwrap().contains("lookup_order"), "{found}");
    assert!(!found.contains("ping"), "what is seen from the start is not searched: {found}");
    let json = printed(&["search", "--pattern", "REFUND|lookup", "--json", "--limit", "1"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["name"], json!("lookup_order"));
    assert_eq!(json.as_array().unwrap().len(), 1);
    assert!(!printed(&["search", "order", "--platform", "rebyte"]).contains("refund"));
    assert!(refused(&["search", "order", "--limit", "21"]).contains("from 1 to 20"));
    assert!(refused(&["search", &"a".repeat(501)]).contains("500"));
    refused(&["search"]);
    refused(&["search", "order", "--pattern", "x"]);
}
