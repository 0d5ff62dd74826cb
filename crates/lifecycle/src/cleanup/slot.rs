//! One device as the part knows it: where it stands, what is done to it, who waits for it.

use std::sync::Arc;

use tokio::{
    sync::Semaphore,
    time::{Duration, Instant},
};
use windlass_config::HandoverLimits;
use windlass_discovery::FpgaIdentity;

use super::{
    care::Care,
    desk::{Newcomer, Start},
    state::State,
};

/// A device and all that is known of it.
pub(super) struct Slot {
    pub(super) state: State,
    /// What is done to it; `None` where nothing is, for now.
    pub(super) care: Option<Care>,
    /// What it is to be, as it was settled before anything was done to it.
    pub(super) settled: Option<FpgaIdentity>,
    /// Whether a container had it at the last look.
    pub(super) is_held: bool,
    /// When the state last changed, or a container was let start.
    pub(super) changed: Instant,
    /// When it is cleaned without anybody asking.
    pub(super) due: Option<Instant>,
    /// Starts that wait for what is under way.
    pub(super) waiting: Vec<Start>,
    /// Claims that let go while something is under way.
    pub(super) leaving: Vec<String>,
    /// What a write to sysfs takes for as long as the kernel takes for it.
    pub(super) writing: Arc<Semaphore>,
    /// Taken by a question to the device.
    pub(super) asking: Arc<Semaphore>,
}

// === impl Slot ===

impl Slot {
    pub(super) fn new(state: State) -> Self {
        let now = Instant::now();
        Self {
            is_held: state.has_tenants() && !state.is_of_claims(),
            state,
            care: None,
            settled: None,
            changed: now,
            due: Some(now),
            waiting: Vec::new(),
            leaving: Vec::new(),
            writing: Arc::new(Semaphore::new(1)),
            asking: Arc::new(Semaphore::new(1)),
        }
    }

    /// Goes into another state.
    pub(super) fn enter(&mut self, state: State, limits: &HandoverLimits) {
        let now = Instant::now();
        let pause = match &state {
            // Somebody else's failure is no reason to wait once it was let go.
            State::Quarantined { failed, .. } if !self.state.has_tenants() => {
                let factor =
                    1_u32.checked_shl(failed.attempts.saturating_sub(1)).unwrap_or(u32::MAX);
                limits.retry_first.saturating_mul(factor).min(limits.retry_most)
            }
            _ => Duration::ZERO,
        };
        if matches!(state, State::Preparing { failed: None, .. }) {
            self.settled = self.care.as_ref().and_then(|care| care.identity.clone());
        }
        (self.state, self.changed, self.due) = (state, now, Some(now + pause));
    }

    /// Whether whoever comes has it already.
    pub(super) fn is_with(&self, newcomer: &Newcomer) -> bool {
        match (&self.state, newcomer) {
            (State::InUse { tenants }, Newcomer::Claim(claim)) => tenants.contains(claim),
            _ => false,
        }
    }

    /// What is done to it now.
    pub(super) fn care(&self) -> Care {
        let mut care = self.care.clone().unwrap_or_default();
        care.identity = care.identity.map(|now| now.or_settled(self.settled.as_ref()));
        care
    }

    /// Whether something may be done to it now.
    pub(super) fn is_in_reach(&self) -> bool {
        self.care.as_ref().is_some_and(|care| care.barred.is_none())
    }

    /// Whether nothing is lost with it, unless something is done to it.
    pub(super) fn is_forgettable(&self) -> bool {
        self.care.is_none() && self.state.is_forgettable()
    }
}
