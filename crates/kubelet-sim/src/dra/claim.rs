//! The claims of a pod: which objects they are, who prepares them, which containers use them.

use std::{collections::BTreeSet, fmt};

/// A `ResourceClaim` object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimId {
    /// Namespace, the pod's.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

/// A claim that a pod refers to, allocated and reserved for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodClaim {
    /// Name in the pod (`spec.resourceClaims[].name`).
    pub name: String,
    /// The object.
    pub id: ClaimId,
    /// Every driver with a result in the allocation.
    pub drivers: BTreeSet<String>,
    /// Which containers get devices of it.
    pub uses: Vec<ClaimUse>,
    /// Whose claim it is.
    pub origin: ClaimOrigin,
}

/// A container's reference to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimUse {
    /// Container name.
    pub container: String,
    /// Only the devices of this request; `None` is all devices of the claim.
    pub request: Option<String>,
}

/// Whose claim it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ClaimOrigin {
    /// The pod's specification names it.
    #[default]
    PodSpec,
    /// The scheduler made it for extended resources (`status.extendedResourceClaimStatus`). The health
    /// of its devices is not in the pod's status.
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
    /// A claim that no driver has a result in and no container uses.
    pub fn new(name: impl Into<String>, id: ClaimId) -> Self {
        Self {
            name: name.into(),
            id,
            drivers: BTreeSet::new(),
            uses: Vec::new(),
            origin: ClaimOrigin::PodSpec,
        }
    }

    /// Has a result of this driver.
    #[must_use]
    pub fn driver(mut self, name: impl Into<String>) -> Self {
        self.drivers.insert(name.into());
        self
    }

    /// Gives all its devices to this container.
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

    /// Was made by the scheduler for extended resources.
    #[must_use]
    pub fn for_extended_resources(mut self) -> Self {
        self.origin = ClaimOrigin::ExtendedResources;
        self
    }

    /// What a container uses of it.
    pub(crate) fn uses_of<'a>(&'a self, container: &'a str) -> impl Iterator<Item = &'a ClaimUse> {
        self.uses.iter().filter(move |found| found.container == container)
    }
}
