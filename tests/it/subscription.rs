//! Where the platform sends webhooks, arranged by the real commands against the platform's own API.

use std::os::unix::fs::PermissionsExt as _;

use axum::{Router, http::StatusCode};
use tokio::net::TcpListener;

use crate::{
    operator::actiond,
    rig::{Pair, Rig, Setup},
    services::tempdir::Folder,
};

const OBJECT: &str = "parameters: { type: object }";

/// A platform that sends nothing yet, and a config whose secrets are in these files.
async fn unsubscribed(files: &[&str]) -> Rig {
    let mut rig = Setup::new(Pair::EmbeddedSqlite).http("a", OBJECT).unsubscribed().prepare().await;
    let secrets: Vec<String> = files.iter().map(|file| format!("\"${{file:{file}}}\"")).collect();
    let before = format!("secrets: [\"{}\"]", rig.secret);
    rig.replace(&before, &format!("secrets: [{}]", secrets.join(", ")));
    rig
}

async fn restart(rig: &mut Rig) {
    if let Some(daemon) = rig.worker.take() {
        daemon.kill().await;
    }
    rig.start_all().await;
}

#[tokio::test]
async fn an_endpoint_is_made_tried_rotated_and_taken_away() {
    let folder = Folder::new();
    let [first, second] = ["first", "second"].map(|name| format!("{}/{name}", folder.path()));
    let mut rig = unsubscribed(&[&first]).await;
    let created = actiond(&rig, &format!("subscription create --secret-file {first}")).await;
    assert_eq!(created.status, 0, "{}", created.err);
    let secret = std::fs::read_to_string(&first).unwrap();
    assert!(secret.starts_with("whsec_") && !created.out.contains(secret.trim()), "{}", created.out);
    assert_eq!(std::fs::metadata(&first).unwrap().permissions().mode() & 0o777, 0o600);
    let again = actiond(&rig, "subscription create").await;
    assert!(again.status == 1 && again.err.contains("sends there already"), "{}", again.err);

    restart(&mut rig).await;
    let tested = actiond(&rig, "subscription test").await;
    assert!(tested.status == 0 && tested.out.contains("answered 200"), "{}{}", tested.out, tested.err);
    assert_eq!(rig.play("call a").await.answer(), Some("a: ok"));

    let taken = actiond(&rig, &format!("subscription rotate --secret-file {first}")).await;
    assert!(taken.status == 1 && taken.err.contains("is there already"), "{}", taken.err);
    let rotated = actiond(&rig, &format!("subscription rotate --json --secret-file {second}")).await;
    assert_eq!(rotated.status, 0, "{}", rotated.err);
    let until = rotated.lines()[0]["old_secret_until"].as_str().unwrap().to_owned();
    assert!(rotated.err.contains(&until) && rotated.lines()[0]["signing_secret"].is_null(), "{}", rotated.err);
    assert_ne!(std::fs::read_to_string(&second).unwrap(), secret);
    assert_eq!(rig.play("call a").await.answer(), Some("a: ok"), "the old secret is good");
    rig.replace(&format!("\"${{file:{first}}}\""), &format!("\"${{file:{second}}}\", \"${{file:{first}}}\""));
    restart(&mut rig).await;
    assert_eq!(rig.play("call a").await.answer(), Some("a: ok"));
    let (_, metrics) = rig.worker.as_ref().unwrap().admin("/metrics").await;
    assert!(metrics.contains(r#"actiond_webhook_secrets_total{platform="openai",secret="0"} 1"#), "{metrics}");
    assert!(!metrics.contains(r#"secret="1""#), "{metrics}");

    let listed = actiond(&rig, "subscription list --json").await.lines();
    assert_eq!((listed.len(), listed[0]["ours"].as_bool()), (1, Some(true)));
    assert!(!listed[0].to_string().contains(secret.trim()));
    let id = listed[0]["id"].as_str().unwrap();
    let table = actiond(&rig, "subscription list").await.out;
    assert!(table.contains(id) && table.contains("(ours)"), "{table}");

    let now = actiond(&rig, "subscription rotate --now").await;
    assert!(now.status == 0 && now.out.contains("whsec_"), "shown where no file is named: {}", now.out);
    let refused = actiond(&rig, "subscription test").await;
    assert!(refused.status == 1 && refused.err.contains("answered 401"), "{}", refused.err);
    let unsure = actiond(&rig, &format!("subscription delete {id}")).await;
    assert!(unsure.status == 1 && unsure.err.contains("--yes"), "{}", unsure.err);
    assert_eq!(actiond(&rig, &format!("subscription delete {id} --yes")).await.status, 0);
    assert!(actiond(&rig, "subscription list --json").await.lines().is_empty());
    let gone = actiond(&rig, "subscription test").await;
    assert!(gone.status == 1 && gone.err.contains("actiond subscription create"), "{}", gone.err);
}

#[tokio::test]
async fn what_the_platform_does_not_do_is_said_and_leaves_no_file() {
    let folder = Folder::new();
    let file = format!("{}/secret", folder.path());
    let create = format!("subscription create --secret-file {file}");
    let mut rig = unsubscribed(&[&file]).await;
    rig.replace("api_key: sk-test", "api_key: sk-other");
    let refused = actiond(&rig, &create).await;
    assert!(refused.status == 1 && refused.err.contains("may not manage webhook endpoints"), "{}", refused.err);

    let wrong = actiond(&rig, "subscription create --platform nobody").await;
    assert!(wrong.status == 1 && wrong.err.contains("no such platform"), "{}", wrong.err);
    rig.replace("api_key: sk-other", "api_key: sk-test");
    let plain = actiond(&rig, &format!("{create} --url http://actiond.example.com/webhooks/openai")).await;
    assert!(plain.status == 1 && plain.err.contains("must be an HTTPS URL"), "{}", plain.err);

    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base_url = format!("http://{}/v1", other.local_addr().unwrap());
    tokio::spawn(axum::serve(other, Router::new().fallback(|| async { StatusCode::NOT_FOUND })).into_future());
    let before = rig.base_url();
    rig.replace(&before, &base_url);
    let absent = actiond(&rig, &create).await;
    let by_hand = format!("enter http://{}/webhooks/openai there by hand", rig.ingress_at);
    assert!(absent.status == 1 && absent.err.contains(&by_hand), "{}", absent.err);
    assert!(std::fs::metadata(&file).is_err(), "an empty file would pass for a secret");
}
