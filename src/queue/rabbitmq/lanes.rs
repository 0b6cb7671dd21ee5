//! Channels with confirms. What arrives while a lane waits for its confirms goes together in the lane's next batch.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use lapin::{
    BasicProperties, Channel, Confirmation, Connection,
    options::{BasicPublishOptions, ConfirmSelectOptions},
    types::ShortString,
};
use tokio::{
    sync::{
        mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
        oneshot,
    },
    task::yield_now,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

/// A lone message never waits for the confirm of another; many share the broker's confirms.
const LANES: usize = 4;
const BATCH: usize = 128;

pub(super) struct Message {
    pub(super) exchange: ShortString,
    pub(super) routing_key: ShortString,
    pub(super) body: Vec<u8>,
    pub(super) properties: BasicProperties,
}

/// Why a message is not known to be safe.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Unconfirmed {
    #[error("the broker did not confirm within {} ms", .0.as_millis())]
    Late(Duration),
    #[error("the connection to the broker broke before the confirm: {0}")]
    Broken(String),
    #[error("the broker has no queue for the message: {0}")]
    Returned(String),
    #[error("the broker refused the message: the queue is full or has no quorum")]
    Nacked,
    #[error("the broker takes no messages now")]
    Refused,
}

/// The lanes of one connection. Dropped, each ends after the batch that is under way.
pub(super) struct Lanes {
    pub(super) connection: Arc<Connection>,
    /// Something is wrong with the connection: make another, and look at the topology again.
    pub(super) suspected: CancellationToken,
    /// The broker raised an alarm: what is under way is not confirmed before it is over.
    pub(super) refused: CancellationToken,
    lanes: Vec<Entry>,
}

/// The caller's end of a lane.
struct Entry {
    load: Arc<AtomicUsize>,
    inbox: UnboundedSender<Job>,
}

struct Job {
    message: Message,
    done: oneshot::Sender<Result<(), Unconfirmed>>,
}

impl Lanes {
    pub(super) fn new(connection: Arc<Connection>, suspected: CancellationToken, limit: Duration) -> Self {
        let refused = CancellationToken::new();
        let lanes = (0..LANES)
            .map(|_| {
                let (inbox, jobs) = unbounded_channel();
                let load = Arc::new(AtomicUsize::new(0));
                let lane = Lane {
                    connection: connection.clone(),
                    suspected: suspected.clone(),
                    refused: refused.clone(),
                    load: load.clone(),
                    limit,
                };
                tokio::spawn(lane.run(jobs));
                Entry { load, inbox }
            })
            .collect();
        Self { connection, suspected, refused, lanes }
    }

    pub(super) async fn send(&self, message: Message) -> Result<(), Unconfirmed> {
        let gone = || Unconfirmed::Broken("the channel is closed".into());
        let lane = self.lanes.iter().min_by_key(|lane| lane.load.load(Ordering::Relaxed)).ok_or_else(gone)?;
        let (done, result) = oneshot::channel();
        lane.load.fetch_add(1, Ordering::Relaxed);
        lane.inbox.send(Job { message, done }).map_err(|_| gone())?;
        result.await.map_err(|_| gone())?
    }
}

struct Lane {
    connection: Arc<Connection>,
    suspected: CancellationToken,
    refused: CancellationToken,
    load: Arc<AtomicUsize>,
    limit: Duration,
}

impl Lane {
    async fn run(self, mut inbox: UnboundedReceiver<Job>) {
        if let Err(error) = self.serve(&mut inbox).await {
            tracing::debug!(%error, "a publishing channel ended");
            if !matches!(error, Unconfirmed::Refused) {
                self.suspected.cancel();
            }
            // Whoever waits or still comes hears it at once.
            inbox.close();
            while let Ok(job) = inbox.try_recv() {
                let _ = job.done.send(Err(error.clone()));
            }
        }
    }

