//! Device allocation of the scheduler: devices of a node for a pod's claims.
//!
//! ```text
//!  slices ──> pools ──> candidates, in order of pool, slice, device
//!  claims ──> requests ──┐
//!  allocated claims ─────┴──> search: depth first, first fit ──> AllocationResult
//! ```
//!
//! The allocator decides as Kubernetes 1.36 does with its default gates (the allocator that Kubernetes calls
//! incubating). Upstream's oddities are kept, since a driver meets them:
//!
//! - A partition that is refused for its taints or by a constraint keeps its counters until the search ends.
//! - `distinctAttribute` remembers one value for each request. Three devices of one request are therefore not all
//!   compared with each other.
//! - Expressions are evaluated only for devices that are tried, and an error ends the search.
//!
//! Left out: list attributes, waits for binding conditions, time limits. Share ids are deterministic.

mod candidate;
mod capacity;
mod constraint;
mod counters;
mod place;
mod pool;
mod request;
mod result;
mod search;
mod taken;

use k8s_openapi::api::{
    core::v1::Node,
    resource::v1::{AllocationResult, DeviceClass, ResourceClaim, ResourceSlice},
};

pub(crate) use self::place::lets_in;
use self::search::Search;

/// Input of an allocation.
#[derive(Clone, Copy, Debug)]
pub struct Supply<'a> {
    /// Device classes by name in claims.
    pub classes: &'a [DeviceClass],
    /// All slices, of all nodes and drivers.
    pub slices: &'a [ResourceSlice],
    /// Allocated claims. Claims without an allocation are ignored.
    pub claims: &'a [ResourceClaim],
}

/// Reason why claims cannot be allocated on a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unallocated {
    /// Error on every node; scheduling of the pod ends.
    #[error("{0}")]
    Wrong(String),
    /// No devices of this node satisfy the claims.
    #[error("cannot allocate all claims: {0}")]
    NoFit(String),
}

/// Device in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DeviceId {
    driver: String,
    pool: String,
    device: String,
}

/// Limit of devices in one claim.
const MAX_RESULTS: usize = 32;

/// Allocates devices of one node to claims without an allocation. Returns the first solution.
pub fn allocate(
    claims: &[ResourceClaim],
    supply: Supply<'_>,
    node: &Node,
) -> Result<Vec<AllocationResult>, Unallocated> {
    Search::new(claims, supply, node)?.run()
}

// === impl DeviceId ===

impl std::fmt::Display for DeviceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}/{}", self.driver, self.pool, self.device)
    }
}
