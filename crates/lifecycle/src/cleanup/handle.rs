//! Handle of the cleanup: requests for containers that start, and for claims that are prepared or released.

use std::sync::Arc;

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Duration,
};
use windlass_allocations::follow::AllocationsReader;
use windlass_core::device::DeviceId;
use windlass_host::{AGENT_ENDS, deadline::Deadline};

use super::{
    CleanupStates,
    state::{Tenants, claim_tenant},
};

/// Handle of the cleanup for the device plugin and the DRA driver.
#[derive(Clone, Debug)]
pub struct CleanupHandle {
    requests: mpsc::Sender<Request>,
    allocations: AllocationsReader,
    start_deadline: Duration,
    states: watch::Receiver<Arc<CleanupStates>>,
}

/// A device that is not ready for its tenant.
#[derive(Debug)]
pub struct NotReadyError {
    /// The device.
    pub device: DeviceId,
    /// The reason.
    pub reason: String,
}

#[derive(Debug)]
pub(super) enum Request {
    /// A tenant is about to start with a device.
    Start(Start),
    /// A claim released all its devices.
    ReleaseClaim { claim: String, reply: Reply },
}

/// A tenant that is about to start with a device.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) device: DeviceId,
    pub(super) tenant: NewTenant,
    pub(super) reply: Reply,
}

/// The pods or the claim that is about to start.
#[derive(Clone, Debug)]
pub(super) enum NewTenant {
    /// A container of one of these pods.
    Pods(Tenants),
    /// A claim, as a tenant name.
    Claim(String),
}

/// Channel of an outcome. The receiver is dropped if the caller was cancelled.
pub(super) type Reply = oneshot::Sender<Result<(), String>>;

/// A device, and the channel of its outcome.
type PendingStart = (DeviceId, oneshot::Receiver<Result<(), String>>);

/// Capacity of the request channel: one start per device and container.
const MAX_REQUESTS: usize = 64;

const CHECKPOINT_UNREADABLE: &str =
    "the kubelet's checkpoint cannot be read, so the device's pods are unknown";

// === impl CleanupHandle ===

impl CleanupHandle {
    /// A handle, and the requests that it sends.
    pub(super) fn new(
        allocations: AllocationsReader,
        start_deadline: Duration,
        states: watch::Receiver<Arc<CleanupStates>>,
    ) -> (Self, mpsc::Receiver<Request>) {
        let (sender, requests) = mpsc::channel(MAX_REQUESTS);
        (Self { requests: sender, allocations, start_deadline, states }, requests)
    }

    /// Current states. The node's snapshot follows with a delay.
    pub fn states(&self) -> Arc<CleanupStates> {
        self.states.borrow().clone()
    }

    /// Prepares devices for a container that is about to start. Returns once all are ready.
    ///
    /// # Errors
    ///
    /// Fails with the first device whose preparation failed, or did not end by the start deadline.
    pub async fn prepare(
        &self,
        devices: impl IntoIterator<Item = DeviceId>,
    ) -> Result<(), NotReadyError> {
        let mut deadline = Deadline::after(self.start_deadline);
        let allocations = deadline.timeout(self.allocations.read()).await.unwrap_or_default();
        let mut starts = Vec::new();
        for device in devices {
            let Some(pods) = allocations.pods(&device) else {
                return Err(NotReadyError { device, reason: CHECKPOINT_UNREADABLE.to_owned() });
            };
            starts.push((device, NewTenant::Pods(pods)));
        }
        for (device, outcome_receiver) in self.start(starts).await {
            let outcome = deadline.timeout(outcome_receiver).await;
            let reason = match outcome {
                Ok(Ok(Ok(()))) => continue,
                Ok(Ok(Err(reason))) => reason,
                Ok(Err(_)) => AGENT_ENDS.to_owned(),
                Err(_) => {
                    format!("it is not ready after {:?}; its steps continue", self.start_deadline)
                }
            };
            return Err(NotReadyError { device, reason });
        }
        Ok(())
    }

    /// Prepares devices for a claim that has them in the ledger. Each step has a time limit; the caller limits the
    /// total time.
    ///
    /// # Errors
    ///
    /// Fails with the first device whose preparation failed, once the preparation of all has ended.
    pub async fn prepare_claim(
        &self,
        claim: &str,
        devices: impl IntoIterator<Item = DeviceId>,
    ) -> Result<(), NotReadyError> {
        let claim = NewTenant::Claim(claim_tenant(claim));
        let mut outcome = Ok(());
        let starts = devices.into_iter().map(|device| (device, claim.clone()));
        for (device, outcome_receiver) in self.start(starts).await {
            let device_outcome =
                outcome_receiver.await.unwrap_or_else(|_| Err(AGENT_ENDS.to_owned()));
            outcome =
                outcome.and(device_outcome.map_err(|reason| NotReadyError { device, reason }));
        }
        outcome
    }

    /// Announces the release of a claim. Returns once the release is on disk; the release steps run later.
    pub async fn release_claim(&self, claim: &str) -> Result<(), String> {
        let (reply, outcome_receiver) = oneshot::channel();
        let claim = claim_tenant(claim);
        // If the cleanup has ended, the reply is dropped.
        let _ = self.requests.send(Request::ReleaseClaim { claim, reply }).await;
        outcome_receiver.await.unwrap_or_else(|_| Err(AGENT_ENDS.to_owned()))
    }

    async fn start(
        &self,
        starts: impl IntoIterator<Item = (DeviceId, NewTenant)>,
    ) -> Vec<PendingStart> {
        let mut pending_starts = Vec::new();
        for (device, tenant) in starts {
            let (reply, outcome_receiver) = oneshot::channel();
            let start = Start { device: device.clone(), tenant, reply };
            // If the cleanup has ended, the reply is dropped.
            let _ = self.requests.send(Request::Start(start)).await;
            pending_starts.push((device, outcome_receiver));
        }
        pending_starts
    }
}
