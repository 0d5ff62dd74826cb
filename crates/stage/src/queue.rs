//! The queue of a stage: items wait for a free worker, and until the batch is full or `batch_wait` has passed.
//!
//! A reader acquires a slot before it sends `Taken`, so a full queue applies back-pressure to the senders. A slot is a
//! semaphore permit that belongs to the item until its processing starts.

use std::{collections::VecDeque, sync::Arc};

use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep_until},
};

use crate::{
    panics::propagate_panic,
    queued::Queued,
    worker::{BatchContext, process},
};

/// The task that owns the queue.
pub(crate) struct Queue {
    arrivals: mpsc::UnboundedReceiver<Queued>,
    waiting: VecDeque<Queued>,
    running: JoinSet<()>,
    context: Arc<BatchContext>,
}

/// State of the batch at the head of the queue.
enum BatchState {
    /// The queue is empty, or all workers are busy.
    None,
    /// The batch is not full. It starts at this time at the latest.
    Filling(Instant),
    /// The batch is full.
    Ready,
}

// === impl Queue ===

impl Queue {
    pub(crate) fn new(arrivals: mpsc::UnboundedReceiver<Queued>, context: BatchContext) -> Self {
        let context = Arc::new(context);
        Self { arrivals, waiting: VecDeque::new(), running: JoinSet::new(), context }
    }

    /// Runs until no more items can arrive and the last batch is done. `finish` closes the queue for new items.
    pub(crate) async fn run(mut self, finish: impl Future<Output = ()>) {
        let mut finish = std::pin::pin!(finish);
        let (mut is_finishing, mut is_open) = (false, true);
        while is_open || !self.waiting.is_empty() || !self.running.is_empty() {
            let batch = self.head();
            if let BatchState::Ready = batch {
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
                    Some(item) => self.push(item),
                    None => is_open = false,
                },
                Some(result) = self.running.join_next() => propagate_panic(result),
                () = wait_for(&batch), if matches!(batch, BatchState::Filling(_)) => self.start(),
            }
        }
    }

    fn push(&mut self, item: Queued) {
        self.waiting.push_back(item);
        self.context.metrics.set_queue_length(self.waiting.len());
    }

    fn head(&self) -> BatchState {
        let settings = &self.context.settings;
        let Some(first) = self.waiting.front() else { return BatchState::None };
        if self.running.len() >= settings.workers {
            BatchState::None
        } else if self.waiting.len() >= settings.batch {
            BatchState::Ready
        } else {
            BatchState::Filling(first.arrived + settings.batch_wait)
        }
    }

    fn start(&mut self) {
        let count = self.waiting.len().min(self.context.settings.batch);
        let batch = self.waiting.drain(..count).collect();
        self.context.metrics.set_queue_length(self.waiting.len());
        self.running.spawn(process(Arc::clone(&self.context), batch));
    }
}

async fn wait_for(batch: &BatchState) {
    if let BatchState::Filling(until) = batch {
        sleep_until(*until).await;
    }
}
