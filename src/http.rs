//! The outgoing HTTP client and what every use of it shares: capped bodies, `Retry-After`.

pub mod guard;
mod sender;

use std::{
    error::Error,
    io,
    net::SocketAddr,
    ops::Deref,
    time::{Duration, SystemTime},
};

use bytes::{Bytes, BytesMut};
use http::Response;
use http_body_util::BodyExt as _;
use jiff::civil::{self, DateTime};
pub use reqwest::{Client as GeneralClient, RequestBuilder};
use reqwest::{
    ClientBuilder, Url,
    header::{CONTENT_ENCODING, DATE, HeaderMap, HeaderValue, RETRY_AFTER},
    redirect,
};

pub use self::sender::{Answer, SendError, Sender, uri};

/// No `Retry-After` is believed beyond this.
pub const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const LOCAL_TIMEOUT: Duration = Duration::from_secs(3);
const POOL_IDLE: Duration = Duration::from_secs(20);
/// Before a connection that says nothing is asked for a sign of life, and between two of these.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 3;
const AGENT: HeaderValue = HeaderValue::from_static(concat!("actiond/", env!("CARGO_PKG_VERSION")));
const IMF_FIXDATE: &str = "%a, %d %b %Y %H:%M:%S GMT";

/// The client for everything: HTTP/1.1, pooled, no redirects, no compression offered. It takes `HTTPS_PROXY` and its kin
/// from the environment. A request has no timeout of its own: whoever sends one bounds it.
pub fn client() -> Result<Client, reqwest::Error> {
    Ok(Client { general: builder().build()?, direct: sender::direct().ok() })
}

/// A cheap handle on the process's connections.
#[derive(Clone)]
pub struct Client {
    general: reqwest::Client,
    direct: Option<sender::Direct>,
}

impl Client {
    /// What sends to the host of that URL, which is from the config, again and again.
    pub fn to(&self, url: &Url) -> Sender {
        Sender::new(self, url)
    }
}

/// One that sends everything by itself.
impl From<reqwest::Client> for Client {
    fn from(general: reqwest::Client) -> Self {
        Self { general, direct: None }
    }
}

impl Deref for Client {
    type Target = reqwest::Client;

    fn deref(&self) -> &reqwest::Client {
        &self.general
    }
}

fn builder() -> ClientBuilder {
    use_ring();
    reqwest::Client::builder()
        .user_agent(AGENT)
        .redirect(redirect::Policy::none())
        // Repeating is decided where it is known to be safe; the library would also keep a copy of each request for it.
        .retry(reqwest::retry::never().max_retries_per_request(0))
        .referer(false)
        .tcp_nodelay(true)
        .tcp_keepalive(KEEPALIVE)
        .tcp_keepalive_interval(KEEPALIVE)
        .tcp_keepalive_retries(KEEPALIVE_PROBES)
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(POOL_IDLE)
}

/// One TLS provider for all that connects; where another is installed already, that one is used.
pub fn use_ring() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// The status that a listener on this machine answers to a GET; never asked through a proxy.
pub async fn local_status(address: SocketAddr, path: &str) -> Result<u16, String> {
    use_ring();
    let client = reqwest::Client::builder().no_proxy().timeout(LOCAL_TIMEOUT).build().map_err(|e| describe(&e))?;
    let response = client.get(format!("http://{address}{path}")).send().await.map_err(|e| describe(&e))?;
    Ok(response.status().as_u16())
}

/// Why a body could not be read. The texts name no host.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the answer is larger than {cap} bytes")]
    TooLarge { cap: usize },
    /// Compressed although nothing was offered.
    #[error("the answer has a content-encoding that was not asked for")]
    Encoded,
    #[error("the answer broke off: {0}")]
    Transport(String),
}

