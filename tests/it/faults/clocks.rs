//! Two workers whose clocks are 90 s apart: the database's clock alone says what has run out.

use std::time::{Duration, Instant};

use jiff::Timestamp;
use serde_json::Value;
use sqlx::{Connection, PgConnection, Row};

use crate::{
    rig::{PATIENCE, Pair, Reply, Rig, Setup},
    services::{faketime, new_database},
};

const LEASE: Duration = Duration::from_secs(3);
const RETRY: Duration = Duration::from_secs(6);

#[tokio::test]
async fn a_worker_whose_clock_is_ahead_takes_no_live_work() {
    two_clocks("+90s", 90).await;
}

#[tokio::test]
async fn a_worker_whose_clock_is_behind_takes_no_live_work() {
    two_clocks("-90s", -90).await;
}

async fn two_clocks(skew: &str, seconds: i64) {
    let began = Instant::now();
    let store = new_database().await;
    let mut rig = Setup::new(Pair::RabbitPostgres)
        .store_url(store.clone())
        .http("slow", "if_interrupted: fail")
        .http("failing", "retry: { initial: 6s, max: 6s }")
        .extra("worker: { lease: 3s, concurrency: 4 }")
        .start()
        .await;
    let second = rig.daemon_in("worker", &faketime(skew)).await;
    second.ready().await;
    let said: Value = serde_json::from_str(&second.log.lock().unwrap()[0]).unwrap();
    let off =
        said["timestamp"].as_str().unwrap().parse::<Timestamp>().unwrap().as_second() - Timestamp::now().as_second();
    assert!((off - seconds).abs() < 20, "the second worker's clock is off by {off} s");

    live_work_is_left_alone(&rig).await;
    a_retry_comes_in_time(&rig).await;
    rig.worker.take().unwrap().kill().await;
    rig.play("call slow").await;

    let mut store = PgConnection::connect(&store).await.unwrap();
    // The platform has the last result a moment before its row says so.
    let rows = loop {
        let all = "SELECT function, state, attempt, fence FROM calls";
        let rows = sqlx::query(all).fetch_all(&mut store).await.unwrap();
        let settled = rows.iter().all(|row| row.get::<&str, _>(1) == "settled");
        if settled || began.elapsed() > 2 * PATIENCE {
            break rows;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!(rows.len(), 7);
    for row in rows {
        let (function, state): (String, String) = (row.get(0), row.get(1));
        let expected = if function == "failing" { 2 } else { 1 };
        assert_eq!(
            (state.as_str(), row.get::<i64, _>(2), row.get::<i64, _>(3)),
            ("settled", expected, expected),
            "{function}"
        );
    }
}

/// Handlers run for two leases, while both workers are told of their sessions again and again.
async fn live_work_is_left_alone(rig: &Rig) {
    rig.handler.hold();
    let mut sessions = Vec::new();
    for _ in 0..5 {
        sessions.push(rig.session("call slow").await);
    }
    rig.handler.arrived("slow", 5).await;
    let began = Instant::now();
    let mut copy = 0;
    while began.elapsed() < 2 * LEASE {
        for session in &sessions {
            copy += 1;
            let (headers, body) = rig.signed(session, &format!("wh_{copy}"));
            assert_eq!(rig.post(&headers, body).await, 200);
        }
        tokio::time::sleep(LEASE / 6).await;
    }
    rig.handler.release();
    for session in &sessions {
        let session = rig.settled(session).await;
        assert_eq!(session.answer(), Some("slow: ok"));
    }
    assert_eq!(rig.handler.requests("slow").len(), 5);
}

async fn a_retry_comes_in_time(rig: &Rig) {
    let mut later = Reply::new(503, "");
    later.headers.push(("retry-after", RETRY.as_secs().to_string()));
    rig.handler.reply("failing", [later]);
    let session = rig.session("call failing").await;
    rig.handler.arrived("failing", 1).await;
    let failed = Instant::now();
    rig.handler.arrived("failing", 2).await;
    let waited = failed.elapsed();
    assert!(waited + Duration::from_millis(100) > RETRY && waited < RETRY + LEASE, "tried again after {waited:?}");
    rig.settled(&session).await;
}
