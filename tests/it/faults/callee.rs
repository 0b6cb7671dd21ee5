//! The handlers, and their journal: every start with its key, and what became of it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use actiond::session::IfInterrupted;
use axum::{
    Router,
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    routing::post,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::Value;

use super::{
    gate::{Gate, Step},
    timeline::Timeline,
};

/// A function of the suite. Each call of it carries a number of its own as `n`.
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    pub(crate) if_interrupted: IfInterrupted,
    /// Milliseconds it takes at most.
    slowness: u64,
    /// The share of its runs that fail so that they are tried again.
    flaky: f64,
    command: bool,
}

const fn kind(name: &'static str, if_interrupted: IfInterrupted, slowness: u64, flaky: f64, command: bool) -> Kind {
    Kind { name, if_interrupted, slowness, flaky, command }
}

pub(crate) const KINDS: [Kind; 10] = [
    kind("rerun", IfInterrupted::Rerun, 30, 0.0, false),
    kind("rerun_slow", IfInterrupted::Rerun, 1500, 0.0, false),
    kind("rerun_flaky", IfInterrupted::Rerun, 100, 0.4, false),
    kind("rerun_command", IfInterrupted::Rerun, 50, 0.0, true),
    kind("fail", IfInterrupted::Fail, 30, 0.0, false),
    // Longer than a lease, so that claims are renewed.
    kind("fail_slow", IfInterrupted::Fail, 4500, 0.0, false),
    kind("fail_flaky", IfInterrupted::Fail, 100, 0.4, false),
    kind("fail_command", IfInterrupted::Fail, 50, 0.0, true),
    kind("hold", IfInterrupted::Hold, 30, 0.0, false),
    kind("hold_slow", IfInterrupted::Hold, 1500, 0.0, false),
];

impl Kind {
    pub(crate) fn of(name: &str) -> &'static Kind {
        KINDS.iter().find(|kind| kind.name == name).unwrap()
    }

    /// Its lines in the config.
    pub(crate) fn config(&self, handlers: &str, journal: &str) -> String {
        let Self { name, slowness, .. } = self;
        let handler = match self.command {
            false => format!("{{ type: http, url: \"http://{handlers}/{name}\", body: arguments, timeout: 20s }}"),
            true => format!(
                "{{ type: command, timeout: 20s, pass_env: [PATH], command: [/bin/sh, -c, '{COMMAND}', sh, \"{journal}\", \"{}\"] }}",
                *slowness as f64 / 1000.0
            ),
        };
        let interrupted = format!("{:?}", self.if_interrupted).to_lowercase();
        format!("  - {{ name: {name}, description: d, if_interrupted: {interrupted}, handler: {handler} }}\n")
    }
}

const COMMAND: &str = r#"read -r arguments; printf "%s %s %s\n" "$ACTIOND_FUNCTION" "$ACTIOND_IDEMPOTENCY_KEY" "$arguments" >> "$1"; sleep "$2"; echo done"#;

/// One start of a handler.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) name: String,
    pub(crate) key: String,
    /// The status it was answered with, and the text; `None` while it runs, or when its caller went away.
    pub(crate) answer: Option<(u16, String)>,
}

/// What all http handlers share.
pub(crate) struct Callee {
    /// Runs by the number of their call.
    runs: Mutex<HashMap<u64, Vec<Run>>>,
    random: Mutex<StdRng>,
    timeline: Arc<Timeline>,
    /// Where the commands write.
    pub(crate) journal: String,
}

impl Callee {
    pub(crate) fn new(seed: u64, journal: String, timeline: Arc<Timeline>) -> Arc<Self> {
        let random = Mutex::new(StdRng::seed_from_u64(seed));
        Arc::new(Self { runs: Mutex::default(), random, timeline, journal })
    }

    /// The handlers as one worker sees them.
    pub(crate) fn router(self: &Arc<Self>, gate: Arc<Gate>, worker: &'static str) -> Router {
        Router::new().route("/{name}", post(handle)).with_state((self.clone(), gate, worker))
    }

    /// All starts, commands' too, by the number of their call.
    pub(crate) fn runs(&self) -> HashMap<u64, Vec<Run>> {
        let mut runs = self.runs.lock().unwrap().clone();
        for line in std::fs::read_to_string(&self.journal).unwrap_or_default().lines() {
            let mut words = line.splitn(3, ' ');
            let (name, key) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
            // A worker that died between the start and the write left the command without arguments.
            let Some(arguments) = words.next().filter(|arguments| !arguments.is_empty()) else { continue };
            runs.entry(number(arguments)).or_default().push(Run { name, key, answer: None });
        }
        runs
    }

    fn begin(&self, n: u64, run: Run) -> usize {
        let mut runs = self.runs.lock().unwrap();
        let runs = runs.entry(n).or_default();
        runs.push(run);
        runs.len()
    }
}

/// `n` of a call's arguments.
pub(crate) fn number(arguments: &str) -> u64 {
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    arguments["n"].as_u64().unwrap()
}

async fn handle(
    State((callee, gate, worker)): State<(Arc<Callee>, Arc<Gate>, &'static str)>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> (StatusCode, String) {
    let kind = Kind::of(&name);
    let n = number(std::str::from_utf8(&body).unwrap());
    let key = headers["idempotency-key"].to_str().unwrap().to_owned();
    let start = callee.begin(n, Run { name: name.clone(), key, answer: None });
    callee.timeline.note(format!("call {n} ({name}): start {start} by {worker}"));
    let (time, fails) = {
        let mut random = callee.random.lock().unwrap();
        (random.random_range(0..=kind.slowness), random.random_bool(kind.flaky))
    };
    gate.hold(Step::Handle).await;
    tokio::time::sleep(Duration::from_millis(time)).await;
    let status = if fails { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let text = format!("{name} {n} run {start}");
    callee.runs.lock().unwrap().get_mut(&n).unwrap()[start - 1].answer = Some((status.as_u16(), text.clone()));
    callee.timeline.note(format!("call {n} ({name}): start {start} answers {status}"));
    gate.pass(Step::Complete);
    (status, text)
}
