//! Who may call and list: cheap checks first, bcrypt last, and not for who fails all the time.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use axum::http::{HeaderMap, header::AUTHORIZATION};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::{Rejected, single};
use crate::{
    nonce::{self, Pool, Refused, Verifier},
    platform::AivaxConfig,
};

/// Nonces that a peer may get wrong within a while.
const MAX_FAILURES: u32 = 20;
const WHILE: Duration = Duration::from_secs(60);
/// Peers remembered at most.
const MAX_PEERS: usize = 4096;

pub(super) struct Gate {
    nonces: Verifier,
    /// Bearer tokens that callbacks must carry; none where empty.
    tokens: Vec<[u8; 32]>,
    listing_key: Option<[u8; 32]>,
    peers: Peers,
}

impl Gate {
    pub(super) fn new(config: &AivaxConfig, pool: Pool) -> Self {
        let digest = |secret: &SecretString| Sha256::digest(secret.expose_secret()).into();
        Self {
            nonces: Verifier::new(config.hook_keys.clone(), config.cost.clone(), pool),
            tokens: config.listing_secrets.iter().map(digest).collect(),
            listing_key: config.listing_key.as_ref().map(digest),
            peers: Peers::default(),
        }
    }

    pub(super) async fn callback(&self, headers: &HeaderMap, peer: IpAddr) -> Result<(), Rejected> {
        if !headers.contains_key(nonce::HEADER) {
            return Err(Rejected::Missing);
        }
        let is_trusted = match self.tokens.is_empty() {
            true => false,
            false if self.has_token(headers) => true,
            false => return Err(Rejected::Wrong),
        };
        self.nonce(headers, peer, is_trusted).await
    }

    /// The key in the URL needs no bcrypt: with it the listing is there however many nonces are being checked.
    pub(super) async fn listing(&self, headers: &HeaderMap, query: Option<&str>, peer: IpAddr) -> Result<(), Rejected> {
        let given = query.into_iter().flat_map(|query| query.split('&')).find_map(|pair| pair.strip_prefix("key="));
        match (&self.listing_key, given) {
            (Some(key), Some(given)) if Sha256::digest(given).ct_eq(key).into() => return Ok(()),
            (_, Some(_)) => return Err(Rejected::Wrong),
            (_, None) => {}
        }
        if !headers.contains_key(nonce::HEADER) {
            return Err(Rejected::Missing);
        }
        self.nonce(headers, peer, false).await
    }

    fn has_token(&self, headers: &HeaderMap) -> bool {
        let Some(token) = single(headers, AUTHORIZATION.as_str()).and_then(|value| value.strip_prefix("Bearer "))
        else {
            return false;
        };
        let digest = Sha256::digest(token);
        self.tokens.iter().any(|known| digest.ct_eq(known).into())
    }

    /// `is_trusted`: it showed another secret, so that its failures are not a stranger's.
    async fn nonce(&self, headers: &HeaderMap, peer: IpAddr, is_trusted: bool) -> Result<(), Rejected> {
        let nonce = single(headers, nonce::HEADER).ok_or(Rejected::Wrong)?;
        if !is_trusted && !self.nonces.is_known(nonce) && self.peers.is_limited(peer, Instant::now()) {
            return Err(Rejected::Limited);
        }
        match self.nonces.verify(nonce).await {
            Ok(()) => Ok(()),
            Err(Refused::Overloaded) => Err(Rejected::Overloaded),
            Err(Refused::Wrong) => {
                self.peers.failed(peer, Instant::now());
                Err(Rejected::Wrong)
            }
        }
    }
}

/// How often each peer failed of late.
#[derive(Default)]
struct Peers {
    failures: Mutex<HashMap<IpAddr, (Instant, u32)>>,
}

impl Peers {
    fn is_limited(&self, peer: IpAddr, now: Instant) -> bool {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.get(&network(peer)).is_some_and(|(since, count)| *count >= MAX_FAILURES && now < *since + WHILE)
    }

    fn failed(&self, peer: IpAddr, now: Instant) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() >= MAX_PEERS {
            failures.retain(|_, (since, _)| now < *since + WHILE);
        }
        if failures.len() >= MAX_PEERS
            && let Some(oldest) = failures.iter().min_by_key(|(_, (since, _))| *since).map(|(peer, _)| *peer)
        {
            failures.remove(&oldest);
        }
        let (since, count) = failures.entry(network(peer)).or_insert((now, 0));
        if now >= *since + WHILE {
            (*since, *count) = (now, 0);
        }
        *count += 1;
    }
}

/// One person has a whole /64 of IPv6.
fn network(peer: IpAddr) -> IpAddr {
    match peer.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_fails_too_often_waits_and_others_do_not() {
        let (peers, now) = (Peers::default(), Instant::now());
        let peer = |text: &str| text.parse::<IpAddr>().unwrap();
        for _ in 0..MAX_FAILURES {
            assert!(!peers.is_limited(peer("2001:db8::1"), now));
            peers.failed(peer("2001:db8::1"), now);
        }
        assert!(peers.is_limited(peer("2001:db8::2"), now));
        assert!(!peers.is_limited(peer("2001:db8:0:1::1"), now) && !peers.is_limited(peer("192.0.2.1"), now));
        assert!(!peers.is_limited(peer("2001:db8::1"), now + WHILE));
        peers.failed(peer("2001:db8::1"), now + WHILE);
        assert!(!peers.is_limited(peer("2001:db8::1"), now + WHILE));
    }

    #[test]
    fn the_table_of_peers_does_not_grow_without_end() {
        let (peers, now) = (Peers::default(), Instant::now());
        for peer in 0..MAX_PEERS as u32 + 10 {
            peers.failed(std::net::Ipv4Addr::from_bits(peer).into(), now + Duration::from_millis(peer.into()) / 1000);
        }
        assert_eq!(peers.failures.lock().unwrap().len(), MAX_PEERS);
    }
}
