//! One callback: claimed under an id of our own, validated, run within the budget, stored, and answered as text.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde_json::Value;
use sha2::{Digest, Sha256};
use tracing::{Instrument as _, Span};

use super::{Callbacks, envelope::Callback};
use crate::{
    approval::{NO_TIME, notify::Gate},
    arguments::Arguments,
    function::Function,
    handler::{self, Call},
    limits::Slot,
    session::{CallKey, IfInterrupted, Output, Part, SessionKey, Submission, ToolResult},
    store::{self, Claim, ClaimRequest, Completion, Lease, Mark, Origin, Stored, Transition},
    telemetry,
    worker::{EXPIRED, FAILED, INTERRUPTED},
};

/// Why the model calls, which AIVAX may add to the arguments.
const EXPLANATIONS: [&str; 2] = ["_tool_reason", "_tool_goal"];
/// A claim outlives its call's budget by this, so that nobody takes over what is being stored.
const LEASE_MARGIN: Duration = Duration::from_secs(10);
/// How long storing a result may hold up its answer.
const STORE_PATIENCE: Duration = Duration::from_secs(3);
/// How often a call looks whether an equal one has ended.
const LOOK: Duration = Duration::from_millis(100);

const STILL_RUNNING: &str = "An equal call is still running. Do not repeat it; ask for its outcome later.";
const HELD: &str =
    "An equal call was interrupted: whether it took effect is unknown. Its operators decide; do not repeat it.";
const LATER: &str =
    "The function gives its result later, which is not available synchronously. Do not call it again here.";
const NOTHING: &str = "The function ran and returned nothing.";

/// What AIVAX gets.
pub(super) enum Answer {
    Text(String),
    Overloaded,
    /// The store is away: nothing was run.
    Unavailable,
}

pub(super) async fn run(callbacks: &Callbacks, platform: &str, function: &Arc<Function>, callback: Callback) -> Answer {
    let budget = callbacks.accounts.get(platform).map_or(Duration::ZERO, |account| account.budget);
    let run = Run { callbacks, platform, function, budget, until: Instant::now() + budget, began: now() };
    run.answer(callback).await.unwrap_or_else(|error| {
        tracing::error!(%error, "the store is away: a callback is not taken");
        Answer::Unavailable
    })
}

struct Run<'a> {
    callbacks: &'a Callbacks,
    platform: &'a str,
    function: &'a Function,
    budget: Duration,
    until: Instant,
    /// Unix milliseconds.
    began: u64,
}

