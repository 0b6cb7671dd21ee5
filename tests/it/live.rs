//! `actiond check --live`: the health check of a container that has nothing but the program in it.

use actiond::{
    admin::{self, Readiness},
    metrics::Metrics,
};
use tokio::{net::TcpListener, process::Command};

use crate::services::tempdir::Folder;

#[tokio::test]
async fn the_exit_status_says_whether_the_daemon_lives() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let folder = Folder::new();
    let file = format!("{}/actiond.yaml", folder.path());
    let check = async |admin: &str| {
        tokio::fs::write(&file, format!("admin: {{ {admin} }}")).await.unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_actiond"));
        // No proxy stands between a container and its own loopback.
        command.args(["check", "--live", "--config", &file]).env("HTTP_PROXY", "http://127.0.0.1:9");
        let output = command.output().await.unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let readiness = Readiness::new();
    readiness.register("queue", Box::new(|| Err("the broker is away".into())));
    let serving = tokio::spawn(axum::serve(listener, admin::router(readiness, Metrics::new())).into_future());

    assert_eq!(check(&format!("listen: '127.0.0.1:{port}'")).await.0, 0, "not ready is alive all the same");
    assert_eq!(check(&format!("listen: '0.0.0.0:{port}', token: abcdefghijklmnop")).await.0, 0);

    serving.abort();
    let _ = serving.await;
    let (status, said) = check(&format!("listen: '127.0.0.1:{port}'")).await;
    assert_eq!(status, 1);
    assert!(said.contains("could not connect"), "{said}");
    assert_eq!(check("listen: nowhere").await.0, 2);
}
