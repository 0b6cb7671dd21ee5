//! The HTTP client as the SDK drives it, with more ways for a server to say that it has forgotten our session.
//!
//! The protocol wants 404. Servers in the field also answer 400 with a JSON-RPC error that names no request, or another than
//! ours: they did not read it, so nothing ran. The SDK would wait for another answer until the time is over.

use std::{collections::HashMap, sync::Arc};

use axum::http::{HeaderName, HeaderValue};
use futures_util::stream::BoxStream;
use rmcp::{
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::streamable_http_client::{
        SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse as Answer,
        StreamableHttpResponseLimits as Limits,
    },
};
use sse_stream::Sse;

use crate::http::GeneralClient;

type Failure = StreamableHttpError<<GeneralClient as StreamableHttpClient>::Error>;
type Headers = HashMap<HeaderName, HeaderValue>;
type Events = BoxStream<'static, Result<Sse, SseError>>;

#[derive(Clone)]
pub(super) struct Sessions(pub(super) GeneralClient);

impl StreamableHttpClient for Sessions {
    type Error = <GeneralClient as StreamableHttpClient>::Error;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<Answer, Failure> {
        self.post_message_with_response_limits(uri, message, session, auth, headers, Limits::default()).await
    }

    async fn post_message_with_response_limits(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        auth: Option<String>,
        headers: Headers,
        limits: Limits,
    ) -> Result<Answer, Failure> {
        let in_session = session.is_some();
        let asked = message.clone();
        let answer = self.0.post_message_with_response_limits(uri, message, session, auth, headers, limits).await?;
        judge(&asked, answer, in_session)
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<(), Failure> {
        self.0.delete_session(uri, session, auth, headers).await
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        auth: Option<String>,
        headers: Headers,
    ) -> Result<Events, Failure> {
        self.0.get_stream(uri, session, last_event, auth, headers).await
    }

    async fn get_stream_with_max_sse_event_size(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        auth: Option<String>,
        headers: Headers,
        max: usize,
    ) -> Result<Events, Failure> {
        self.0.get_stream_with_max_sse_event_size(uri, session, last_event, auth, headers, max).await
    }
}

/// An error that does not name the request it answers: within a session, the session is gone; outside one, it is meant for
/// the only request that the server can have seen.
fn judge(asked: &ClientJsonRpcMessage, answer: Answer, in_session: bool) -> Result<Answer, Failure> {
    match (asked, answer) {
        (ClientJsonRpcMessage::Request(request), Answer::Json(ServerJsonRpcMessage::Error(mut error), session))
            if error.id.as_ref() != Some(&request.id) =>
        {
            if in_session {
                return Err(Failure::SessionExpired);
            }
            error.id = Some(request.id.clone());
            Ok(Answer::Json(ServerJsonRpcMessage::Error(error), session))
        }
        (_, answer) => Ok(answer),
    }
}
