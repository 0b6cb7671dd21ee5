//! Thousands of seeded faults against hundreds of sessions; then an accountant compares platform, store and handlers.
//! `tests/faults` runs it for longer, with other seeds and on other brokers.

mod accountant;
mod callee;
mod clocks;
mod gate;
mod schedule;
mod servers;
mod timeline;
mod world;

use std::{sync::Arc, time::Duration};

use actiond::sandbox::Faults;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio::{task::JoinSet, time::Instant};

use self::{
    accountant::{Account, account},
    world::World,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Target {
    Embedded,
    RabbitPostgres,
}

/// What `tests/faults` may say in the environment.
#[derive(Clone, Copy, Debug)]
struct Settings {
    target: Target,
    seed: u64,
    /// How long faults strike.
    time: Duration,
    rabbitmq_4: bool,
    /// Three nodes, of which the one that leads the queue is killed.
    cluster: bool,
}

/// How long everything may take after the last fault.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_doubled_embedded() {
    suite(Target::Embedded).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_doubled_broker_down_rabbitmq_postgres() {
    suite(Target::RabbitPostgres).await;
}

async fn suite(target: Target) {
    let said = |name: &str| std::env::var(name).ok().filter(|text| !text.is_empty());
    let number = |name: &str| said(name).map(|text| text.parse::<u64>().unwrap());
    let settings = Settings {
        target,
        seed: number("ACTIOND_FAULTS_SEED").unwrap_or_else(|| rand::random_range(0..1_000_000)),
        time: Duration::from_secs(number("ACTIOND_FAULTS_SECONDS").unwrap_or(12)),
        rabbitmq_4: said("ACTIOND_FAULTS_RABBITMQ_4").is_some(),
        cluster: said("ACTIOND_FAULTS_CLUSTER").is_some(),
    };
    println!("faults: {settings:?}");
    let world = World::new(settings).await;
    world.start().await;
    let until = Instant::now() + settings.time;
    let mut tasks = JoinSet::new();
    for seat in 0..world.seats.len() {
        tasks.spawn(strike(world.clone(), seat, until));
    }
    tasks.spawn(change_weather(world.clone(), until));
    tasks.spawn(break_servers(world.clone(), until));
    tasks.spawn(talk(world.clone(), until));
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    world.calm().await;
    let account = account(&world, PATIENCE).await;
    if let Some(servers) = &world.servers {
        servers.stop().await;
    }
    report(&world, &account);
}

fn random(world: &World, stream: u64) -> StdRng {
    StdRng::seed_from_u64(world.settings.seed.wrapping_mul(1000).wrapping_add(stream))
}

async fn strike(world: Arc<World>, seat: usize, until: Instant) {
    let mut random = random(&world, 10 + seat as u64);
    let seat = &world.seats[seat];
    while Instant::now() < until {
        tokio::time::sleep(schedule::pause(&mut random, 20, 500)).await;
        let strike = schedule::strike(&mut random, seat.name, world.settings.target);
        world.strike(seat, strike, &mut random).await;
    }
}

async fn change_weather(world: Arc<World>, until: Instant) {
    let mut random = random(&world, 1);
    while Instant::now() < until {
        world.sandbox.set_faults(schedule::weather(&mut random));
        tokio::time::sleep(schedule::pause(&mut random, 200, 3000)).await;
    }
    world.sandbox.set_faults(Faults::default());
}

async fn break_servers(world: Arc<World>, until: Instant) {
    if world.servers.is_none() {
        return;
    }
    let mut random = random(&world, 2);
    let mut next_broker = Instant::now() + schedule::pause(&mut random, 2000, 5000);
    while Instant::now() < until {
        tokio::time::sleep(schedule::pause(&mut random, 1000, 6000)).await;
        let time = schedule::pause(&mut random, 100, 3000);
        if Instant::now() >= next_broker {
            let outage = schedule::broker_outage(&mut random, world.settings.cluster);
            world.broker_outage(outage, time).await;
            next_broker = Instant::now() + schedule::pause(&mut random, 15_000, 30_000);
        } else {
            world.database_outage(schedule::database_outage(&mut random), time).await;
        }
    }
}

/// Starts sessions, and sends copies of webhooks and webhooks of sessions that ended long ago.
async fn talk(world: Arc<World>, until: Instant) {
    let mut random = random(&world, 3);
    let client = actiond::http::client().unwrap();
    let (mut calls, mut sessions) = (0, Vec::new());
    let mut posts = JoinSet::new();
    while Instant::now() < until {
        tokio::time::sleep(schedule::pause(&mut random, 10, 200)).await;
        let script = schedule::script(&mut random, &mut calls);
        sessions.extend(world.session(&client, &script).await);
        if sessions.is_empty() || random.random_bool(0.7) {
            continue;
        }
        let recent = sessions.len().saturating_sub(8);
        let old = random.random_bool(0.3);
        let session = sessions[random.random_range(if old { 0 } else { recent }..sessions.len())].clone();
        let copies = schedule::copies(&mut random);
        world.timeline.count(if old { "webhook: out of order" } else { "webhook: copies" }, copies as u64);
        let same = random.random::<bool>();
        for copy in 0..copies {
            let id = format!("wh_copy_{calls}_{}", if same { 0 } else { copy });
            let (world, session) = (world.clone(), session.clone());
            posts.spawn(async move { world.post(&session, &id).await });
        }
    }
    while let Some(posted) = posts.join_next().await {
        posted.unwrap();
    }
}

fn report(world: &World, account: &Account) {
    let counters = world.sandbox.counters();
    world.timeline.count("platform: submission refused", counters.posts_faulted);
    world.timeline.count("webhook: dropped", counters.webhooks_dropped);
    let counts = world.timeline.counts();
    for (fault, times) in &counts {
        println!("{times:>7}  {fault}");
    }
    println!(
        "faults {} · sessions {} · calls {} · handler starts {} · held {} · interrupted {} · obsolete {} · dead {} · \
         lost {} · doubled {} · done {:.1} s after the last fault · seed {} on {:?}",
        counts.values().sum::<u64>(),
        account.sessions,
        account.calls,
        account.handler_starts,
        account.held,
        account.interrupted,
        account.obsolete,
        account.dead,
        account.lost.len(),
        account.doubled.len(),
        account.settled_after.as_secs_f64(),
        world.settings.seed,
        world.settings.target,
    );
    let found: Vec<_> = account.doubled.iter().chain(&account.lost).collect();
    for finding in found.iter().take(20) {
        println!("{}: {}", finding.session, finding.what);
    }
    for finding in found.iter().take(3) {
        println!("{}", world.timeline.tell(&finding.session));
    }
    assert!(found.is_empty(), "{} findings with seed {}, see above", found.len(), world.settings.seed);
}
