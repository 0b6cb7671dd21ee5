//! Signed webhooks, as many at once or as often as is asked for.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use actiond::{
    http::{self, Client},
    platform::WebhookConfig,
    send::{Send, delivery_id},
};
use tokio::time::{MissedTickBehavior, interval};

use crate::{
    platform::Platform,
    system::{SECRET, System},
};

/// No job on a machine that works takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Load {
    client: Client,
    url: String,
    platform: Arc<Platform>,
    next: AtomicU64,
}

/// In milliseconds, from the delivery's start.
#[derive(Default)]
pub(crate) struct Latencies {
    pub(crate) ingress: Vec<f64>,
    pub(crate) result: Vec<f64>,
}

impl Load {
    pub(crate) fn new(system: &System, platform: Arc<Platform>) -> Self {
        let url = format!("http://{}/webhooks/bench", system.ingress);
        Self { client: http::client().unwrap(), url, platform, next: AtomicU64::new(0) }
    }

    /// Delivers one webhook.
    async fn deliver(&self, session: &str, id: String) {
        let webhook = WebhookConfig::Standard { secrets: vec![SECRET.into()], tolerance: PATIENCE };
        let send = Send { url: self.url.clone(), session: session.to_owned(), webhook, id };
        let answer = send.post(&self.client, SystemTime::now()).await.unwrap();
        assert!(answer.is_success(), "{answer}");
    }

    /// One job; when its webhook was accepted and its result came.
    async fn job(&self) -> (Instant, Instant) {
        let session = format!("sess_{}_{}", std::process::id(), self.next.fetch_add(1, Ordering::Relaxed));
        let result = self.platform.open(&session);
        self.deliver(&session, delivery_id()).await;
        let accepted = Instant::now();
        let done = tokio::time::timeout(PATIENCE, result).await.expect("a result is lost").unwrap();
        (accepted, done)
    }

    /// Jobs that `count` callers finish in that time, each one after the other.
    pub(crate) async fn closed(self: &Arc<Self>, count: usize, time: Duration) -> u64 {
        let until = Instant::now() + time;
        let callers = (0..count).map(|_| {
            let load = self.clone();
            tokio::spawn(async move {
                let mut jobs = 0;
                while Instant::now() < until {
                    let (_, done) = load.job().await;
                    jobs += u64::from(done < until);
                }
                jobs
            })
        });
        futures_util::future::join_all(callers).await.into_iter().map(Result::unwrap).sum()
    }

    /// Jobs that begin at that rate, whether or not others have ended.
    pub(crate) async fn open(self: &Arc<Self>, rate: u32, time: Duration) -> Latencies {
        let mut ticks = interval(Duration::from_secs(1) / rate);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let until = Instant::now() + time;
        let mut jobs = Vec::new();
        while Instant::now() < until {
            ticks.tick().await;
            let load = self.clone();
            jobs.push(tokio::spawn(async move {
                let began = Instant::now();
                let (accepted, done) = load.job().await;
                (accepted - began, done - began)
            }));
        }
        let mut latencies = Latencies::default();
        for job in jobs {
            let (ingress, result) = job.await.unwrap();
            latencies.ingress.push(ingress.as_secs_f64() * 1000.0);
            latencies.result.push(result.as_secs_f64() * 1000.0);
        }
        latencies
    }

    /// One job whose webhook comes that often, under one id.
    pub(crate) async fn copies(self: &Arc<Self>, count: usize) {
        let session = format!("sess_{}_copies", std::process::id());
        let result = self.platform.open(&session);
        let id = delivery_id();
        let deliveries = (0..count).map(|_| {
            let (load, session, id) = (self.clone(), session.clone(), id.clone());
            tokio::spawn(async move { load.deliver(&session, id).await })
        });
        futures_util::future::join_all(deliveries).await.into_iter().for_each(Result::unwrap);
        tokio::time::timeout(PATIENCE, result).await.expect("a result is lost").unwrap();
    }

    /// Webhooks accepted a second, nobody works on them.
    pub(crate) async fn accepted(self: &Arc<Self>, count: usize, time: Duration) -> f64 {
        let until = Instant::now() + time;
        let callers = (0..count).map(|_| {
            let load = self.clone();
            tokio::spawn(async move {
                let mut accepted = 0_u64;
                while Instant::now() < until {
                    load.deliver("sess_accepted", delivery_id()).await;
                    accepted += 1;
                }
                accepted
            })
        });
        let accepted: u64 = futures_util::future::join_all(callers).await.into_iter().map(Result::unwrap).sum();
        accepted as f64 / time.as_secs_f64()
    }
}

pub(crate) fn quantile(values: &mut [f64], q: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    values.get((last as f64 * q).round() as usize).copied().unwrap_or_default()
}
