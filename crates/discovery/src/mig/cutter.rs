//! The one who carries orders out: one at a time for each GPU, on threads that the driver may keep.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
};

use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use windlass_core::device::DeviceId;
use windlass_nvml::Nvml;

use super::{Cut, Why};

/// Serves a [`super::PartitionDesk`].
#[derive(Debug)]
pub struct Cutter {
    orders: mpsc::Receiver<Order>,
    library: watch::Receiver<Option<Nvml>>,
    /// Who looks again at a GPU that was cut.
    cuts: mpsc::Sender<Cut>,
    /// What waits for each GPU that is being cut.
    waiting: BTreeMap<DeviceId, VecDeque<Order>>,
    /// The threads, each giving its GPU when it is done.
    cutting: JoinSet<DeviceId>,
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
        let (waiting, cutting) = Default::default();
        Self { orders, library, cuts, waiting, cutting }
    }

    /// Takes orders until stopped. A thread that hangs then is left behind, as the source leaves those
    /// that probe.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(order) = self.orders.recv() => self.take(order),
                Some(done) = self.cutting.join_next() => {
                    self.go_on(&done.expect("a blocking task neither panics nor is cancelled"));
                }
            }
        }
    }

    fn take(&mut self, order: Order) {
        if let Some(waiting) = self.waiting.get_mut(&order.gpu) {
            return waiting.push_back(order);
        }
        self.waiting.insert(order.gpu.clone(), VecDeque::new());
        self.begin(order);
    }

    fn begin(&mut self, order: Order) {
        let library = self.library.borrow().clone();
        self.cutting.spawn_blocking(move || {
            (order.run)(library.as_ref());
            order.gpu
        });
    }

    /// Has the GPU looked at, whatever came of the order, and begins the next one for it.
    fn go_on(&mut self, gpu: &DeviceId) {
        // Where so many wait to be looked at that there is no room, the regular look is near.
        let _ = self.cuts.try_send(Cut::Done(gpu.clone()));
        match self.waiting.get_mut(gpu).and_then(VecDeque::pop_front) {
            Some(next) => self.begin(next),
            None => drop(self.waiting.remove(gpu)),
        }
    }
}
