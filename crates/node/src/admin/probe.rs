//! Whether the agent lives, and whether it is of use.
//!
//! Health fails only when a restart would help: never for a device, a driver or a kubelet that is
//! away. That a page is answered at all shows that the agent's one thread turns. Readiness fails while
//! a pod that asks for a device could not get it, and the reason is the agent's.

use std::{fmt, sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};
use windlass_core::inventory::SourceState;

use crate::{
    registration::{Standing, Standings},
    state::NodeState,
};

/// What a probe found.
pub(super) struct Report {
    /// Why the answer is no.
    complaints: Vec<String>,
    /// What a person wants to know besides.
    notes: Vec<String>,
}

/// The keeper of the state comes round every ten seconds at least, and waits for nothing on the way.
const LONGEST_ROUND: Duration = Duration::from_secs(60);

/// Whether the agent should go on.
pub(super) fn health(
    state: &watch::Receiver<Arc<NodeState>>,
    rounds: &watch::Receiver<Instant>,
) -> Report {
    let ended = state.has_changed().is_err();
    let ended = ended.then(|| "the keeper of the node's state has ended".to_owned());
    let since = rounds.borrow().elapsed();
    let is_stuck = since > LONGEST_ROUND;
    let stuck =
        || format!("the keeper of the node's state has not come round for {} s", since.as_secs());
    let complaints = ended.or_else(|| is_stuck.then(stuck));
    let generation = state.borrow().inventory.generation;
    let notes = vec![format!("inventory: generation {generation}")];
    Report { complaints: complaints.into_iter().collect(), notes }
}

/// Whether the agent is of use.
///
/// A node without devices is ready: there is nothing to register. So is one whose driver fails: the
/// kubelet is told of the devices, and that they are not healthy.
pub(super) fn readiness(state: &NodeState, standings: &Standings) -> Report {
    let inventory = &state.inventory;
    let mut complaints = Vec::new();
    if !inventory.is_complete() {
        complaints.push("not every source of devices has answered yet".to_owned());
    }
    complaints.extend(state.unwritten.values().map(ToString::to_string));
    let slow = state.slow_since.map(|since| since.elapsed().as_secs());
    complaints.extend(slow.map(|seconds| format!("the disk has not answered for {seconds} s")));
    let simulated = inventory.simulated.iter();
    let mut notes: Vec<_> = simulated.map(|profile| format!("simulated: {profile}")).collect();
    notes.extend(state.offers_nothing());
    notes.extend(inventory.sources.iter().map(|(source, state)| describe(source, state)));
    for (name, (all, allocatable)) in state.resources() {
        notes.push(format!("{name}: {allocatable} of {all} allocatable"));
        if standings.get(&name) != Some(&Standing::Registered) {
            complaints.push(format!("{name} is not registered with the kubelet"));
        }
    }
    Report { complaints, notes }
}

fn describe(source: &str, state: &SourceState) -> String {
    match state {
        SourceState::Starting => format!("{source}: starting"),
        SourceState::Ready(with) => format!("{source}: {with}"),
        SourceState::Absent(why) | SourceState::Failing(why) => format!("{source}: {why}"),
    }
}

// === impl Report ===

impl Report {
    pub(super) fn is_good(&self) -> bool {
        self.complaints.is_empty()
    }
}

impl fmt::Display for Report {
    /// `ok`, or why not; then the notes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_good() {
            writeln!(f, "ok")?;
        }
        self.complaints.iter().try_for_each(|complaint| writeln!(f, "not ok: {complaint}"))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}
