//! The functions that count now, whoever registers them, and which of them this process runs.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
};

use arc_swap::ArcSwap;

use super::{Function, Registry};

/// The registry that counts now: what the config registers, and beneath it what is imported from elsewhere. Who holds a
/// function goes on with it when the registry is replaced.
pub struct Live {
    layers: Mutex<Layers>,
    merged: ArcSwap<Registry>,
    expected: ArcSwap<Vec<Expected>>,
    serves: Serves,
    /// Names of functions that an operator has paused.
    paused: ArcSwap<BTreeSet<String>>,
}

/// Whose functions a process runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Serves {
    /// All: nobody else is there.
    #[default]
    Everything,
    /// Those without a pool. Sessions with calls of others are handed over.
    Unpinned,
    /// Those of this pool.
    Pool(Arc<str>),
}

impl Serves {
    /// Whether functions of that pool, or of none, run here.
    pub fn has(&self, pool: Option<&str>) -> bool {
        match self {
            Self::Everything => true,
            Self::Unpinned => pool.is_none(),
            Self::Pool(own) => pool == Some(&**own),
        }
    }
}

/// Whose business a call is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Here,
    /// It must be handed over to the workers of this pool.
    Pool(Arc<str>),
    /// Somebody else's, who hears of it anyway.
    Elsewhere,
}

/// Functions that will be registered, but are not known yet.
#[derive(Clone, Debug)]
pub struct Expected {
    /// Who will register them.
    pub by: String,
    pub prefix: String,
    /// What may follow the prefix; anything where empty.
    pub only: Vec<String>,
    /// The pool that alone runs them.
    pub pool: Option<Arc<str>>,
    /// They are registered by now.
    pub came: bool,
}

impl Expected {
    fn has(&self, name: &str) -> bool {
        match name.strip_prefix(&self.prefix) {
            Some(rest) => self.only.is_empty() || self.only.iter().any(|only| only == rest),
            None => false,
        }
    }
}

struct Layers {
    config: Registry,
    /// By source, in the order in which they came first.
    imports: Vec<(String, Vec<Arc<Function>>)>,
}

impl Layers {
    /// A name is the config's if it has it, else the source's that has it already, else the first one's.
    fn merged(&self, before: &Registry) -> Registry {
        let mut next = self.config.clone();
        let had = |function: &&Arc<Function>| {
            before.by_name(&function.name).is_some_and(|had| had.source.is_some() && had.source == function.source)
        };
        let imported = || self.imports.iter().flat_map(|(_, functions)| functions);
        for function in imported().filter(had).chain(imported()) {
            next.functions.entry(function.name.clone()).or_insert_with(|| function.clone());
        }
        next
    }
}

impl Live {
    pub fn new(config: Registry) -> Self {
        Self::serving(config, Serves::Everything)
    }

    /// In a process that runs only some of the functions.
    pub fn serving(config: Registry, serves: Serves) -> Self {
        let merged = ArcSwap::from_pointee(config.clone());
        let layers = Mutex::new(Layers { config, imports: Vec::new() });
        Self { layers, merged, expected: ArcSwap::default(), serves, paused: ArcSwap::default() }
    }

    pub fn serves(&self) -> &Serves {
        &self.serves
    }

    /// Whose a call of that name is. Functions of a pool are imported there alone, so the names that its imports may give
    /// are the pool's, whether there are such functions or not.
    pub fn place(&self, name: &str, platform: &str) -> Place {
        let pool = match self.get(name, platform) {
            Some(function) => function.pool.clone(),
            None => self.expected.load().iter().find(|expected| expected.has(name)).and_then(|e| e.pool.clone()),
        };
        match (&self.serves, pool) {
            (serves, pool) if serves.has(pool.as_deref()) => Place::Here,
            (Serves::Unpinned, Some(pool)) => Place::Pool(pool),
            _ => Place::Elsewhere,
        }
    }

    /// The registry of this moment.
    pub fn load(&self) -> Arc<Registry> {
        self.merged.load_full()
    }

    /// The function of that name, if it answers this platform.
    pub fn get(&self, name: &str, platform: &str) -> Option<Arc<Function>> {
        self.merged.load().get(name, platform).cloned()
    }

    /// Replaces what the config registers. What was imported stays, but where a name of it is the config's now.
    pub fn swap(&self, config: Registry) {
        self.change(|layers| layers.config = config);
    }

    /// Replaces what one source gave; its functions bear its name. A name that the config or another source has is refused;
    /// the refused names.
    pub fn import(&self, source: &str, functions: Vec<Function>) -> Vec<String> {
        let functions: Vec<_> = functions.into_iter().map(Arc::new).collect();
        let given = functions.clone();
        let merged = self.change(|layers| match layers.imports.iter_mut().find(|(name, _)| name == source) {
            Some((_, before)) => *before = given,
            None => layers.imports.push((source.to_owned(), given)),
        });
        let is_refused =
            |function: &&Arc<Function>| !merged.by_name(&function.name).is_some_and(|held| Arc::ptr_eq(held, function));
        functions.iter().filter(is_refused).map(|function| function.name.clone()).collect()
    }

