//! Calls: listed, found by the name a person gives, and moved on where they do not go on by themselves.

use crate::{
    session::{CallKey, Output, SessionKey, ToolResult},
    store::{CallRow, Details, Filter, Reset, Store},
};

use super::{BAD_CURSOR, Error, Operator, Result, id, view};

/// Which calls to list.
#[derive(Clone, Debug, Default)]
pub struct ListCalls {
    pub filter: Filter,
    /// Only those that a person calls so.
    pub name: Option<String>,
    /// Only those behind this one, by its name.
    pub after: Option<String>,
    /// Only those of the next page.
    pub cursor: Option<String>,
    pub limit: usize,
}

/// What an operator does to a call.
#[derive(Clone, Debug, PartialEq)]
pub enum Act {
    /// The handler runs again; a result that the platform did not accept is forgotten.
    Retry,
    /// The stored bytes are submitted again, under the next key if asked.
    Resubmit { new_key: bool },
    /// This is its result.
    Resolve(ToolResult),
    /// Its result is an error that says so: the agent goes on without it, a handler that runs is stopped.
    Cancel { reason: Option<String> },
}

impl Operator {
    pub async fn calls(&self, list: &ListCalls) -> Result<view::Calls> {
        let mut after = match (&list.cursor, &list.after) {
            (Some(cursor), _) => Some(id::read_cursor(cursor).ok_or_else(|| Error::Invalid(BAD_CURSOR.to_owned()))?),
            (None, Some(name)) => self.find(name).await.map(|row| Some((row.created_at, row.key)))?,
            (None, None) => None,
        };
        if let Some(name) = &list.name {
            let rows = named(&*self.store, name).await?;
            return Ok(view::Calls { calls: rows.iter().map(view::Call::of).collect(), next: None });
        }
        let place = after.take().map(|(at, key)| CallRow::at(key, at));
        let mut rows = self.store.calls(&list.filter, place.as_ref(), list.limit + 1).await?;
        let more = rows.len() > list.limit;
        rows.truncate(list.limit);
        let next = rows.last().filter(|_| more).map(|last| id::cursor(last.created_at, &last.key));
        Ok(view::Calls { calls: rows.iter().map(view::Call::of).collect(), next })
    }

    /// One call, its result masked.
    pub async fn call(&self, key: &CallKey) -> Result<view::CallDetail> {
        let details = self.store.call(key).await?.ok_or_else(|| missing(&key.to_string()))?;
        let Details { row, body, history } = details;
        let result = body.map(|body| self.redaction.show(&row.function, &body));
        let acts = POSSIBLE;
        let possible = acts.iter().filter(|(_, act)| self.refusal(&row, act).is_none());
        Ok(view::CallDetail {
            call: view::Call::of(&row),
            result,
            history,
            possible: possible.map(|(name, _)| (*name).to_owned()).collect(),
        })
    }

    /// `by` names who does it, for the call's history.
    pub async fn act(&self, key: &CallKey, act: &Act, by: &str) -> Result<view::Done> {
        let row = self.store.call(key).await?.ok_or_else(|| missing(&key.to_string()))?.row;
        if let Some(why) = self.refusal(&row, act) {
            return Err(Error::Conflict(format!("{} is {}: {why}", row.key, row.state)));
        }
        let reset = self.reset(&row, act)?;
        if !self.store.reset(&row, &reset, by).await? {
            let what = format!("{} changed meanwhile: look at it again, then repeat the command", row.key);
            return Err(Error::Conflict(what));
        }
        tracing::info!(session.id = %row.key.session.session, call.id = %row.key.call_id, act = act.name(), by, "an operator changed a call");
        Ok(view::Done { call: row.key.to_string(), outcome: act.outcome().to_owned() })
    }

    /// The call that a person named.
    pub async fn find(&self, name: &str) -> Result<CallRow> {
        find(&*self.store, name).await
    }

    fn refusal(&self, row: &CallRow, act: &Act) -> Option<&'static str> {
        if matches!(act, Act::Cancel { .. }) && row.state == "obsolete" {
            return Some("nobody waits for it any more");
        }
        row.refuses(&act.as_reset())
    }

    fn reset(&self, row: &CallRow, act: &Act) -> Result<Reset> {
        let account = self.account(&row.key.session.platform)?;
        let (result, detail) = match act {
            Act::Retry => return Ok(Reset::Retry { deadline: account.call_deadline }),
            Act::Resubmit { new_key } => return Ok(Reset::Resubmit { new_key: *new_key }),
            Act::Resolve(result) => (account.platform.fitting(result.clone()), "resolved by an operator".to_owned()),
            Act::Cancel { reason } => {
                let reason = reason.as_deref().map(str::trim).filter(|reason| !reason.is_empty());
                let because = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
                (ToolResult::Error(format!("{CANCELLED}{because}")), "cancelled by an operator".to_owned())
            }
        };
        Ok(Reset::Resolve {
            success: matches!(result, ToolResult::Success(_)),
            submission: account.platform.encode(&row.key, &result, row.next_generation()),
            detail,
        })
    }
}

