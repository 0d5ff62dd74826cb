//! MIG worker: runs one task per GPU at a time, on threads that may hang in the driver.

use std::fmt;

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use windlass_core::device::DeviceId;
use windlass_host::{blocking, keyed::KeyedTasks};
use windlass_nvml::Nvml;

use super::{MigFailure, MigNotice};

/// Worker of a [`super::MigHandle`].
#[derive(Debug)]
pub struct MigWorker {
    requests: mpsc::Receiver<MigRequest>,
    library: watch::Receiver<Option<Nvml>>,
    notices: mpsc::Sender<MigNotice>,
    /// Running tasks, one per GPU.
    running: KeyedTasks<DeviceId, ()>,
}

/// A task on a GPU, which sends its own reply.
pub(super) struct MigRequest {
    gpu: DeviceId,
    run: Job,
}

/// Body of a task. The argument is `None` while NVML is not initialised.
type Job = Box<dyn FnOnce(Option<&Nvml>) + Send>;

// === impl MigRequest ===

impl MigRequest {
    /// A job whose result goes to `reply`. The job does not start if its caller has timed out.
    pub(super) fn new<T: Send + 'static>(
        gpu: DeviceId,
        reply: oneshot::Sender<Result<T, MigFailure>>,
        job: impl FnOnce(&Nvml) -> Result<T, MigFailure> + Send + 'static,
    ) -> Self {
        let run = move |library: Option<&Nvml>| {
            if !reply.is_closed() {
                // If the caller times out during the job, its next request finds the result.
                let _ = reply.send(library.ok_or(MigFailure::NoDriver).and_then(job));
            }
        };
        Self { gpu, run: Box::new(run) }
    }
}

impl fmt::Debug for MigRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MigRequest").field("gpu", &self.gpu).finish_non_exhaustive()
    }
}

// === impl MigWorker ===

impl MigWorker {
    pub(super) fn new(
        requests: mpsc::Receiver<MigRequest>,
        library: watch::Receiver<Option<Nvml>>,
        notices: mpsc::Sender<MigNotice>,
    ) -> Self {
        Self { requests, library, notices, running: KeyedTasks::default() }
    }

    /// Runs tasks until stopped. Hanging threads are abandoned.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                Some(request) = self.requests.recv() => self.start(request),
                // A failed task may have changed the GPU too. If the channel is full, the next regular scan finds
                // the change.
                Some((gpu, ())) = self.running.join_next() => {
                    drop(self.notices.try_send(MigNotice::TaskDone(gpu)));
                }
            }
        }
    }

    fn start(&mut self, MigRequest { gpu, run }: MigRequest) {
        let library = self.library.clone();
        self.running.submit(gpu, async move {
            // The task may have waited, so it uses NVML as of its start.
            let library = library.borrow().clone();
            blocking(move || run(library.as_ref())).await;
        });
    }
}
