//! Calls a tool of an MCP server; what it gives is the output.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use async_trait::async_trait;
use serde_json::{Map, Value};

use super::{Call, Error, Handler, McpConfig};
use crate::{
    mcp::{self, Answer, Content, Done, Server, Servers},
    session::{IfInterrupted, Output, Part},
};

const UNKNOWN: &str =
    "The tool did not answer: whether it took effect is unknown. Check before calling the function again.";
const ASKS: &str =
    "The tool asked for input from a person, and nobody can answer here. Call it with everything it needs.";
const LOST: &str = "The task was lost by its server: whether it took effect is unknown.";
const LATE: &str = "The task did not end in time and was cancelled.";
/// Between two looks at a task, whatever its server says.
const POLL: std::ops::RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(60);
/// A task is cancelled this long before the call's deadline.
const LAST_WORD: Duration = Duration::from_secs(2);
/// Characters of a server's own words that the model reads.
const MAX_WORDS: usize = 2000;

pub struct Mcp {
    server: Arc<Server>,
    tool: String,
    timeout: Duration,
}

impl Mcp {
    /// The error says where in the handler's config, and what.
    pub fn new(config: &McpConfig, servers: &Servers) -> Result<Self, (String, String)> {
        let server = servers.get(&config.server).ok_or(("server".into(), "is not one of mcp_servers".into()))?;
        let timeout = config.timeout.unwrap_or(server.config().timeout);
        Ok(Self { server: server.clone(), tool: config.tool.clone(), timeout })
    }
}

#[async_trait]
impl Handler for Mcp {
    async fn call(&self, call: &Call) -> Result<Output, Error> {
        let answer = match &call.note {
            Some(task) => self.follow(call, task, Duration::ZERO, true).await?,
            None => {
                let limit = call.time_left(self.timeout, SystemTime::now());
                let answer = self.server.call(&self.tool, arguments(call), limit).await;
                match answer.map_err(|error| failed(error, call.if_interrupted))? {
                    Answer::Task { id, poll } => {
                        let kept = keep(call, &id).await;
                        self.follow(call, &id, poll, kept).await?
                    }
                    answer => answer,
                }
            }
        };
        match answer {
            Answer::Done(done) => output(done),
            Answer::InputRequired => Err(told("the tool asks for input", ASKS)),
            Answer::Ended(said) => Err(told("the task ended without a result", &said)),
            Answer::Task { .. } => Err(told("a task became another task", LOST)),
        }
    }
}

impl Mcp {
    /// Looks at a task until it has ended or the call's time is over. One whose id is kept is looked at again by the next
    /// attempt, so that nothing is started twice.
    async fn follow(&self, call: &Call, task: &str, mut poll: Duration, kept: bool) -> Result<Answer, Error> {
        loop {
            let left = call.time_left(Duration::MAX, SystemTime::now());
            let wait = if poll.is_zero() { poll } else { poll.clamp(*POLL.start(), *POLL.end()) };
            if left <= wait.saturating_add(LAST_WORD) {
                tokio::time::sleep(left.saturating_sub(LAST_WORD)).await;
                self.server.cancel_task(task, LAST_WORD / 2).await;
                return Err(told("the task did not end before the call's deadline", LATE));
            }
            tokio::time::sleep(wait).await;
            let limit = call.time_left(self.timeout, SystemTime::now());
            match self.server.task(task, limit).await {
                Ok(Answer::Task { poll: next, .. }) => poll = next.max(*POLL.start()),
                Ok(Answer::InputRequired) => {
                    self.server.cancel_task(task, LAST_WORD / 2).await;
                    return Ok(Answer::InputRequired);
                }
                Ok(ended) => return Ok(ended),
                Err(mcp::Error::Invalid { .. }) => {
                    return Err(told("the server does not know the task any more", LOST));
                }
                Err(mcp::Error::NotSent { detail, after }) if kept => return Err(Error::Retryable { detail, after }),
                Err(mcp::Error::Unknown { detail }) if kept => return Err(Error::retryable(detail)),
                // The task runs, whoever can reach it.
                Err(error @ mcp::Error::NotSent { .. }) => {
                    return Err(failed(mcp::Error::Unknown { detail: error.to_string() }, call.if_interrupted));
                }
                Err(error) => return Err(failed(error, call.if_interrupted)),
            }
        }
    }
}

fn arguments(call: &Call) -> Map<String, Value> {
    call.arguments.value().as_object().cloned().unwrap_or_default()
}

/// Keeps a task's id for the attempt after a crash. Only what every store can hold.
async fn keep(call: &Call, task: &str) -> bool {
    let can_be_kept = (1..=1024).contains(&task.len()) && !task.chars().any(char::is_control);
    match &call.keep {
        Some(keep) if can_be_kept => keep.keep(task).await,
        _ => false,
    }
}

/// What a request without an answer means for a function that may, or may not, be run again.
fn failed(error: mcp::Error, if_interrupted: IfInterrupted) -> Error {
    match error {
        mcp::Error::NotSent { detail, after } => Error::Retryable { detail, after },
        mcp::Error::Refused { detail } => Error::fatal(detail),
        mcp::Error::Invalid { ref message } => {
            told(&error.to_string(), &format!("The tool refused the call: {}", words(message)))
        }
        mcp::Error::Unknown { detail } if if_interrupted == IfInterrupted::Rerun => Error::retryable(detail),
        mcp::Error::Unknown { detail } => told(&detail, UNKNOWN),
    }
}

