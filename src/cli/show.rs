//! How listings look: escaped text, ages and times, aligned tables, JSON lines, progress.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal as _, Write as _},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jiff::Timestamp;
use serde_json::Value;

use super::Failure;
pub(super) use crate::shown::escape;
use crate::{config::units, shown::is_harmful};

/// Unix milliseconds as RFC 3339.
pub(super) fn time(ms: i64) -> String {
    Timestamp::from_millisecond(ms).map_or_else(|_| ms.to_string(), |time| time.to_string())
}

/// `45s`, `12m`, `3h`, `5d`: how long ago, in its largest unit.
pub(super) fn age(ms: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX).saturating_sub(ms / 1000).max(0);
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// An age in an argument, such as `90s`, `5m` or `2d`.
pub(super) fn parse_age(text: &str) -> Result<Duration, String> {
    units::duration(text).ok_or_else(|| "must be a time such as 90s, 5m, 24h or 2d".to_owned())
}

/// Columns as wide as their widest cell; the last one is not padded.
pub(super) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    rows.iter().fold(String::new(), |mut text, row| {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
        text
    })
}

/// One line of JSON. What serde leaves as it is and a terminal would obey is escaped too.
pub(super) fn json_line(value: &Value) -> String {
    let mut line = value.to_string().chars().fold(String::new(), |mut line, c| {
        match is_harmful(c) {
            true => drop(write!(line, "\\u{:04x}", u32::from(c))),
            false => line.push(c),
        }
        line
    });
    line.push('\n');
    line
}

/// Writes to standard output. A reader that has seen enough (`| head`) is no failure.
pub(super) fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// A line on standard error that is written over again and again; nothing where that is no terminal.
pub(super) struct Progress {
    shown: bool,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self { shown: io::stderr().is_terminal() }
    }

    pub(super) fn say(&self, text: &str) {
        if self.shown {
            eprint!("\r\x1b[K{text}");
        }
    }

    /// Removes the line, before something else is written.
    pub(super) fn clear(&self) {
        self.say("");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped_and_the_rest_is_left() {
        assert_eq!(json_line(&serde_json::json!("\0\u{9b}é")), "\"\\u0000\\u009bé\"\n");
    }

    #[test]
    fn a_table_is_aligned_without_trailing_blanks() {
        let rows = [["A", "LONG"], ["wide é", "x"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(table(&rows), "A       LONG\nwide é  x\n");
    }
}
