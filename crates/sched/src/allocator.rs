//! Device allocator for Dynamic Resource Allocation: chooses devices of a node for a pod's claims.
//!
//! ```text
//!  claims, classes ────> Claims            once for a pod ───────────────┐
//!  slices of a node ───> Pools             when a slice changes ─────────┼──> search: depth first, first fit
//!  allocated claims ───> AllocatedDevices  add and remove one allocation ┘         └──> AllocationResult
//! ```
//!
//! [`Claims::allocate`] allocates on one node from values that are prepared once, so that a live index can call it for
//! thousands of nodes. [`allocate`] prepares all three for one call. Nodes with equal [`NodeSignature`]s get equal
//! allocations.
//!
//! The allocator decides as Kubernetes 1.36 does with its default feature gates (Kubernetes' "incubating" allocator).
//! It reproduces upstream's peculiarities, because drivers must cope with them:
//!
//! - A partition that is refused for its taints or by a constraint keeps its counters until the search ends.
//! - `distinctAttribute` stores only the last value of each request. Three devices of one request are therefore not
//!   all compared with each other.
//! - Expressions are evaluated only for devices that are tried, and an error ends the search.
//!
//! Not supported: list attributes, binding conditions, time limits. Share ids are deterministic.

mod allocated_devices;
mod candidate;
mod capacity;
mod claims;
mod constraint;
mod counters;
mod node_affinity;
mod node_losses;
mod pool;
mod pools;
mod request;
mod result;
mod search;
mod signature;

use k8s_openapi::api::{
    core::v1::Node,
    resource::v1::{
        AllocationResult, DeviceClass, DeviceRequestAllocationResult, ResourceClaim, ResourceSlice,
    },
};

pub use self::{
    allocated_devices::{AllocatedDevices, held_devices},
    claims::Claims,
    node_affinity::{allows_node, is_relevant},
    node_losses::NodeLosses,
    pools::Pools,
    result::ChosenDevice,
    search::Selections,
    signature::{AttributesRead, DeviceSignatures, NodeSignature},
};

/// Input of an allocation.
#[derive(Clone, Copy, Debug)]
pub struct AllocationInput<'a> {
    /// All device classes.
    pub classes: &'a [DeviceClass],
    /// All slices, of all nodes and drivers.
    pub slices: &'a [ResourceSlice],
    /// Allocated claims. Claims without an allocation are ignored.
    pub claims: &'a [ResourceClaim],
}

/// Reason why claims cannot be allocated on a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocationError {
    /// An error that is the same on every node: scheduling of the pod ends.
    #[error("{0}")]
    Invalid(String),
    /// No devices of this node satisfy the claims.
    #[error("cannot allocate all claims: {0}")]
    NoFit(String),
}

/// Driver and name of a pool: two drivers may use equal names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolId {
    driver: String,
    name: String,
}

/// Maximum number of devices of one claim.
const MAX_RESULTS: usize = 32;

/// Allocates devices of one node to claims without an allocation. Returns the first solution.
///
/// Prepares [`Claims`], [`Pools`] and [`AllocatedDevices`] for this one call. Callers with many nodes reuse these
/// values instead.
pub fn allocate(
    claims: &[ResourceClaim],
    input: AllocationInput<'_>,
    node: &Node,
) -> Result<Vec<AllocationResult>, AllocationError> {
    let claims = Claims::new(claims, input.classes)?;
    claims.allocate(&Pools::of_cluster(input.slices, node), &AllocatedDevices::of(input.claims))
}

// === impl PoolId ===

impl PoolId {
    /// Pool of a slice.
    pub fn of_slice(slice: &ResourceSlice) -> Self {
        Self { driver: slice.spec.driver.clone(), name: slice.spec.pool.name.clone() }
    }

    /// Pool of an allocated device.
    pub fn of_result(result: &DeviceRequestAllocationResult) -> Self {
        Self { driver: result.driver.clone(), name: result.pool.clone() }
    }
}

impl std::fmt::Display for PoolId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.driver, self.name)
    }
}