impl Run<'_> {
    async fn answer(&self, callback: Callback) -> store::Result<Answer> {
        // Before the claim too: who may not call gets no answer that an equal call had.
        let arguments = self.arguments(&callback);
        let key = self.key(&callback, arguments.as_ref().ok()).await?;
        let span = Span::current();
        span.record("function", &self.function.name).record("session.id", &*key.session.session);
        span.record("call.id", &*key.call_id);
        // Before the claim: a call that gets no slot leaves no trace and may come again.
        let Some(slot) = self.enter(self.until - self.budget / 2).await else { return Ok(Answer::Overloaded) };
        let request = ClaimRequest {
            key,
            function: self.function.name.clone(),
            lease: self.budget + LEASE_MARGIN,
            deadline: self.budget + LEASE_MARGIN + self.function.dedupe.unwrap_or_default(),
            if_interrupted: self.function.if_interrupted,
            takeover: false,
            origin: Origin {
                by: self.callbacks.name.clone(),
                event: "callback".to_owned(),
                accepted_at: i64::try_from(self.began).unwrap_or(0),
            },
        };
        let lease = loop {
            match self.callbacks.ledger.claim(request.clone()).await? {
                Claim::Run(lease) => break lease,
                Claim::Stored(stored) => return Ok(Answer::Text(text_of(stored))),
                Claim::Held(_) | Claim::Refused => return Ok(Answer::Text(HELD.to_owned())),
                Claim::Interrupted(lease) => return Ok(self.end(lease, error(INTERRUPTED), "interrupted").await),
                Claim::Expired(lease) => return Ok(self.end(lease, error(EXPIRED), "deadline passed").await),
                Claim::Denied(lease) | Claim::Unapproved(lease) => {
                    return Ok(self.end(lease, error(NO_TIME), "not approved").await);
                }
                Claim::Busy(_) if self.left() <= LOOK => return Ok(Answer::Text(STILL_RUNNING.to_owned())),
                Claim::Busy(left) => tokio::time::sleep(left.clamp(Duration::from_millis(10), LOOK)).await,
            }
        };
        let (result, detail) = match arguments {
            Ok(arguments) => self.call(&lease, slot, callback, arguments).await,
            Err((sentence, detail)) => (error(&sentence), detail.to_owned()),
        };
        Ok(self.end(lease, result, &detail).await)
    }

    fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// The arguments of a call that may be made, or a sentence for the model and a detail for people.
    fn arguments(&self, callback: &Callback) -> Result<Arguments, (String, &'static str)> {
        let arguments = arguments(self.function, callback).map_err(|sentence| (sentence, "invalid arguments"))?;
        let allowed = self.function.may_call(self.platform, &arguments, &callback.metadata);
        allowed.map_err(|sentence| (sentence, "not allowed"))?;
        let asks = |gate: &Gate| gate.policy.requires(self.platform, &arguments, &callback.metadata);
        if self.function.approval.as_ref().is_some_and(asks) {
            return Err((NO_TIME.to_owned(), "needs an approval"));
        }
        Ok(arguments)
    }

    /// The right to run, if the function's limits give it in time.
    async fn enter(&self, until: Instant) -> Option<Slot> {
        loop {
            let now = Instant::now();
            if self.callbacks.functions.is_paused(&self.function.name) {
                return None;
            }
            match self.function.limits.enter(now) {
                Ok(slot) => return Some(slot),
                Err(_) if now >= until => return None,
                Err(wait) => tokio::time::sleep(wait.min(until - now)).await,
            }
        }
    }

    /// AIVAX sends no call id, so we make one: at random, or the same for equal calls within the function's window.
    async fn key(&self, callback: &Callback, arguments: Option<&Arguments>) -> store::Result<CallKey> {
        let id = uuid::Uuid::now_v7().simple();
        let whose = callback.token.as_deref().map(|token| ("token", token));
        let whose = whose.or_else(|| callback.user.as_deref().map(|user| ("user", user)));
        let session = match whose {
            Some(("token", token)) if is_plain(token) => token.to_owned(),
            Some((kind, text)) => format!("{kind}_{}", digest(&[text])),
            None => format!("aivax_{id}"),
        };
        let session = SessionKey::new(self.platform, session);
        let (Some(window), Some((kind, whose)), Some(arguments)) = (self.function.dedupe, whose, arguments) else {
            return Ok(CallKey::new(session, "", format!("call_{id}")));
        };
        let equal = digest(&[self.platform, &self.function.name, kind, whose, arguments.text()]);
        let (now, window) = (self.began, millis(window).max(1));
        let of = |window: u64| CallKey::new(session.clone(), "", format!("same_{equal}_{window}"));
        let (previous, current) = (of((now / window).wrapping_sub(1)), of(now / window));
        // A window is not a place on the clock: what began in the one before may not be over.
        match self.callbacks.ledger.find(&previous).await? {
            Some(found) if found.stored.as_ref().is_none_or(|stored| now < began(stored).saturating_add(window)) => {
                Ok(previous)
            }
            _ => Ok(current),
        }
    }

    /// Runs the handler, again where it asks for that, as long as the budget lasts.
    async fn call(
        &self,
        lease: &Lease,
        mut slot: Slot,
        callback: Callback,
        arguments: Arguments,
    ) -> (ToolResult, String) {
        let span = tracing::info_span!("handler", function = self.function.name, call.id = %lease.key.call_id);
        let mut call = Call {
            key: lease.key.clone(),
            function: self.function.name.clone(),
            arguments,
            attempt: lease.attempt,
            deadline: SystemTime::now().checked_add(self.left()),
            metadata: Arc::new(callback.metadata),
            traceparent: span.in_scope(telemetry::traceparent),
            result_url: None,
            if_interrupted: self.function.if_interrupted,
            note: lease.note.clone(),
            keep: None,
        };
        loop {
            let ended = self.attempt(&call).instrument(span.clone()).await;
            match &ended {
                Some(Err(handler::Error::Overloaded { after, .. })) => slot.overloaded(*after, Instant::now()),
                Some(_) => slot.answered(Instant::now()),
                None => drop(slot),
            }
            let failure = match ended {
                None => return (error(EXPIRED), "no answer within the budget".to_owned()),
                Some(Ok(output)) => return (ToolResult::Success(output), String::new()),
                Some(Err(failure)) => failure,
            };
            let (detail, after) = match failure {
                handler::Error::Final { detail, message } => {
                    tracing::warn!(function = self.function.name, detail, "the handler failed for good");
                    return (error(message.as_deref().unwrap_or(FAILED)), detail);
                }
                handler::Error::Unknown { detail } if self.function.if_interrupted == IfInterrupted::Rerun => {
                    (detail, None)
                }
                handler::Error::Unknown { detail } => return (error(INTERRUPTED), detail),
                handler::Error::Later => return (error(LATER), "the handler answered later".to_owned()),
                handler::Error::Retryable { detail, after } | handler::Error::Overloaded { detail, after } => {
                    (detail, after)
                }
            };
            // The handler saw the end of the budget before we did.
            if self.left() < LOOK {
                return (error(EXPIRED), detail);
            }
            let wait = self.function.retry.delay(call.attempt, after, rand::random());
            let Some(wait) = wait.filter(|wait| *wait < self.left()) else {
                tracing::warn!(function = self.function.name, detail, "the handler failed for the last time");
                return (error(FAILED), detail);
            };
            tracing::warn!(function = self.function.name, detail, wait = ?wait, "the handler failed: trying again");
            self.callbacks.metrics.call(self.platform, &self.function.name, "retried");
            tokio::time::sleep(wait).await;
            slot = match self.enter(self.until).await {
                Some(slot) => slot,
                None => return (error(EXPIRED), detail),
            };
            call.attempt = call.attempt.saturating_add(1);
        }
    }

    /// `None`: the budget is used up.
    async fn attempt(&self, call: &Call) -> Option<Result<Output, handler::Error>> {
        let metrics = &self.callbacks.metrics;
        let started = Instant::now();
        metrics.in_flight(1);
        let ended = tokio::time::timeout(self.left(), self.function.handler.call(call)).await;
        metrics.in_flight(-1);
        metrics.handler(&self.function.name, started.elapsed().as_secs_f64());
        ended.ok()
    }

    /// Stores the result, then answers it. The handler has run: a store that is away now changes no answer.
    async fn end(&self, lease: Lease, result: ToolResult, detail: &str) -> Answer {
        let success = matches!(result, ToolResult::Success(_));
        self.callbacks.metrics.call(self.platform, &self.function.name, if success { "success" } else { "error" });
        let text = text(result);
        let stored = Stored {
            key: lease.key.clone(),
            function: self.function.name.clone(),
            fence: lease.fence,
            success,
            submission: Submission {
                body: text.clone().into_bytes(),
                idempotency_key: format!("{}@{}", lease.key.submission_idempotency_key(lease.generation), self.began),
            },
            generation: lease.generation,
            submissions: 0,
        };
        let detail = (!detail.is_empty()).then(|| detail.to_owned());
        let completion = Completion { stored, detail, took: Some(self.budget.saturating_sub(self.left())) };
        match tokio::time::timeout(STORE_PATIENCE, self.store(completion)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::error!(%error, "a callback's result is answered but not stored"),
            Err(_) => tracing::error!("a callback's result is answered but not stored in time"),
        }
        Answer::Text(text)
    }

    async fn store(&self, completion: Completion) -> store::Result<()> {
        let (key, fence) = (completion.stored.key.clone(), completion.stored.fence);
        if !self.callbacks.ledger.complete(completion).await? {
            tracing::warn!("a callback's result came too late to be stored: somebody else holds the call");
            return Ok(());
        }
        // The answer is the submission.
        let settled = Mark::new(key, fence, Transition::Settled);
        self.callbacks.ledger.mark(settled).await.map(drop)
    }
}

