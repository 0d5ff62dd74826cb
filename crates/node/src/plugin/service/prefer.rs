//! `GetPreferredAllocation`: which of the free devices, or replicas, go best together.
//!
//! The kubelet's list may be older than ours. Of what it calls available, ids that nobody knows and
//! devices that cannot be allocated now are left out, for as long as enough remains. What it requires
//! is another matter: Allocate would refuse the pod for it, so it is refused here, with the same words.

mod devices;
mod replicas;

use windlass_core::placement::Policy;
use windlass_kubelet_api::deviceplugin::{
    ContainerPreferredAllocationRequest, ContainerPreferredAllocationResponse,
};

use super::{super::wire::Refusal, Service};
use crate::{
    choices::{Among, Remembered},
    offer::Offer,
    state::NodeState,
};

/// One container's question, and what is known of its resource.
struct Question<'a> {
    resource: String,
    state: &'a NodeState,
    offer: &'a Offer,
    policy: Policy,
    request: &'a ContainerPreferredAllocationRequest,
}

/// Its answer, and what is told of it.
pub(super) struct Preferred {
    ids: Vec<String>,
    policy: Policy,
    why: String,
    steps: u64,
    exact: bool,
    among: Among,
}

impl Service {
    pub(super) fn prefer(
        &self,
        state: &NodeState,
        request: &ContainerPreferredAllocationRequest,
    ) -> Result<Preferred, Refusal> {
        let (offer, required) = (self.offer(state), &request.must_include_device_i_ds);
        self.check_known(&offer, required)?;
        for id in required {
            self.allocatable(state, &offer, id)?;
        }
        let policy = state.placement(&self.resource);
        let question = Question { resource: self.name(), state, offer: &offer, policy, request };
        match offer.shared() {
            None => question.among_devices(),
            Some(shared) => question.among_replicas(shared),
        }
    }

    /// Tells of the answer, and gives it as the kubelet takes it.
    pub(super) fn answer(&self, preferred: Preferred) -> ContainerPreferredAllocationResponse {
        let Preferred { ids, policy, why, steps, exact, among } = preferred;
        tracing::info!(
            resource = self.resource.as_str(),
            devices = ids.join(" "),
            policy = policy.name(),
            why,
            steps,
            exact,
            "preferred"
        );
        self.placements.chosen(exact);
        let (resource, size) = (self.resource.clone(), ids.len());
        self.choices.tell(|at| Remembered { at, resource, policy, size, exact, among });
        ContainerPreferredAllocationResponse { device_i_ds: ids }
    }
}

// === impl Question ===

impl Question<'_> {
    fn size(&self) -> usize {
        usize::try_from(self.request.allocation_size).unwrap_or(0)
    }
}
