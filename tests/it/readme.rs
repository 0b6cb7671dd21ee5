//! What the README shows works as it stands there, but for the addresses.

use std::process::Output;

use tokio::process::Command;

use crate::{
    rig::{Pair, Reply, Setup},
    services::{tempdir::Folder, variable},
};

/// The YAML blocks of the README that are whole configs.
fn configs() -> Vec<String> {
    let readme = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    let blocks = readme.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap().to_owned());
    blocks.filter(|block| block.contains("platforms:")).collect()
}

async fn actiond(folder: &Folder, config: &str, words: &[&str]) -> Output {
    std::fs::write(format!("{}/actiond.yaml", folder.path()), config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_actiond"));
    command.current_dir(folder.path()).args(words).env("OPENAI_WEBHOOK_SECRET", format!("whsec_{}", "A".repeat(32)));
    for name in ["OPENAI_API_KEY", "REBYTE_API_KEY", "AIVAX_HOOK_KEY", "AIVAX_API_KEY", "ORDERS_TOKEN"] {
        command.env(name, "a-secret-for-the-test");
    }
    command.output().await.unwrap()
}

fn shown(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[tokio::test]
async fn every_config_of_the_readme_is_accepted() {
    let folder = Folder::new();
    let configs = configs();
    assert!(configs.len() >= 2);
    for config in configs {
        let checked = actiond(&folder, &config, &["check"]).await;
        assert!(checked.status.success(), "{config}\n{}", shown(&checked));
    }
}

#[tokio::test]
async fn one_handler_of_each_kind_answers() {
    let rig = Setup::new(Pair::EmbeddedSqlite).http("agent", "").prepare().await;
    let folder = Folder::new();
    let config = configs().into_iter().find(|config| config.contains("lookup_order")).unwrap();
    let server = variable("ACTIOND_TEST_MCP_SERVER");
    let config = config
        .replace("https://orders.internal", &format!("http://{}", rig.handler_at))
        .replace("https://inference.aivax.net/api/v1", &format!("http://{}", rig.handler_at))
        .replace("node_modules/@modelcontextprotocol/server-everything/dist/index.js", &server);
    rig.handler.reply("agent", [Reply::new(200, "shipped")]);
    let found = r#"{"data":[{"documentName":"Manual","documentContent":"Press the button.","score":0.9}]}"#;
    rig.handler.reply("query", [Reply::new(200, found)]);
    for (name, arguments, expected) in [
        ("lookup_order", r#"{"order_id":"42"}"#, "shipped"),
        ("shout", r#"{"text":"hello"}"#, "HELLO"),
        ("repeat", r#"{"message":"again"}"#, "again"),
        ("search_manual", r#"{"query":"button"}"#, "Press the button."),
        ("ping", r#"{"n":1}"#, "n"),
    ] {
        let called = actiond(&folder, &config, &["call", name, "--args", arguments]).await;
        assert!(called.status.success() && shown(&called).contains(expected), "{name}: {}", shown(&called));
    }
    let tools = actiond(&folder, &config, &["tools", "--platform", "openai"]).await;
    assert!(tools.status.success() && shown(&tools).contains("lookup_order"), "{}", shown(&tools));
    let found = actiond(&folder, &config, &["tools", "search", "order"]).await;
    assert!(found.status.success() && shown(&found).contains("lookup_order"), "{}", shown(&found));
}
