//! Liveness and readiness of the agent.
//!
//! Liveness fails only if a restart would help, never for a device, driver or kubelet that is away. An answered
//! request already shows that the agent's thread runs. Readiness fails while pods cannot get devices for a
//! reason within the agent.

use std::{fmt, path::Path, sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};
use windlass_core::inventory::SourceState;
use windlass_deviceplugin::registration::{RegistrationState, RegistrationStates};
use windlass_resources::NodeState;

pub(super) struct ProbeReport {
    failures: Vec<String>,
    /// Further details for the reader.
    details: Vec<String>,
}

const CLAIMS_UNKNOWN: &str =
    "devices of claims are unknown, so no device is allocated; the agent's log has the reason";

/// Longest time between rounds of a live reconciler. It finishes a round every ten seconds or sooner, and never blocks.
const MAX_ROUND_AGE: Duration = Duration::from_secs(60);

/// Reason why an agent is on standby.
#[derive(Clone, Debug)]
pub(crate) struct Standby {
    /// Description for the reader.
    detail: String,
    /// Reason why pods cannot get devices; `None` while another agent serves them.
    failure: Option<String>,
}

/// Liveness of a serving agent.
pub(super) fn health(
    state: &watch::Receiver<Arc<NodeState>>,
    last_round: &watch::Receiver<Instant>,
) -> ProbeReport {
    let age = last_round.borrow().elapsed();
    let mut failures = Vec::new();
    if state.has_changed().is_err() {
        failures.push("the reconciler has ended".to_owned());
    } else if age > MAX_ROUND_AGE {
        failures.push(format!("the reconciler has not finished a round for {} s", age.as_secs()));
    }
    let generation = state.borrow().inventory.generation;
    ProbeReport { failures, details: vec![format!("inventory: generation {generation}")] }
}

/// Readiness of a serving agent.
///
/// A node without devices is ready: it has nothing to register. A node with a failing driver is ready too: the
/// kubelet knows its devices as unhealthy.
pub(super) fn readiness(state: &NodeState, registrations: &RegistrationStates) -> ProbeReport {
    let inventory = &state.inventory;
    let mut failures = Vec::new();
    if !inventory.is_complete() {
        failures.push("not every source of devices has answered yet".to_owned());
    }
    failures.extend(state.document_errors.values().map(ToString::to_string));
    if state.claims_may_be_missing {
        failures.push(CLAIMS_UNKNOWN.to_owned());
    }
    let slow = state.disk_slow_since.map(|since| since.elapsed().as_secs());
    failures.extend(slow.map(|seconds| format!("the disk has not answered for {seconds} s")));
    let simulated = inventory.simulated.iter();
    let mut facts: Vec<_> = simulated.map(|profile| format!("simulated: {profile}")).collect();
    facts.extend(state.no_offer_warning());
    facts.extend(inventory.sources.iter().map(|(source, state)| describe(source, state)));
    for (name, (all, allocatable)) in state.resources() {
        facts.push(format!("{name}: {allocatable} of {all} allocatable"));
        if registrations.get(&name) != Some(&RegistrationState::Registered) {
            failures.push(format!("{name} is not registered with the kubelet"));
        }
    }
    ProbeReport { failures, details: facts }
}

fn describe(source: &str, state: &SourceState) -> String {
    match state {
        SourceState::Starting => format!("{source}: starting"),
        SourceState::Ready(driver) => format!("{source}: {driver}"),
        SourceState::Absent(reason) | SourceState::Failing(reason) => format!("{source}: {reason}"),
    }
}

// === impl Standby ===

impl Standby {
    /// Standby until another agent ends. It is ready: it can take over.
    pub(crate) fn for_predecessor() -> Self {
        Self { detail: "standing by: another agent serves this kubelet".to_owned(), failure: None }
    }

    /// Standby until the kubelet's folder exists.
    pub(crate) fn for_kubelet(folder: &Path) -> Self {
        let failure = format!(
            "the kubelet has no folder {}: is it running? --kubelet-dir names another",
            folder.display()
        );
        let detail = "standing by: waiting for the kubelet's folder".to_owned();
        Self { detail, failure: Some(failure) }
    }

    /// Marks the agent as ready.
    #[must_use]
    pub(crate) fn into_ready(self) -> Self {
        Self { failure: None, ..self }
    }

    /// Liveness: no failure, because a restart would not help.
    pub(super) fn health(&self) -> ProbeReport {
        ProbeReport { failures: Vec::new(), details: vec![self.detail.clone()] }
    }

    pub(super) fn readiness(&self) -> ProbeReport {
        ProbeReport { failures: self.failure.clone().into_iter().collect(), ..self.health() }
    }
}

impl fmt::Display for Standby {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.detail)
    }
}

// === impl ProbeReport ===

impl ProbeReport {
    pub(super) fn is_ok(&self) -> bool {
        self.failures.is_empty()
    }
}

impl fmt::Display for ProbeReport {
    /// Format: `ok` or the failures, then the details.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_ok() {
            writeln!(f, "ok")?;
        }
        self.failures.iter().try_for_each(|failure| writeln!(f, "not ok: {failure}"))?;
        self.details.iter().try_for_each(|fact| writeln!(f, "{fact}"))
    }
}
