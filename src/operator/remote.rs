//! The same, asked of a running program over its API.

use std::time::Duration;

use secrecy::{ExposeSecret as _, SecretString};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};

use super::{Act, Error, ListCalls, Order, Pick, Result, Told, Way, view};
use crate::{
    config::units,
    http::{self, Client, RequestBuilder},
    session::{Output, ToolResult},
};

const TIMEOUT: Duration = Duration::from_secs(30);
/// Redriving slowly takes its time.
const LONG_TIMEOUT: Duration = Duration::from_secs(3600);
const MAX_ANSWER: usize = 64 << 20;

/// The API of a program that runs.
pub struct Remote {
    client: Client,
    /// Ends before `/api`.
    base: String,
    token: Option<SecretString>,
}

impl Remote {
    /// `server` is the admin listener's address, such as `http://127.0.0.1:9090`.
    pub fn new(server: &str, token: Option<SecretString>) -> Result<Self> {
        let base = server.trim_end_matches('/');
        if !["http://", "https://"].iter().any(|scheme| base.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty()))
        {
            return Err(Error::Invalid("--server must be a URL such as http://127.0.0.1:9090".to_owned()));
        }
        let client = http::client().map_err(|_| Error::Server("cannot make an HTTP client".to_owned()))?;
        Ok(Self { client, base: base.to_owned(), token })
    }

    pub async fn calls(&self, list: &ListCalls) -> Result<view::Calls> {
        let filter = &list.filter;
        let age = |age: Option<Duration>| age.map(units::show);
        let query = [
            ("state", filter.state.clone()),
            ("function", filter.function.clone()),
            ("platform", filter.platform.clone()),
            ("session", filter.session.clone()),
            ("older_than", age(filter.older_than)),
            ("newer_than", age(filter.newer_than)),
            ("since", filter.from.map(|ms| view::instant(ms).to_string())),
            ("until", filter.to.map(|ms| view::instant(ms).to_string())),
            ("oldest_first", filter.oldest_first.then(|| "true".to_owned())),
            ("call", list.name.clone()),
            ("after", list.after.clone()),
            ("cursor", list.cursor.clone()),
            ("limit", Some(list.limit.to_string())),
        ];
        self.get("/calls", &query).await
    }

    /// The call that a person named.
    pub async fn find(&self, name: &str) -> Result<view::Call> {
        let list = ListCalls { name: Some(name.to_owned()), limit: 2, ..ListCalls::default() };
        let mut found = self.calls(&list).await?.calls;
        match (found.pop(), found.pop()) {
            (Some(call), None) => Ok(call),
            (Some(_), Some(_)) => {
                Err(Error::Conflict(format!("several calls are named {name}: use PLATFORM/SESSION/TURN/CALL_ID")))
            }
            (None, _) => Err(Error::NotFound(format!("there is no call {name}"))),
        }
    }

    pub async fn call(&self, id: &str) -> Result<view::CallDetail> {
        self.get(&format!("/calls/{id}"), &[]).await
    }

    pub async fn act(&self, id: &str, act: &Act) -> Result<view::Done> {
        let body = match act {
            Act::Retry => json!({}),
            Act::Resubmit { new_key } => json!({ "new_key": new_key }),
            Act::Resolve(ToolResult::Success(Output::Text(text))) => json!({ "output": text }),
            Act::Resolve(ToolResult::Success(Output::Content(parts))) => json!({ "output": parts }),
            Act::Resolve(ToolResult::Error(text)) => json!({ "error": text }),
            Act::Cancel { reason } => json!({ "reason": reason }),
        };
        self.post(&format!("/calls/{id}/{}", act.name()), &body, TIMEOUT).await
    }

    pub async fn dead(&self, pick: &Pick, after: Option<String>, limit: usize) -> Result<view::DeadMessages> {
        let mut query: Vec<_> = filters(pick).into();
        query.extend([("cursor", after), ("limit", Some(limit.to_string()))]);
        self.get("/dead", &query).await
    }

    pub async fn dead_message(&self, id: &str) -> Result<view::DeadDetail> {
        self.get(&format!("/dead/{}", percent(id)), &[]).await
    }

    pub async fn settle(&self, order: Order, tell: &mut (dyn FnMut(Told<'_>) + Send)) -> Result<view::Settled> {
        let mut body = json!({ "ids": order.ids, "all": order.all, "max": order.max, "dry_run": order.dry_run });
        for (name, value) in filters(&order.pick) {
            body[name] = json!(value);
        }
        let path = match order.way {
            Way::Redrive { pause, force } => {
                body["force"] = json!(force);
                body["pause"] = json!(pause.map(units::show));
                "/dead/redrive"
            }
            Way::Purge => "/dead/purge",
        };
        let settled: view::Settled = self.post(path, &body, LONG_TIMEOUT).await?;
        settled.messages.iter().for_each(|message| tell(Told::Message(message)));
        Ok(settled)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, Option<String>)]) -> Result<T> {
        let given = query.iter().filter_map(|(name, value)| Some(format!("{name}={}", percent(value.as_ref()?))));
        let query = given.collect::<Vec<_>>().join("&");
        let mark = if query.is_empty() { "" } else { "?" };
        let request = self.client.get(format!("{}/api{path}{mark}{query}", self.base));
        self.send(request.timeout(TIMEOUT)).await
    }

    async fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize, timeout: Duration) -> Result<T> {
        let request = self.client.post(format!("{}/api{path}", self.base)).json(body);
        self.send(request.timeout(timeout)).await
    }

    async fn send<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T> {
        let request = match &self.token {
            Some(token) => request.bearer_auth(token.expose_secret()),
            None => request,
        };
        let away = |why: String| Error::Server(format!("cannot ask {}: {why}", self.base));
        let response = request.send().await.map_err(|error| away(http::describe(&error)))?;
        let status = response.status();
        let body = http::read_capped(response, MAX_ANSWER).await.map_err(|error| away(error.to_string()))?;
        if status.is_success() {
            return serde_json::from_slice(&body).map_err(|_| away("its answer is none of this version's".to_owned()));
        }
        let said: Value = serde_json::from_slice(&body).unwrap_or_default();
        match said["error"]["message"].as_str() {
            Some(message) if status.as_u16() == 401 => {
                Err(Error::Server(format!("{message} (--token, or ACTIOND_ADMIN_TOKEN)")))
            }
            Some(message) => Err(Error::Server(message.to_owned())),
            None => Err(away(format!("it answers {status}, and nothing that an actiond says"))),
        }
    }
}

fn filters(pick: &Pick) -> [(&'static str, Option<String>); 5] {
    [
        ("platform", pick.platform.clone()),
        ("function", pick.function.clone()),
        ("reason", pick.reason.clone()),
        ("older_than", pick.older_than.map(units::show)),
        ("newer_than", pick.newer_than.map(units::show)),
    ]
}

/// Everything but unreserved characters escaped.
pub(crate) fn percent(text: &str) -> String {
    text.bytes().fold(String::new(), |mut escaped, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => escaped.push(byte as char),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
        escaped
    })
}
