//! One connection to a server, through the official SDK: the only file that speaks its language.

use std::{collections::HashMap, process::Stdio, sync::Arc, time::Duration};

use axum::http::{HeaderName, HeaderValue};
use rmcp::{
    ClientHandler, ClientServiceExt as _, Peer, RoleClient,
    model::{
        CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ClientCapabilities, ClientConfig,
        ContentBlock, DetailedTask, ErrorCode, ErrorData, GetTaskParams, Implementation, PaginatedRequestParams,
        ProtocolVersion, ResourceContents, SubscriptionFilter, TASKS_EXTENSION_ID, Task, TaskPayload,
    },
    service::{ClientInitializeError, ClientLifecycleMode, NotificationContext, RunningService, ServiceError},
    transport::{
        DynamicTransportError, StreamableHttpClientTransport,
        async_rw::AsyncRwTransport,
        streamable_http_client::{
            StreamableHttpClient, StreamableHttpClientTransportConfig as HttpConfig, StreamableHttpError,
        },
    },
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value};
use tokio::sync::{Mutex, Notify};

use super::{Answer, Config, Content, Done, Error, Link, Tool, sessions::Sessions};
use crate::{
    http::{self, Client},
    process::{self, Running},
};

/// Pages of a list of tools that are read at most.
const MAX_PAGES: usize = 100;
/// Bytes of one answer that are read at most.
const MAX_ANSWER: usize = 8 << 20;
/// Calls of one server that are on their way at once.
const AT_ONCE: usize = 256;
/// How often a task is looked at where its server does not say.
const POLL: Duration = Duration::from_secs(1);

pub(super) struct Connection {
    peer: Peer<RoleClient>,
    parts: Mutex<Parts>,
}

/// What the connection holds open; dropping it closes the transport and ends the program.
struct Parts {
    service: Option<RunningService<RoleClient, Listener>>,
    program: Option<Running>,
}

impl Connection {
    /// Connects. `plain` skips the question whether the server speaks the newest revision, which old ones may not survive.
    /// `changed` is told when the server says that its tools are others now.
    pub(super) async fn open(
        config: &Config,
        client: &Client,
        plain: bool,
        changed: Arc<Notify>,
    ) -> Result<Self, Error> {
        let listener = Listener { changed };
        let lifecycle = match plain {
            true => ClientLifecycleMode::Initialize,
            false => ClientLifecycleMode::Auto {
                preferred_versions: vec![ProtocolVersion::V_2026_07_28],
                legacy_version: None,
            },
        };
        let (service, program) = match &config.link {
            Link::Http { url, headers } => {
                let transport =
                    StreamableHttpClientTransport::with_client(Sessions((**client).clone()), http_config(url, headers));
                (listener.serve_with_lifecycle(transport, lifecycle).await.map_err(|e| not_opened(&e))?, None)
            }
            Link::Stdio { command, env, pass_env, cwd } => {
                let mut program = process::program(command, env, pass_env, cwd.as_deref());
                program.stderr(Stdio::null());
                let failed = |detail: String| Error::NotSent { detail, after: None };
                let started = Running::start(program);
                let mut running = started.map_err(|e| failed(format!("its program does not start: {}", e.kind())))?;
                let pipes = running.child().and_then(|child| child.stdout.take().zip(child.stdin.take()));
                let pipes = pipes.ok_or_else(|| failed("its program has no pipes".to_owned()))?;
                let transport = AsyncRwTransport::new(pipes.0, pipes.1).with_max_line_length(MAX_ANSWER);
                (listener.serve_with_lifecycle(transport, lifecycle).await.map_err(|e| not_opened(&e))?, Some(running))
            }
        };
        let peer = service.peer().clone();
        let connection = Self { peer, parts: Mutex::new(Parts { service: Some(service), program }) };
        if connection.is_modern() && matches!(config.link, Link::Http { .. }) {
            // Some arguments travel in headers too, and only the list says which.
            let _ = connection.tools().await;
        }
        Ok(connection)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.peer.is_transport_closed()
    }

    pub(super) async fn close(&self) {
        let mut parts = self.parts.lock().await;
        if let Some(mut service) = parts.service.take() {
            let _ = service.close_with_timeout(Duration::from_secs(1)).await;
        }
        if let Some(mut program) = parts.program.take() {
            program.stop().await;
        }
    }

    pub(super) async fn tools(&self) -> Result<Vec<Tool>, Error> {
        let mut tools = Vec::new();
        let mut cursor = None;
        for _ in 0..MAX_PAGES {
            let page = PaginatedRequestParams::default().with_cursor(cursor);
            let page = self.peer.list_tools(Some(page)).await.map_err(|e| failed(&e))?;
            tools.extend(page.tools.into_iter().map(tool));
            cursor = page.next_cursor;
            if cursor.is_none() {
                return Ok(tools);
            }
        }
        Err(Error::Refused { detail: format!("its list of tools has more than {MAX_PAGES} pages") })
    }

