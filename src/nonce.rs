//! AIVAX nonces: a bcrypt hash of a shared key in `X-Request-Nonce`. The only file that knows the `bcrypt` crate.
//!
//! A nonce names nobody, covers no body and can be replayed; checking one costs a good part of a second, and the sender
//! chooses how much. So the cost is bounded before anything is hashed, few are checked at once, few wait, equal ones share
//! one check, and what passed is remembered for a while.

use std::{
    collections::HashMap,
    ops::RangeInclusive,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bcrypt::Version;
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, watch};

/// The header that carries it.
pub const HEADER: &str = "x-request-nonce";
/// How long a nonce that passed is not checked again.
const REMEMBERED: Duration = Duration::from_secs(300);
/// Nonces remembered at most.
const MOST_REMEMBERED: usize = 256;
/// Checks that wait for each one that runs.
const WAITING: usize = 8;
/// What AIVAX's own nonces cost.
const OUR_COST: u32 = 12;
/// How long one of our nonces is sent.
const OUR_AGE: Duration = Duration::from_secs(300);

/// How many checks run and wait in this process, whatever the platform.
#[derive(Clone)]
pub struct Pool {
    running: Arc<Semaphore>,
    admitted: Arc<Semaphore>,
}

impl Pool {
    /// `running` checks at once, and a few that wait.
    pub fn new(running: usize) -> Self {
        let running = running.max(1);
        let admitted = running * (1 + WAITING);
        Self { running: Arc::new(Semaphore::new(running)), admitted: Arc::new(Semaphore::new(admitted)) }
    }

    /// Leaves one core to everything else, where there is one.
    pub fn for_this_machine() -> Self {
        Self::new(std::thread::available_parallelism().map_or(1, |cores| cores.get() - 1))
    }
}

/// Why a nonce did not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No nonce of ours, of a cost that is not allowed, or of another key: nobody is told which.
    Wrong,
    /// Too many are being checked.
    Overloaded,
}

/// Checks the nonces of one account. A cheap clone.
#[derive(Clone)]
pub struct Verifier {
    inner: Arc<Inner>,
}

struct Inner {
    /// Two while the key is rotated.
    keys: Vec<SecretString>,
    cost: RangeInclusive<u32>,
    pool: Pool,
    /// Goes into every fingerprint, so that what one set of keys passed is nothing to another.
    generation: [u8; 32],
    state: Mutex<State>,
}

type Fingerprint = [u8; 32];

#[derive(Default)]
struct State {
    /// Until when a nonce is known to be right.
    passed: HashMap<Fingerprint, Instant>,
    running: HashMap<Fingerprint, watch::Receiver<Option<bool>>>,
}

impl State {
    fn is_known(&self, fingerprint: &Fingerprint) -> bool {
        self.passed.get(fingerprint).is_some_and(|until| *until > Instant::now())
    }
}

impl Verifier {
    pub fn new(keys: Vec<SecretString>, cost: RangeInclusive<u32>, pool: Pool) -> Self {
        let mut generation = Sha256::new();
        for key in &keys {
            generation.update((key.expose_secret().len() as u64).to_be_bytes());
            generation.update(key.expose_secret());
        }
        let generation = generation.finalize().into();
        Self { inner: Arc::new(Inner { keys, cost, pool, generation, state: Mutex::default() }) }
    }

    /// Whether the nonce is a hash of one of the keys. Does not wait where too many are being checked.
    pub async fn verify(&self, nonce: &str) -> Result<(), Refused> {
        if !cost(nonce).is_some_and(|cost| self.inner.cost.contains(&cost)) {
            return Err(Refused::Wrong);
        }
        let fingerprint = self.inner.fingerprint(nonce);
        let mut running = {
            let mut state = self.inner.state();
            if state.is_known(&fingerprint) {
                return Ok(());
            }
            match state.running.get(&fingerprint) {
                Some(running) => running.clone(),
                None => {
                    let running = self.start(fingerprint, nonce.to_owned())?;
                    state.running.insert(fingerprint, running.clone());
                    running
                }
            }
        };
        let is_right = running.wait_for(Option::is_some).await.is_ok_and(|known| *known == Some(true));
        if is_right { Ok(()) } else { Err(Refused::Wrong) }
    }