/// What the agent reads; a reason may follow.
const CANCELLED: &str =
    "The call was cancelled by its operators and gave no result. Do not repeat it unless you are asked to";

const POSSIBLE: [(&str, Act); 4] = [
    ("retry", Act::Retry),
    ("resubmit", Act::Resubmit { new_key: false }),
    ("resolve", Act::Resolve(ToolResult::Error(String::new()))),
    ("cancel", Act::Cancel { reason: None }),
];

impl Act {
    /// As far as the rules look at it.
    fn as_reset(&self) -> Reset {
        let submission = crate::session::Submission { body: Vec::new(), idempotency_key: String::new() };
        match self {
            Self::Retry => Reset::Retry { deadline: std::time::Duration::ZERO },
            Self::Resubmit { new_key } => Reset::Resubmit { new_key: *new_key },
            Self::Resolve(_) | Self::Cancel { .. } => {
                Reset::Resolve { success: false, submission, detail: String::new() }
            }
        }
    }

    pub fn name(&self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Resubmit { .. } => "resubmit",
            Self::Resolve(_) => "resolve",
            Self::Cancel { .. } => "cancel",
        }
    }

    fn outcome(&self) -> &'static str {
        match self {
            Self::Retry => "retrying",
            Self::Resubmit { .. } => "resubmitted",
            Self::Resolve(_) => "resolved",
            Self::Cancel { .. } => "cancelled",
        }
    }

    /// A result in a person's words: an output, or an error for the model.
    pub fn resolve(output: Option<String>, error: Option<String>) -> Self {
        Self::Resolve(match output {
            Some(text) => ToolResult::Success(Output::Text(text)),
            None => ToolResult::Error(error.unwrap_or_default()),
        })
    }
}

fn missing(name: &str) -> Error {
    Error::NotFound(format!("there is no call {name}"))
}

/// The call that a person named, by its whole key or by a call id that is unique.
pub(crate) async fn find(store: &dyn Store, name: &str) -> Result<CallRow> {
    let mut found = named(store, name).await?;
    match (found.pop(), found.pop()) {
        (Some(row), None) => Ok(row),
        (Some(_), Some(_)) => {
            Err(Error::Conflict(format!("several calls are named {name}: use PLATFORM/SESSION/TURN/CALL_ID")))
        }
        (None, _) => Err(missing(name)),
    }
}

/// At most two: then the name is no name.
async fn named(store: &dyn Store, name: &str) -> Result<Vec<CallRow>> {
    let mut found = Vec::new();
    for key in keys(name) {
        found.extend(store.call(&key).await?.map(|details| details.row));
    }
    if found.is_empty() {
        let filter = Filter { call_id: Some(name.to_owned()), ..Filter::default() };
        found = store.calls(&filter, None, 2).await?;
    }
    Ok(found)
}

/// Every key that is displayed so: ids may have slashes themselves.
fn keys(name: &str) -> Vec<CallKey> {
    let Some((platform, rest)) = name.split_once('/') else { return Vec::new() };
    let slashes: Vec<usize> = rest.match_indices('/').map(|(at, _)| at).take(12).collect();
    let mut keys = Vec::new();
    for (place, first) in slashes.iter().enumerate() {
        for second in &slashes[place + 1..] {
            let session = SessionKey::new(platform, &rest[..*first]);
            keys.push(CallKey::new(session, &rest[first + 1..*second], &rest[second + 1..]));
        }
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_for_every_key_that_is_displayed_so() {
        let one = keys("openai/sess_1/turn_1/call_1");
        assert_eq!(one, [CallKey::new(SessionKey::new("openai", "sess_1"), "turn_1", "call_1")]);
        let odd = CallKey::new(SessionKey::new("openai", "a/b"), "", "c/d");
        assert!(keys(&odd.to_string()).contains(&odd));
        assert!(keys("call_1").is_empty() && keys("a/b").is_empty());
    }
}
