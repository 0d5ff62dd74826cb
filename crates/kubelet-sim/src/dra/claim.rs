//! The claims of a pod: the `ResourceClaim` objects, their drivers, and the containers that use them.

use std::{collections::BTreeSet, fmt};

/// Identity of a `ResourceClaim` object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimId {
    /// Namespace of the claim, and of its pods.
    pub namespace: String,
    /// Name of the claim.
    pub name: String,
    /// UID of the claim.
    pub uid: String,
}

/// A claim in a pod's specification, allocated and reserved for the pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodClaim {
    /// Name of the claim within the pod (`spec.resourceClaims[].name`).
    pub name: String,
    /// Identity of the `ResourceClaim` object.
    pub id: ClaimId,
    /// Drivers with a device in the claim's allocation.
    pub drivers: BTreeSet<String>,
    /// Containers that get devices of the claim.
    pub uses: Vec<ClaimUse>,
    /// Origin of the claim.
    pub origin: ClaimOrigin,
}

/// A container's reference to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimUse {
    /// Container name.
    pub container: String,
    /// Request whose devices the container gets; `None` means all devices of the claim.
    pub request: Option<String>,
}

/// Origin of a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClaimOrigin {
    /// The pod's specification names the claim.
    #[default]
    PodSpec,
    /// The scheduler created the claim for extended resources (`status.extendedResourceClaimStatus`).
    /// The pod's status omits the health of its devices.
    ExtendedResources,
}

// === impl ClaimId ===

impl ClaimId {
    /// A claim in namespace `default` whose UID is its name followed by `-uid`.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        Self { namespace: "default".to_owned(), uid: format!("{name}-uid"), name }
    }
}

impl fmt::Display for ClaimId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

// === impl PodClaim ===

impl PodClaim {
    /// A claim without drivers and without containers.
    pub fn new(name: impl Into<String>, id: ClaimId) -> Self {
        Self {
            name: name.into(),
            id,
            drivers: BTreeSet::new(),
            uses: Vec::new(),
            origin: ClaimOrigin::PodSpec,
        }
    }

    /// Adds a driver with a device in the allocation.
    #[must_use]
    pub fn driver(mut self, name: impl Into<String>) -> Self {
        self.drivers.insert(name.into());
        self
    }

    /// Gives all devices of the claim to this container.
    #[must_use]
    pub fn used_by(mut self, container: impl Into<String>) -> Self {
        self.uses.push(ClaimUse { container: container.into(), request: None });
        self
    }

    /// Gives the devices of one request to this container.
    #[must_use]
    pub fn request_used_by(
        mut self,
        request: impl Into<String>,
        container: impl Into<String>,
    ) -> Self {
        let request = Some(request.into());
        self.uses.push(ClaimUse { container: container.into(), request });
        self
    }

    /// Marks the claim as created by the scheduler for extended resources.
    #[must_use]
    pub fn for_extended_resources(mut self) -> Self {
        self.origin = ClaimOrigin::ExtendedResources;
        self
    }

    /// A container's references to the claim.
    pub(crate) fn uses_of<'a>(&'a self, container: &'a str) -> impl Iterator<Item = &'a ClaimUse> {
        self.uses.iter().filter(move |claim_use| claim_use.container == container)
    }
}
