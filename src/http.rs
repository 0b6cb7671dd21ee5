//! The outgoing HTTP client and what every use of it shares: capped bodies, `Retry-After`.

use std::time::{Duration, SystemTime};

use reqwest::{
    Response,
    header::{HeaderMap, RETRY_AFTER},
    redirect::Policy,
};

/// A client that follows no redirects.
pub fn client() -> Result<reqwest::Client, reqwest::Error> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().redirect(Policy::none()).connect_timeout(Duration::from_secs(10)).build()
}

/// The whole body, unless it grows past `cap` bytes.
pub async fn read_capped(mut response: Response, cap: usize) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|e| e.without_url().to_string())? {
        if chunk.len() > cap - body.len() {
            return Err(format!("the answer is larger than {cap} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// What the `Retry-After` header asks for.
pub fn retry_after(headers: &HeaderMap, _now: SystemTime) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?;
    value.parse().ok().map(Duration::from_secs)
}

/// Posts a body as a webhook's sender would; answers with the status and the body that came back.
pub async fn post_webhook(
    client: &reqwest::Client,
    url: &str,
    headers: HeaderMap,
    body: Vec<u8>,
) -> Result<(u16, String), String> {
    let request = client.post(url).headers(headers).body(body).timeout(Duration::from_secs(30));
    let response = request.send().await.map_err(|e| format!("{:#}", anyhow::Error::new(e)))?;
    let status = response.status().as_u16();
    let answer = read_capped(response, 64 * 1024).await.map_err(|e| e.to_string())?;
    Ok((status, String::from_utf8_lossy(&answer).into_owned()))
}
