//! Access of the preparation to the outside: ResourceClaims, the node's files, and the kubelet's checkpoint.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::resource::v1::ResourceClaim;
use tokio::{sync::watch, time::Duration};
use windlass_allocations::ledger::{ClaimRef, ClaimUse, SharedLedger};
use windlass_cluster::Claims;
use windlass_config::DriverName;
use windlass_core::device::{DeviceId, DeviceNode};
use windlass_discovery::mig::MigHandle;
use windlass_host::{Roots, blocking, deadline, presence};
use windlass_lifecycle::{
    cleanup::{CleanupHandle, NotReadyError},
    mps::{MpsFolders, MpsStates},
};
use windlass_resources::NodeState;

use super::super::{
    catalog::{Catalog, is_pool_of},
    claim::{Claim, ClaimError},
    document::ClaimDocuments,
    kubelet_checkpoint::KubeletCheckpoint,
    record::{PreparedClaim, PreparedDevice},
};
use crate::metrics::ClaimMetrics;

/// Everything outside the state machine that the preparation reads or calls. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Environment {
    pub(crate) driver: DriverName,
    /// Name of the node: the first part of its pools' names.
    pub(crate) node: String,
    pub(crate) roots: Roots,
    pub(crate) documents: ClaimDocuments,
    pub(crate) kubelet_checkpoint: KubeletCheckpoint,
    /// Reader of claims; `None` without a node name.
    pub(crate) claims: Option<Claims>,
    pub(crate) state: watch::Receiver<Arc<NodeState>>,
    pub(crate) ledger: SharedLedger,
    /// Worker for MIG instances.
    pub(crate) partitions: MigHandle,
    pub(crate) cleanup: CleanupHandle,
    pub(crate) metrics: ClaimMetrics,
    /// Folders and states of the MPS daemons.
    pub(crate) mps: MpsFolders,
    pub(crate) daemons: watch::Receiver<Arc<MpsStates>>,
}

/// Reason why a claim could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error(
        "claims cannot be read: this node has no name in the cluster; give it with --node-name or \
         NODE_NAME"
    )]
    NoNodeName,
    #[error(transparent)]
    Claim(#[from] ClaimError),
}

/// A claim that may be orphaned.
pub(super) struct OrphanCandidate {
    pub(super) claim: ClaimRef,
    /// Number of its requests at the check; `None` for a refused claim that is not tracked.
    pub(super) request_count: Option<u64>,
}

/// A device and one of its device nodes, which must exist.
pub(super) type NodeOfDevice = (DeviceId, DeviceNode);

/// Longest wait for the ResourceClaim of a completed claim.
const COMPARE_TIMEOUT: Duration = Duration::from_secs(2);

/// Longest wait for the node's inventory after the agent's start.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(20);

// === impl Environment ===

impl Environment {
    pub(super) fn catalog(&self, state: &NodeState) -> Catalog {
        Catalog::of(state, &self.node, &self.driver, &self.ledger.watch().borrow())
    }

    pub(super) async fn read(&self, claim: &ClaimRef) -> Result<Claim, ReadError> {
        let claims = self.claims.as_ref().ok_or(ReadError::NoNodeName)?;
        let object = claims.get(claim).await.map_err(ClaimError::from)?;
        let object = object.ok_or_else(|| ClaimError::NotFound(claim.clone()))?;
        let claim = Claim::read(object, claim, &self.driver)?;
        let mut state = self.state.clone();
        // After the deadline a missing device counts as unknown.
        let _ = deadline::timeout(
            DISCOVERY_TIMEOUT,
            state.wait_for(|state| state.inventory.is_complete()),
        )
        .await;
        // After a start, the holders of devices may be unknown too.
        let _ = deadline::timeout(DISCOVERY_TIMEOUT, self.ledger.wait_until_known()).await;
        Ok(claim)
    }

    /// Waits until the claim's devices are clean and prepared. Devices with admin access are left out.
    pub(super) async fn wait_for_cleanup(&self, record: &PreparedClaim) -> Result<(), String> {
        let used_devices = record.uses().filter(|(_, usage)| *usage != ClaimUse::Admin);
        let devices: BTreeSet<DeviceId> = used_devices.map(|(device, _)| device.clone()).collect();
        let cleanup_result = self.cleanup.prepare_claim(&record.claim.uid, devices).await;
        cleanup_result.map_err(|NotReadyError { device, reason }| {
            format!("{device} is not ready for the claim: {reason}")
        })
    }

    /// Checks the claim's device nodes, and writes its CDI document. Blocks.
    pub(super) fn write_document(
        &self,
        record: &PreparedClaim,
        nodes: &[NodeOfDevice],
    ) -> Result<(), String> {
        for (device, node) in nodes {
            presence::check(&self.roots, [node]).map_err(|error| format!("{device}: {error}"))?;
        }
        self.documents.write(record).map(drop)
    }

    /// True if the claim was allocated other devices than those in its record. Without a quick answer from the API
    /// server it counts as unchanged: the kubelet has just read it.
    pub(super) async fn is_reallocated(&self, record: &PreparedClaim) -> bool {
        let Some(claims) = &self.claims else { return false };
        let read = Box::pin(claims.get(&record.claim));
        let response = deadline::timeout(COMPARE_TIMEOUT, read).await;
        let object = response.ok().and_then(Result::ok).flatten();
        let claim = object.and_then(|object| Claim::read(object, &record.claim, &self.driver).ok());
        claim.is_some_and(|claim| !record.matches(&claim))
    }

    /// Orphaned claims among the known ones: by the API server they have no device of this node any more, and the
    /// kubelet does not know them.
    pub(super) async fn find_orphaned(
        &self,
        candidates: Vec<OrphanCandidate>,
    ) -> Vec<OrphanCandidate> {
        let checkpoint = self.kubelet_checkpoint.clone();
        let kubelet_uids =
            blocking(move || checkpoint.uids().map_err(|error| error.to_string())).await;
        let (Ok(kubelet_uids), Some(claims)) = (kubelet_uids, &self.claims) else {
            return Vec::new();
        };
        let mut orphans = Vec::new();
        for candidate in
            candidates.into_iter().filter(|candidate| !kubelet_uids.contains(&candidate.claim.uid))
        {
            let response = claims.get(&candidate.claim).await;
            if response.is_ok_and(|object| self.has_no_devices_here(object, &candidate.claim)) {
                orphans.push(candidate);
            }
        }
        orphans
    }

    /// True if the object was deleted, replaced, deallocated, or allocated on other nodes.
    fn has_no_devices_here(&self, object: Option<ResourceClaim>, claim: &ClaimRef) -> bool {
        let Some(object) = object else { return true };
        match Claim::read(object, claim, &self.driver) {
            Ok(claim) => !claim.results.iter().any(|result| is_pool_of(&self.node, &result.pool)),
            Err(ClaimError::Replaced { .. } | ClaimError::NotAllocated(_)) => true,
            Err(_) => false,
        }
    }
}

/// Device nodes of a claim's devices.
pub(super) fn nodes(devices: &[PreparedDevice], state: &NodeState) -> Vec<NodeOfDevice> {
    let present = devices.iter().filter_map(|device| device.find_in(&state.inventory));
    let devices: BTreeMap<_, _> = present.map(|device| (&device.id, device)).collect();
    devices
        .into_values()
        .flat_map(|device| device.nodes.iter().map(|node| (device.id.clone(), node.clone())))
        .collect()
}
