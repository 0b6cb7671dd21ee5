//! The ledger as JSON Lines, and what `store.retention` deletes.

use std::process::Stdio;

use serde_json::Value;
use sqlx::Connection as _;
use tokio::{io::AsyncReadExt, process::Command};

use crate::{
    operator::{actiond, actiond_with, listed},
    over_every_pair, proxy,
    rig::{PATIENCE, Pair, Setup},
    services,
};

over_every_pair!(calls_are_exported_oldest_first);

const OBJECT: &str = "parameters: { type: object }";

async fn calls_are_exported_oldest_first(pair: Pair) {
    let rig = Setup::new(pair).http("a", OBJECT).http("b", OBJECT).start().await;
    let mut sessions = Vec::new();
    for script in ["call a", "call b", "call a"] {
        sessions.push(rig.play(script).await.id.to_string());
    }
    listed(&rig, "calls list --state settled --json", 3).await;
    let all = actiond(&rig, "calls export").await.lines();
    let exported: Vec<_> = all.iter().map(|line| line["session"].as_str().unwrap()).collect();
    assert_eq!(exported, sessions);
    assert!(all.iter().all(|line| line.get("body").is_none()), "{all:?}");
    assert_eq!(actiond(&rig, "calls export").await.lines(), all, "the same again");
    let with = actiond(&rig, "calls export --with-results --function b").await.lines();
    assert_eq!((with.len(), &with[0]["call"]), (1, &all[1]["call"]));
    assert_eq!(with[0].get("history"), None);
    let history = actiond(&rig, "calls export --with-history --function b").await.lines()[0]["history"].clone();
    assert!(history.as_array().unwrap().iter().any(|entry| entry["event"] == "settled"), "{history}");
    assert!(with[0]["body"].as_str().unwrap().contains("\"output\":\"ok\""), "{with:?}");

    let second = all[1]["created_at"].as_str().unwrap();
    let count = async |words: &str| actiond(&rig, &format!("calls export {words}")).await.lines().len();
    assert_eq!(count(&format!("--since {second}")).await, 2);
    assert_eq!(count(&format!("--until {second}")).await, 1);
    assert_eq!(count("--since 1h --state settled").await, 3);
    assert_eq!(count("--until 1h").await, 0);
    assert_eq!(count("--state refused").await, 0);
    assert_eq!(count(&format!("--after {}", all[0]["call"].as_str().unwrap())).await, 2);
    assert_eq!(actiond(&rig, "calls export --since yesterday").await.status, 2);
}

const MANY: &str = "
    INSERT INTO calls (platform, session, turn, call_id, function, state, attempt, fence, until_at, deadline_at,
                       created_at, updated_at)
    SELECT 'openai', 'sess_' || n, 'turn', 'call_' || n, 'a', 'settled', 1, 1, 0, 0, 1790000000000 + n / 3, 1790000000000
    FROM generate_series(1, 2000) AS n";

#[tokio::test]
async fn an_export_that_breaks_off_says_how_to_go_on() {
    let database = services::new_database().await;
    let (proxy, url) = proxy::before(&database).await;
    let rig = Setup::new(Pair::RabbitPostgres).http("a", OBJECT).store_url(url).prepare().await;
    assert_eq!(actiond(&rig, "migrate").await.status, 0);
    let mut direct = sqlx::PgConnection::connect(&database).await.unwrap();
    sqlx::query(MANY).execute(&mut direct).await.unwrap();

    let mut export = Command::new(env!("CARGO_BIN_EXE_actiond"))
        .args(["calls", "export", "--config", &rig.config_file()])
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let (mut out, mut err) = (export.stdout.take().unwrap(), export.stderr.take().unwrap());
    // It has written its first page as far as the pipe goes, and waits for a reader.
    let mut text = vec![0; 1];
    out.read_exact(&mut text).await.unwrap();
    proxy.cut();
    let mut complaint = String::new();
    let ended = async {
        out.read_to_end(&mut text).await.unwrap();
        err.read_to_string(&mut complaint).await.unwrap();
        export.wait().await.unwrap()
    };
    let status = tokio::time::timeout(PATIENCE, ended).await.unwrap();
    assert_eq!(status.code(), Some(1), "{complaint}");
    let first: Vec<Value> = lines(&text);
    assert!(!first.is_empty() && first.len() < 2000);
    assert!(complaint.contains(&format!("{} calls are written", first.len())), "{complaint}");

    proxy.heal();
    let told = complaint.split("and  ").nth(1).unwrap().trim().replace('\'', "");
    let rest = actiond_with(&rig, "calls export", &told.split(' ').collect::<Vec<_>>()).await.lines();
    let mut calls: Vec<String> = first.iter().chain(&rest).map(|line| line["call"].to_string()).collect();
    assert_eq!(calls.len(), 2000);
    calls.sort_unstable();
    calls.dedup();
    assert_eq!(calls.len(), 2000, "each once");
}

fn lines(text: &[u8]) -> Vec<Value> {
    std::str::from_utf8(text).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn what_ended_longer_ago_than_the_retention_is_deleted_by_a_worker() {
    let mut rig = Setup::new(Pair::EmbeddedSqlite).http("a", OBJECT).start().await;
    rig.replace("actiond.db\" }", "actiond.db\", retention: 2d }");
    for script in ["call a", "call a"] {
        rig.play(script).await;
    }
    listed(&rig, "calls list --state settled --json", 2).await;
    rig.kill_worker().await;
    let aged = "UPDATE calls SET created_at = created_at - 172800000, updated_at = updated_at - 172800000
                WHERE call_id = (SELECT call_id FROM calls ORDER BY created_at LIMIT 1) RETURNING session";
    let old = rig.sql(aged).await;
    rig.start_all().await;
    rig.sql("UPDATE due SET at = 0 WHERE platform = '' RETURNING session").await;
    rig.worker.as_ref().unwrap().told("deleted calls that ended").await;
    let left = listed(&rig, "calls list --json", 1).await;
    assert_ne!(left[0]["session"].as_str(), Some(&*old[0]));
}
