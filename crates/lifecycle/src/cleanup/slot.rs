//! One device of the cleanup: its state, its plan, and the starts that wait for it.

use std::sync::Arc;

use tokio::{
    sync::Semaphore,
    time::{Duration, Instant},
};
use windlass_config::CleanupLimits;
use windlass_discovery::FpgaIdentity;
use windlass_host::backoff::backoff;

use super::{
    handle::{NewTenant, Start},
    plan::CleanupPlan,
    state::State,
};

pub(super) struct Slot {
    pub(super) state: State,
    /// Plan of the device; `None` if no step is configured now.
    pub(super) plan: Option<CleanupPlan>,
    /// Required identity, read before the first step, since the steps may change the reported one.
    pub(super) required_identity: Option<FpgaIdentity>,
    /// True if a container held the device at the last reading of the kubelet's checkpoint.
    pub(super) is_held: bool,
    /// Time of the last change of state, or the last start.
    pub(super) last_change: Instant,
    /// Time of the next cleaning that no start requested.
    pub(super) next_cleaning: Option<Instant>,
    /// Starts that wait for the device.
    pub(super) waiting_starts: Vec<Start>,
    /// Claims that were released while steps ran.
    pub(super) pending_releases: Vec<String>,
    /// Permit of a sysfs write, held until the kernel returns.
    pub(super) write_permit: Arc<Semaphore>,
    /// Permit of an identity check, held until the check returns.
    pub(super) verify_permit: Arc<Semaphore>,
}

// === impl Slot ===

impl Slot {
    pub(super) fn new(state: State) -> Self {
        let now = Instant::now();
        Self {
            is_held: state.has_tenants() && !state.is_held_by_claims(),
            state,
            plan: None,
            required_identity: None,
            last_change: now,
            next_cleaning: Some(now),
            waiting_starts: Vec::new(),
            pending_releases: Vec::new(),
            write_permit: Arc::new(Semaphore::new(1)),
            verify_permit: Arc::new(Semaphore::new(1)),
        }
    }

    /// Enters a state, and sets the time of cleaning.
    pub(super) fn enter(&mut self, state: State, limits: &CleanupLimits) {
        let now = Instant::now();
        let delay = match &state {
            // Only failures without a tenant are retried with back-off. Once a tenant is gone, cleaning starts at once.
            State::Quarantined { failed, .. } if !self.state.has_tenants() => {
                backoff(limits.retry_min, limits.retry_max, failed.attempts)
            }
            _ => Duration::ZERO,
        };
        if matches!(state, State::Preparing { failed: None, .. }) {
            self.required_identity = self.plan.as_ref().and_then(|plan| plan.identity.clone());
        }
        (self.state, self.last_change, self.next_cleaning) = (state, now, Some(now + delay));
    }

    /// True if the claim already uses the device. False for pods.
    pub(super) fn is_used_by(&self, tenant: &NewTenant) -> bool {
        match (&self.state, tenant) {
            (State::InUse { tenants }, NewTenant::Claim(claim)) => tenants.contains(claim),
            _ => false,
        }
    }

    /// The plan, with the required identity that was read before the first step.
    pub(super) fn plan(&self) -> CleanupPlan {
        let mut plan = self.plan.clone().unwrap_or_default();
        plan.identity =
            plan.identity.map(|identity| identity.or_earlier(self.required_identity.as_ref()));
        plan
    }

    /// True if steps may run now.
    pub(super) fn is_reachable(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| plan.blocked_reason.is_none())
    }

    /// True if the device has no plan, and a state that need not be recorded.
    pub(super) fn is_droppable(&self) -> bool {
        self.plan.is_none() && self.state.is_droppable()
    }
}
