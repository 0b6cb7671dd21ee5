//! The contract over rows of a SQLite file.

use std::{
    sync::{Arc, Mutex, Weak},
    time::Duration,
};

use actiond::{
    metrics::Metrics,
    queue::{DeadLetters, Embedded, Queue},
    session::ActionRequired,
    store::{self, Database, Sqlite, Store},
};
use async_trait::async_trait;
use sqlx::{Connection, Row, SqliteConnection};

use super::{Place, contract};
use crate::services::tempdir::Folder;

contract!(File::new());

struct File {
    folder: Folder,
    process: Mutex<Option<Weak<dyn Queue>>>,
}

impl File {
    fn new() -> Self {
        Self { folder: Folder::new(), process: Mutex::new(None) }
    }

    fn url(&self) -> String {
        format!("sqlite://{}/queue.db", self.folder.path())
    }
}

#[async_trait(?Send)]
impl Place for File {
    async fn open(&self) -> Arc<dyn Queue> {
        let config = store::Config {
            url: self.url().into(),
            max_connections: 1,
            timeout: Duration::from_secs(10),
            retention: None,
        };
        let database = Database::open(&config).await.unwrap();
        Sqlite::new(database.clone()).migrate().await.unwrap();
        let queue = Embedded::new(database, Metrics::new());
        let alive = self.process.lock().unwrap().as_ref().and_then(Weak::upgrade).is_some();
        if !alive {
            queue.recover().await.unwrap();
        }
        let queue: Arc<dyn Queue> = Arc::new(queue);
        *self.process.lock().unwrap() = Some(Arc::downgrade(&queue));
        queue
    }

    async fn letters(&self) -> Arc<dyn DeadLetters> {
        let config = store::Config {
            url: self.url().into(),
            max_connections: 1,
            timeout: Duration::from_secs(10),
            retention: None,
        };
        Arc::new(Embedded::new(Database::open(&config).await.unwrap(), Metrics::new()))
    }

    async fn dead(&self) -> Vec<(String, ActionRequired)> {
        let mut connection = SqliteConnection::connect(&self.url()).await.unwrap();
        loop {
            let rows = sqlx::query("SELECT reason, message FROM queue WHERE reason IS NOT NULL")
                .fetch_all(&mut connection)
                .await
                .unwrap();
            if !rows.is_empty() {
                return rows.iter().map(|row| (row.get(0), serde_json::from_str(row.get(1)).unwrap())).collect();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
