//! Claims of a pod, prepared for an allocation on many nodes.

use k8s_openapi::api::resource::v1::{
    AllocationResult, DeviceClaimConfiguration, DeviceClass, ResourceClaim,
};

use windlass_core::selector::PublishedExpression;

use super::{
    AllocationError,
    allocated_devices::AllocatedDevices,
    constraint::{self, Constraint},
    pools::Pools,
    request::{self, Alternative, ClaimRequest},
    result::ChosenDevice,
    search::{Search, Selections},
    signature::{AttributesRead, NodeSignature},
};

/// Claims to allocate: requests with their classes and parsed expressions, constraints and configuration.
///
/// A value owns its parts and may be sent to other threads. It is prepared for each pod, and again when a class
/// changes.
#[derive(Clone, Debug)]
pub struct Claims {
    claims: Vec<Claim>,
}

/// One claim.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    /// `namespace/name`.
    pub(super) namespaced_name: String,
    pub(super) uid: String,
    pub(super) requests: Vec<ClaimRequest>,
    /// Constraints in their initial state, without devices.
    pub(super) constraints: Vec<Constraint>,
    pub(super) config: Vec<DeviceClaimConfiguration>,
}

// === impl Claims ===

impl Claims {
    /// Prepares claims. Existing allocations of these claims are ignored.
    ///
    /// # Errors
    ///
    /// [`AllocationError::Invalid`] for an unknown class, allocation mode or constraint. As in Kubernetes, an invalid
    /// expression is an error only once it is evaluated for a device.
    pub fn new(claims: &[ResourceClaim], classes: &[DeviceClass]) -> Result<Self, AllocationError> {
        let parse = |claim| request::requests(claim, classes);
        let requests = claims.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
        let all = claims.iter().zip(requests).map(|(claim, requests)| Claim::of(claim, requests));
        Ok(Self { claims: all.collect::<Result<_, _>>()? })
    }

    /// Allocates devices of one node: one result for each claim, in the order of the claims.
    ///
    /// # Flow
    ///
    /// For each device of each request the search takes the first candidate that fits, and backtracks if none is left.
    /// Candidates are tried in the order of [`Pools`]. The first solution is the result.
    ///
    /// # Guarantees
    ///
    /// Equal inputs give equal results, share ids included. The inputs are unchanged: the caller passes a result that
    /// it uses to [`AllocatedDevices::add`].
    ///
    /// # Errors
    ///
    /// [`AllocationError::NoFit`] concerns this node. [`AllocationError::Invalid`] ends the scheduling of the pod: an
    /// invalid expression, more devices than a claim may have, or a request for all devices while a pool is incomplete.
    pub fn allocate(
        &self,
        pools: &Pools,
        allocated: &AllocatedDevices,
    ) -> Result<Vec<AllocationResult>, AllocationError> {
        let mut selections = Selections::default();
        let search = Search::new(&self.claims, pools, allocated, (None, &mut selections))?.run()?;
        Ok((0..self.claims.len()).map(|claim| search.result(claim)).collect())
    }

    /// The devices that [`allocate`](Self::allocate) would choose, by their positions in the pools. On nodes with equal
    /// [`NodeSignature`]s for these claims the positions are equal.
    ///
    /// # Errors
    ///
    /// See [`allocate`](Self::allocate).
    pub fn choose(
        &self,
        pools: &Pools,
        allocated: &AllocatedDevices,
    ) -> Result<Vec<ChosenDevice>, AllocationError> {
        let mut selections = Selections::default();
        Ok(Search::new(&self.claims, pools, allocated, (None, &mut selections))?.run()?.chosen())
    }

    /// Like [`choose`](Self::choose), but evaluates the expressions once for each device signature.
    ///
    /// # Assumptions
    ///
    /// The signature is that of the node. All calls with the same `selections` are for these claims, with signatures
    /// from the same [`DeviceSignatures`](super::DeviceSignatures).
    ///
    /// # Errors
    ///
    /// See [`allocate`](Self::allocate). The error has no reasons of single devices.
    pub fn choose_by_signature(
        &self,
        pools: &Pools,
        allocated: &AllocatedDevices,
        signature: &NodeSignature,
        selections: &mut Selections,
    ) -> Result<Vec<ChosenDevice>, AllocationError> {
        let cache = (Some(&*signature.devices), selections);
        Ok(Search::new(&self.claims, pools, allocated, cache)?.run()?.chosen())
    }

    /// The device attributes that the claims' expressions and constraints read.
    pub fn attributes_read(&self) -> AttributesRead {
        let alternatives = || {
            let requests = self.claims.iter().flat_map(|claim| &claim.requests);
            requests.flat_map(|request| &request.alternatives)
        };
        let by_expressions = alternatives().flat_map(Alternative::expressions);
        let constraints = self.claims.iter().flat_map(|claim| &claim.constraints);
        AttributesRead::of(
            by_expressions.map(PublishedExpression::read_attributes),
            constraints.map(Constraint::attribute_read),
        )
    }
}

// === impl Claim ===

impl Claim {
    fn of(claim: &ResourceClaim, requests: Vec<ClaimRequest>) -> Result<Self, AllocationError> {
        let namespaced_name = request::namespaced_name(claim);
        let constraints = constraint::constraints(claim, &namespaced_name)?;
        let devices = claim.spec.devices.iter();
        Ok(Self {
            namespaced_name,
            uid: claim.metadata.uid.clone().unwrap_or_default(),
            requests,
            constraints,
            config: devices.flat_map(|devices| devices.config.iter().flatten().cloned()).collect(),
        })
    }
}