fn told(detail: &str, message: &str) -> Error {
    Error::Final { detail: detail.to_owned(), message: Some(words(message)) }
}

fn words(text: &str) -> String {
    text.chars().take(MAX_WORDS).collect()
}

fn output(done: Done) -> Result<Output, Error> {
    let parts: Vec<Part> = match (done.parts.is_empty(), done.structured) {
        (true, Some(structured)) => vec![Part::Text { text: structured }],
        _ => done.parts.into_iter().map(part).collect(),
    };
    let only_text = || {
        let text = |part: &Part| match part {
            Part::Text { text } => Some(text.clone()),
            Part::Image { .. } => None,
        };
        parts.iter().filter_map(text).collect::<Vec<_>>().join("\n")
    };
    if done.is_error {
        let said = only_text();
        let message = if said.trim().is_empty() { None } else { Some(said) };
        return Err(Error::Final { detail: "the tool says that it failed".to_owned(), message });
    }
    match parts.iter().all(|part| matches!(part, Part::Text { .. })) {
        true => Ok(Output::Text(only_text())),
        false => Ok(Output::Content(parts)),
    }
}

fn part(content: Content) -> Part {
    let left_out = |what: &str| Part::Text { text: format!("({what} was left out)") };
    match content {
        Content::Text(text) => Part::Text { text },
        Content::Image { data, media_type } if is_image(&media_type) && is_base64(&data) => {
            Part::Image { image_url: format!("data:{media_type};base64,{data}") }
        }
        Content::Image { .. } => left_out("an image that cannot be read"),
        Content::Other(what) => left_out(what),
    }
}

fn is_image(media_type: &str) -> bool {
    let subtype = media_type.strip_prefix("image/").unwrap_or_default();
    !subtype.is_empty() && subtype.bytes().all(|b| b.is_ascii_alphanumeric() || b".+-".contains(&b))
}

fn is_base64(data: &str) -> bool {
    !data.is_empty() && data.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn text(text: &str) -> Content {
        Content::Text(text.to_owned())
    }

    fn image(media_type: &str, data: &str) -> Content {
        Content::Image { data: data.to_owned(), media_type: media_type.to_owned() }
    }

    #[test]
    fn text_is_joined_and_structured_content_counts_only_alone() {
        let done =
            |parts, structured: Option<&str>| Done { parts, structured: structured.map(Into::into), is_error: false };
        let outputs = [
            (done(vec![text("a"), text("b")], None), "a\nb"),
            (done(vec![text("a")], Some(r#"{"n":1}"#)), "a"),
            (done(vec![], Some(r#"{"n":12345678901234567890123}"#)), r#"{"n":12345678901234567890123}"#),
            (done(vec![], None), ""),
            (done(vec![Content::Other("audio")], None), "(audio was left out)"),
            (done(vec![image("text/html", "QQ==")], None), "(an image that cannot be read was left out)"),
            (done(vec![image("image/png", "a\"b")], None), "(an image that cannot be read was left out)"),
        ];
        for (done, expected) in outputs {
            assert_eq!(output(done).unwrap(), Output::Text(expected.to_owned()));
        }
    }

    #[test]
    fn an_image_becomes_a_part_between_the_texts() {
        let parts = vec![text("before"), image("image/png", "QQ=="), text("after")];
        let Output::Content(parts) = output(Done { parts, ..Done::default() }).unwrap() else { panic!("no content") };
        assert_eq!(parts[1], Part::Image { image_url: "data:image/png;base64,QQ==".to_owned() });
        assert_eq!(parts.len(), 3);
    }

    #[test]
    fn a_tool_that_failed_chooses_its_words() {
        let said = |parts| match output(Done { parts, structured: None, is_error: true }) {
            Err(Error::Final { message, .. }) => message,
            other => panic!("{other:?}"),
        };
        assert_eq!(said(vec![text("no such file")]).as_deref(), Some("no such file"));
        assert_eq!(said(vec![]), None);
    }

    #[test]
    fn only_what_may_have_run_is_judged_by_the_function() {
        use IfInterrupted::{Fail, Hold, Rerun};
        let unknown = || mcp::Error::Unknown { detail: "d".to_owned() };
        assert!(matches!(failed(unknown(), Rerun), Error::Retryable { .. }));
        for policy in [Fail, Hold] {
            let Error::Final { message, .. } = failed(unknown(), policy) else { panic!("retried") };
            assert!(message.unwrap().contains("unknown"));
            let not_sent = mcp::Error::NotSent { detail: "d".to_owned(), after: None };
            assert!(matches!(failed(not_sent, policy), Error::Retryable { .. }));
        }
        let invalid = mcp::Error::Invalid { message: "no tool x".to_owned() };
        let Error::Final { message, detail } = failed(invalid, Rerun) else { panic!("retried") };
        assert!(message.unwrap().contains("no tool x") && !detail.contains("no tool x"));
    }
}