    /// Returns when the server says that its tools have changed, where it must be asked to say so; an older one tells
    /// [`Listener`]. Never returns where it does not want to.
    pub(super) async fn tools_changed(&self) {
        if self.is_modern() {
            let filter = SubscriptionFilter::builder().tools_list_changed().build();
            if let Ok(mut subscription) = self.peer.listen(filter).await
                && matches!(subscription.next().await, Ok(Some(_)))
            {
                return;
            }
        }
        std::future::pending().await
    }

    pub(super) async fn call(&self, tool: &str, arguments: Map<String, Value>) -> Result<Answer, Error> {
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        match self.peer.call_tool_once(params).await.map_err(|e| failed(&e))? {
            CallToolResponse::Complete(result) => Ok(Answer::Done(done(result))),
            CallToolResponse::InputRequired(_) => Ok(Answer::InputRequired),
            CallToolResponse::Task(created) => Ok(pending(created.task)),
            _ => Err(Error::Unknown { detail: "the server answered something unknown".to_owned() }),
        }
    }

    /// The state of a task.
    pub(super) async fn task(&self, id: &str) -> Result<Answer, Error> {
        let DetailedTask { task, payload, .. } =
            self.peer.get_task(GetTaskParams::new(id)).await.map_err(|e| failed(&e))?.task;
        Ok(match payload {
            TaskPayload::Completed { result } => match serde_json::from_value(Value::Object(result)) {
                Ok(result) => Answer::Done(done(result)),
                Err(_) => Answer::Ended("the task ended with a result that cannot be read".to_owned()),
            },
            TaskPayload::Failed { error } => {
                let said = error.get("message").and_then(Value::as_str).unwrap_or("no reason given");
                Answer::Ended(format!("the task failed: {said}"))
            }
            TaskPayload::Cancelled => Answer::Ended("the task was cancelled".to_owned()),
            TaskPayload::InputRequired { .. } => Answer::InputRequired,
            _ => pending(task),
        })
    }

    pub(super) async fn cancel_task(&self, id: &str) {
        let _ = self.peer.cancel_task(CancelTaskParams::new(id)).await;
    }

    fn is_modern(&self) -> bool {
        self.peer.peer_info().is_some_and(|info| !info.protocol_version.has_initialize())
    }
}

/// What the server may ask or tell us: nothing but that its tools have changed.
struct Listener {
    changed: Arc<Notify>,
}

impl ClientHandler for Listener {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        capabilities.extensions.get_or_insert_default().insert(TASKS_EXTENSION_ID.to_owned(), Map::new());
        ClientConfig::new(capabilities, Implementation::new("actiond", env!("CARGO_PKG_VERSION")))
    }

    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.changed.notify_one();
    }
}

fn http_config(url: &str, headers: &[(String, SecretString)]) -> HttpConfig {
    let header = |(name, value): &(String, SecretString)| {
        let mut value = HeaderValue::from_str(value.expose_secret()).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
    };
    // A 404 says that the session is gone, so the request has not run: it is sent again in a new one, once.
    HttpConfig::with_uri(url)
        .custom_headers(headers.iter().filter_map(header).collect::<HashMap<_, _>>())
        .max_concurrent_requests(AT_ONCE)
        .max_json_response_size(MAX_ANSWER)
        .max_sse_event_size(MAX_ANSWER)
        .reinit_on_expired_session(true)
}

fn tool(tool: rmcp::model::Tool) -> Tool {
    let hints = tool.annotations.unwrap_or_default();
    Tool {
        name: tool.name.into_owned(),
        description: tool.description.map(|text| text.into_owned()).or(tool.title).unwrap_or_default(),
        input_schema: Arc::unwrap_or_clone(tool.input_schema),
        repeatable: hints.read_only_hint == Some(true) || hints.idempotent_hint == Some(true),
    }
}

fn done(result: CallToolResult) -> Done {
    Done {
        parts: result.content.into_iter().map(content).collect(),
        structured: result.structured_content.map(|value| value.to_string()),
        is_error: result.is_error == Some(true),
    }
}

fn content(block: ContentBlock) -> Content {
    match block {
        ContentBlock::Text(text) => Content::Text(text.text),
        ContentBlock::Image(image) => Content::Image { data: image.data, media_type: image.mime_type },
        ContentBlock::Resource(embedded) => match embedded.resource {
            ResourceContents::TextResourceContents { text, .. } => Content::Text(text),
            ResourceContents::BlobResourceContents { blob, mime_type: Some(media_type), .. }
                if media_type.starts_with("image/") =>
            {
                Content::Image { data: blob, media_type }
            }
            _ => Content::Other("a binary resource"),
        },
        ContentBlock::ResourceLink(link) => Content::Text(link.uri),
        ContentBlock::Audio(_) => Content::Other("audio"),
        _ => Content::Other("content of an unknown kind"),
    }
}

