//! The queue of a stage: items wait here until a worker is free and the batch is full or has waited long enough.
//!
//! Readers of streams wait for room before they say `Taken` and read on, so a full queue holds the senders back. A place
//! in the queue is a permit of a semaphore that travels with the item until its work begins.

use std::{collections::VecDeque, sync::Arc};

use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use crate::{
    panics::carry_on,
    queued::Queued,
    worker::{Workshop, process},
};

/// The task that owns the queue.
pub(crate) struct Queue {
    arrivals: mpsc::UnboundedReceiver<Queued>,
    waiting: VecDeque<Queued>,
    running: JoinSet<()>,
    workshop: Arc<Workshop>,
}

/// State of the batch at the head of the queue.
enum Batch {
    /// Nothing to do, or no worker is free.
    None,
    /// Some items; more may come until then.
    Filling(Instant),
    Ready,
}

// === impl Queue ===

impl Queue {
    pub(crate) fn new(arrivals: mpsc::UnboundedReceiver<Queued>, workshop: Workshop) -> Self {
        let workshop = Arc::new(workshop);
        Self { arrivals, waiting: VecDeque::new(), running: JoinSet::new(), workshop }
    }

    /// Runs until no more items can arrive and the last one was handed on.
    pub(crate) async fn run(mut self, finish: impl Future<Output = ()>) {
        let mut finish = std::pin::pin!(finish);
        let (mut is_finishing, mut is_open) = (false, true);
        while is_open || !self.waiting.is_empty() || !self.running.is_empty() {
            let batch = self.head();
            if let Batch::Ready = batch {
                self.start();
                continue;
            }
            tokio::select! {
                biased;
                () = &mut finish, if !is_finishing => {
                    is_finishing = true;
                    self.arrivals.close();
                }
                arrival = self.arrivals.recv(), if is_open => match arrival {
                    Some(item) => self.take(item),
                    None => is_open = false,
                },
                Some(ended) = self.running.join_next() => carry_on(ended),
                () = until(&batch), if matches!(batch, Batch::Filling(_)) => self.start(),
            }
        }
    }

    fn take(&mut self, item: Queued) {
        self.waiting.push_back(item);
        self.workshop.metrics.queue(self.waiting.len());
    }

    fn head(&self) -> Batch {
        let settings = &self.workshop.settings;
        let Some(first) = self.waiting.front() else { return Batch::None };
        if self.running.len() >= settings.workers {
            Batch::None
        } else if self.waiting.len() >= settings.batch {
            Batch::Ready
        } else {
            Batch::Filling(first.arrived + settings.batch_wait)
        }
    }

    fn start(&mut self) {
        let count = self.waiting.len().min(self.workshop.settings.batch);
        let batch = self.waiting.drain(..count).collect();
        self.workshop.metrics.queue(self.waiting.len());
        self.running.spawn(process(Arc::clone(&self.workshop), batch));
    }
}

async fn until(batch: &Batch) {
    if let Batch::Filling(until) = batch {
        sleep_until(*until).await;
    }
}
