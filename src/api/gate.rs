//! Who may use API and dashboard: the bearer token, a session made from it, or, without a token, somebody on this machine who
//! is no page of another site.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::http::{HeaderMap, Method, header};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use secrecy::{ExposeSecret as _, SecretString};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// How long a login lasts.
const SESSION: Duration = Duration::from_secs(12 * 3600);
const COOKIE: &str = "actiond_session";
/// What the session's signature is about; another one ends all sessions.
const PURPOSE: &str = "actiond dashboard session v1";

pub struct Gate {
    /// None where the listener is loopback and no token is configured.
    token: Option<Token>,
}

struct Token {
    digest: [u8; 32],
    key: Hmac<Sha256>,
}

/// Why somebody does not get in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Shows no token, or a wrong one.
    Unauthorized,
    /// A page of another site asks, through a browser that has access.
    Foreign,
}

impl Gate {
    pub fn new(token: Option<&SecretString>) -> Self {
        let token = token.and_then(|token| {
            let bytes = token.expose_secret().as_bytes();
            let key = Hmac::<Sha256>::new_from_slice(bytes).ok()?;
            Some(Token { digest: Sha256::digest(bytes).into(), key })
        });
        Self { token }
    }

    /// Whether everybody on this machine may come in.
    pub fn is_open(&self) -> bool {
        self.token.is_none()
    }

    pub fn judge(&self, method: &Method, headers: &HeaderMap) -> Result<(), Refused> {
        let reads = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        let Some(token) = &self.token else {
            // A name that resolves to this machine is not enough: an attacker's may.
            let is_ours = one(headers, header::HOST).is_some_and(is_loopback) && (reads || !is_foreign(headers));
            return if is_ours { Ok(()) } else { Err(Refused::Foreign) };
        };
        if headers.contains_key(header::AUTHORIZATION) {
            let shown = one(headers, header::AUTHORIZATION).and_then(bearer);
            return if shown.is_some_and(|shown| token.is(shown)) { Ok(()) } else { Err(Refused::Unauthorized) };
        }
        match session(headers).is_some_and(|session| token.signed(session, SystemTime::now())) {
            // The cookie comes along with whatever makes the browser ask; only the page itself may change something.
            true if reads || is_same_origin(headers) => Ok(()),
            true => Err(Refused::Foreign),
            false => Err(Refused::Unauthorized),
        }
    }

    /// The `Set-Cookie` of somebody who showed this token in a form; `None` where it is wrong.
    pub fn login(&self, shown: &str, secure: bool) -> Option<String> {
        let token = self.token.as_ref().filter(|token| token.is(shown))?;
        let until = SystemTime::now() + SESSION;
        let until = until.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        Some(cookie(&token.session(until), SESSION.as_secs(), secure))
    }

    /// Whether a browser says that a page of another site asks.
    pub fn is_foreign(headers: &HeaderMap) -> bool {
        is_foreign(headers)
    }

    /// The `Set-Cookie` that ends a session in its browser.
    pub fn logout() -> String {
        cookie("", 0, false)
    }
}

impl Token {
    /// Takes the same time whatever is wrong with it.
    fn is(&self, shown: &str) -> bool {
        Sha256::digest(shown.as_bytes()).ct_eq(&self.digest).into()
    }

    /// `UNTIL.NONCE.SIGNATURE`
    fn session(&self, until: u64) -> String {
        let signed = format!("{until}.{:032x}", rand::random::<u128>());
        let mac = URL_SAFE_NO_PAD.encode(self.mac(&signed).finalize().into_bytes());
        format!("{signed}.{mac}")
    }

    fn signed(&self, session: &str, now: SystemTime) -> bool {
        let Some((signed, mac)) = session.rsplit_once('.') else { return false };
        let Ok(mac) = URL_SAFE_NO_PAD.decode(mac) else { return false };
        let until = signed.split_once('.').and_then(|(until, _)| until.parse().ok());
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        self.mac(signed).verify_slice(&mac).is_ok() && until.is_some_and(|until: u64| now < until)
    }

    fn mac(&self, signed: &str) -> Hmac<Sha256> {
        let mut mac = self.key.clone();
        mac.update(PURPOSE.as_bytes());
        mac.update(b"|");
        mac.update(signed.as_bytes());
        mac
    }
}

fn cookie(value: &str, seconds: u64, secure: bool) -> String {
    let secure = if secure { "; Secure" } else { "" };
    format!("{COOKIE}={value}; Path=/; HttpOnly; SameSite=Strict; Max-Age={seconds}{secure}")
}

fn session(headers: &HeaderMap) -> Option<&str> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = cookies.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, value)| value)
}

/// A header that is there once, as text.
fn one(headers: &HeaderMap, name: header::HeaderName) -> Option<&str> {
    let mut values = headers.get_all(name).iter();
    match (values.next(), values.next()) {
        (Some(value), None) => value.to_str().ok(),
        _ => None,
    }
}

fn bearer(value: &str) -> Option<&str> {
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim()).filter(|token| !token.is_empty())
}

/// `localhost`, `127.0.0.0/8` or `[::1]`, with or without a port.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map_or("", |(name, _)| name),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// Whether a browser says that a page of another site asks. What is no browser says nothing.
fn is_foreign(headers: &HeaderMap) -> bool {
    let says = headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site");
    says && !is_same_origin(headers) && one(headers, SEC_FETCH_SITE) != Some("none")
}

