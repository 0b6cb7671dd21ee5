//! A typed reader over the parsed file. It goes on after an error, so that all are found, and never quotes a value.

use std::{
    cell::{Cell, RefCell},
    ops::RangeInclusive,
    time::Duration,
};

use axum::http::Uri;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value};

use super::{expand::Expansion, path, units};

/// What was found so far.
#[derive(Default)]
pub(super) struct Problems {
    errors: RefCell<Vec<String>>,
    warnings: RefCell<Vec<String>>,
    expansion: RefCell<Expansion>,
}

impl Problems {
    pub(super) fn new(expansion: Expansion) -> Self {
        Self { expansion: RefCell::new(expansion), ..Self::default() }
    }

    pub(super) fn error(&self, path: &str, what: &str) {
        self.errors.borrow_mut().push(if path.is_empty() { what.into() } else { format!("{path}: {what}") });
    }

    pub(super) fn warn(&self, path: &str, what: &str) {
        self.warnings.borrow_mut().push(format!("{path}: {what}"));
    }

    /// Errors, those of values that nobody asked for last, and warnings.
    pub(super) fn finish(self) -> (Vec<String>, Vec<String>) {
        for (path, what) in &self.expansion.borrow().failed {
            self.error(path, what);
        }
        (self.errors.into_inner(), self.warnings.into_inner())
    }
}

/// A value at a path.
pub(super) struct Item<'a> {
    pub(super) path: String,
    state: State<'a>,
    problems: &'a Problems,
}

#[derive(Clone, Copy)]
enum State<'a> {
    Present(&'a Value),
    /// Not written, or null.
    Absent,
    /// Cannot be known; that is reported already.
    Broken,
}

impl<'a> Item<'a> {
    pub(super) fn root(value: &'a Value, problems: &'a Problems) -> Self {
        Self::new(String::new(), Some(value), problems)
    }

    /// One of many: it is written, so it must be something.
    fn element(path: String, value: &'a Value, problems: &'a Problems) -> Self {
        let mut item = Self::new(path, Some(value), problems);
        if item.is_absent() {
            item.error("must not be empty");
            item.state = State::Broken;
        }
        item
    }

    fn new(path: String, value: Option<&'a Value>, problems: &'a Problems) -> Self {
        let failed = problems.expansion.borrow_mut().failed.remove(&path);
        let state = match (failed, value) {
            (Some(why), _) => {
                problems.error(&path, &why);
                State::Broken
            }
            (None, None | Some(Value::Null)) => State::Absent,
            (None, Some(value)) => State::Present(value),
        };
        Self { path, state, problems }
    }

    pub(super) fn error(&self, what: &str) {
        self.problems.error(&self.path, what);
    }

    /// An error at something below it.
    pub(super) fn error_at(&self, below: &str, what: &str) {
        self.problems.error(&format!("{}{below}", self.path), what);
    }

