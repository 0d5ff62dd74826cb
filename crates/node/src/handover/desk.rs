//! How the servers of resources have devices made ready for a container that is about to start.

use std::path::PathBuf;

use tokio::{
    sync::{mpsc, oneshot},
    time::{Duration, Instant, timeout_at},
};
use windlass_core::device::DeviceId;

use super::state::Tenants;
use crate::holders::by_pod;

/// How the servers of resources have devices prepared.
#[derive(Clone, Debug)]
pub(crate) struct HandoverDesk {
    requests: mpsc::Sender<Request>,
    kubelet_record: PathBuf,
    patience: Duration,
}

/// A device that is not ready for a container, and why.
#[derive(Debug)]
pub(crate) struct NotReady {
    pub(crate) device: DeviceId,
    pub(crate) why: String,
}

/// A container is about to start with a device.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) device: DeviceId,
    pub(super) tenants: Tenants,
    pub(super) reply: oneshot::Sender<Result<(), String>>,
}

/// Starts that wait to be heard; each is one device of one container.
const WAITING: usize = 64;

// === impl HandoverDesk ===

impl HandoverDesk {
    /// A desk with the requests that it passes on. Who has what is read in the kubelet's record.
    pub(super) fn new(
        kubelet_record: PathBuf,
        patience: Duration,
    ) -> (Self, mpsc::Receiver<Request>) {
        let (sender, requests) = mpsc::channel(WAITING);
        (Self { requests: sender, kubelet_record, patience }, requests)
    }

    /// Has devices prepared for the container that is about to start with them; returns when all are, or
    /// with the first that is not.
    pub(crate) async fn prepare(
        &self,
        devices: impl IntoIterator<Item = DeviceId>,
    ) -> Result<(), NotReady> {
        let deadline = Instant::now() + self.patience;
        let recorded = by_pod(self.kubelet_record.clone()).await.unwrap_or_default();
        let mut answers = Vec::new();
        for device in devices {
            let (reply, answer) = oneshot::channel();
            let tenants = recorded.get(&device).cloned().unwrap_or_default();
            // A part that has ended answers nobody, which is noticed below.
            let _ = self.requests.send(Request { device: device.clone(), tenants, reply }).await;
            answers.push((device, answer));
        }
        for (device, answer) in answers {
            let outcome = timeout_at(deadline, answer).await;
            let why = match outcome {
                Ok(Ok(Ok(()))) => continue,
                Ok(Ok(Err(why))) => why,
                Ok(Err(_)) => "the agent ends".to_owned(),
                Err(_) => format!("it is not ready after {:?}; its steps go on", self.patience),
            };
            return Err(NotReady { device, why });
        }
        Ok(())
    }
}
