//! Which dead messages an operator means.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    queue::Dead,
    store::{self, Filter, Store},
};

/// `None` is any.
#[derive(Clone, Debug, Default)]
pub struct Pick {
    pub platform: Option<String>,
    /// Its session has a call of this function in the store.
    pub function: Option<String>,
    /// Its reason holds this text, in any case.
    pub reason: Option<String>,
    /// Put aside longer ago than this.
    pub older_than: Option<Duration>,
    /// Put aside less long ago than this.
    pub newer_than: Option<Duration>,
}

impl Pick {
    /// Whether nothing is filtered.
    pub fn is_any(&self) -> bool {
        let Self { platform, function, reason, older_than, newer_than } = self;
        platform.is_none() && function.is_none() && reason.is_none() && older_than.is_none() && newer_than.is_none()
    }

    /// All that can be told without the store. `now` is Unix milliseconds.
    fn fits(&self, dead: &Dead, now: i64) -> bool {
        let platform = dead.action.as_ref().map(|action| &*action.session.platform);
        let age = dead.at.map(|at| Duration::from_millis(u64::try_from(now.saturating_sub(at)).unwrap_or(0)));
        let contains = |text: &String| dead.reason.to_lowercase().contains(&text.to_lowercase());
        self.platform.as_deref().is_none_or(|wanted| platform == Some(wanted))
            && self.reason.as_ref().is_none_or(contains)
            && self.older_than.is_none_or(|limit| age.is_some_and(|age| age >= limit))
            && self.newer_than.is_none_or(|limit| age.is_some_and(|age| age < limit))
    }
}

pub(super) struct Picking {
    pick: Pick,
    store: Arc<dyn Store>,
    /// Whether the functions are worth a read although nobody filters by them.
    shows: bool,
    error: Option<store::Error>,
}

impl Picking {
    pub(super) fn new(pick: Pick, store: Arc<dyn Store>, shows: bool) -> Self {
        Self { pick, store, shows, error: None }
    }

    /// The functions of a message that is picked, as far as somebody wants to know them and the store tells. `None` too when
    /// the store was needed and failed: see `failed`.
    pub(super) async fn picks(&mut self, dead: &Dead) -> Option<Option<Vec<String>>> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        if !self.pick.fits(dead, i64::try_from(now.as_millis()).unwrap_or(i64::MAX)) {
            return None;
        }
        let wanted = self.pick.function.as_ref();
        if wanted.is_none() && !self.shows {
            return Some(None);
        }
        match functions(&*self.store, dead).await {
            Ok(functions) => wanted.is_none_or(|wanted| functions.contains(wanted)).then_some(Some(functions)),
            Err(_) if wanted.is_none() => {
                self.shows = false;
                Some(None)
            }
            Err(error) => {
                self.error = Some(error);
                None
            }
        }
    }

    pub(super) fn failed(&self) -> bool {
        self.error.is_some()
    }

    pub(super) fn ended(&mut self) -> store::Result<()> {
        self.error.take().map_or(Ok(()), Err)
    }
}

/// The functions that the session of a dead message called, as far as the store knows.
pub(super) async fn functions(store: &dyn Store, dead: &Dead) -> store::Result<Vec<String>> {
    let Some(action) = &dead.action else { return Ok(Vec::new()) };
    let filter = Filter {
        platform: Some(action.session.platform.to_string()),
        session: Some(action.session.session.to_string()),
        ..Filter::default()
    };
    let mut functions: Vec<String> =
        store.calls(&filter, None, 100).await?.into_iter().map(|row| row.function).collect();
    functions.sort_unstable();
    functions.dedup();
    Ok(functions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{ActionRequired, SessionKey};

    #[test]
    fn every_filter_that_is_given_must_fit() {
        let dead = Dead {
            id: "1".to_owned(),
            reason: "platform Other is not configured".to_owned(),
            action: Some(ActionRequired {
                session: SessionKey::new("other", "s"),
                event: String::new(),
                accepted_at: 0,
                tries: 0,
                traceparent: None,
            }),
            at: Some(0),
            redriven: 0,
            bytes: Vec::new(),
        };
        let minute = Some(Duration::from_secs(60));
        for (pick, fits) in [
            (Pick::default(), true),
            (Pick { platform: Some("other".into()), ..Pick::default() }, true),
            (Pick { platform: Some("openai".into()), ..Pick::default() }, false),
            (Pick { reason: Some("other IS not".into()), ..Pick::default() }, true),
            (Pick { reason: Some("other".into()), platform: Some("openai".into()), ..Pick::default() }, false),
            (Pick { older_than: minute, ..Pick::default() }, true),
            (Pick { newer_than: minute, ..Pick::default() }, false),
        ] {
            assert_eq!(pick.fits(&dead, 60_000), fits);
        }
        let timeless = Dead { at: None, action: None, ..dead };
        assert!(!Pick { older_than: minute, ..Pick::default() }.fits(&timeless, 60_000));
        assert!(!Pick { platform: Some("other".into()), ..Pick::default() }.fits(&timeless, 60_000));
    }
}
