//! What the tests find around them: private services that `tests/run` has started, and folders of their own.

use sqlx::{Connection, PgConnection};

/// URL of a new, empty database on the private PostgreSQL.
pub(crate) async fn new_database() -> String {
    let server = variable("ACTIOND_TEST_POSTGRES_URL");
    let name = format!("t{}", uuid::Uuid::now_v7().simple());
    let mut connection = PgConnection::connect(&server).await.unwrap();
    let create = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
    sqlx::query(create).execute(&mut connection).await.unwrap();
    let (base, _) = server.rsplit_once('/').unwrap();
    format!("{base}/{name}")
}

/// A variable that `tests/run` sets.
pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run the tests with ./tests/run"))
}

/// Variables that make a process see another real-time clock, such as `+90s`; its monotonic clock stays.
pub(crate) fn faketime(skew: &str) -> Vec<(&'static str, String)> {
    vec![
        ("LD_PRELOAD", variable("ACTIOND_TEST_FAKETIME")),
        ("FAKETIME", skew.to_owned()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ("DONT_FAKE_MONOTONIC", "1".to_owned()),
    ]
}

/// Folders that are removed with their test.
pub(crate) mod tempdir {
    use std::path::PathBuf;

    pub(crate) struct Folder(PathBuf);

    impl Folder {
        pub(crate) fn new() -> Self {
            let path = std::env::temp_dir().join(format!("actiond-test-{}", uuid::Uuid::now_v7().simple()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        pub(crate) fn path(&self) -> &str {
            self.0.to_str().unwrap()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}
