//! The program under measurement, as its users run it.

use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use actiond::http::local_status;
use sqlx::Connection as _;

use crate::platform::Platform;

pub(crate) const SECRET: &str = "whsec_YmVuY2gtc2VjcmV0LW9mLTI0LWJ5dGVz";

pub(crate) struct System {
    pub(crate) ingress: SocketAddr,
    processes: Vec<Child>,
    folder: PathBuf,
}

impl System {
    /// Everything in one process.
    pub(crate) async fn embedded(platform: &Platform) -> Self {
        let mut system = Self::new();
        let store = format!("sqlite://{}/actiond.db", system.folder.display());
        system.start(platform, "all", "{ type: embedded }", &store).await;
        system
    }

    /// One ingress and one worker.
    pub(crate) async fn clustered(platform: &Platform, amqp: &str, postgres: &str) -> Self {
        let (mut system, queue, store) = (Self::new(), queue(amqp), database(postgres).await);
        system.start(platform, "ingress", &queue, &store).await;
        system.start(platform, "worker", &queue, &store).await;
        system
    }

    /// An ingress that nobody works for.
    pub(crate) async fn ingress(platform: &Platform, amqp: &str) -> Self {
        let mut system = Self::new();
        // Never opened: webhooks need no store.
        system.start(platform, "ingress", &queue(amqp), "postgres://localhost/none").await;
        system
    }

    fn new() -> Self {
        let folder = std::env::temp_dir().join(format!("actiond-bench-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(&folder).unwrap();
        Self { ingress: free_port(), processes: Vec::new(), folder }
    }

    /// Starts a process and waits until it is ready.
    async fn start(&mut self, platform: &Platform, role: &str, queue: &str, store: &str) {
        let (ingress, admin, platform) = (self.ingress, free_port(), platform.address);
        let config = format!(
            "ingress: {{ listen: \"{ingress}\" }}\nadmin: {{ listen: \"{admin}\" }}\nqueue: {queue}\nstore: {{ url: \"{store}\" }}\n\
             platforms:\n  - name: bench\n    type: agents_api\n    base_url: \"http://{platform}/v1\"\n    api_key: bench\n    \
             webhook: {{ scheme: standard, secrets: [\"{SECRET}\"] }}\n\
             functions:\n  - name: lookup\n    description: Look up an order by its ID.\n    parameters:\n      type: object\n      \
             properties: {{ order_id: {{ type: string, minLength: 1 }} }}\n      required: [order_id]\n      \
             additionalProperties: false\n    handler: {{ type: http, url: \"http://{platform}/handler\" }}\n"
        );
        let file = self.folder.join(format!("{role}.yaml"));
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_actiond"));
        command.args(["serve", "--role", role, "--config"]).arg(&file).env("RUST_LOG", "error").stdout(Stdio::null());
        self.processes.push(command.spawn().unwrap());
        for _ in 0..600 {
            if local_status(admin, "/health/ready").await == Ok(200) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{role} did not become ready: its log is above");
    }

    /// Processor time of all its processes so far.
    pub(crate) fn cpu(&self) -> Duration {
        // Of /proc/PID/stat after the name in brackets: utime and stime in ticks of 10 ms.
        let ticks = |process: &Child| -> u64 {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.id())).unwrap_or_default();
            let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
            fields.skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
        };
        Duration::from_millis(self.processes.iter().map(ticks).sum::<u64>() * 10)
    }

    /// Bytes that are resident now.
    pub(crate) fn memory(&self) -> u64 {
        let kilobytes = |process: &Child| {
            let status = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default().to_owned();
            line.split_whitespace().next().and_then(|number| number.parse::<u64>().ok()).unwrap_or_default()
        };
        self.processes.iter().map(kilobytes).sum::<u64>() << 10
    }
}

impl Drop for System {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn free_port() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap()
}

fn queue(amqp: &str) -> String {
    format!("{{ type: rabbitmq, url: \"{amqp}\", prefix: bench{} }}", uuid::Uuid::now_v7().simple())
}

/// A database of its own.
async fn database(server: &str) -> String {
    let name = format!("bench{}", uuid::Uuid::now_v7().simple());
    let mut connection = sqlx::PgConnection::connect(server).await.unwrap();
    sqlx::query(sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"))).execute(&mut connection).await.unwrap();
    let (base, _) = server.rsplit_once('/').unwrap();
    format!("{base}/{name}")
}
