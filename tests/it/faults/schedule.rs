//! Which faults strike and when. Pure: everything follows from the seed.

use std::time::Duration;

use actiond::sandbox::{Faults, Rule};
use rand::{Rng, rngs::StdRng};

use super::{Target, gate::Step};

/// Strikes one process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Strike {
    /// SIGKILL in that step, so many milliseconds in.
    Kill(Step, u64),
    /// SIGKILL while it starts.
    KillAtStart(u64),
    /// SIGTERM.
    Stop,
    CutStore(u64),
    SilenceStore(u64),
    CutBroker(u64),
    SilenceBroker(u64),
}

pub(crate) fn pause(random: &mut StdRng, from: u64, to: u64) -> Duration {
    Duration::from_millis(random.random_range(from..=to))
}

pub(crate) fn strike(random: &mut StdRng, role: &str, target: Target) -> Strike {
    let brief = random.random_range(0..6);
    let outage = random.random_range(20..1500);
    let kill = match role {
        "ingress" => Strike::Kill(if random.random() { Step::Publish } else { Step::Anywhere }, outage / 3),
        _ => Strike::Kill(step(random, target), brief),
    };
    let lines = target == Target::RabbitPostgres;
    match random.random_range(0..100) {
        0..5 => Strike::KillAtStart(random.random_range(0..400)),
        5..12 => Strike::Stop,
        12..18 if lines && role != "ingress" => Strike::CutStore(outage),
        18..22 if lines && role != "ingress" => Strike::SilenceStore(outage * 2),
        22..32 if lines => Strike::CutBroker(outage),
        32..36 if lines => Strike::SilenceBroker(outage * 2),
        _ => kill,
    }
}

fn step(random: &mut StdRng, target: Target) -> Step {
    use Step::{Accepted, Anywhere, Claim, Complete, Handle, Mark, Publish, Retrieve, Submit};
    let steps = [Retrieve, Claim, Handle, Complete, Submit, Accepted, Mark, Anywhere, Publish];
    // An embedded queue has no line that could be silenced.
    let count = if target == Target::Embedded { steps.len() - 1 } else { steps.len() };
    steps[random.random_range(0..count)]
}

/// Strikes a service.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outage {
    Stop,
    Kill,
    Pause,
}

pub(crate) fn broker_outage(random: &mut StdRng, cluster: bool) -> Outage {
    match random.random_range(0..4) {
        _ if cluster => Outage::Kill,
        0 => Outage::Stop,
        1 => Outage::Pause,
        _ => Outage::Kill,
    }
}

pub(crate) fn database_outage(random: &mut StdRng) -> Outage {
    if random.random() { Outage::Stop } else { Outage::Kill }
}

/// How the platform behaves for a while.
pub(crate) fn weather(random: &mut StdRng) -> Faults {
    let mut faults = Faults {
        webhook_duplicate: Rule::Chance(0.2),
        webhook_delay: Rule::Chance(0.2),
        webhook_delay_ms: random.random_range(10..3000),
        webhook_drop: Rule::Chance(0.03),
        ..Faults::default()
    };
    let chance = Rule::Chance(random.random_range(0.02..0.25));
    match random.random_range(0..12) {
        0 => faults.submit_429 = chance,
        1 => faults.submit_500 = chance,
        2 => faults.submit_409 = chance,
        3 => faults.submit_race = chance,
        4 => faults.submit_lost = chance,
        5 => faults.retrieve_500 = chance,
        6 => faults.retrieve_429 = chance,
        7 => faults.linger = random.random_range(1..4),
        8 => faults.answer_delay_ms = random.random_range(1..200),
        9 => faults.think_ms = random.random_range(1..300),
        10 => {
            (faults.submit_429, faults.submit_500, faults.submit_409) = (chance, chance, chance);
            (faults.submit_race, faults.submit_lost) = (chance, chance);
            (faults.retrieve_500, faults.retrieve_429) = (chance, chance);
        }
        _ => {}
    }
    faults
}

/// What the model of one session does; numbers its calls from `n`.
pub(crate) fn script(random: &mut StdRng, n: &mut u64) -> String {
    let rounds = random.random_range(1..=2);
    let round = |random: &mut StdRng, n: &mut u64| {
        let calls = (0..random.random_range(1..=3)).map(|_| {
            let kind = &super::callee::KINDS[random.random_range(0..super::callee::KINDS.len())];
            *n += 1;
            format!("{} {{\"n\":{n}}}", kind.name)
        });
        calls.collect::<Vec<_>>().join(" & ")
    };
    (0..rounds).map(|_| round(random, n)).collect::<Vec<_>>().join(" then ")
}

/// How many copies of a webhook arrive at once.
pub(crate) fn copies(random: &mut StdRng) -> usize {
    if random.random_bool(0.2) { 46 } else { random.random_range(1..12) }
}
