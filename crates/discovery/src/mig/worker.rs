//! MIG worker: runs one task per GPU at a time, on threads that may hang in the driver.

use std::fmt;

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use windlass_core::device::DeviceId;
use windlass_host::{blocking, keyed::Tasks};
use windlass_nvml::Nvml;

use super::{MigFailure, MigNotice};

/// Worker of a [`super::MigHandle`].
#[derive(Debug)]
pub struct MigWorker {
    orders: mpsc::Receiver<Order>,
    library: watch::Receiver<Option<Nvml>>,
    cuts: mpsc::Sender<MigNotice>,
    /// Running tasks, one per GPU.
    cutting: Tasks<DeviceId, ()>,
}

/// A task on a GPU, which sends its own answer.
pub(super) struct Order {
    gpu: DeviceId,
    run: Job,
}

/// Body of a task; gets NVML if it is initialised.
type Job = Box<dyn FnOnce(Option<&Nvml>) + Send>;

// === impl Order ===

impl Order {
    /// A job whose result goes to `answer`. It does not start if nobody waits any more.
    pub(super) fn new<T: Send + 'static>(
        gpu: DeviceId,
        answer: oneshot::Sender<Result<T, MigFailure>>,
        job: impl FnOnce(&Nvml) -> Result<T, MigFailure> + Send + 'static,
    ) -> Self {
        let run = move |library: Option<&Nvml>| {
            if !answer.is_closed() {
                // A caller that gave up meanwhile finds the result by asking again.
                let _ = answer.send(library.ok_or(MigFailure::NoDriver).and_then(job));
            }
        };
        Self { gpu, run: Box::new(run) }
    }
}

impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Order").field("gpu", &self.gpu).finish_non_exhaustive()
    }
}

// === impl MigWorker ===

impl MigWorker {
    pub(super) fn new(
        orders: mpsc::Receiver<Order>,
        library: watch::Receiver<Option<Nvml>>,
        cuts: mpsc::Sender<MigNotice>,
    ) -> Self {
        Self { orders, library, cuts, cutting: Tasks::default() }
    }

    /// Runs tasks until stopped. Hanging threads are abandoned.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(order) = self.orders.recv() => self.take(order),
                // Scan the GPU whatever the outcome. A full channel means that a regular scan is near.
                Some((gpu, ())) = self.cutting.next() => drop(self.cuts.try_send(MigNotice::Done(gpu))),
            }
        }
    }

    fn take(&mut self, Order { gpu, run }: Order) {
        let library = self.library.clone();
        self.cutting.begin(gpu, async move {
            // NVML at the start of the task.
            let library = library.borrow().clone();
            blocking(move || run(library.as_ref())).await;
        });
    }
}