/// The arguments as they were checked, or a sentence for the model.
fn arguments(function: &Function, callback: &Callback) -> Result<Arguments, String> {
    let arguments = Arguments::parse(callback.content.as_deref().map(serde_json::value::RawValue::get))?;
    let is_declared = |key: &str| function.parameters.get("properties").is_some_and(|p| p.get(key).is_some());
    let is_added = |key: &str| EXPLANATIONS.contains(&key) && !is_declared(key);
    let arguments = match arguments.value() {
        Value::Object(object) if object.keys().any(|key| is_added(key)) => {
            let object = object.iter().filter(|(key, _)| !is_added(key));
            Arguments::from_object(object.map(|(key, value)| (key.clone(), value.clone())).collect())
        }
        _ => arguments,
    };
    function.schema.check(&arguments).map(|()| arguments)
}

fn error(sentence: &str) -> ToolResult {
    ToolResult::Error(sentence.to_owned())
}

/// A result as text, which is all that AIVAX takes.
fn text(result: ToolResult) -> String {
    let text = match result {
        ToolResult::Error(sentence) => sentence,
        ToolResult::Success(Output::Text(text)) => text,
        ToolResult::Success(Output::Content(parts)) => parts.into_iter().map(part).collect::<Vec<_>>().join("\n"),
    };
    if text.trim().is_empty() { NOTHING.to_owned() } else { text }
}

