//! Rebyte's workflow runs: programs that pause for a function. A run is a session without turns; one result a request, raw
//! JSON, and neither beta header nor key.

use std::sync::Arc;

use async_trait::async_trait;
use secrecy::SecretString;
use serde::Serialize;
use serde_json::{Value, value::RawValue};

use super::{
    Error, Flavor, Page, Platform, Submission, Submitted,
    api::{Api, Failure, escape, path_of, unreadable},
    wire,
};
use crate::{
    http::Client,
    session::{CallKey, Output, Part, Session, SessionKey, ToolResult},
};

const RUNS: &str = "/workflow-agents/runs";
/// A run repeats its code, its tools, its history.
const MAX_RUN: usize = 32 << 20;
const MAX_LIST: usize = 64 << 20;
/// Not published for runs; as for sessions of the same platform.
const MAX_SUBMISSION: usize = (4 << 20) - 1024;

/// The runs of one account.
pub struct WorkflowRuns {
    name: Arc<str>,
    api: Api,
    flavor: Flavor,
}

impl WorkflowRuns {
    /// `base_url` ends before `/workflow-agents`. The error says which of the two is unusable; it never shows the key.
    pub fn new(
        name: &str,
        base_url: &str,
        api_key: &SecretString,
        flavor: Flavor,
        client: Client,
    ) -> Result<Self, String> {
        Ok(Self { name: name.into(), api: Api::new(base_url, api_key, client)?, flavor })
    }
}

#[async_trait]
impl Platform for WorkflowRuns {
    async fn retrieve(&self, session: &SessionKey) -> Result<Session, Error> {
        let path = path_of(RUNS, &session.session, "").ok_or(Error::Gone)?;
        let answer = self.api.get(&path, MAX_RUN).await?;
        wire::run(session, &answer.body, answer.now).ok_or_else(|| unreadable("the answer is no run"))
    }

    /// Runs can be asked for by agent only, not by status or order; taken to come newest first, like the other lists.
    async fn list(&self, after: Option<&str>) -> Result<Page, Error> {
        let after = after.map(|after| format!("&after={}", escape(after))).unwrap_or_default();
        let answer = self.api.get(&format!("{RUNS}?limit=100{after}"), MAX_LIST).await?;
        wire::page(&self.name, &answer.body).ok_or_else(|| unreadable("the answer is no list of runs"))
    }

    fn fitting(&self, result: ToolResult) -> ToolResult {
        self.flavor.fitting(result)
    }

    /// The key stays here: a run takes the same result twice and refuses another.
    fn encode(&self, call: &CallKey, result: &ToolResult, generation: u32) -> Submission {
        Submission { body: tool_result(call, result), idempotency_key: call.submission_idempotency_key(generation) }
    }

    async fn submit(&self, call: &CallKey, submission: &Submission) -> Submitted {
        if submission.body.len() > MAX_SUBMISSION {
            return Submitted::TooLarge { detail: format!("more than {MAX_SUBMISSION} bytes") };
        }
        let Some(path) = path_of(RUNS, &call.session.session, "/tool-results") else {
            return Submitted::Gone;
        };
        let body = submission.body.clone().into();
        self.api.post(&path, body, None).await.map_or_else(Failure::into_submitted, |()| Submitted::Accepted)
    }
}

#[derive(Serialize)]
struct Body<'a> {
    call_id: &'a str,
    success: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    output: Option<OutputField<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum OutputField<'a> {
    Json(&'a RawValue),
    Text(&'a str),
    Content(&'a [Part]),
}

/// One result as the body of one request. The program gets a handler's JSON object or list as what it is, and any other
/// text as text: a number or a word must not change its type with what it says.
fn tool_result(call: &CallKey, result: &ToolResult) -> Vec<u8> {
    let (output, error) = match result {
        ToolResult::Success(Output::Text(text)) => (Some(document(text).unwrap_or(OutputField::Text(text))), None),
        ToolResult::Success(Output::Content(parts)) => (Some(OutputField::Content(parts)), None),
        ToolResult::Error(sentence) => (None, Some(sentence.as_str())),
    };
    let body = Body { call_id: &call.call_id, success: error.is_none(), output, error };
    serde_json::to_vec(&body).unwrap_or_default() // text, raw JSON and lists of text always serialize
}

/// A JSON object or list, byte for byte; `None` where any reader might stumble over it.
fn document(text: &str) -> Option<OutputField<'_>> {
    let is_document = matches!(text.trim_start().as_bytes().first(), Some(b'{' | b'['));
    (is_document && serde_json::from_str::<Value>(text).is_ok())
        .then(|| serde_json::from_str(text).ok().map(OutputField::Json))
        .flatten()
}

#[cfg(test)]
mod tests;