    /// Whether the nonce passed a moment ago: asking costs nothing.
    pub fn is_known(&self, nonce: &str) -> bool {
        self.inner.state().is_known(&self.inner.fingerprint(nonce))
    }

    /// Checks in a task of its own: who asked may go away, others may wait for the same answer.
    fn start(&self, fingerprint: Fingerprint, nonce: String) -> Result<watch::Receiver<Option<bool>>, Refused> {
        let admitted = self.inner.pool.admitted.clone().try_acquire_owned().map_err(|_| Refused::Overloaded)?;
        let (tell, running) = watch::channel(None);
        let inner = self.inner.clone();
        tokio::spawn(async move {
            let _admitted = admitted;
            let _running = inner.pool.running.clone().acquire_owned().await;
            let checking = inner.clone();
            let is_right = tokio::task::spawn_blocking(move || checking.is_right(&nonce)).await.unwrap_or(false);
            inner.ended(fingerprint, is_right);
            let _ = tell.send(Some(is_right));
        });
        Ok(running)
    }
}

impl Inner {
    fn fingerprint(&self, nonce: &str) -> Fingerprint {
        Sha256::new().chain_update(self.generation).chain_update(nonce).finalize().into()
    }

    fn is_right(&self, nonce: &str) -> bool {
        self.keys.iter().any(|key| bcrypt::verify(key.expose_secret(), nonce).unwrap_or(false))
    }

    fn ended(&self, fingerprint: Fingerprint, is_right: bool) {
        let mut state = self.state();
        state.running.remove(&fingerprint);
        if !is_right {
            return;
        }
        let now = Instant::now();
        if state.passed.len() >= MOST_REMEMBERED {
            state.passed.retain(|_, until| *until > now);
        }
        if state.passed.len() >= MOST_REMEMBERED {
            state.passed.clear();
        }
        state.passed.insert(fingerprint, now + REMEMBERED);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The cost that a nonce names, if it has the form of one: `$2a$12$` and 53 characters.
fn cost(nonce: &str) -> Option<u32> {
    let rest = ["$2a$", "$2b$", "$2y$"].iter().find_map(|prefix| nonce.strip_prefix(prefix))?;
    let (cost, hash) = rest.split_once('$')?;
    let is_hash = hash.len() == 53 && hash.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'/');
    let is_cost = cost.len() == 2 && cost.bytes().all(|b| b.is_ascii_digit());
    (is_hash && is_cost).then(|| cost.parse().ok()).flatten()
}

/// Makes the nonces that we send: one for some minutes, as AIVAX would, because each costs as much as a check.
pub struct Minted {
    key: SecretString,
    last: tokio::sync::Mutex<Option<(String, Instant)>>,
}

impl Minted {
    pub fn new(key: SecretString) -> Self {
        Self { key, last: tokio::sync::Mutex::default() }
    }

