//! Which paths are hidden in a function's results.

use std::{collections::HashMap, sync::Arc};

use crate::{
    function::Live,
    redact::{HIDDEN, Path, show},
};

/// Where the paths of each function stand.
pub enum Redaction {
    /// Those of the functions that are registered now. Of others nothing is known, so nothing of them is shown.
    Live(Arc<Live>),
    /// Those of a config, for who has the store at hand; other functions have none.
    Config(HashMap<String, Vec<Path>>),
}

impl Redaction {
    /// The bytes of a result as they may be shown.
    pub(super) fn show(&self, function: &str, body: &[u8]) -> String {
        match self {
            Self::Live(live) => match live.load().by_name(function) {
                Some(function) => show(&function.redact, body),
                None => HIDDEN.to_owned(),
            },
            Self::Config(paths) => show(paths.get(function).map_or(&[], Vec::as_slice), body),
        }
    }
}
