//! Sessions with calls of functions that other workers run: handed over, and watched so that somebody takes them.

use std::{
    collections::{BTreeSet, HashSet},
    sync::Arc,
    time::Duration,
};

use futures_util::future::join_all;

use super::Worker;
use crate::{queue::PublishError, session::ActionRequired};

/// When a session that could not be handed over is looked at again.
pub(super) const REFUSED: Duration = Duration::from_secs(1);
/// When a session is looked at again that came to a pool without a call for it, and with calls for others: somebody has
/// another config.
pub(super) const MISPLACED: Duration = Duration::from_secs(30);

/// Gives a session to the workers of these pools. Nothing is claimed for them; the message is new, so that they take no
/// redelivery of ours for a sign that one of them died.
pub(super) async fn hand_over(worker: &Worker, action: &ActionRequired, pools: &BTreeSet<Arc<str>>) -> bool {
    let published = join_all(pools.iter().map(|pool| async move {
        worker.metrics.handed_over(pool);
        told(worker.queue.hand_over(action, pool).await, pool)
    }));
    published.await.into_iter().all(|done| done)
}

/// Gives a session back to the workers who see all sessions first.
pub(super) async fn hand_back(worker: &Worker, action: &ActionRequired) -> bool {
    told(worker.queue.publish(action).await, "none")
}

fn told(published: Result<(), PublishError>, pool: &str) -> bool {
    if let Err(error) = &published {
        tracing::warn!(pool, %error, "a session could not be handed over: trying again");
    }
    published.is_ok()
}

/// Notes what stands before each pool, and says when nobody takes it; `unserved` is what was said before.
pub async fn watch_pools(worker: &Worker, unserved: &mut HashSet<String>) {
    for waiting in worker.queue.count_pools().await {
        worker.metrics.pool(&waiting.pool, waiting.sessions, waiting.workers);
        let pool = waiting.pool;
        if waiting.workers > 0 {
            if unserved.remove(&pool) {
                tracing::info!(pool, "the pool has workers again");
            }
        } else if waiting.sessions > 0 && unserved.insert(pool.clone()) {
            let sessions = waiting.sessions;
            tracing::error!(
                pool,
                sessions,
                "sessions wait for a pool without workers: start `actiond serve --role worker --pool {pool}`"
            );
        }
    }
}