fn pending(task: Task) -> Answer {
    Answer::Task { id: task.task_id, poll: task.poll_interval_ms.map_or(POLL, Duration::from_millis) }
}

/// No connection, so nothing was run.
fn not_opened(error: &ClientInitializeError) -> Error {
    let detail = match error {
        ClientInitializeError::TransportError { error, .. } => return before_any_call(sent(error)),
        ClientInitializeError::LegacyFallbackFailed { fallback, .. } => return not_opened(fallback),
        ClientInitializeError::JsonRpcError(error) => format!("it refuses to begin: JSON-RPC error {}", error.code.0),
        ClientInitializeError::NoCompatibleProtocolVersion { .. } => "it speaks no revision that we speak".to_owned(),
        ClientInitializeError::ConnectionClosed(_) => "it closed the connection at its beginning".to_owned(),
        _ => "it does not begin as a server of the protocol does".to_owned(),
    };
    Error::NotSent { detail, after: None }
}

fn before_any_call(error: Error) -> Error {
    match error {
        Error::Unknown { detail } => Error::NotSent { detail, after: None },
        known => known,
    }
}

/// What is known of a request that had no result.
fn failed(error: &ServiceError) -> Error {
    match error {
        ServiceError::McpError(error) => refused(error),
        ServiceError::TransportSend(error) => sent(error),
        ServiceError::TransportClosed => unknown("the connection was lost before the answer came"),
        ServiceError::UnexpectedResponse => unknown("the server answered something that is no result"),
        ServiceError::Cancelled { .. } => unknown("the server cancelled the request"),
        _ => unknown("the request had no answer"),
    }
}

/// A JSON-RPC error. Only these codes say that nothing ran.
fn refused(error: &ErrorData) -> Error {
    match error.code {
        ErrorCode::INVALID_PARAMS | ErrorCode::METHOD_NOT_FOUND | ErrorCode::RESOURCE_NOT_FOUND => {
            Error::Invalid { message: error.message.clone().into_owned() }
        }
        ErrorCode::INVALID_REQUEST
        | ErrorCode::PARSE_ERROR
        | ErrorCode::HEADER_MISMATCH
        | ErrorCode::MISSING_REQUIRED_CLIENT_CAPABILITY
        | ErrorCode::UNSUPPORTED_PROTOCOL_VERSION => {
            Error::Refused { detail: format!("the server refuses the request: JSON-RPC error {}", error.code.0) }
        }
        code => unknown(&format!("the server failed: JSON-RPC error {}", code.0)),
    }
}

fn sent(error: &DynamicTransportError) -> Error {
    type Failure = StreamableHttpError<<http::GeneralClient as StreamableHttpClient>::Error>;
    let not_sent = |detail: String, after| Error::NotSent { detail, after };
    match error.error.downcast_ref::<Failure>() {
        Some(Failure::SessionExpired) => not_sent("the server forgets every session".to_owned(), None),
        Some(Failure::Client(error)) if error.is_connect() || error.is_dns() => not_sent(http::describe(error), None),
        Some(Failure::Client(error)) => unknown(&http::describe(error)),
        Some(Failure::HttpStatus(status)) if status.status == 429 => {
            let after = status.retry_after.as_deref().and_then(|text| text.parse().ok()).map(Duration::from_secs);
            not_sent("HTTP 429".to_owned(), after.map(|after| after.min(http::MAX_RETRY_AFTER)))
        }
        Some(Failure::HttpStatus(status)) => unknown(&format!("HTTP {}", status.status)),
        Some(Failure::AuthRequired(_)) => Error::Refused { detail: "HTTP 401: check its headers".to_owned() },
        Some(Failure::InsufficientScope(_)) => Error::Refused { detail: "HTTP 403: check its headers".to_owned() },
        Some(Failure::UnexpectedServerResponse(text)) => match client_error(text) {
            Some(404) => not_sent("HTTP 404".to_owned(), None),
            Some(status) => Error::Refused { detail: format!("HTTP {status}") },
            None => unknown("the server's answer is not of the protocol"),
        },
        Some(Failure::ResponseBodyTooLarge { max_size }) => unknown(&format!("the answer is over {max_size} bytes")),
        Some(Failure::UnexpectedContentType(_)) => unknown("the answer is neither JSON nor an event stream"),
        Some(_) => unknown("the connection failed"),
        None => unknown("the pipe to its program broke"),
    }
}

/// The status of a text such as `HTTP 404 Not Found: …`, if it says that the server did nothing.
fn client_error(text: &str) -> Option<u16> {
    let status = text.strip_prefix("HTTP ")?.get(..3)?.parse().ok()?;
    ((400..500).contains(&status) && status != 408).then_some(status)
}

fn unknown(detail: &str) -> Error {
    Error::Unknown { detail: detail.to_owned() }
}
