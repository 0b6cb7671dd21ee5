//! Requests to addresses that stand in the config: many, to few hosts. A general client parses a URL and looks for redirects
//! with each request; this one does not. Where a proxy stands between, the general client sends them all the same.

use std::{error::Error as _, fmt, io};

use bytes::Bytes;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, Uri,
    header::{ACCEPT, USER_AGENT},
};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::{
        legacy::{self, connect::HttpConnector},
        proxy::matcher::Matcher,
    },
    rt::{TokioExecutor, TokioTimer},
};
use url::{Position, Url};

use super::{AGENT, CONNECT_TIMEOUT, Client, KEEPALIVE, KEEPALIVE_PROBES, POOL_IDLE, describe, innermost};

/// What came back; its body is still to be read.
pub type Answer = Response<Either<Incoming, reqwest::Body>>;

pub(super) type Direct = legacy::Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// The connections of one process. It trusts what the general client trusts.
pub(super) fn direct() -> Result<Direct, rustls::Error> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE));
    tcp.set_keepalive_retries(Some(KEEPALIVE_PROBES));
    let tls = rustls::ClientConfig::builder().try_with_platform_verifier()?.with_no_client_auth();
    let connector =
        HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(tcp);
    Ok(legacy::Client::builder(TokioExecutor::new())
        .pool_idle_timeout(POOL_IDLE)
        .pool_timer(TokioTimer::new())
        .build(connector))
}

/// Sends to one host.
#[derive(Clone)]
pub struct Sender {
    general: reqwest::Client,
    direct: Option<Direct>,
}

impl Sender {
    /// `url`: where the requests will go. Credentials in it and proxies are the general client's business.
    pub(super) fn new(client: &Client, url: &Url) -> Self {
        let proxied = |uri: Uri| Matcher::from_env().intercept(&uri).is_some();
        let general = !url.username().is_empty() || url.password().is_some() || uri(url).is_ok_and(proxied);
        Self { general: client.general.clone(), direct: client.direct.clone().filter(|_| !general) }
    }

    /// Returns when the answer's head is there. Sets no limit in time.
    pub async fn send(&self, method: Method, uri: Uri, headers: HeaderMap, body: Bytes) -> Result<Answer, SendError> {
        let Some(direct) = &self.direct else {
            let request = self.general.request(method, uri.to_string()).headers(headers).body(body);
            let response = request.send().await.map_err(|error| SendError {
                unsent: error.is_connect() || error.is_builder(),
                text: describe(&error),
            })?;
            return Ok(Response::from(response).map(Either::Right));
        };
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        request.headers_mut().entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        request.headers_mut().entry(USER_AGENT).or_insert(AGENT);
        Ok(direct.request(request).await?.map(Either::Left))
    }
}

/// A URL as a request names it: without fragment. The error does not repeat it.
pub fn uri(url: &Url) -> Result<Uri, &'static str> {
    url[..Position::AfterQuery].parse().map_err(|_| "it is not an address that can be requested")
}

/// Why there is no answer. The text names no host.
#[derive(Debug)]
pub struct SendError {
    /// Nothing of the request can have arrived.
    pub unsent: bool,
    text: String,
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<legacy::Error> for SendError {
    fn from(error: legacy::Error) -> Self {
        let unsent = error.is_connect();
        let text = match unsent {
            true if has_no_address(&error) => "the name could not be resolved".to_owned(),
            true => innermost("could not connect", &error),
            false => innermost("the request failed", &error),
        };
        Self { unsent, text }
    }
}

/// The connector tells only by its words what it was about.
fn has_no_address(error: &legacy::Error) -> bool {
    let mut source = error.source();
    while let Some(cause) = source {
        if cause.to_string() == "dns error" && !cause.is::<io::Error>() {
            return true;
        }
        source = cause.source();
    }
    false
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;
    use crate::http::{client, read_capped};

    /// Sends to a listener that answers `answer` and closes; what it got, and what came back.
    async fn exchange(client: &Client, login: &str, answer: &'static [u8]) -> (String, Result<Bytes, SendError>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = Url::parse(&format!("http://{login}{}/path?query", listener.local_addr().unwrap())).unwrap();
        let server = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let length = socket.read(&mut request).await.unwrap();
            let _ = socket.write_all(answer).await;
            String::from_utf8(request[..length].to_vec()).unwrap().to_ascii_lowercase()
        });
        let sent = client.to(&url).send(Method::POST, uri(&url).unwrap(), HeaderMap::new(), "body".into()).await;
        let body = match sent {
            Ok(answer) => Ok(read_capped(answer, 100).await.unwrap()),
            Err(error) => Err(error),
        };
        (server.await.unwrap(), body)
    }

    const HELLO: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";

    #[tokio::test]
    async fn both_clients_send_the_same() {
        let direct = client().unwrap();
        let general = Client::from(reqwest::Client::builder().user_agent(AGENT).build().unwrap());
        for client in [direct, general] {
            let (request, body) = exchange(&client, "", HELLO).await;
            assert_eq!(body.unwrap(), "hello");
            assert!(request.starts_with("post /path?query http/1.1\r\n"), "{request}");
            for part in
                ["host: 127.0.0.1:", "accept: */*\r\n", "user-agent: actiond/", "content-length: 4\r\n", "\r\n\r\nbody"]
            {
                assert!(request.contains(part), "{part} {request}");
            }
        }
    }

    #[tokio::test]
    async fn credentials_in_the_url_are_sent_as_a_header() {
        let (request, body) = exchange(&client().unwrap(), "user:pass@", HELLO).await;
        assert!(request.contains("authorization: basic dxnlcjpwyxnz\r\n"), "{request}");
        assert_eq!(body.unwrap(), "hello");
    }

    #[tokio::test]
    async fn a_failure_tells_whether_anything_was_sent_and_names_no_host() {
        let (_, broken) = exchange(&client().unwrap(), "", b"").await;
        assert!(!broken.unwrap_err().unsent);
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        for (host, text) in [
            (format!("127.0.0.1:{port}"), "could not connect: connection refused"),
            ("no-such-host.invalid".to_owned(), "the name could not be resolved"),
        ] {
            let url = Url::parse(&format!("http://{host}/secret")).unwrap();
            let sender = client().unwrap().to(&url);
            let error = sender.send(Method::GET, uri(&url).unwrap(), HeaderMap::new(), Bytes::new()).await.unwrap_err();
            assert_eq!((error.unsent, error.to_string().as_str()), (true, text));
        }
    }
}