    /// A nonce of the key; who comes meanwhile waits for the same one. `None` only where this machine has no randomness.
    pub async fn get(&self) -> Option<String> {
        let mut last = self.last.lock().await;
        if let Some((nonce, made)) = last.as_ref()
            && made.elapsed() < OUR_AGE
        {
            return Some(nonce.clone());
        }
        let key = self.key.clone();
        let nonce = tokio::task::spawn_blocking(move || mint(key.expose_secret(), OUR_COST)).await.ok().flatten()?;
        *last = Some((nonce.clone(), Instant::now()));
        Some(nonce)
    }
}

/// A nonce as AIVAX writes one. Takes as long as its cost.
pub fn mint(key: &str, cost: u32) -> Option<String> {
    bcrypt::hash_with_result(key, cost).ok().map(|hash| hash.format_for_version(Version::TwoA))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Of `hook-key-hook-key`, made by another implementation (Python's bcrypt, `$2a$`, cost 12).
    const FOREIGN: &str = "$2a$12$exbeE7GJyz23/5lmUsTa9.KuQn2QyA7h/QefHcYQc4XfOkeigFLS6";

    fn verifier(keys: &[&str], cost: RangeInclusive<u32>) -> Verifier {
        Verifier::new(keys.iter().map(|key| (*key).into()).collect(), cost, Pool::new(1))
    }

    #[tokio::test]
    async fn a_nonce_of_any_key_and_any_dialect_passes() {
        let verifier = verifier(&["other-key", "hook-key-hook-key"], 4..=13);
        assert_eq!(verifier.verify(FOREIGN).await, Ok(()));
        let ours = mint("other-key", 4).unwrap();
        assert!(ours.starts_with("$2a$04$"), "{ours}");
        for prefix in ["$2a$", "$2b$", "$2y$"] {
            assert_eq!(verifier.verify(&ours.replace("$2a$", prefix)).await, Ok(()), "{prefix}");
        }
        assert!(verifier.is_known(&ours));
        assert_eq!(verifier.verify(&mint("no-key", 4).unwrap()).await, Err(Refused::Wrong));
    }

    #[tokio::test]
    async fn what_costs_too_little_or_too_much_is_refused_before_it_is_hashed() {
        let verifier = verifier(&["hook-key"], 10..=13);
        let hash = &FOREIGN[7..];
        let long = format!("{}x", &FOREIGN[..60]);
        let started = Instant::now();
        for nonce in [
            format!("$2a$04${hash}"),
            format!("$2a$09${hash}"),
            format!("$2a$14${hash}"),
            format!("$2a$31${hash}"),
            format!("$2a$99${hash}"),
            format!("$2a$1${hash}"),
            format!("$2x$12${hash}"),
            format!("$2$12${hash}"),
            format!("$2a$12${}", &hash[1..]),
            format!("$2a$12${}é", &hash[2..]),
            long,
            "$2a$12$".into(),
            String::new(),
        ] {
            assert_eq!(verifier.verify(&nonce).await, Err(Refused::Wrong), "{nonce}");
        }
        assert!(started.elapsed() < Duration::from_millis(200));
    }

    #[tokio::test]
    async fn more_than_can_be_checked_soon_is_refused_at_once_and_equal_ones_are_checked_once() {
        let verifier = verifier(&["hook-key"], 4..=13);
        let busy = verifier.inner.pool.running.acquire().await.unwrap();
        let waiting: Vec<_> = (0..=WAITING)
            .map(|i| {
                let (verifier, nonce) = (verifier.clone(), mint(&format!("key-{i}"), 4).unwrap());
                tokio::spawn(async move { verifier.verify(&nonce).await })
            })
            .collect();
        while verifier.inner.pool.admitted.available_permits() > 0 {
            tokio::task::yield_now().await;
        }
        let right = mint("hook-key", 4).unwrap();
        assert_eq!(verifier.verify(&right).await, Err(Refused::Overloaded));
        drop(busy);
        for task in waiting {
            assert_eq!(task.await.unwrap(), Err(Refused::Wrong));
        }
        let same = (0..100).map(|_| verifier.verify(&right));
        assert!(futures_util::future::join_all(same).await.iter().all(Result::is_ok));
        assert!(verifier.inner.state().running.is_empty());
    }

    #[tokio::test]
    async fn our_nonce_is_made_once_and_anybody_can_check_it() {
        let minted = Minted::new("shared-key".into());
        let first = minted.get().await.unwrap();
        assert!(first.starts_with("$2a$12$") && first.len() == 60, "{first}");
        assert_eq!(minted.get().await.unwrap(), first);
        assert_eq!(verifier(&["shared-key"], 12..=12).verify(&first).await, Ok(()));
    }

    proptest! {
        #[test]
        fn only_sixty_ascii_characters_have_a_cost(text in "\\$2[aby]\\$[0-9]{2}\\$[./A-Za-z0-9é$]{50,56}|\\PC{0,70}") {
            if cost(&text).is_some() {
                prop_assert!(text.len() == 60 && text.is_ascii());
            }
        }
    }
}