    /// Refuses a `name` that an item before it has. An empty one is reported already.
    pub(super) fn unique<'n>(&self, name: &str, mut before: impl Iterator<Item = &'n str>) {
        if let Some(other) = before.position(|n| n == name && !n.is_empty()) {
            self.error_at(".name", &format!("item {other} of the list has this name already"));
        }
    }

    pub(super) fn warn(&self, what: &str) {
        self.problems.warn(&self.path, what);
    }

    /// Says what is missing where nothing is written.
    pub(super) fn required(self, what: &str) -> Self {
        if matches!(self.state, State::Absent) {
            self.error(what);
        }
        self
    }

    pub(super) fn is_absent(&self) -> bool {
        matches!(self.state, State::Absent)
    }

    /// Whether it, or something in it, comes from the environment or a file.
    pub(super) fn holds_expanded(&self) -> bool {
        self.problems.expansion.borrow().expanded.iter().any(|path| path.starts_with(&self.path))
    }

    pub(super) fn value(&self) -> Option<&'a Value> {
        match self.state {
            State::Present(value) => Some(value),
            State::Absent | State::Broken => None,
        }
    }

    /// The value as `read` sees it; where it sees none, an error that says what is allowed.
    pub(super) fn parse<T>(&self, allowed: &str, read: impl FnOnce(&'a Value) -> Option<T>) -> Option<T> {
        let value = self.value()?;
        let read = read(value);
        if read.is_none() {
            self.error(allowed);
        }
        read
    }

    pub(super) fn text(&self) -> Option<&'a str> {
        self.parse("must be text; put it in quotes", Value::as_str)
    }

    /// Text that is not empty.
    pub(super) fn some_text(&self) -> Option<&'a str> {
        self.text_that("must not be empty", |text| !text.is_empty())
    }

    pub(super) fn text_that(&self, allowed: &str, is_right: impl FnOnce(&str) -> bool) -> Option<&'a str> {
        let text = self.text()?;
        if !is_right(text) {
            self.error(allowed);
            return None;
        }
        Some(text)
    }

    pub(super) fn bool(&self) -> Option<bool> {
        self.parse("must be true or false", |value| match value {
            Value::Bool(value) => Some(*value),
            Value::String(text) => text.parse().ok(),
            _ => None,
        })
    }

    pub(super) fn number(&self, range: RangeInclusive<u64>) -> Option<u64> {
        let allowed = format!("must be a whole number from {} to {}", range.start(), range.end());
        self.parse(&allowed, |value| whole(value).filter(|n| range.contains(n)))
    }

    pub(super) fn decimal(&self, range: RangeInclusive<f64>) -> Option<f64> {
        let allowed = format!("must be a number from {} to {}", range.start(), range.end());
        self.parse(&allowed, |value| {
            match value {
                Value::Number(number) => number.as_f64(),
                Value::String(text) => text.parse().ok(),
                _ => None,
            }
            .filter(|n| range.contains(n))
        })
    }

    pub(super) fn duration(&self, range: RangeInclusive<Duration>) -> Option<Duration> {
        let (from, to) = (units::show(*range.start()), units::show(*range.end()));
        let allowed = format!("must be a duration with a unit (ms, s, m, h, d), from {from} to {to}");
        self.parse(&allowed, |value| value.as_str().and_then(units::duration).filter(|d| range.contains(d)))
    }

    /// Bytes.
    pub(super) fn size(&self, range: RangeInclusive<u64>) -> Option<usize> {
        let allowed = format!(
            "must be a size such as 256KiB, 1MiB or a number of bytes, from {} to {}",
            range.start(),
            range.end()
        );
        self.parse(&allowed, |value| {
            let size = value.as_str().map_or_else(|| whole(value), units::size);
            size.filter(|n| range.contains(n)).and_then(|n| usize::try_from(n).ok())
        })
    }

    pub(super) fn choice<T: Copy>(&self, choices: &[(&str, T)]) -> Option<T> {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        self.parse(&format!("must be one of {}", names.join(", ")), |value| {
            choices.iter().find(|(name, _)| value.as_str() == Some(name)).map(|(_, choice)| *choice)
        })
    }

    /// Text that is never shown. One line end at its end is dropped, as editors and secret stores put it there.
    pub(super) fn secret(&self) -> Option<SecretString> {
        let text = self.text()?;
        let text = text.strip_suffix('\n').unwrap_or(text);
        let text = text.strip_suffix('\r').unwrap_or(text);
        let wrong = match text {
            "" => "must not be empty",
            _ if text.chars().any(char::is_control) => "must not hold a line feed or another control character",
            _ => return Some(text.into()),
        };
        self.error(wrong);
        None
    }

    /// A secret of at least 16 characters.
    pub(super) fn some_secret(&self) -> Option<SecretString> {
        let secret = self.secret()?;
        if secret.expose_secret().chars().count() < 16 {
            self.error("must have at least 16 characters");
        }
        Some(secret)
    }

    /// An `http` or `https` URL.
    pub(super) fn url(&self) -> Option<&'a str> {
        self.text_that("must be an http:// or https:// URL with a host, without user, password or fragment", |text| {
            is_http(text)
        })
    }

    pub(super) fn section(&self) -> Section<'a> {
        let map = self.parse("must be a map of keys and values", Value::as_object);
        let broken = map.is_none() && !self.is_absent();
        Section {
            path: self.path.clone(),
            map,
            broken,
            asked: RefCell::default(),
            open: Cell::default(),
            problems: self.problems,
        }
    }

    pub(super) fn list(&self) -> Vec<Item<'a>> {
        let items = self.parse("must be a list", Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let item = |(i, value)| Item::element(path::index(&self.path, i), value, self.problems);
        items.iter().enumerate().map(item).collect()
    }

    /// A map whose keys are free.
    pub(super) fn entries(&self) -> Vec<(&'a str, Item<'a>)> {
        let map = self.parse("must be a map of keys and values", Value::as_object);
        let entry = |(key, value): (&'a String, _)| {
            (key.as_str(), Item::element(path::key(&self.path, key), value, self.problems))
        };
        map.into_iter().flatten().map(entry).collect()
    }
}

fn whole(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64().or_else(|| {
            let float = number.as_f64()?;
            (float.fract() == 0.0 && (0.0..9.0e15).contains(&float)).then_some(float as u64)
        }),
        Value::String(text) if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    }
}

fn is_http(text: &str) -> bool {
    let Some(uri) = text.parse::<Uri>().ok().filter(|_| !text.contains('#')) else { return false };
    let Some(authority) = uri.authority() else { return false };
    let port = authority.as_str().len() > authority.host().len();
    matches!(uri.scheme_str(), Some("http" | "https"))
        && !authority.host().is_empty()
        && !authority.as_str().contains('@')
        && (!port || authority.port_u16().is_some_and(|port| port > 0))
}

/// A map whose keys are known. Dropped without `finish`, unknown keys would pass.
pub(super) struct Section<'a> {
    path: String,
    map: Option<&'a Map<String, Value>>,
    broken: bool,
    asked: RefCell<Vec<&'static str>>,
    open: Cell<bool>,
    problems: &'a Problems,
}

impl<'a> Section<'a> {
    pub(super) fn key(&self, key: &'static str) -> Item<'a> {
        self.asked.borrow_mut().push(key);
        let mut item = Item::new(path::key(&self.path, key), self.map.and_then(|map| map.get(key)), self.problems);
        if self.broken {
            item.state = State::Broken;
        }
        item
    }

    /// Accepts any key: which ones are known depends on something that is wrong already.
    pub(super) fn leave_open(&self) {
        self.open.set(true);
    }

    /// Refuses every key that was not asked for.
    pub(super) fn finish(self) {
        let asked = self.asked.into_inner();
        let unknown = self.map.into_iter().flat_map(Map::keys).filter(|key| !asked.contains(&key.as_str()));
        for key in unknown.filter(|_| !self.open.get()) {
            let hint = match path::meant(key, asked.iter().copied()) {
                Some(meant) => format!("unknown key; did you mean {meant}?"),
                None => format!("unknown key; known here: {}", asked.join(", ")),
            };
            self.problems.error(&path::key(&self.path, key), &hint);
        }
    }
}
