//! Whether the agent lives, and whether it is of use.
//!
//! Health fails only when a restart would help: never for a device, a driver or a kubelet that is
//! away. That a page is answered at all shows that the agent's one thread turns. Readiness fails while
//! a pod that asks for a device could not get it, and the reason is the agent's.

use std::{fmt, path::Path, sync::Arc, time::Duration};

use tokio::{sync::watch, time::Instant};
use windlass_core::inventory::SourceState;
use windlass_deviceplugin::registration::{Standing, Standings};
use windlass_resources::NodeState;

/// What a probe found.
pub(super) struct Report {
    /// Why the answer is no.
    complaints: Vec<String>,
    /// What a person wants to know besides.
    notes: Vec<String>,
}

const IN_DOUBT: &str =
    "it is not known what claims have, and no device is given away; the agent's log says why";

/// The reconciler comes round every ten seconds at least, and waits for nothing on the way.
const LONGEST_ROUND: Duration = Duration::from_secs(60);

/// What an agent waits for that serves nobody yet.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    /// For a person.
    note: String,
    /// Why no pod gets a device meanwhile; none where another agent sees to that.
    complaint: Option<String>,
}

/// Whether the agent should go on.
pub(super) fn health(
    state: &watch::Receiver<Arc<NodeState>>,
    rounds: &watch::Receiver<Instant>,
) -> Report {
    let ended = state.has_changed().is_err();
    let ended = ended.then(|| "the reconciler has ended".to_owned());
    let since = rounds.borrow().elapsed();
    let is_stuck = since > LONGEST_ROUND;
    let stuck = || format!("the reconciler has not come round for {} s", since.as_secs());
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
    if state.is_in_doubt {
        complaints.push(IN_DOUBT.to_owned());
    }
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

// === impl Waiting ===

impl Waiting {
    /// For another agent's end. To be ready means to be ready to take over.
    pub(crate) fn for_turn() -> Self {
        Self { note: "standing by: another agent serves this kubelet".to_owned(), complaint: None }
    }

    /// For a kubelet's folder.
    pub(crate) fn for_kubelet(folder: &Path) -> Self {
        let missing = format!(
            "the kubelet has no folder {}: is it running? --kubelet-dir names another",
            folder.display()
        );
        let note = "standing by: waiting for the kubelet's folder".to_owned();
        Self { note, complaint: Some(missing) }
    }

    /// The same, and ready.
    #[must_use]
    pub(crate) fn and_takes_over(self) -> Self {
        Self { complaint: None, ..self }
    }

    /// A restart would change nothing.
    pub(super) fn health(&self) -> Report {
        Report { complaints: Vec::new(), notes: vec![self.note.clone()] }
    }

    pub(super) fn readiness(&self) -> Report {
        Report { complaints: self.complaint.clone().into_iter().collect(), ..self.health() }
    }
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.note)
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