/// Reads a body of at most `cap` bytes and stops at the first one more.
pub async fn read_capped<B>(response: impl Into<Response<B>>, cap: usize) -> Result<Bytes, BodyError>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let mut response = response.into();
    let plain = |value: &[u8]| value.is_empty() || value.eq_ignore_ascii_case(b"identity");
    if !response.headers().get_all(CONTENT_ENCODING).iter().all(|value| plain(value.as_bytes())) {
        return Err(BodyError::Encoded);
    }
    if response.body().size_hint().lower() > cap as u64 {
        return Err(BodyError::TooLarge { cap });
    }
    let mut body = BytesMut::new();
    while let Some(frame) = response.frame().await {
        let frame = frame.map_err(|error| BodyError::Transport(broken(&*error.into())))?;
        let Ok(chunk) = frame.into_data() else { continue };
        if chunk.len() > cap - body.len() {
            return Err(BodyError::TooLarge { cap });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

fn broken(error: &(dyn Error + 'static)) -> String {
    match error.downcast_ref() {
        Some(error) => describe(error),
        None => innermost("the body could not be read", error),
    }
}

/// What went wrong, without URL, host or address.
pub fn describe(error: &reqwest::Error) -> String {
    let what = match () {
        () if error.is_timeout() => return "timed out".into(),
        () if error.is_dns() => return "the name could not be resolved".into(),
        () if error.is_connect() => "could not connect",
        () if error.is_body() || error.is_decode() => "the body could not be read",
        () => "the request failed",
    };
    innermost(what, error)
}

/// With what the system said, where it said something.
fn innermost(what: &str, error: &(dyn Error + 'static)) -> String {
    let mut source = error.source();
    while let Some(cause) = source {
        match cause.downcast_ref::<io::Error>() {
            // `Other` and kinds without a name say nothing, an inner error may.
            Some(io) if io.get_ref().is_none() || io.kind() == io::ErrorKind::UnexpectedEof => {
                return format!("{what}: {}", io.kind());
            }
            _ => source = cause.source(),
        }
    }
    what.into()
}

/// The wait that an answer asks for: whole seconds or an IMF-fixdate in exactly one header line, anything else is ignored.
/// A date that has passed is zero; nothing is longer than [`MAX_RETRY_AFTER`].
pub fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let mut lines = headers.get_all(RETRY_AFTER).iter();
    let (Some(value), None) = (lines.next(), lines.next()) else { return None };
    let value = value.to_str().ok()?;
    let wait = match !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) {
        // Digits alone fail to parse only by being too many.
        true => value.parse().map_or(MAX_RETRY_AFTER, Duration::from_secs),
        false => imf_fixdate(value)?.duration_since(now).unwrap_or_default(),
    };
    Some(wait.min(MAX_RETRY_AFTER))
}

/// What the sender's clock showed: the `Date` header.
pub fn date(headers: &HeaderMap) -> Option<SystemTime> {
    imf_fixdate(headers.get(DATE)?.to_str().ok()?)
}

fn imf_fixdate(text: &str) -> Option<SystemTime> {
    let date = DateTime::strptime(IMF_FIXDATE, text).ok()?;
    // The parser is lenient; what it read must be written as it was sent.
    if date.strftime(IMF_FIXDATE).to_string() != text {
        return None;
    }
    let since_epoch = date.duration_since(civil::date(1970, 1, 1).at(0, 0, 0, 0));
    SystemTime::UNIX_EPOCH.checked_add(Duration::try_from(since_epoch).unwrap_or_default())
}

/// Posts a body as a webhook's sender would; answers with the status and the body that came back.
pub async fn post_webhook(
    client: &Client,
    url: &str,
    headers: HeaderMap,
    body: Vec<u8>,
) -> Result<(u16, String), String> {
    let request = client.post(url).headers(headers).body(body).timeout(Duration::from_secs(30));
    let response = request.send().await.map_err(|e| describe(&e))?;
    let status = response.status().as_u16();
    let answer = read_capped(response, 64 * 1024).await.map_err(|e| e.to_string())?;
    Ok((status, String::from_utf8_lossy(&answer).into_owned()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;
    use reqwest::header::HeaderValue;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
    };

    use super::*;

    /// 1994-11-06 08:49:37 UTC
    const NOW: u64 = 784_111_777;

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(NOW)
    }

    fn wait(lines: &[&str]) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(RETRY_AFTER, HeaderValue::from_str(line).unwrap());
        }
        retry_after(&headers, now())
    }

    #[test]
    fn seconds_and_dates_are_honoured() {
        assert_eq!(wait(&["2"]), Some(Duration::from_secs(2)));
        assert_eq!(wait(&["0"]), Some(Duration::ZERO));
        assert_eq!(wait(&["Sun, 06 Nov 1994 08:49:40 GMT"]), Some(Duration::from_secs(3)));
        assert_eq!(wait(&["Sun, 06 Nov 1994 08:49:36 GMT"]), Some(Duration::ZERO));
        assert_eq!(wait(&["Thu, 01 Jan 1970 00:00:00 GMT"]), Some(Duration::ZERO));
        assert_eq!(wait(&["Mon, 01 Jan 1900 00:00:00 GMT"]), Some(Duration::ZERO));
    }

    #[test]
    fn huge_waits_are_capped() {
        for value in ["99999999999", "18446744073709551615", "18446744073709551616", "Fri, 31 Dec 9999 00:00:00 GMT"] {
            assert_eq!(wait(&[value]), Some(MAX_RETRY_AFTER), "{value}");
        }
    }

    #[test]
    fn anything_else_is_ignored() {
        for value in [
            "",
            "-3",
            "+3",
            "1.5",
            "120junk",
            "1 2",
            "0x10",
            "Mon, 06 Nov 1994 08:49:40 GMT",
            "Sun, 6 Nov 1994 08:49:40 GMT",
            "Sun, 06 Nov 1994 08:49:40 UTC",
            "Sun, 06 Nov 1994 08:49:40 +0000",
            "sun, 06 nov 1994 08:49:40 GMT",
            "Sunday, 06-Nov-94 08:49:40 GMT",
            "Sun Nov  6 08:49:40 1994",
            "Sun, 31 Feb 1994 08:49:40 GMT",
            "1994-11-06T08:49:40Z",
        ] {
            assert_eq!(wait(&[value]), None, "{value}");
        }
        assert_eq!(wait(&["2", "2"]), None);
        assert_eq!(wait(&[]), None);
    }

    /// Sends `answer` to whoever connects and closes; keeps writing zeros where `endless`.
    async fn raw(answer: &'static [u8], endless: bool) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            let _ = socket.read(&mut [0; 4096]).await;
            let _ = socket.write_all(answer).await;
            while endless && socket.write_all(&[b'0'; 4096]).await.is_ok() {}
        });
        url
    }

    async fn read(answer: &'static [u8], endless: bool, cap: usize) -> Result<Bytes, BodyError> {
        read_capped(client().unwrap().get(raw(answer, endless).await).send().await.unwrap(), cap).await
    }

    #[tokio::test]
    async fn a_body_is_read_up_to_the_cap_and_no_further() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
        assert_eq!(read(answer, false, 5).await.unwrap(), "hello");
        assert!(matches!(read(answer, false, 4).await, Err(BodyError::TooLarge { cap: 4 })));
        let endless = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
        assert!(matches!(read(endless, true, 100_000).await, Err(BodyError::TooLarge { .. })));
        let lying = b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999999\r\n\r\nhello";
        assert!(matches!(read(lying, false, 100).await, Err(BodyError::TooLarge { .. })));
    }

    #[tokio::test]
    async fn a_compressed_body_is_an_error_and_a_short_one_too() {
        let gzip = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n\x1f\x8b";
        assert!(matches!(read(gzip, false, 100).await, Err(BodyError::Encoded)));
        let identity = b"HTTP/1.1 200 OK\r\nContent-Encoding: identity\r\nContent-Length: 2\r\n\r\nok";
        assert_eq!(read(identity, false, 100).await.unwrap(), "ok");
        let short = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello";
        assert!(matches!(read(short, false, 100).await, Err(BodyError::Transport(_))));
    }

    #[tokio::test]
    async fn a_failure_is_described_without_the_address() {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let url = format!("http://user:password@127.0.0.1:{port}/secret");
        let error = client().unwrap().get(url).send().await.unwrap_err();
        assert_eq!(describe(&error), "could not connect: connection refused");
        let error = client().unwrap().get("http://no-such-host.invalid/").send().await.unwrap_err();
        assert_eq!(describe(&error), "the name could not be resolved");
    }

    proptest! {
        #[test]
        fn no_value_panics_or_goes_past_the_cap(value in "[ -~]{0,40}", digits in "[0-9]{1,40}", now in 0..1u64 << 40) {
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now);
            for value in [value, digits] {
                let mut headers = HeaderMap::new();
                headers.insert(RETRY_AFTER, HeaderValue::from_str(&value).unwrap());
                if let Some(wait) = retry_after(&headers, now) {
                    prop_assert!(wait <= MAX_RETRY_AFTER);
                }
            }
        }

        #[test]
        fn whole_seconds_are_taken_as_they_are(seconds in 0..=MAX_RETRY_AFTER.as_secs()) {
            prop_assert_eq!(wait(&[&seconds.to_string()]), Some(Duration::from_secs(seconds)));
        }

        #[test]
        fn every_date_ahead_is_waited_for(ahead in 0..MAX_RETRY_AFTER.as_secs(), now in 0..200_000_000_000u64) {
            let now = SystemTime::UNIX_EPOCH + Duration::from_secs(now);
            let date = Timestamp::try_from(now + Duration::from_secs(ahead)).unwrap();
            let mut headers = HeaderMap::new();
            let text = date.strftime(IMF_FIXDATE).to_string();
            headers.insert(RETRY_AFTER, HeaderValue::from_str(&text).unwrap());
            prop_assert_eq!(retry_after(&headers, now), Some(Duration::from_secs(ahead)));
        }
    }
}