    /// From now on calls of such functions wait.
    pub fn expect(&self, expected: Vec<Expected>) {
        self.expected.store(Arc::new(expected));
    }

    /// Whoever was expected has registered its functions.
    pub fn came(&self, by: &str) {
        let mark = |e: &Expected| Expected { came: e.came || e.by == by, ..e.clone() };
        self.expected.rcu(|expected| expected.iter().map(mark).collect::<Vec<_>>());
    }

    /// Whether a function of that name may be registered soon.
    pub fn is_expected(&self, name: &str) -> bool {
        self.expected.load().iter().any(|expected| !expected.came && expected.has(name))
    }

    /// From now on exactly these are not started here.
    pub fn pause(&self, names: BTreeSet<String>) {
        self.paused.store(Arc::new(names));
    }

    pub fn is_paused(&self, name: &str) -> bool {
        self.paused.load().contains(name)
    }

    /// The names of what is paused.
    pub fn paused(&self) -> Arc<BTreeSet<String>> {
        self.paused.load_full()
    }

    fn change(&self, change: impl FnOnce(&mut Layers)) -> Arc<Registry> {
        let mut layers = self.layers.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut layers);
        let merged = Arc::new(layers.merged(&self.merged.load()));
        self.merged.store(merged.clone());
        merged
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::echo, *};

    fn held(live: &Live) -> Vec<String> {
        let registry = live.load();
        registry.of("p").iter().map(|f| format!("{}:{}", f.name, f.source.as_deref().unwrap_or("config"))).collect()
    }

    #[test]
    fn the_config_wins_and_a_source_replaces_only_its_own() {
        let live = Live::new(Registry::new([echo("a", None)]));
        let of = |source, names: &[&str]| names.iter().map(|name| echo(name, Some(source))).collect::<Vec<_>>();
        assert_eq!(live.import("s", of("s", &["a", "b", "c"])), ["a"]);
        assert_eq!(live.import("t", of("t", &["c", "d"])), ["c"]);
        assert_eq!(held(&live), ["a:config", "b:s", "c:s", "d:t"]);
        assert!(live.import("s", of("s", &["b"])).is_empty());
        live.swap(Registry::new([echo("b", None), echo("e", None)]));
        assert_eq!(held(&live), ["b:config", "c:t", "d:t", "e:config"], "a name that was given up is the next one's");
        assert!(live.import("t", Vec::new()).is_empty());
        assert_eq!(held(&live), ["b:config", "e:config"]);
        live.swap(Registry::new([echo("e", None)]));
        assert_eq!(held(&live), ["b:s", "e:config"], "what the config had hidden is there again");
        assert_eq!(live.import("t", of("t", &["b", "d"])), ["b"]);
        assert!(live.import("s", of("s", &["c"])).is_empty());
        assert_eq!(held(&live), ["b:t", "c:s", "d:t", "e:config"]);
        assert_eq!(live.import("s", of("s", &["b", "c"])), ["b"], "who has a name keeps it");
    }

    #[test]
    fn a_call_is_for_whoever_runs_its_function() {
        let pinned = |name, pool: &str| Function { pool: Some(pool.into()), ..echo(name, None) };
        let registry = Registry::new([echo("free", None), pinned("draw", "gpu"), pinned("open", "browser")]);
        let expected = |by: &str, prefix: &str, pool: Option<&str>| Expected {
            by: by.into(),
            prefix: prefix.into(),
            only: Vec::new(),
            pool: pool.map(Into::into),
            came: false,
        };
        let place = |serves: Serves| {
            let live = Live::serving(registry.clone(), serves);
            live.expect(vec![expected("s", "gpu_", Some("gpu")), expected("t", "web_", None)]);
            live.came("s");
            move |name: &str| live.place(name, "p")
        };
        let everything = place(Serves::Everything);
        assert!(["free", "draw", "open", "gpu_x", "nobody"].iter().all(|name| everything(name) == Place::Here));
        let unpinned = place(Serves::Unpinned);
        assert!(["free", "web_x", "nobody"].iter().all(|name| unpinned(name) == Place::Here));
        assert_eq!(unpinned("draw"), Place::Pool("gpu".into()));
        assert_eq!(unpinned("gpu_x"), Place::Pool("gpu".into()), "what is imported there is known there alone");
        let gpu = place(Serves::Pool("gpu".into()));
        assert!(["draw", "gpu_x"].iter().all(|name| gpu(name) == Place::Here));
        assert!(["free", "open", "web_x", "nobody"].iter().all(|name| gpu(name) == Place::Elsewhere));
    }
}
