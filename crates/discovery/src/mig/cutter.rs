//! The one who carries orders out: one at a time for each GPU, on threads that the driver may keep.

use std::fmt;

use tokio::{
    sync::{mpsc, oneshot, watch},
    task::spawn_blocking,
};
use tokio_util::sync::CancellationToken;
use windlass_core::device::DeviceId;
use windlass_host::keyed::Tasks;
use windlass_nvml::Nvml;

use super::{Cut, Why};

/// Serves a [`super::PartitionDesk`].
#[derive(Debug)]
pub struct Cutter {
    orders: mpsc::Receiver<Order>,
    library: watch::Receiver<Option<Nvml>>,
    /// Who looks again at a GPU that was cut.
    cuts: mpsc::Sender<Cut>,
    /// The threads, one for each GPU.
    cutting: Tasks<DeviceId, ()>,
}

/// Something to do to a GPU, which answers by itself.
pub(super) struct Order {
    gpu: DeviceId,
    run: Job,
}

/// What is done with the library, if there is one.
type Job = Box<dyn FnOnce(Option<&Nvml>) + Send>;

// === impl Order ===

impl Order {
    /// A job whose result is awaited at the other end of `answer`; without one it is not begun.
    pub(super) fn new<T: Send + 'static>(
        gpu: DeviceId,
        answer: oneshot::Sender<Result<T, Why>>,
        job: impl FnOnce(&Nvml) -> Result<T, Why> + Send + 'static,
    ) -> Self {
        let run = move |library: Option<&Nvml>| {
            if !answer.is_closed() {
                // Who gave up meanwhile asks again, and finds what was done.
                let _ = answer.send(library.ok_or(Why::NoDriver).and_then(job));
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

// === impl Cutter ===

impl Cutter {
    pub(super) fn new(
        orders: mpsc::Receiver<Order>,
        library: watch::Receiver<Option<Nvml>>,
        cuts: mpsc::Sender<Cut>,
    ) -> Self {
        Self { orders, library, cuts, cutting: Tasks::default() }
    }

    /// Takes orders until stopped. A thread that hangs then is left behind, as the source leaves those
    /// that probe.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(order) = self.orders.recv() => self.take(order),
                // Whatever came of the order, the GPU is looked at. Where so many wait to be looked at that there is no
                // room, the regular look is near.
                Some((gpu, ())) = self.cutting.next() => drop(self.cuts.try_send(Cut::Done(gpu))),
            }
        }
    }

    fn take(&mut self, Order { gpu, run }: Order) {
        let library = self.library.clone();
        self.cutting.begin(gpu, async move {
            // As it is when the order's turn comes.
            let library = library.borrow().clone();
            let cut = spawn_blocking(move || run(library.as_ref())).await;
            cut.expect("a blocking task neither panics nor is cancelled");
        });
    }
}
