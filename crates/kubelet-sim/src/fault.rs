//! How an embedded kubelet can be made to behave badly.

use std::collections::BTreeSet;

/// Settings that hold until they are changed, over restarts too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Misbehaviour {
    /// What `Register` does.
    pub registration: RegistrationFault,
    /// What becomes of `ListAndWatch` streams.
    pub streams: StreamFault,
    /// What becomes of the sockets of DRA drivers.
    pub driver_registration: RegistrationFault,
    /// When the process ends in the middle of its work on claims.
    pub claims: ClaimFault,
    /// Which pods it knows of.
    pub pods: PodFault,
}

/// Which pods it knows of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PodFault {
    /// Those that are bound to the node.
    #[default]
    None,
    /// These alone, by UID: it has not reached its API server since it started, and was told of static pods
    /// only. What others have it does not forget, since not all sources of pods are ready, until it
    /// [reaches the API server](crate::Kubelet::reach_api_server).
    Only(BTreeSet<String>),
}

/// When the process ends in the middle of its work on claims: as a panic, and after the restart again
/// unless the fault is taken back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClaimFault {
    /// It does not.
    #[default]
    None,
    /// After the claims are in the checkpoint, before any driver is called.
    DieBeforePrepare,
    /// After all drivers prepared, before that is in the checkpoint.
    DieBeforeRecord,
    /// After all drivers released, before that is in the checkpoint.
    DieBeforeForget,
}

/// What becomes of a registration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RegistrationFault {
    /// As it should.
    #[default]
    None,
    /// A device plugin is answered `Unknown` with this text, a DRA driver is told it.
    Refuse(String),
    /// Never answers.
    Hang,
}

/// What becomes of `ListAndWatch` streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamFault {
    /// They are read.
    #[default]
    None,
    /// They are opened and never read.
    NeverRead,
}

// === impl PodFault ===

impl PodFault {
    /// Whether the kubelet knows of a pod of the node.
    pub(crate) fn knows(&self, uid: &str) -> bool {
        match self {
            Self::None => true,
            Self::Only(known) => known.contains(uid),
        }
    }
}
