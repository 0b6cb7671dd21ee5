//! What happened when: faults, and what became of each session. Told when the accountant finds something.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

pub(crate) struct Timeline {
    start: Instant,
    lines: Mutex<Vec<Line>>,
    counts: Mutex<BTreeMap<String, u64>>,
    logs: Mutex<Vec<(String, Log)>>,
}

/// What a process wrote, and goes on writing.
type Log = Arc<Mutex<Vec<String>>>;

struct Line {
    at: Duration,
    /// `None`: it concerns all.
    session: Option<String>,
    text: String,
}

impl Timeline {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), lines: Mutex::default(), counts: Mutex::default(), logs: Mutex::default() }
    }

    /// A fault that was injected, counted by its name.
    pub(crate) fn fault(&self, name: impl Into<String>) {
        let name = name.into();
        self.line(None, name.clone());
        self.count(&name, 1);
    }

    /// Faults that need no line of their own.
    pub(crate) fn count(&self, name: &str, times: u64) {
        *self.counts.lock().unwrap().entry(name.to_owned()).or_default() += times;
    }

    pub(crate) fn note(&self, text: impl Into<String>) {
        self.line(None, text.into());
    }

    pub(crate) fn of(&self, session: &str, text: impl Into<String>) {
        self.line(Some(session.to_owned()), text.into());
    }

    fn line(&self, session: Option<String>, text: String) {
        self.lines.lock().unwrap().push(Line { at: self.start.elapsed(), session, text });
    }

    /// A process that was started under this name.
    pub(crate) fn log(&self, process: &str, log: Log) {
        self.logs.lock().unwrap().push((process.to_owned(), log));
    }

    /// How often each fault was injected.
    pub(crate) fn counts(&self) -> BTreeMap<String, u64> {
        self.counts.lock().unwrap().clone()
    }

    /// The session's lines among the faults of its time, then what the processes said of it.
    pub(crate) fn tell(&self, session: &str) -> String {
        let lines = self.lines.lock().unwrap();
        let own = |line: &&Line| line.session.as_deref() == Some(session);
        let from = lines.iter().find(own).map_or(Duration::ZERO, |line| line.at);
        let mut told = format!("timeline of {session}\n");
        for line in lines.iter().filter(|line| line.at >= from && (line.session.is_none() || own(line))) {
            told += &format!("{:>9.3} {}\n", line.at.as_secs_f64(), line.text);
        }
        for (process, log) in self.logs.lock().unwrap().iter() {
            for line in log.lock().unwrap().iter().filter(|line| line.contains(session)) {
                told += &format!("{process}: {line}\n");
            }
        }
        told
    }
}