fn part(part: Part) -> String {
    match part {
        Part::Text { text } => text,
        Part::Image { image_url } if image_url.starts_with("https://") => image_url,
        Part::Image { .. } => "[an image, which cannot be shown here]".to_owned(),
    }
}

fn text_of(stored: Stored) -> String {
    String::from_utf8_lossy(&stored.submission.body).into_owned()
}

/// When the call began whose result this is, Unix milliseconds.
fn began(stored: &Stored) -> u64 {
    let key = &stored.submission.idempotency_key;
    key.rsplit_once('@').and_then(|(_, began)| began.parse().ok()).unwrap_or_default()
}

fn now() -> u64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What may stand in the ledger and its listings as it is.
fn is_plain(token: &str) -> bool {
    token.len() <= 128 && token.bytes().all(|b| b.is_ascii_graphic())
}

/// 128 bits of SHA-256 over the length-prefixed parts.
fn digest(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use async_trait::async_trait;

    use super::*;
    use crate::{
        approval,
        function::{Live, tests::echo},
        handler::Handler,
        metrics::Metrics,
        platform::{self, AivaxConfig},
        store::{Database, Ledger, Sqlite, Store as _},
    };

    /// Answers how often it ran.
    struct Counts(AtomicU32);

    #[async_trait]
    impl Handler for Counts {
        async fn call(&self, _call: &Call) -> Result<Output, handler::Error> {
            Ok(Output::Text(self.0.fetch_add(1, Ordering::SeqCst).to_string()))
        }
    }

    async fn callbacks(folder: &std::path::Path) -> Callbacks {
        let aivax = AivaxConfig {
            hook_keys: vec!["hook-key".into()],
            cost: 10..=13,
            listing_key: None,
            listing_secrets: Vec::new(),
            budget: Duration::from_secs(5),
            api_key: None,
            base_url: String::new(),
        };
        let config = platform::Config {
            name: "aivax".into(),
            kind: platform::Kind::Aivax(aivax),
            call_deadline: Duration::ZERO,
            intake: platform::Intake::default(),
            forward: None,
        };
        let url = format!("sqlite://{}/store.db", folder.display());
        let timeout = Duration::from_secs(10);
        let database = Database::open(&store::Config { url: url.into(), max_connections: 1, timeout, retention: None })
            .await
            .unwrap();
        let store = Arc::new(Sqlite::new(database));
        store.migrate().await.unwrap();
        let (ledger, live) = (Ledger::new(store, timeout), Arc::new(Live::new(crate::function::Registry::default())));
        Callbacks::new(&[config], "https://h", ledger, live, Metrics::new(), 1024).unwrap()
    }

    #[tokio::test]
    async fn a_window_begins_with_its_first_call_wherever_the_clock_stands() {
        let folder = std::env::temp_dir().join(format!("actiond-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(&folder).unwrap();
        let callbacks = callbacks(&folder).await;
        let dedupe = Some(Duration::from_secs(60));
        let function = Function { dedupe, handler: Arc::new(Counts(AtomicU32::new(1))), ..echo("note", None) };
        let at = async |began: u64| {
            let budget = Duration::from_secs(5);
            let until = Instant::now() + budget;
            let run = Run { callbacks: &callbacks, platform: "aivax", function: &function, budget, until, began };
            let body = br#"{"function":{"name":"note","content":{"n":1}},"context":{"conversationToken":"t"}}"#;
            match run.answer(Callback::parse(body).unwrap()).await.unwrap() {
                Answer::Text(text) => text,
                _ => panic!("no text"),
            }
        };
        // The clock's minutes end at multiples of 60 000.
        assert_eq!(at(59_000).await, "1");
        assert_eq!(at(59_999).await, "1");
        assert_eq!(at(60_001).await, "1");
        assert_eq!(at(118_999).await, "1");
        assert_eq!(at(119_001).await, "2");
        assert_eq!(at(178_000).await, "2");
        assert_eq!(at(600_000).await, "3");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// Says that its result comes later.
    struct Defers;

    #[async_trait]
    impl Handler for Defers {
        async fn call(&self, _call: &Call) -> Result<Output, handler::Error> {
            Err(handler::Error::Later)
        }
    }

    #[tokio::test]
    async fn who_may_not_call_gets_no_answer_of_others_and_later_is_too_late() {
        let folder = std::env::temp_dir().join(format!("actiond-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir_all(&folder).unwrap();
        let callbacks = callbacks(&folder).await;
        let counts = Function {
            dedupe: Some(Duration::from_secs(60)),
            handler: Arc::new(Counts(AtomicU32::new(1))),
            require_metadata: vec!["plan".into()],
            ..echo("note", None)
        };
        let defers = Function { handler: Arc::new(Defers), ..echo("note", None) };
        let told = async |function: &Function, context: &str| {
            let budget = Duration::from_secs(5);
            let until = Instant::now() + budget;
            let run = Run { callbacks: &callbacks, platform: "aivax", function, budget, until, began: 59_000 };
            let body = format!(r#"{{"function":{{"name":"note","content":{{"n":1}}}},"context":{context}}}"#);
            match run.answer(Callback::parse(body.as_bytes()).unwrap()).await.unwrap() {
                Answer::Text(text) => text,
                _ => panic!("no text"),
            }
        };
        assert_eq!(told(&counts, r#"{"conversationToken":"t","metadata":{"plan":"gold"}}"#).await, "1");
        let refused = told(&counts, r#"{"conversationToken":"t"}"#).await;
        assert!(refused.contains("its metadata lack plan"), "{refused}");
        assert_eq!(told(&counts, r#"{"conversationToken":"u","metadata":{"plan":"gold"}}"#).await, "2");
        assert_eq!(told(&defers, r#"{"conversationToken":"t"}"#).await, LATER);
        let policy = approval::Policy {
            required: approval::Required::If(crate::allow::Rule::compile("arguments.n > 0").unwrap()),
            by: approval::By::Token,
            expires: Duration::from_secs(60),
            notify: None,
        };
        let gate = Gate::new(&policy, &crate::http::client().unwrap()).unwrap();
        let asks = Function { approval: Some(gate), handler: Arc::new(Defers), ..echo("note", None) };
        assert_eq!(told(&asks, r#"{"conversationToken":"v"}"#).await, NO_TIME);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_result_is_told_as_text() {
        let parts = vec![
            Part::Text { text: "a".into() },
            Part::Image { image_url: "https://h/a.png".into() },
            Part::Image { image_url: "data:image/png;base64,AAAA".into() },
        ];
        let told = text(ToolResult::Success(Output::Content(parts)));
        assert_eq!(told, "a\nhttps://h/a.png\n[an image, which cannot be shown here]");
        assert_eq!(text(ToolResult::Success(Output::Text(" ".into()))), NOTHING);
    }
}