const SEC_FETCH_SITE: header::HeaderName = header::HeaderName::from_static("sec-fetch-site");

/// Whether a browser says that our own page asks.
fn is_same_origin(headers: &HeaderMap) -> bool {
    if let Some(site) = one(headers, SEC_FETCH_SITE) {
        return site == "same-origin";
    }
    let origin = one(headers, header::ORIGIN).and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
    let host = one(headers, header::HOST);
    origin.zip(host).is_some_and(|(origin, host)| origin.eq_ignore_ascii_case(host))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse::<header::HeaderName>().unwrap(), value.parse().unwrap()))
            .collect()
    }

    fn closed() -> Gate {
        Gate::new(Some(&"case-token-case-token".into()))
    }

    #[test]
    fn only_the_token_opens() {
        let judge = |pairs: &[(&str, &str)]| closed().judge(&Method::POST, &headers(pairs));
        for value in ["Bearer case-token-case-token", "bearer case-token-case-token", "BEARER  case-token-case-token"] {
            assert_eq!(judge(&[("authorization", value)]), Ok(()), "{value}");
        }
        for value in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer  ",
            "case-token-case-token",
            "Basic case-token-case-token",
            "Bearer case-token-case-tokem",
            "Bearer dase-token-case-token",
            "Bearer case-token-case-token-",
        ] {
            assert_eq!(judge(&[("authorization", value)]), Err(Refused::Unauthorized), "{value}");
        }
        assert_eq!(judge(&[]), Err(Refused::Unauthorized));
        assert_eq!(judge(&[("host", "localhost"), ("cookie", "actiond_session=")]), Err(Refused::Unauthorized));
        let mut twice = headers(&[("authorization", "Bearer case-token-case-token")]);
        twice.append("authorization", "Bearer x".parse().unwrap());
        assert_eq!(closed().judge(&Method::GET, &twice), Err(Refused::Unauthorized));
    }

    #[test]
    fn a_session_lasts_its_time_and_changes_things_only_for_its_own_page() {
        let gate = closed();
        assert_eq!(gate.login("wrong", false), None);
        let set = gate.login("case-token-case-token", true).unwrap();
        assert!(set.contains("; HttpOnly; SameSite=Strict; ") && set.ends_with("; Secure"), "{set}");
        assert!(!set.contains("case-token"));
        let pair = set.split(';').next().unwrap();
        let judge = |method, more: &[(&str, &str)]| {
            gate.judge(&method, &headers(&[&[("cookie", &*format!("a=b; {pair}")), ("host", "h:9090")], more].concat()))
        };
        assert_eq!(judge(Method::GET, &[]), Ok(()));
        for (more, allowed) in [
            (&[("origin", "https://h:9090")][..], true),
            (&[("sec-fetch-site", "same-origin")][..], true),
            (&[][..], false),
            (&[("origin", "https://evil.example")][..], false),
            (&[("origin", "null")][..], false),
            (&[("origin", "https://h:9090"), ("sec-fetch-site", "cross-site")][..], false),
            (&[("sec-fetch-site", "same-site")][..], false),
        ] {
            let expected = if allowed { Ok(()) } else { Err(Refused::Foreign) };
            assert_eq!(judge(Method::POST, more), expected, "{more:?}");
        }

        let token = gate.token.as_ref().unwrap();
        let now = SystemTime::now();
        let until = now.duration_since(UNIX_EPOCH).unwrap().as_secs() + 60;
        let session = token.session(until);
        assert!(token.signed(&session, now) && !token.signed(&session, now + Duration::from_secs(61)));
        let longer = session.replacen(&until.to_string(), &(until + 60).to_string(), 1);
        assert!(!token.signed(&longer, now) && !token.signed("", now) && !token.signed("a.b.c", now));
        let other = Gate::new(Some(&"another-token-another".into()));
        assert!(!other.token.unwrap().signed(&session, now));
    }

    #[test]
    fn without_a_token_this_machine_may_and_pages_of_others_may_not() {
        let gate = Gate::new(None);
        let judge = |method, pairs: &[(&str, &str)]| gate.judge(&method, &headers(pairs)).is_ok();
        for host in ["localhost", "LOCALHOST:9090", "127.0.0.1:9090", "127.8.8.8", "[::1]:9090", "[::1]"] {
            assert!(judge(Method::GET, &[("host", host)]), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:9090", "10.0.0.1", "[::2]:1", "", "127.0.0.1.evil.example"]
        {
            assert!(!judge(Method::GET, &[("host", host)]), "{host}");
        }
        assert!(!judge(Method::GET, &[]));
        let host = ("host", "127.0.0.1:9090");
        for (pairs, allowed) in [
            (vec![host], true),
            (vec![host, ("origin", "http://127.0.0.1:9090")], true),
            (vec![host, ("origin", "http://127.0.0.1:9090"), ("sec-fetch-site", "same-origin")], true),
            (vec![host, ("origin", "http://127.0.0.1:8000")], false),
            (vec![host, ("origin", "null")], false),
            (vec![host, ("sec-fetch-site", "cross-site")], false),
            (vec![host, ("sec-fetch-site", "none")], true),
        ] {
            assert_eq!(judge(Method::POST, &pairs), allowed, "{pairs:?}");
        }
    }
}
