//! Sees which step of a reconcile a worker is in, by what it asks of platform and handler, and can hold it there.

use std::{
    fmt,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    extract::{Request, State},
    http::Method,
    middleware::Next,
    response::Response,
};
use tokio::sync::oneshot;

use crate::proxy::Proxy;

/// How long a step is stretched for whoever wants to strike in it.
const STRETCH: Duration = Duration::from_secs(2);

/// Where a worker stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Anywhere,
    /// The session is being read.
    Retrieve,
    /// The session was read, the claim is on its way.
    Claim,
    /// The handler runs.
    Handle,
    /// The handler has answered, its result is on its way to the store.
    Complete,
    /// The result is on its way to the platform, and has not arrived.
    Submit,
    /// The platform has it, its answer is on its way.
    Accepted,
    /// The platform's answer has arrived; the store does not know yet.
    Mark,
    /// What is published is not confirmed yet.
    Publish,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// Between one worker and the world.
pub(crate) struct Gate {
    trap: Mutex<Option<(Step, oneshot::Sender<()>)>>,
    /// Its way to the store, where that is a server.
    store: Option<Arc<Proxy>>,
}

impl Gate {
    pub(crate) fn new(store: Option<Arc<Proxy>>) -> Self {
        Self { trap: Mutex::default(), store }
    }

    /// Answers when the worker is in that step, which is stretched from then on.
    pub(crate) fn arm(&self, step: Step) -> oneshot::Receiver<()> {
        let (sprung, answer) = oneshot::channel();
        *self.trap.lock().unwrap() = Some((step, sprung));
        answer
    }

    pub(crate) fn disarm(&self) {
        *self.trap.lock().unwrap() = None;
        if let Some(store) = &self.store {
            store.heal();
        }
    }

    fn spring(&self, step: Step) -> bool {
        let mut trap = self.trap.lock().unwrap();
        match trap.take_if(|(armed, _)| *armed == step) {
            Some((_, sprung)) => sprung.send(()).is_ok(),
            None => false,
        }
    }

    /// The step is one in which the worker waits for us.
    pub(crate) async fn hold(&self, step: Step) {
        if self.spring(step) {
            tokio::time::sleep(STRETCH).await;
        }
    }

    /// The step is one in which the worker goes to the store next.
    pub(crate) fn pass(&self, step: Step) {
        let armed = self.trap.lock().unwrap().as_ref().is_some_and(|(armed, _)| *armed == step);
        if armed {
            if let Some(store) = &self.store {
                store.silence();
            }
            self.spring(step);
        }
    }
}

/// Stands before the platform.
pub(crate) async fn platform(State(gate): State<Arc<Gate>>, request: Request, next: Next) -> Response {
    let submits = request.method() == Method::POST;
    gate.hold(if submits { Step::Submit } else { Step::Retrieve }).await;
    let response = next.run(request).await;
    if submits {
        gate.hold(Step::Accepted).await;
    }
    gate.pass(if submits { Step::Mark } else { Step::Claim });
    response
}
