//! `actiond check --online`: looks at everything that the config names and says what is wrong and what helps. Changes nothing.

mod platforms;
mod reach;
mod services;

use std::io::IsTerminal as _;

use serde_json::json;

use super::{
    ConfigFile, Failure, files,
    show::{escape, json_line, print},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Ok,
    /// It works, or may work, and should be looked at.
    Warn,
    Fail,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }

    /// What makes a terminal show it in green, yellow or red.
    fn colour(self) -> &'static str {
        match self {
            Self::Ok => "\x1b[32m",
            Self::Warn => "\x1b[33m",
            Self::Fail => "\x1b[31m",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Finding {
    level: Level,
    /// What it is about: `queue`, `store`, `platform openai`, …
    area: String,
    what: String,
    /// What helps, where something should be done.
    remedy: Option<String>,
}

impl Finding {
    fn ok(area: &str, what: impl Into<String>) -> Self {
        Self { level: Level::Ok, area: area.to_owned(), what: what.into(), remedy: None }
    }

    fn warn(area: &str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Warn, area: area.to_owned(), what: what.into(), remedy: Some(remedy.into()) }
    }

    fn fail(area: &str, what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { level: Level::Fail, ..Self::warn(area, what, remedy) }
    }
}

pub(super) async fn check(file: &ConfigFile, json: bool) -> Result<(), Failure> {
    let config = file.load()?;
    files::built(&config)?;
    if !json {
        files::summary(file, &config);
        println!();
    }
    let (queue, store, platforms, public, reached, telemetry) = tokio::join!(
        services::queue(&config),
        services::store(&config),
        platforms::platforms(&config),
        platforms::public_url(&config),
        reach::handlers(&config),
        services::telemetry(&config),
    );
    let findings = [queue, store, platforms, public, reached, telemetry].concat();
    let text: String = match json {
        true => findings.iter().map(line).collect(),
        false => shown(&findings, colours()),
    };
    print(&text)?;
    match findings.iter().any(|finding| finding.level == Level::Fail) {
        true => Err(Failure::Said),
        false => Ok(()),
    }
}

fn line(finding: &Finding) -> String {
    let Finding { level, area, what, remedy } = finding;
    json_line(&json!({ "level": level.word(), "area": area, "what": what, "remedy": remedy }))
}

fn shown(findings: &[Finding], colours: bool) -> String {
    let width = findings.iter().map(|finding| finding.area.chars().count()).max().unwrap_or(0);
    let lines = findings.iter().map(|Finding { level, area, what, remedy }| {
        let word = format!("{:<4}", level.word());
        let word = if colours { format!("{}{word}\x1b[0m", level.colour()) } else { word };
        let remedy = remedy.as_ref().map(|remedy| format!("\n      {:width$}  -> {}", "", escape(remedy)));
        format!("{word}  {:width$}  {}{}\n", escape(area), escape(what), remedy.unwrap_or_default())
    });
    lines.collect()
}

/// Only for a person who has not declined them.
fn colours() -> bool {
    let declined = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    std::io::stdout().is_terminal() && !declined && !dumb
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_aligned_and_coloured_only_where_that_is_wanted() {
        let findings = [Finding::ok("store", "SQLite"), Finding::fail("platform p", "a\x1b[2Jb", "do it")];
        let plain = shown(&findings, false);
        assert_eq!(plain, "ok    store       SQLite\nfail  platform p  a\\u{1b}[2Jb\n                  -> do it\n");
        let coloured = shown(&findings, true);
        assert!(coloured.contains("\x1b[32mok  \x1b[0m") && coloured.contains("\x1b[31mfail\x1b[0m"), "{coloured:?}");
        assert_eq!(
            line(&findings[1]),
            "{\"area\":\"platform p\",\"level\":\"fail\",\"remedy\":\"do it\",\"what\":\"a\\u001b[2Jb\"}\n"
        );
    }
}
