//! A peer for the adapters' tests.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use axum::{
    Router,
    body::Bytes,
    extract::Request,
    http::{HeaderMap, StatusCode},
    response::IntoResponse,
};

/// A peer on loopback that plays answers in order, the last one for ever, and keeps what it was asked.
pub(super) struct Peer {
    pub(super) base_url: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) line: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

pub(super) type Answer = (u16, &'static [(&'static str, &'static str)], Vec<u8>);

impl Peer {
    pub(super) async fn start(answers: impl Into<Vec<Answer>>) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (log, answers) = (seen.clone(), answers.into());
        let router = Router::new().fallback(async move |request: Request| {
            let (head, body) = request.into_parts();
            let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
            let line = format!("{} {}", head.method, head.uri);
            let mut log = log.lock().unwrap();
            log.push(Seen { line, headers: head.headers, body });
            let (status, headers, body) = answers[(log.len() - 1).min(answers.len() - 1)].clone();
            let headers = headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            (StatusCode::from_u16(status).unwrap(), HeaderMap::from_iter(headers), body).into_response()
        });
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = format!("http://{}/v1/", listener.local_addr().unwrap());
        tokio::spawn(async { axum::serve(listener, router).await });
        Self { base_url, seen }
    }

    pub(super) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}
