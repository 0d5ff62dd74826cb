//! Faults that tests inject into an embedded kubelet.

use std::collections::BTreeSet;

/// The injected faults. They persist over restarts, until they are replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Fault of device plugin registrations (`Register`).
    pub registration: RegistrationFault,
    /// Fault of `ListAndWatch` streams.
    pub streams: StreamFault,
    /// Fault of DRA driver registrations.
    pub driver_registration: RegistrationFault,
    /// Point of a crash during the preparation or release of claims.
    pub claims: ClaimFault,
    /// Pods that the kubelet knows.
    pub pods: PodSourceFault,
}

/// Pods that the kubelet knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PodSourceFault {
    /// The kubelet knows all pods of the node.
    #[default]
    None,
    /// The kubelet knows only these pods, by UID: it has not reached its API server since its start.
    /// Devices of other pods stay allocated, because not all pod sources are ready.
    /// [`Kubelet::reach_api_server`](crate::Kubelet::reach_api_server) ends this state.
    Only(BTreeSet<String>),
}

/// Point of a crash during the preparation or release of claims. The kubelet panics there, after a
/// restart again, until the fault is removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClaimFault {
    /// No crash.
    #[default]
    None,
    /// After the claims were written to the checkpoint, before the first driver is called.
    CrashBeforePrepare,
    /// After all drivers prepared, before the result is written to the checkpoint.
    CrashBeforeRecord,
    /// After all drivers unprepared, before the claims are removed from the checkpoint.
    CrashBeforeRemove,
}

/// Fault of a registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RegistrationFault {
    /// The kubelet registers plugins.
    #[default]
    None,
    /// The registration fails with this text. A device plugin gets it in the status `Unknown`, a DRA
    /// driver in `NotifyRegistrationStatus`.
    Refuse(String),
    /// A device plugin's `Register` stays unanswered. A DRA driver is never called.
    Hang,
}

/// Fault of `ListAndWatch` streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamFault {
    /// The kubelet reads the streams.
    #[default]
    None,
    /// The kubelet opens the streams and never reads them.
    NeverRead,
}

// === impl PodSourceFault ===

impl PodSourceFault {
    /// True if the kubelet knows the pod of the node with this UID.
    pub(crate) fn knows_pod(&self, uid: &str) -> bool {
        match self {
            Self::None => true,
            Self::Only(uids) => uids.contains(uid),
        }
    }
}
