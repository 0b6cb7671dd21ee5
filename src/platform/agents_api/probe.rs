//! What can be learned of an account without touching anything: whether it is there, what the key may do, which time it is.

use std::time::{Duration, SystemTime};

use reqwest::{Method, RequestBuilder, header::CONTENT_TYPE};

use super::{AgentsApi, wire};
use crate::{
    http::{date, describe},
    session::{CallKey, SessionKey, ToolResult},
};

/// Whether the key may do something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    Granted,
    /// 401 or 403.
    Refused(u16),
    /// There is no such path.
    Absent,
    /// No answer that tells.
    Unknown(String),
}

/// What an account answered.
#[derive(Clone, Debug)]
pub struct Probe {
    /// Reading sessions, `api.agents.read`.
    pub read: Access,
    /// Posting input events, `api.agents.write`.
    pub write: Access,
    /// By how many seconds the platform's clock is ahead of ours.
    pub skew: Option<i64>,
}

/// No session has this id.
const NOBODY: &str = "sess_actiond_check";
const PATIENCE: Duration = Duration::from_secs(10);

impl AgentsApi {
    /// Asks for the newest session, and posts a result to a session that is not there.
    pub async fn probe(&self) -> Probe {
        let mut newest = self.api.url("/agents/sessions");
        newest.set_query(Some("limit=1"));
        let list = self.api.request(Method::GET, newest);
        let call = CallKey::new(SessionKey::new("check", NOBODY), "turn_actiond_check", "call_actiond_check");
        let result = wire::tool_result(&call, &ToolResult::Error("This is a check of permissions.".to_owned()));
        let post = self
            .api
            .request(Method::POST, self.api.url(&format!("/agents/sessions/{NOBODY}/events")))
            .header(CONTENT_TYPE, "application/json")
            .header("idempotency-key", call.submission_idempotency_key(0))
            .body(result);
        let ((read, skew), (write, _)) = tokio::join!(ask(list), ask(post));
        // That the session is not there was to be expected.
        let write = if write == Access::Absent { Access::Granted } else { write };
        Probe { read, write, skew }
    }
}

async fn ask(request: RequestBuilder) -> (Access, Option<i64>) {
    let before = SystemTime::now();
    let response = match request.timeout(PATIENCE).send().await {
        Ok(response) => response,
        Err(error) => return (Access::Unknown(describe(&error)), None),
    };
    // Half of the way there and back; the header has whole seconds.
    let now = before + before.elapsed().unwrap_or_default() / 2;
    let skew = date(response.headers()).map(|theirs| seconds(theirs) - seconds(now));
    let access = match response.status().as_u16() {
        401 | 403 => Access::Refused(response.status().as_u16()),
        404 | 405 => Access::Absent,
        status @ (408 | 429 | 500..) => Access::Unknown(format!("status {status}")),
        _ => Access::Granted,
    };
    (access, skew)
}

fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
