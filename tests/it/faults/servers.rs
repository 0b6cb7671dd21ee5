//! A broker and a database of this test's own, which it may stop and kill.

use std::time::Duration;

use tokio::process::Command;

use super::{Settings, schedule::Outage};
use crate::services::variable;

pub(crate) struct Servers {
    /// Names of the broker's nodes.
    nodes: Vec<String>,
    database: String,
    /// Where the nodes listen.
    pub(crate) broker_addresses: Vec<String>,
    pub(crate) database_url: String,
}

impl Servers {
    pub(crate) async fn start(settings: &Settings) -> Self {
        let name = format!("f{:x}", rand::random::<u32>());
        let nodes: Vec<String> = match settings.cluster {
            true => (1..=3).map(|n| format!("{name}n{n}")).collect(),
            false => vec![name.clone()],
        };
        broker(&["-n", &nodes[0], if settings.rabbitmq_4 { "start-4" } else { "start" }]).await;
        for node in &nodes[1..] {
            broker(&["-n", node, "join", &nodes[0]]).await;
        }
        let mut broker_addresses = Vec::new();
        for node in &nodes {
            let url = broker(&["-n", node, "url"]).await;
            broker_addresses.push(url.split(['@', '/']).nth(3).unwrap().to_owned());
        }
        postgres(&["-n", &name, "start"]).await;
        let database_url = postgres(&["-n", &name, "url"]).await;
        Self { nodes, database: name, broker_addresses, database_url }
    }

    /// Strikes a node, for a cluster the one that leads the queue of sessions.
    pub(crate) async fn broker_outage(&self, outage: Outage, time: Duration, prefix: &str) {
        let node = &self.leader(prefix).await;
        let (strike, back) = match outage {
            Outage::Stop => ("stop", "start"),
            Outage::Kill => ("kill", "start"),
            Outage::Pause => ("pause", "resume"),
        };
        broker(&["-n", node, strike]).await;
        tokio::time::sleep(time).await;
        broker(&["-n", node, back]).await;
    }

    async fn leader(&self, prefix: &str) -> String {
        if let [only] = &self.nodes[..] {
            return only.clone();
        }
        for node in &self.nodes {
            let listed = run("ACTIOND_TEST_AMQP_CTL", &["-n", node, "ctl", "list_queues", "name", "leader"]).await;
            let sessions = format!("{prefix}.sessions");
            let leader = listed.iter().flat_map(|text| text.lines()).find_map(|line| line.strip_prefix(&sessions));
            if let Some((name, _)) = leader.and_then(|leader| leader.trim().split_once('@')) {
                return name.to_owned();
            }
        }
        self.nodes[0].clone()
    }

    pub(crate) async fn database_outage(&self, outage: Outage, time: Duration) {
        let name = &self.database;
        postgres(&["-n", name, if matches!(outage, Outage::Stop) { "stop" } else { "kill" }]).await;
        tokio::time::sleep(time).await;
        postgres(&["-n", name, "start"]).await;
    }

    /// For good.
    pub(crate) async fn stop(&self) {
        for node in &self.nodes {
            broker(&["-n", node, "stop"]).await;
        }
        postgres(&["-n", &self.database, "stop"]).await;
    }
}

async fn broker(arguments: &[&str]) -> String {
    run("ACTIOND_TEST_AMQP_CTL", arguments).await.unwrap_or_else(|said| panic!("broker {arguments:?}: {said}"))
}

async fn postgres(arguments: &[&str]) -> String {
    run("ACTIOND_TEST_POSTGRES_CTL", arguments).await.unwrap_or_else(|said| panic!("postgres {arguments:?}: {said}"))
}

/// What the program printed. Through a file: servers that it starts keep its output open.
async fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let path = std::env::temp_dir().join(format!("actiond-said-{}", uuid::Uuid::now_v7().simple()));
    let file = std::fs::File::create(&path).unwrap();
    let errors = file.try_clone().unwrap();
    let status = Command::new(variable(program)).args(arguments).stdout(file).stderr(errors).status().await.unwrap();
    let said = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    if status.success() { Ok(said.trim().to_owned()) } else { Err(said) }
}
