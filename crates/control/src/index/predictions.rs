//! Predicted allocations of claims, compared with those of kube-scheduler.
//!
//! A node's rank for claims rests on the devices that kube-scheduler would allocate there. The extender cannot choose
//! them, so it counts the claims for which it was right.

use std::collections::{BTreeSet, HashMap};

use k8s_openapi::api::resource::v1::AllocationResult;
use windlass_sched::allocator::{PoolId, held_devices};

/// Maximum number of predictions. kube-scheduler soon allocates a claim for which it asked, or asks again.
const MAX_PREDICTIONS: usize = 4096;

/// Predictions that have no allocation yet, and counts of the others.
#[derive(Debug, Default)]
pub(super) struct Predictions {
    /// By namespace and name of the claim.
    open: HashMap<(String, String), Prediction>,
    counts: PredictionCounts,
}

/// Numbers of claims that kube-scheduler allocated on the node of their prediction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PredictionCounts {
    /// Claims with exactly the predicted devices.
    pub right: u64,
    /// Claims with other devices.
    pub wrong: u64,
}

#[derive(Debug)]
struct Prediction {
    node: String,
    devices: BTreeSet<(PoolId, String)>,
}

// === impl Predictions ===

impl Predictions {
    pub(super) fn counts(&self) -> PredictionCounts {
        self.counts
    }

    /// Predicts that the claim will have this allocation if kube-scheduler chooses the node.
    pub(super) fn add(
        &mut self,
        claim: (String, String),
        node: &str,
        allocation: &AllocationResult,
    ) {
        if self.open.len() >= MAX_PREDICTIONS {
            self.open.clear();
        }
        let prediction = Prediction { node: node.to_owned(), devices: devices(allocation) };
        self.open.insert(claim, prediction);
    }

    /// Removes the prediction of a deleted claim.
    pub(super) fn remove(&mut self, claim: &(String, String)) {
        self.open.remove(claim);
    }

    /// Compares the claim's allocation with its prediction, if there is one. `has_node` returns true for the names of
    /// nodes whose devices it has.
    pub(super) fn compare(
        &mut self,
        claim: &(String, String),
        allocation: &AllocationResult,
        has_node: impl FnOnce(&str) -> bool,
    ) {
        let Some(prediction) = self.open.remove(claim) else { return };
        if !has_node(&prediction.node) {
            return;
        }
        if prediction.devices == devices(allocation) {
            self.counts.right += 1;
        } else {
            self.counts.wrong += 1;
        }
    }
}

fn devices(allocation: &AllocationResult) -> BTreeSet<(PoolId, String)> {
    held_devices(allocation).map(|it| (PoolId::of_result(it), it.device.clone())).collect()
}
