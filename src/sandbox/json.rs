//! JSON built as text, because the arguments of a scripted call go into answers byte for byte, legal or not.

use std::fmt::Write as _;

/// An object under construction. Names are literals of ours and need no escaping.
pub(super) struct Object(String);

impl Object {
    pub(super) fn new() -> Self {
        Self("{".to_owned())
    }

    pub(super) fn text(self, name: &str, value: &str) -> Self {
        self.raw(name, &quoted(value))
    }

    pub(super) fn maybe_text(self, name: &str, value: Option<&str>) -> Self {
        self.raw(name, &value.map_or_else(|| "null".to_owned(), quoted))
    }

    pub(super) fn number(self, name: &str, value: i64) -> Self {
        self.raw(name, &value.to_string())
    }

    pub(super) fn maybe_number(self, name: &str, value: Option<i64>) -> Self {
        self.raw(name, &value.map_or_else(|| "null".to_owned(), |number| number.to_string()))
    }

    /// `json` is pasted as it is.
    pub(super) fn raw(mut self, name: &str, json: &str) -> Self {
        if self.0.len() > 1 {
            self.0.push(',');
        }
        let _ = write!(self.0, "\"{name}\":{json}");
        self
    }

    pub(super) fn end(mut self) -> String {
        self.0.push('}');
        self.0
    }
}

pub(super) fn array(values: impl IntoIterator<Item = String>) -> String {
    let values: Vec<String> = values.into_iter().collect();
    format!("[{}]", values.join(","))
}

pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
