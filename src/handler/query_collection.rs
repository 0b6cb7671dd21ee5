//! Searches an AIVAX collection: what `aivax://query-collection` does, through AIVAX's public API.

use std::{
    fmt::Write as _,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use reqwest::{StatusCode, Url, header::CONTENT_TYPE};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde_json::Value;

use super::{Call, Error, Handler, QueryCollectionConfig};
use crate::{
    http::{BodyError, Client, describe, read_capped, retry_after},
    session::Output,
};

/// Bytes of an answer that are read at most.
const MAX_ANSWER: usize = 4 << 20;

pub struct QueryCollection {
    client: Client,
    url: Url,
    api_key: SecretString,
    collection: String,
    top: u32,
    min: f64,
    references: bool,
    reranker: String,
    timeout: Duration,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Query<'a> {
    collections: [&'a str; 1],
    term: &'a str,
    top: u32,
    min_score: f64,
    include_references: bool,
    reranker: &'a str,
}

impl QueryCollection {
    /// The error says where in the handler's config, and what.
    pub fn new(config: &QueryCollectionConfig, client: Client) -> Result<Self, (String, String)> {
        let url = Url::parse(&format!("{}/query", config.account.base_url.trim_end_matches('/')));
        Ok(Self {
            client,
            url: url.map_err(|_| ("platform".to_owned(), "its base_url is not a URL".to_owned()))?,
            api_key: config.account.api_key.clone(),
            collection: config.collection.clone(),
            top: config.top,
            min: config.min,
            references: config.references,
            reranker: config.reranker.clone(),
            timeout: config.timeout,
        })
    }

    async fn search(&self, term: &str, now: SystemTime) -> Result<Output, Error> {
        let query = Query {
            collections: [&self.collection],
            term,
            top: self.top,
            min_score: self.min,
            include_references: self.references,
            reranker: &self.reranker,
        };
        let body = serde_json::to_string(&query).map_err(|e| Error::fatal(e.to_string()))?;
        let request = self.client.post(self.url.clone()).bearer_auth(self.api_key.expose_secret());
        let request = request.header(CONTENT_TYPE, "application/json").body(body);
        let response = request.send().await.map_err(|e| Error::retryable(describe(&e)))?;
        match response.status() {
            status if status.is_success() => {}
            // Searches are billed: nothing but what AIVAX says may pass is tried again.
            status @ (StatusCode::TOO_MANY_REQUESTS
            | StatusCode::INTERNAL_SERVER_ERROR
            | StatusCode::SERVICE_UNAVAILABLE) => {
                let detail = format!("the search answered {}", status.as_u16());
                let after = retry_after(response.headers(), now);
                return Err(match status {
                    StatusCode::INTERNAL_SERVER_ERROR => Error::Retryable { detail, after },
                    _ => Error::Overloaded { detail, after },
                });
            }
            status => return Err(Error::fatal(format!("the search answered {}", status.as_u16()))),
        }
        let answer = read_capped(response, MAX_ANSWER).await.map_err(|error| match error {
            BodyError::TooLarge { cap } => Error::too_large(cap),
            BodyError::Encoded | BodyError::Transport(_) => Error::fatal(error.to_string()),
        })?;
        let answer: Value = serde_json::from_slice(&answer).map_err(|_| Error::fatal("the search answered no JSON"))?;
        let hits =
            answer.get("data").and_then(Value::as_array).ok_or_else(|| Error::fatal("the search has no data"))?;
        Ok(Output::Text(text(hits)))
    }
}

#[async_trait]
impl Handler for QueryCollection {
    async fn call(&self, call: &Call) -> Result<Output, Error> {
        let term = call.arguments.value().get("query").and_then(Value::as_str).map(str::trim).unwrap_or_default();
        if term.is_empty() {
            return Err(Error::Final {
                detail: "query is empty".to_owned(),
                message: Some("query must be text that says what to search for.".to_owned()),
            });
        }
        let now = SystemTime::now();
        let limit = call.time_left(self.timeout, now);
        tokio::time::timeout(limit, self.search(term, now))
            .await
            .unwrap_or_else(|_| Err(Error::retryable(format!("no answer within {limit:.1?}"))))
    }
}

/// What a model reads: a title and the content of each document.
fn text(hits: &[Value]) -> String {
    if hits.is_empty() {
        return "No document matches. Try other words.".to_owned();
    }
    let mut text = String::new();
    for hit in hits {
        document(hit, &mut text);
        for referenced in hit.get("referencedDocuments").and_then(Value::as_array).into_iter().flatten() {
            document(referenced, &mut text);
        }
    }
    text.trim_end().to_owned()
}

fn document(document: &Value, text: &mut String) {
    let field = |key: &str| document.get(key).and_then(Value::as_str);
    let Some(content) = field("documentContent") else { return };
    let name = field("documentName").filter(|name| !name.is_empty()).unwrap_or("document");
    let _ = match document.get("score").and_then(Value::as_f64) {
        Some(score) => writeln!(text, "## {name} (score {score:.2})\n{content}\n"),
        None => writeln!(text, "## {name}\n{content}\n"),
    };
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use axum::{Router, extract::State, http::HeaderMap, routing::post};
    use serde_json::json;
    use tokio::{net::TcpListener, sync::mpsc};

    use super::*;
    use crate::handler::{QueryAccount, tests::call};

    type Seen = mpsc::UnboundedReceiver<(HeaderMap, Value)>;

    async fn server(status: u16, answer: Value) -> (QueryCollection, Seen) {
        let (saw, seen) = mpsc::unbounded_channel();
        let router = Router::new().route(
            "/api/v1/query",
            post(async move |State(answer): State<Value>, headers: HeaderMap, body: String| {
                let _ = saw.send((headers, serde_json::from_str(&body).unwrap()));
                let status = axum::http::StatusCode::from_u16(status).unwrap();
                (status, [("retry-after", "3")], answer.to_string())
            })
            .with_state(answer),
        );
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base_url = format!("http://{}/api/v1", listener.local_addr().unwrap());
        tokio::spawn(axum::serve(listener, router).into_future());
        let config = QueryCollectionConfig {
            collection: "c-1".into(),
            top: 3,
            min: 0.4,
            references: true,
            reranker: "rrf".into(),
            timeout: Duration::from_secs(10),
            account: QueryAccount { base_url, api_key: "sk-aiv".into() },
        };
        (QueryCollection::new(&config, crate::http::client().unwrap()).unwrap(), seen)
    }

    #[tokio::test]
    async fn a_search_names_everything_and_its_hits_are_titles_and_content() {
        let answer = json!({"message": null, "data": [
            {"documentId": "d", "documentName": "Colds", "documentContent": "Rest.", "score": 0.9134, "metadata": {},
             "referencedDocuments": [{"documentName": "Flu", "documentContent": "Rest more."}, {"documentId": "x"}]},
            {"documentContent": "Drink."},
        ]});
        let (handler, mut seen) = server(200, answer).await;
        let output = handler.call(&call(r#"{"query":" cold "}"#)).await.unwrap();
        let text = "## Colds (score 0.91)\nRest.\n\n## Flu\nRest more.\n\n## document\nDrink.";
        assert_eq!(output, Output::Text(text.into()));
        let (headers, body) = seen.recv().await.unwrap();
        assert_eq!(headers["authorization"], "Bearer sk-aiv");
        let wanted = json!({"collections": ["c-1"], "term": "cold", "top": 3, "minScore": 0.4, "includeReferences": true,
                            "reranker": "rrf"});
        assert_eq!(body, wanted);
    }

    #[tokio::test]
    async fn nothing_found_and_nothing_asked_are_said() {
        let (handler, _seen) = server(200, json!({"data": []})).await;
        let output = handler.call(&call(r#"{"query":"cold"}"#)).await.unwrap();
        assert_eq!(output, Output::Text("No document matches. Try other words.".into()));
        let error = handler.call(&call(r#"{"query":" "}"#)).await.unwrap_err();
        assert!(matches!(error, Error::Final { message: Some(_), .. }));
    }

    #[tokio::test]
    async fn only_429_500_and_503_are_tried_again() {
        for (status, is_retried) in [
            (400, false),
            (401, false),
            (402, false),
            (403, false),
            (502, false),
            (429, true),
            (500, true),
            (503, true),
        ] {
            let (handler, _seen) = server(status, json!({"error": "secret"})).await;
            match handler.call(&call(r#"{"query":"cold"}"#)).await.unwrap_err() {
                Error::Retryable { after, .. } => {
                    assert!(is_retried && after == Some(Duration::from_secs(3)), "{status}")
                }
                Error::Overloaded { after, .. } => {
                    assert!(matches!(status, 429 | 503) && after == Some(Duration::from_secs(3)), "{status}")
                }
                Error::Later | Error::Unknown { .. } => panic!("{status}"),
                Error::Final { detail, .. } => assert!(!is_retried && !detail.contains("secret"), "{status}"),
            }
        }
        let (handler, _seen) = server(200, json!("hello")).await;
        assert!(matches!(handler.call(&call(r#"{"query":"cold"}"#)).await.unwrap_err(), Error::Final { .. }));
    }
}
