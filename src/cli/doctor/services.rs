//! What actiond itself stands on: queue, store, collector.

use super::{Finding, reach};
use crate::{
    config::Config,
    queue::{self, Found, Inspection, RabbitMq, RabbitMqConfig, Topology},
    store::{self, Schema},
};

/// The oldest broker that quorum queues are known to behave on as they are used here.
const OLDEST_BROKER: (u32, u32) = (3, 10);

pub(super) async fn queue(config: &Config) -> Vec<Finding> {
    let rabbitmq = match &config.queue {
        queue::Config::Embedded => return vec![Finding::ok("queue", "embedded: rows in the store, for one process")],
        queue::Config::RabbitMq(rabbitmq) => rabbitmq,
    };
    match RabbitMq::inspect(rabbitmq, &config.worker.pools).await {
        Ok(inspection) => broker(rabbitmq, inspection),
        Err(why) => vec![Finding::fail(
            "queue",
            format!("the broker cannot be reached: {why}"),
            "look at queue.url (user, password, vhost) and at the broker; webhooks are answered 503 until it is there",
        )],
    }
}

fn broker(config: &RabbitMqConfig, inspection: Inspection) -> Vec<Finding> {
    let mut findings = vec![version(inspection.version.as_deref())];
    let mut there = 0;
    for (name, part) in inspection.parts {
        match part {
            Ok(found) => {
                there += 1;
                findings.extend(standing(config, &name, &found));
            }
            Err(why) if why.contains("NOT_FOUND") => findings.push(match config.topology {
                Topology::Manage => {
                    Finding::warn("queue", format!("there is no {name} yet"), "the first process that starts makes it")
                }
                Topology::Verify => Finding::fail(
                    "queue",
                    format!("there is no {name}"),
                    "declare it, or set queue.topology: manage; with verify, nothing starts to work without it",
                ),
            }),
            Err(why) => findings.push(Finding::fail(
                "queue",
                format!("{name}: {why}"),
                "look at the permissions of the user in queue.url: configure, write and read what begins with queue.prefix",
            )),
        }
    }
    if there > 0 {
        findings
            .insert(1, Finding::ok("queue", format!("{there} exchanges and queues of {} are there", config.prefix)));
    }
    findings
}

fn version(version: Option<&str>) -> Finding {
    let Some(version) = version else {
        return Finding::ok("queue", "the broker answers; its version is not told over TLS");
    };
    let mut numbers = version.split('.').map(|part| part.parse::<u32>().unwrap_or(0));
    let parsed = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match parsed < OLDEST_BROKER {
        true => Finding::fail("queue", format!("RabbitMQ {version} is too old"), "3.10 or later is needed"),
        false => Finding::ok("queue", format!("RabbitMQ {version}")),
    }
}

/// What stands in a queue that should not.
fn standing(config: &RabbitMqConfig, name: &str, found: &Found) -> Option<Finding> {
    let (messages, consumers) = (found.messages?, found.consumers?);
    if *name == format!("queue {}.dead", config.prefix) {
        return (messages > 0).then(|| {
            Finding::warn("queue", format!("{messages} messages are dead"), "actiond dead list, then redrive or purge")
        });
    }
    (messages > 0 && consumers == 0).then(|| {
        let pool = name.strip_prefix(&format!("queue {}.sessions.", config.prefix));
        let pool = pool.map_or_else(String::new, |pool| format!(" --pool {pool}"));
        Finding::warn(
            "queue",
            format!("{messages} sessions stand in {name} and nobody takes them"),
            format!("start actiond serve --role worker{pool}"),
        )
    })
}

pub(super) async fn store(config: &Config) -> Vec<Finding> {
    let inspection = match store::inspect(&config.store).await {
        Ok(inspection) => inspection,
        Err(why) => {
            let remedy = "look at store.url (user, password, database) and at the database";
            return vec![Finding::fail("store", format!("the store cannot be reached: {why}"), remedy)];
        }
    };
    let server = inspection.server;
    vec![match inspection.schema {
        Schema::Current => Finding::ok("store", format!("{server}, the schema is up to date")),
        Schema::Absent => Finding::warn(
            "store",
            format!("{server} has no tables of ours yet"),
            "actiond migrate makes them, or the first worker",
        ),
        Schema::Behind => Finding::warn(
            "store",
            format!("{server} has an older schema"),
            "actiond migrate brings it up to date, or the first worker",
        ),
        Schema::Foreign => Finding::fail(
            "store",
            format!("{server} has another schema than this actiond {}", env!("CARGO_PKG_VERSION")),
            "a newer one was here: run that, or name another database",
        ),
    }]
}

pub(super) async fn telemetry(config: &Config) -> Vec<Finding> {
    let Some(url) = &config.telemetry.otlp else { return Vec::new() };
    let remedy = "look at telemetry.otlp and at the collector; calls are answered without it";
    vec![match reach::connect(url).await {
        Ok(()) => Finding::ok("telemetry", "the collector takes connections"),
        Err(why) => Finding::warn("telemetry", format!("the collector cannot be reached: {why}"), remedy),
    }]
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{super::Level, *};

    fn config(topology: Topology) -> RabbitMqConfig {
        RabbitMqConfig {
            url: "amqp://h/v".into(),
            prefix: "p".into(),
            prefetch: 1,
            topology,
            confirm_timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn the_broker_is_judged_by_version_parts_and_what_stands_there() {
        let found = |messages, consumers| Ok(Found { messages: Some(messages), consumers: Some(consumers) });
        let parts = || {
            vec![
                ("exchange p".to_owned(), Ok(Found { messages: None, consumers: None })),
                ("queue p.sessions".to_owned(), found(3, 1)),
                ("queue p.sessions.gpu".to_owned(), found(2, 0)),
                ("queue p.sessions.web".to_owned(), Err("NOT_FOUND - no queue".to_owned())),
                ("queue p.dead".to_owned(), found(4, 0)),
            ]
        };
        let judged = |topology, version: &str| {
            let findings = broker(&config(topology), Inspection { version: Some(version.into()), parts: parts() });
            findings.into_iter().map(|f| (f.level, f.what, f.remedy.unwrap_or_default())).collect::<Vec<_>>()
        };
        let managed = judged(Topology::Manage, "3.10.8");
        let levels: Vec<_> = managed.iter().map(|(level, ..)| *level).collect();
        assert_eq!(levels, [Level::Ok, Level::Ok, Level::Warn, Level::Warn, Level::Warn], "{managed:?}");
        assert!(managed[2].2.contains("--pool gpu"), "{managed:?}");
        assert!(managed[3].1.contains("p.sessions.web") && managed[4].1.contains("4 messages"), "{managed:?}");
        let verified = judged(Topology::Verify, "3.9.29");
        assert_eq!((verified[0].0, verified[3].0), (Level::Fail, Level::Fail), "{verified:?}");
        assert_eq!(judged(Topology::Manage, "4.2.0-rc.1")[0].0, Level::Ok);
        assert_eq!(version(None).level, Level::Ok);
    }
}
