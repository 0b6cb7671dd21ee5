//! Acknowledgements of one channel. Those that come together go together: one frame covers every delivery up to the first
//! that is still held.

use std::collections::BTreeMap;

use futures_util::future::try_join_all;
use lapin::{
    Channel,
    options::{BasicAckOptions, BasicNackOptions},
    types::DeliveryTag,
};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel},
    task::yield_now,
};

use super::connection::{Failure, RPC_TIMEOUT, within};

const BATCH: usize = 256;

/// What becomes of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Acknowledge,
    GiveBack,
}

/// Where the holder of a delivery says what becomes of it. Goes nowhere once the channel is gone: the broker delivers again.
pub(super) type Verdicts = UnboundedSender<(DeliveryTag, Verdict)>;

pub(super) struct Settling {
    channel: Channel,
    held: Held,
    said: UnboundedReceiver<(DeliveryTag, Verdict)>,
    verdicts: Verdicts,
    batch: Vec<(DeliveryTag, Verdict)>,
}

impl Settling {
    pub(super) fn new(channel: Channel) -> Self {
        let (verdicts, said) = unbounded_channel();
        Self { channel, held: Held::default(), said, verdicts, batch: Vec::new() }
    }

    /// Of a delivery that is handed out, in the order in which the broker sent them.
    pub(super) fn hold(&mut self, tag: DeliveryTag) -> Verdicts {
        self.held.open.insert(tag, false);
        self.verdicts.clone()
    }

    /// Waits for verdicts; may be cancelled.
    pub(super) async fn wait(&mut self) {
        self.said.recv_many(&mut self.batch, BATCH).await;
    }

    /// Sends what the verdicts so far ask for.
    pub(super) async fn flush(&mut self) -> Result<(), Failure> {
        // Those whom the same commit woke are about to say theirs.
        yield_now().await;
        while let Ok(verdict) = self.said.try_recv() {
            self.batch.push(verdict);
        }
        // First what goes back, and on its way before the others: an acknowledgement could cover it.
        for (tag, verdict) in self.batch.drain(..) {
            match verdict {
                Verdict::Acknowledge => self.held.done(tag),
                Verdict::GiveBack => {
                    give_back(&self.channel, tag).await?;
                    self.held.open.remove(&tag);
                }
            }
        }
        let acks = self.held.acknowledgements();
        let acks = acks.into_iter().map(|(tag, multiple)| self.channel.basic_ack(tag, BasicAckOptions { multiple }));
        within(RPC_TIMEOUT, "an acknowledgement", try_join_all(acks)).await.map(drop)
    }
}

pub(super) async fn give_back(channel: &Channel, tag: DeliveryTag) -> Result<(), Failure> {
    let requeue = BasicNackOptions { requeue: true, ..BasicNackOptions::default() };
    within(RPC_TIMEOUT, "giving a message back", channel.basic_nack(tag, requeue)).await
}

/// What is handed out, by tag; true where it may be acknowledged.
#[derive(Default)]
struct Held {
    open: BTreeMap<DeliveryTag, bool>,
}

impl Held {
    fn done(&mut self, tag: DeliveryTag) {
        if let Some(done) = self.open.get_mut(&tag) {
            *done = true;
        }
    }

    /// Tags to acknowledge; true for one that stands for all before it too.
    fn acknowledgements(&mut self) -> Vec<(DeliveryTag, bool)> {
        let mut acks = Vec::new();
        while let Some(first) = self.open.first_entry().filter(|first| *first.get()) {
            acks = vec![(first.remove_entry().0, true)];
        }
        self.open.retain(|tag, done| {
            if *done {
                acks.push((*tag, false));
            }
            !*done
        });
        acks
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// What a broker takes for settled.
    fn covered(acks: &[(DeliveryTag, bool)], unsettled: &BTreeSet<DeliveryTag>) -> BTreeSet<DeliveryTag> {
        let covers = |tag: &DeliveryTag| acks.iter().any(|(ack, multiple)| ack == tag || *multiple && tag <= ack);
        unsettled.iter().copied().filter(covers).collect()
    }

    #[test]
    fn one_frame_covers_all_before_the_first_that_is_held() {
        let mut held = Held { open: (1..=6).map(|tag| (tag, tag != 4)).collect() };
        assert_eq!(held.acknowledgements(), [(3, true), (5, false), (6, false)]);
        assert_eq!(held.acknowledgements(), []);
        held.done(4);
        assert_eq!(held.acknowledgements(), [(4, true)]);
    }

    proptest! {
        #[test]
        fn exactly_what_is_done_is_acknowledged(rounds in prop::collection::vec((0..5_u64, prop::collection::vec(any::<prop::sample::Index>(), 0..6)), 1..40)) {
            let (mut held, mut unsettled, mut next) = (Held::default(), BTreeSet::new(), 1);
            for (came, finished) in rounds {
                for tag in next..next + came {
                    held.open.insert(tag, false);
                    unsettled.insert(tag);
                }
                next += came;
                let open: Vec<_> = unsettled.iter().copied().collect();
                let done: BTreeSet<_> = finished.iter().filter(|_| !open.is_empty()).map(|index| *index.get(&open)).collect();
                done.iter().for_each(|tag| held.done(*tag));
                prop_assert_eq!(&covered(&held.acknowledgements(), &unsettled), &done);
                unsettled.retain(|tag| !done.contains(tag));
            }
        }
    }
}
