//! What a collector and a scraper see of one answered session.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Bytes, extract::Path, routing::post};
use opentelemetry_proto::tonic::collector::{
    logs::v1::ExportLogsServiceRequest, metrics::v1::ExportMetricsServiceRequest, trace::v1::ExportTraceServiceRequest,
};
use prost::Message;
use tokio::net::TcpListener;

use crate::{
    over_every_pair,
    rig::{Pair, Setup},
};

over_every_pair!(one_trace_leads_from_the_webhook_to_the_submitted_result);

/// An OTLP/HTTP collector that keeps what it is sent.
#[derive(Default)]
struct Collector {
    /// Name and trace id of each span.
    spans: Mutex<Vec<(String, Vec<u8>)>>,
    logs: Mutex<usize>,
    metrics: Mutex<Vec<String>>,
}

impl Collector {
    async fn start() -> (Arc<Self>, String) {
        let collector = Arc::new(Self::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let kept = collector.clone();
        let take = move |Path(kind): Path<String>, body: Bytes| async move { kept.take(&kind, body) };
        tokio::spawn(axum::serve(listener, Router::new().route("/v1/{kind}", post(take))).into_future());
        (collector, url)
    }

    fn take(&self, kind: &str, body: Bytes) {
        match kind {
            "traces" => {
                let request = ExportTraceServiceRequest::decode(body).unwrap();
                let scopes = request.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
                let spans = scopes.flat_map(|scope| scope.spans).map(|span| (span.name, span.trace_id));
                self.spans.lock().unwrap().extend(spans);
            }
            "logs" => {
                let request = ExportLogsServiceRequest::decode(body).unwrap();
                let scopes = request.resource_logs.into_iter().flat_map(|resource| resource.scope_logs);
                *self.logs.lock().unwrap() += scopes.map(|scope| scope.log_records.len()).sum::<usize>();
            }
            _ => {
                let request = ExportMetricsServiceRequest::decode(body).unwrap();
                let scopes = request.resource_metrics.into_iter().flat_map(|resource| resource.scope_metrics);
                self.metrics.lock().unwrap().extend(scopes.flat_map(|scope| scope.metrics).map(|metric| metric.name));
            }
        }
    }
}

async fn one_trace_leads_from_the_webhook_to_the_submitted_result(pair: Pair) {
    let (collector, url) = Collector::start().await;
    let mut rig = Setup::new(pair).http("a", "").prepare().await;
    rig.replace("log: json", &format!("log: json, otlp: \"{url}\""));
    rig.start_all().await;
    rig.play("call a").await;
    // The last batch goes out when the process ends.
    for daemon in [&mut rig.ingress, &mut rig.worker].into_iter().flatten() {
        daemon.terminate();
        assert!(daemon.ended().await.success());
    }
    let mut traces: BTreeMap<Vec<u8>, Vec<String>> = BTreeMap::new();
    for (name, trace) in collector.spans.lock().unwrap().iter() {
        traces.entry(trace.clone()).or_default().push(name.clone());
    }
    let wanted = ["webhook", "publish", "reconcile", "retrieve", "handler", "submit"];
    let whole = traces.values().any(|names| wanted.iter().all(|wanted| names.iter().any(|name| name == wanted)));
    assert!(whole, "{traces:?}");
    assert!(*collector.logs.lock().unwrap() > 0);
    assert!(collector.metrics.lock().unwrap().iter().any(|name| name.starts_with("actiond_")));
}

#[tokio::test]
async fn a_collector_that_never_answers_does_not_hold_the_exit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = listener.local_addr().unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for (what, address) in [("silent", silent), ("gone", gone)] {
        let mut rig = Setup::new(Pair::EmbeddedSqlite).http("a", "").prepare().await;
        rig.replace("log: json", &format!("log: json, otlp: \"http://{address}\""));
        rig.start_all().await;
        for _ in 0..10 {
            rig.play("call a").await;
        }
        let mut worker = rig.worker.take().unwrap();
        worker.terminate();
        let ended = tokio::time::timeout(Duration::from_secs(10), worker.ended()).await;
        assert!(ended.unwrap_or_else(|_| panic!("{what}: still running")).success(), "{what}");
    }
    drop(listener);
}
