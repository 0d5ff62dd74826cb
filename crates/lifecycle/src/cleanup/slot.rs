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
    /// Its steps; `None` if no step is configured now.
    pub(super) plan: Option<CleanupPlan>,
    /// Required identity, settled before the first step.
    pub(super) settled: Option<FpgaIdentity>,
    /// True if a container had it at the last reading.
    pub(super) is_held: bool,
    /// Time of the last change of state or start.
    pub(super) changed: Instant,
    /// Time of cleaning without a caller.
    pub(super) due: Option<Instant>,
    pub(super) waiting: Vec<Start>,
    /// Claims that were released during the work.
    pub(super) leaving: Vec<String>,
    /// Held by a sysfs write as long as the kernel takes.
    pub(super) writing: Arc<Semaphore>,
    /// Held by an identity check.
    pub(super) verifying: Arc<Semaphore>,
}

// === impl Slot ===

impl Slot {
    pub(super) fn new(state: State) -> Self {
        let now = Instant::now();
        Self {
            is_held: state.has_tenants() && !state.is_of_claims(),
            state,
            plan: None,
            settled: None,
            changed: now,
            due: Some(now),
            waiting: Vec::new(),
            leaving: Vec::new(),
            writing: Arc::new(Semaphore::new(1)),
            verifying: Arc::new(Semaphore::new(1)),
        }
    }

    /// Enters a state, and sets the time of cleaning.
    pub(super) fn enter(&mut self, state: State, limits: &CleanupLimits) {
        let now = Instant::now();
        let pause = match &state {
            // A tenant's failure is no reason to wait once the tenant is gone.
            State::Quarantined { failed, .. } if !self.state.has_tenants() => {
                backoff(limits.retry_first, limits.retry_most, failed.attempts)
            }
            _ => Duration::ZERO,
        };
        if matches!(state, State::Preparing { failed: None, .. }) {
            self.settled = self.plan.as_ref().and_then(|plan| plan.identity.clone());
        }
        (self.state, self.changed, self.due) = (state, now, Some(now + pause));
    }

    /// True if the new tenant already has the device.
    pub(super) fn is_with(&self, tenant: &NewTenant) -> bool {
        match (&self.state, tenant) {
            (State::InUse { tenants }, NewTenant::Claim(claim)) => tenants.contains(claim),
            _ => false,
        }
    }

    /// The plan, with the settled identity.
    pub(super) fn plan(&self) -> CleanupPlan {
        let mut plan = self.plan.clone().unwrap_or_default();
        plan.identity = plan.identity.map(|now| now.or_settled(self.settled.as_ref()));
        plan
    }

    /// True if steps may run now.
    pub(super) fn is_reachable(&self) -> bool {
        self.plan.as_ref().is_some_and(|plan| plan.blocked.is_none())
    }

    /// True if the device has no plan and a state that need not be remembered.
    pub(super) fn is_forgettable(&self) -> bool {
        self.plan.is_none() && self.state.is_forgettable()
    }
}
