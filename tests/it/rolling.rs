//! A rolling update under load: new processes start, old ones get SIGTERM, and webhooks keep coming through what stands
//! before them.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use actiond::{
    http::Client,
    sandbox::{Entry, What},
};
use axum::{
    Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
};
use tokio::net::TcpListener;

use crate::rig::{Daemon, PATIENCE, Pair, Rig, Setup};

/// Sends each request to the first endpoint that takes the connection, as a Service and its proxy do.
#[derive(Clone)]
struct Balancer {
    endpoints: Arc<Mutex<Vec<SocketAddr>>>,
    client: Client,
}

impl Balancer {
    async fn start(at: SocketAddr) -> Self {
        let balancer = Self { endpoints: Arc::default(), client: actiond::http::client().unwrap() };
        let listener = TcpListener::bind(at).await.unwrap();
        let router = Router::new().fallback(forward).with_state(balancer.clone());
        tokio::spawn(axum::serve(listener, router).into_future());
        balancer
    }
}

async fn forward(State(balancer): State<Balancer>, headers: HeaderMap, body: Bytes) -> (StatusCode, String) {
    let endpoints = balancer.endpoints.lock().unwrap().clone();
    for endpoint in endpoints {
        // A fresh connection for each request: each meets whoever listens at that moment.
        let request = balancer.client.post(format!("http://{endpoint}/webhooks/openai")).header("connection", "close");
        let mut request = request.body(body.clone());
        for name in ["webhook-id", "webhook-timestamp", "webhook-signature", "content-type"] {
            request = request.header(name, headers.get(name).unwrap());
        }
        match request.send().await {
            Ok(response) => return (response.status(), String::new()),
            Err(error) if error.is_connect() => {}
            Err(error) => return (StatusCode::BAD_GATEWAY, format!("{error:?}")),
        }
    }
    (StatusCode::SERVICE_UNAVAILABLE, "nobody listens".to_owned())
}

/// One generation of processes.
struct Release {
    ingress: Daemon,
    worker: Daemon,
}

impl Release {
    async fn start(rig: &mut Rig, at: &mut SocketAddr) -> (Self, SocketAddr) {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        rig.replace(&format!("listen: \"{at}\""), &format!("listen: \"{port}\""));
        *at = port;
        let release = Self { ingress: rig.daemon("ingress").await, worker: rig.daemon("worker").await };
        release.ingress.ready().await;
        release.worker.ready().await;
        (release, port)
    }

    /// SIGTERM, while it still stands in the balancer's list; it ends in its own time.
    async fn end(mut self) {
        self.ingress.terminate();
        self.worker.terminate();
        assert!(self.ingress.ended().await.success());
        assert!(self.worker.ended().await.success());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_webhook_is_refused_or_lost_and_no_handler_runs_twice() {
    let mut rig = Setup::new(Pair::RabbitPostgres).http("a", "parameters: { type: object }").prepare().await;
    let balancer = Balancer::start(rig.ingress_at).await;
    let mut journal = rig.sandbox.journal();
    let mut at = rig.ingress_at;
    let (mut running, port) = Release::start(&mut rig, &mut at).await;
    balancer.endpoints.lock().unwrap().push(port);

    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.extend(load(&rig, 20).await);
        let (next, port) = Release::start(&mut rig, &mut at).await;
        balancer.endpoints.lock().unwrap().push(port);
        // Some handlers run when the signal comes.
        rig.handler.hold();
        let before = rig.handler.requests("a").len();
        let held = load(&rig, 10).await;
        rig.handler.arrived("a", before + 1).await;
        let ending = tokio::spawn(std::mem::replace(&mut running, next).end());
        let (during, ()) = tokio::join!(load(&rig, 100), async {
            tokio::time::sleep(Duration::from_millis(300)).await;
            rig.handler.release();
        });
        tokio::time::timeout(PATIENCE, ending).await.unwrap().unwrap();
        balancer.endpoints.lock().unwrap().remove(0);
        ids.extend(held.into_iter().chain(during));
    }

    for id in &ids {
        let session = rig.settled(id).await;
        assert!(session.calls(None).all(|call| call.posts.accepted == 1 && call.posts.refused == 0), "{session:#?}");
    }
    let mut runs: HashMap<String, usize> = HashMap::new();
    rig.handler.requests("a").into_iter().for_each(|request| *runs.entry(request.key).or_default() += 1);
    assert_eq!(runs.len(), ids.len());
    assert!(runs.values().all(|count| *count == 1), "{runs:?}");
    let mut sent = 0;
    while let Ok(Entry { what, .. }) = journal.try_recv() {
        if let What::WebhookSent { answer, webhook_id, attempt, .. } = what {
            assert_eq!(answer, Ok(200), "{webhook_id}, attempt {attempt}");
            sent += 1;
        }
    }
    assert_eq!(sent, ids.len());
}

/// Starts sessions one after the other, each with one webhook.
async fn load(rig: &Rig, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for _ in 0..count {
        ids.push(rig.session("call a").await);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    ids
}
