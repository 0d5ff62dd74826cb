//! How devices are made ready for a container that is about to start, or for a claim, and how it is told
//! that a claim has let go.

use std::sync::Arc;

use tokio::{
    sync::{mpsc, oneshot, watch},
    time::Duration,
};
use windlass_allocations::follow::AllocationsDesk;
use windlass_core::device::DeviceId;
use windlass_host::deadline::Deadline;

use super::{
    HandoverStates,
    state::{Tenants, claim_tenant},
};

/// How the servers of resources, and who prepares claims, have devices prepared.
#[derive(Clone, Debug)]
pub struct HandoverDesk {
    requests: mpsc::Sender<Request>,
    allocations: AllocationsDesk,
    patience: Duration,
    states: watch::Receiver<Arc<HandoverStates>>,
}

/// A device that is not ready for a container or a claim, and why.
#[derive(Debug)]
pub struct NotReady {
    /// The device.
    pub device: DeviceId,
    /// What it waits for, or what failed.
    pub why: String,
}

/// What is wanted.
#[derive(Debug)]
pub(super) enum Request {
    /// Somebody is about to start with a device.
    Start(Start),
    /// A claim has let go of all that it had.
    Leave { claim: String, reply: Reply },
}

/// Somebody is about to start with a device.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) device: DeviceId,
    pub(super) newcomer: Newcomer,
    pub(super) reply: Reply,
}

/// Who is about to start.
#[derive(Clone, Debug)]
pub(super) enum Newcomer {
    /// A container of one of these pods, which have the device.
    Pods(Tenants),
    /// A claim, as a tenant.
    Claim(String),
}

/// Whoever waits may have given up.
pub(super) type Reply = oneshot::Sender<Result<(), String>>;

/// Where the outcome for a device will come from.
type Answer = (DeviceId, oneshot::Receiver<Result<(), String>>);

/// Starts that wait to be heard; each is one device of one container.
const WAITING: usize = 64;

const ENDS: &str = "the agent ends";

const UNREADABLE: &str =
    "the kubelet's record cannot be read, so that nobody knows which pods have the device";

// === impl HandoverDesk ===

impl HandoverDesk {
    /// A desk with the requests that it passes on. Who has what is read in the kubelet's record.
    pub(super) fn new(
        allocations: AllocationsDesk,
        patience: Duration,
        states: watch::Receiver<Arc<HandoverStates>>,
    ) -> (Self, mpsc::Receiver<Request>) {
        let (sender, requests) = mpsc::channel(WAITING);
        (Self { requests: sender, allocations, patience, states }, requests)
    }

    /// Where devices stand now. The node's state says so a moment later.
    pub fn states(&self) -> Arc<HandoverStates> {
        self.states.borrow().clone()
    }

    /// Has devices prepared for the container that is about to start with them; returns when all are, or
    /// with the first that is not.
    pub async fn prepare(
        &self,
        devices: impl IntoIterator<Item = DeviceId>,
    ) -> Result<(), NotReady> {
        let mut deadline = Deadline::after(self.patience);
        let allocations = deadline.bound(self.allocations.read()).await.unwrap_or_default();
        let mut newcomers = Vec::new();
        for device in devices {
            let Some(pods) = allocations.pods(&device) else {
                return Err(NotReady { device, why: UNREADABLE.to_owned() });
            };
            newcomers.push((device, Newcomer::Pods(pods)));
        }
        for (device, answer) in self.start(newcomers).await {
            let outcome = deadline.bound(answer).await;
            let why = match outcome {
                Ok(Ok(Ok(()))) => continue,
                Ok(Ok(Err(why))) => why,
                Ok(Err(_)) => ENDS.to_owned(),
                Err(_) => format!("it is not ready after {:?}; its steps go on", self.patience),
            };
            return Err(NotReady { device, why });
        }
        Ok(())
    }

    /// Has devices prepared for a claim that has them in the ledger; returns when all are, or failed. It takes
    /// as long as the steps do, each of which has its limit: who asks answers for the time.
    pub async fn join(
        &self,
        claim: &str,
        devices: impl IntoIterator<Item = DeviceId>,
    ) -> Result<(), NotReady> {
        let claim = Newcomer::Claim(claim_tenant(claim));
        let mut outcome = Ok(());
        let newcomers = devices.into_iter().map(|device| (device, claim.clone()));
        for (device, answer) in self.start(newcomers).await {
            let done = answer.await.unwrap_or_else(|_| Err(ENDS.to_owned()));
            let done = done.map_err(|why| NotReady { device, why });
            outcome = outcome.and(done);
        }
        outcome
    }

    /// Tells that a claim has let go of all that it had; returns when that is not forgotten any more. What is
    /// done to the devices then nobody waits for.
    pub async fn leave(&self, claim: &str) -> Result<(), String> {
        let (reply, answer) = oneshot::channel();
        let claim = claim_tenant(claim);
        // A part that has ended answers nobody, which is noticed below.
        let _ = self.requests.send(Request::Leave { claim, reply }).await;
        answer.await.unwrap_or_else(|_| Err(ENDS.to_owned()))
    }

    async fn start(
        &self,
        newcomers: impl IntoIterator<Item = (DeviceId, Newcomer)>,
    ) -> Vec<Answer> {
        let mut answers = Vec::new();
        for (device, newcomer) in newcomers {
            let (reply, answer) = oneshot::channel();
            let start = Start { device: device.clone(), newcomer, reply };
            // A part that has ended answers nobody, which is noticed when it is waited for.
            let _ = self.requests.send(Request::Start(start)).await;
            answers.push((device, answer));
        }
        answers
    }
}
