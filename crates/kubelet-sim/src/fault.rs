//! Faults that make an embedded kubelet misbehave.

use std::collections::BTreeSet;

/// Faults that persist until changed, over restarts too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Misbehaviour {
    /// Fault of `Register`.
    pub registration: RegistrationFault,
    /// Fault of `ListAndWatch` streams.
    pub streams: StreamFault,
    /// Fault of DRA driver registrations.
    pub driver_registration: RegistrationFault,
    /// Moment of a crash amid work on claims.
    pub claims: ClaimFault,
    /// Pods that the kubelet knows.
    pub pods: PodFault,
}

/// Pods that the kubelet knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PodFault {
    /// All pods of the node.
    #[default]
    None,
    /// Only these pods, by UID. The kubelet has yet to reach its API server since its start, and
    /// knows static pods only. The holdings of other pods stay, since some pod source is not ready.
    /// [`Kubelet::reach_api_server`](crate::Kubelet::reach_api_server) ends this state.
    Only(BTreeSet<String>),
}

/// Moment of a crash amid work on claims, as a panic. The crash repeats after a restart unless the
/// fault is removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClaimFault {
    /// No crash.
    #[default]
    None,
    /// The claims are in the checkpoint; no driver was called.
    DieBeforePrepare,
    /// All drivers prepared; the checkpoint lacks that result.
    DieBeforeRecord,
    /// All drivers released; the checkpoint lacks that result.
    DieBeforeForget,
}

/// Fault of a registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RegistrationFault {
    /// Correct answers.
    #[default]
    None,
    /// A device plugin gets `Unknown` with this text, a DRA driver a notification with it.
    Refuse(String),
    /// The call stays unanswered.
    Hang,
}

/// Fault of `ListAndWatch` streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamFault {
    /// Streams are read.
    #[default]
    None,
    /// Streams are opened and never read.
    NeverRead,
}

// === impl PodFault ===

impl PodFault {
    /// True if the kubelet knows of a pod of the node.
    pub(crate) fn knows(&self, uid: &str) -> bool {
        match self {
            Self::None => true,
            Self::Only(known) => known.contains(uid),
        }
    }
}
