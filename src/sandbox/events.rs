//! The live event stream of a session: server-sent events, no replay.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    body::Body,
    extract::{Path, State},
    http::header,
    response::{IntoResponse, Response},
};
use futures_util::stream;
use tokio::{
    sync::broadcast::{self, error::RecvError},
    time::timeout,
};

use super::{Sandbox, State as Everything, error::ApiError, routes::Answer};

/// Frames that a slow reader may lag behind before it misses some.
const BACKLOG: usize = 1024;
const KEEP_ALIVE: Duration = Duration::from_secs(15);

pub(super) async fn stream(State(sandbox): State<Arc<Sandbox>>, Path(id): Path<String>) -> Answer {
    follow(&sandbox, &mut sandbox.state(), &id)
}

/// Everything that happens in the session from now on, until it is deleted or the sandbox ends.
pub(super) fn follow(sandbox: &Arc<Sandbox>, state: &mut Everything, id: &str) -> Result<Response, ApiError> {
    let session = state.sessions.get_mut(id).ok_or_else(|| ApiError::not_found("session", id))?;
    let receiver = session.stream.get_or_insert_with(|| broadcast::channel(BACKLOG).0).subscribe();
    let stop = sandbox.stop.clone();
    let frames = stream::unfold(receiver, move |mut receiver| {
        let stop = stop.clone();
        async move {
            let frame = stop.run_until_cancelled(next(&mut receiver)).await??;
            Some((Ok::<_, Infallible>(frame), receiver))
        }
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), (header::CACHE_CONTROL, "no-cache")];
    Ok((headers, Body::from_stream(frames)).into_response())
}

async fn next(receiver: &mut broadcast::Receiver<Arc<str>>) -> Option<String> {
    loop {
        match timeout(KEEP_ALIVE, receiver.recv()).await {
            Err(_) => return Some(": keep-alive\n\n".to_owned()),
            Ok(Ok(frames)) => return Some(frames.to_string()),
            Ok(Err(RecvError::Lagged(_))) => {}
            Ok(Err(RecvError::Closed)) => return None,
        }
    }
}