    /// Ends with an error when the channel can no longer be trusted.
    async fn serve(&self, inbox: &mut UnboundedReceiver<Job>) -> Result<(), Unconfirmed> {
        let channel = self.bounded(self.open()).await?;
        let mut jobs = Vec::with_capacity(BATCH);
        while inbox.recv_many(&mut jobs, BATCH).await > 0 {
            // The callers that the last batch woke are about to send their next message.
            yield_now().await;
            while jobs.len() < BATCH
                && let Ok(job) = inbox.try_recv()
            {
                jobs.push(job);
            }
            let count = jobs.len();
            // Who gave up was told that the message is not safe.
            jobs.retain(|job| !job.done.is_closed());
            let published = self.bounded(publish(&channel, &jobs)).await;
            let trouble = settle(jobs.drain(..), published);
            self.load.fetch_sub(count, Ordering::Relaxed);
            trouble?;
        }
        Ok(())
    }

    async fn open(&self) -> lapin::Result<Channel> {
        let channel = self.connection.create_channel().await?;
        channel.confirm_select(ConfirmSelectOptions::default()).await?;
        Ok(channel)
    }

    async fn bounded<T>(&self, work: impl Future<Output = lapin::Result<T>>) -> Result<T, Unconfirmed> {
        tokio::select! {
            result = timeout(self.limit, work) => match result {
                Ok(result) => result.map_err(|error| Unconfirmed::Broken(error.to_string())),
                Err(_) => Err(Unconfirmed::Late(self.limit)),
            },
            () = self.refused.cancelled() => Err(Unconfirmed::Refused),
        }
    }
}

/// All at once, in one task: the library numbers and sends a message in two steps, and two tasks could mix them up.
async fn publish(channel: &Channel, jobs: &[Job]) -> lapin::Result<Vec<lapin::Result<Confirmation>>> {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    Ok(join_all(jobs.iter().map(async |Job { message, .. }| {
        let Message { exchange, routing_key, body, properties } = message;
        channel.basic_publish(exchange.clone(), routing_key.clone(), options, body, properties.clone()).await?.await
    }))
    .await)
}

/// Tells every caller. A message that was returned makes the whole batch unsafe: the library hands it to whichever confirm
/// comes next, not to its own. The error, if there is one, is why the channel should not be used again.
fn settle(
    jobs: impl Iterator<Item = Job>,
    published: Result<Vec<lapin::Result<Confirmation>>, Unconfirmed>,
) -> Result<(), Unconfirmed> {
    let outcomes: Vec<_> = match published {
        Ok(confirms) => confirms.into_iter().map(outcome).collect(),
        Err(error) => {
            jobs.for_each(|job| drop(job.done.send(Err(error.clone()))));
            return Err(error);
        }
    };
    let returned = outcomes.iter().find_map(|outcome| match outcome {
        Err(error @ Unconfirmed::Returned(_)) => Some(error.clone()),
        _ => None,
    });
    let mut trouble = returned.clone();
    for (job, outcome) in jobs.zip(outcomes) {
        let outcome = match &returned {
            Some(error) => Err(error.clone()),
            None => outcome,
        };
        if let Err(error @ Unconfirmed::Broken(_)) = &outcome {
            trouble.get_or_insert_with(|| error.clone());
        }
        let _ = job.done.send(outcome);
    }
    trouble.map_or(Ok(()), Err)
}

pub(super) fn outcome(confirm: lapin::Result<Confirmation>) -> Result<(), Unconfirmed> {
    match confirm {
        Ok(Confirmation::Ack(None)) => Ok(()),
        Ok(Confirmation::Nack(None)) => Err(Unconfirmed::Nacked),
        Ok(Confirmation::Ack(Some(returned)) | Confirmation::Nack(Some(returned))) => {
            Err(Unconfirmed::Returned(returned.reply_text.to_string()))
        }
        Ok(Confirmation::NotRequested) => Err(Unconfirmed::Broken("the channel gives no confirms".into())),
        Err(error) => Err(Unconfirmed::Broken(error.to_string())),
    }
}
