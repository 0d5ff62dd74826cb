//! What the scheduler does with claims: which devices a pod's claims get on a node.
//!
//! ```text
//!  slices ──> pools ──> candidates, in order of pool, slice, device
//!  claims ──> requests ──┐
//!  allocated claims ─────┴──> search: depth first, first fit ──> AllocationResult
//! ```
//!
//! It decides as Kubernetes 1.36 does with its default gates (the allocator that it calls incubating).
//! Its oddities are kept, since a driver meets them:
//!
//! - A partition that is refused for its taints or by a constraint keeps its counters to the end of the
//!   search.
//! - `distinctAttribute` remembers one value for each request, so that three devices of one request are
//!   not all compared with each other.
//! - Expressions are evaluated for devices that are tried only, and an error ends the search.
//!
//! Left out: list attributes, binding conditions that are waited for, time limits. The ids of shares are
//! not random.

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

/// What there is to allocate from.
#[derive(Clone, Copy, Debug)]
pub struct Supply<'a> {
    /// The classes by which claims ask.
    pub classes: &'a [DeviceClass],
    /// All slices, of all nodes and drivers.
    pub slices: &'a [ResourceSlice],
    /// The claims that have devices; others in the list do no harm.
    pub claims: &'a [ResourceClaim],
}

/// Why claims cannot be allocated on a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unallocated {
    /// Something is wrong, on whichever node; scheduling of the pod ends.
    #[error("{0}")]
    Wrong(String),
    /// The devices of this node do not do.
    #[error("cannot allocate all claims: {0}")]
    NoFit(String),
}

/// A device in the cluster.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DeviceId {
    driver: String,
    pool: String,
    device: String,
}

/// Most devices of one claim.
const MAX_RESULTS: usize = 32;

/// The devices of claims that have none yet, all on one node; the first solution.
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
