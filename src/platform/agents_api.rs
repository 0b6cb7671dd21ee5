//! OpenAI's Agents API and whoever speaks it: sessions, their required actions, tool results as input events.

mod endpoints;
mod probe;

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use reqwest::header::{HeaderName, HeaderValue};
use secrecy::SecretString;

pub use self::{
    endpoints::{Endpoint, EndpointsError},
    probe::{Access, Probe},
};
use super::{
    Error, Flavor, Page, Platform, Submission, Submitted, Waits,
    api::{Api, Failure, escape, path_of, unreadable},
    stream, wire,
};
use crate::{
    http::Client,
    session::{CallKey, Session, SessionKey, ToolResult},
};

const BETA: (HeaderName, HeaderValue) = (HeaderName::from_static("openai-beta"), HeaderValue::from_static("agents=v1"));
const SESSIONS: &str = "/agents/sessions";
const MAX_SESSION: usize = 16 << 20;
/// A list repeats what each session was made of, its tools too.
const MAX_LIST: usize = 64 << 20;
/// A submission stays under 4 MiB with its envelope.
const MAX_SUBMISSION: usize = (4 << 20) - 1024;
/// A call may be listed before it can be answered. The official SDKs wait exactly so long for it.
const REGISTRATION: [Duration; 3] =
    [Duration::from_millis(100), Duration::from_millis(300), Duration::from_millis(600)];

/// One account at one base URL.
pub struct AgentsApi {
    name: Arc<str>,
    api: Api,
    flavor: Flavor,
}

impl AgentsApi {
    /// `base_url` ends before `/agents`. The error says which of the two is unusable; it never shows the key.
    pub fn new(name: &str, base_url: &str, api_key: &SecretString, client: Client) -> Result<Self, String> {
        let api = Api::new(base_url, api_key, client)?.with_header(BETA);
        Ok(Self { name: name.into(), api, flavor: Flavor::OpenAi })
    }

    /// Speaks to a platform that differs from OpenAI.
    pub fn with_flavor(self, flavor: Flavor) -> Self {
        Self { flavor, ..self }
    }

    /// Reads a session's resource as the API answers it; `None` where the text is none. What one required action carries
    /// cannot hurt the others.
    pub fn parse_session(key: &SessionKey, body: &[u8]) -> Option<Session> {
        wire::session(key, body)
    }

    /// Reads a page of the list of sessions; `None` where the text is none. `platform` becomes part of each key.
    pub fn parse_page(platform: &Arc<str>, body: &[u8]) -> Option<Page> {
        wire::page(platform, body)
    }
}

#[async_trait]
impl Platform for AgentsApi {
    async fn retrieve(&self, session: &SessionKey) -> Result<Session, Error> {
        let path = path_of(SESSIONS, &session.session, "").ok_or(Error::Gone)?;
        let answer = self.api.get(&path, MAX_SESSION).await?;
        Self::parse_session(session, &answer.body).ok_or_else(|| unreadable("the answer is no session"))
    }

    async fn list(&self, after: Option<&str>) -> Result<Page, Error> {
        let after = after.map(|after| format!("&after={}", escape(after))).unwrap_or_default();
        let answer = self.api.get(&format!("{SESSIONS}?limit=100&order=desc{after}"), MAX_LIST).await?;
        Self::parse_page(&self.name, &answer.body).ok_or_else(|| unreadable("the answer is no list of sessions"))
    }

    async fn follow(&self, session: &SessionKey) -> Result<Option<Waits>, Error> {
        let path = path_of(SESSIONS, &session.session, "/events").ok_or(Error::Gone)?;
        Ok(Some(stream::waits(self.api.stream(&path).await?)))
    }

    fn fitting(&self, result: ToolResult) -> ToolResult {
        self.flavor.fitting(result)
    }

    fn encode(&self, call: &CallKey, result: &ToolResult, generation: u32) -> Submission {
        Submission {
            body: wire::tool_result(call, result),
            idempotency_key: call.submission_idempotency_key(generation),
        }
    }

    async fn submit(&self, call: &CallKey, submission: &Submission) -> Submitted {
        if submission.body.len() > MAX_SUBMISSION {
            return Submitted::TooLarge { detail: format!("more than {MAX_SUBMISSION} bytes") };
        }
        let Some(path) = path_of(SESSIONS, &call.session.session, "/events") else {
            return Submitted::Gone;
        };
        let body = Bytes::from(submission.body.clone());
        let post = || self.api.post(&path, body.clone(), Some(&submission.idempotency_key));
        for wait in REGISTRATION {
            match post().await {
                Ok(()) => return Submitted::Accepted,
                Err(failure) if failure.unknown_call => tokio::time::sleep(wait).await,
                Err(failure) => return failure.into_submitted(),
            }
        }
        post().await.map_or_else(Failure::into_submitted, |()| Submitted::Accepted)
    }
}

#[cfg(test)]
mod tests;
