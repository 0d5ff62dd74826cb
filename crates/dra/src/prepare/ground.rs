//! What preparing a claim needs of the world: the claim's object, the node's files, the kubelet's record.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use k8s_openapi::api::resource::v1::ResourceClaim;
use tokio::{sync::watch, task::spawn_blocking, time::Duration};
use windlass_allocations::ledger::{ClaimRef, LedgerDesk, Use};
use windlass_cluster::Claims;
use windlass_config::DriverName;
use windlass_core::device::{DeviceId, DeviceNode};
use windlass_discovery::mig::PartitionDesk;
use windlass_host::{Roots, deadline, presence};
use windlass_lifecycle::{
    cleanup::{HandoverDesk, NotReady},
    mps::{MpsPlaces, MpsStates},
};
use windlass_resources::NodeState;

use super::super::{
    catalog::{Catalog, is_pool_of},
    claim::{Claim, ClaimError},
    document::ClaimDocuments,
    kubelet_record::KubeletRecord,
    record::{Entry, Held},
};
use crate::metrics::ClaimMetrics;

/// What does not change while claims are prepared.
#[derive(Clone, Debug)]
pub(crate) struct Ground {
    pub(crate) driver: DriverName,
    /// The name of the node, by which pools are called.
    pub(crate) node: String,
    pub(crate) roots: Roots,
    pub(crate) documents: ClaimDocuments,
    pub(crate) kubelet_record: KubeletRecord,
    /// The way to claims; `None` without a name of the node.
    pub(crate) claims: Option<Claims>,
    pub(crate) state: watch::Receiver<Arc<NodeState>>,
    pub(crate) ledger: LedgerDesk,
    /// Where MIG instances are made and removed.
    pub(crate) partitions: PartitionDesk,
    pub(crate) handovers: HandoverDesk,
    pub(crate) metrics: ClaimMetrics,
    /// Where MPS daemons are, and how they fare.
    pub(crate) mps: MpsPlaces,
    pub(crate) daemons: watch::Receiver<Arc<MpsStates>>,
}

/// Why a claim could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error(
        "claims cannot be read: this node has no name in the cluster; give it with --node-name or \
         NODE_NAME"
    )]
    Nameless,
    #[error(transparent)]
    Claim(#[from] ClaimError),
}

/// A claim that nobody may have any more.
pub(super) struct Suspect {
    pub(super) claim: ClaimRef,
    /// How often it had been asked for by then; `None` if nothing is known of it but that it was refused.
    pub(super) asked: Option<u64>,
}

/// A device with a node that must be there.
pub(super) type NodeOf = (DeviceId, DeviceNode);

/// How long a claim that is prepared waits to be compared with its object.
const SOON: Duration = Duration::from_secs(2);

/// How long a claim waits for the node's devices to be found, after the agent's start.
const DISCOVERY: Duration = Duration::from_secs(20);

// === impl Ground ===

impl Ground {
    pub(super) fn catalog(&self, state: &NodeState) -> Catalog {
        Catalog::of(state, &self.node, &self.driver, &self.ledger.watch().borrow())
    }

    pub(super) async fn read(&self, claim: &ClaimRef) -> Result<Claim, ReadError> {
        let claims = self.claims.as_ref().ok_or(ReadError::Nameless)?;
        let object = claims.get(claim).await.map_err(ClaimError::from)?;
        let object = object.ok_or_else(|| ClaimError::NotFound(claim.clone()))?;
        let claim = Claim::read(object, claim, &self.driver)?;
        let mut state = self.state.clone();
        // A device that is not found in time is said to be unknown.
        let _ = deadline::timeout(DISCOVERY, state.wait_for(|state| state.inventory.is_complete()))
            .await;
        // So is, after a start, who else may have it.
        let _ = deadline::timeout(DISCOVERY, self.ledger.known()).await;
        Ok(claim)
    }

    /// Has the devices of a claim made ready for it, unless it only looks at them.
    pub(super) async fn hand_over(&self, entry: &Entry) -> Result<(), String> {
        let used = entry.uses().filter(|(_, usage)| *usage != Use::Admin);
        let devices: BTreeSet<DeviceId> = used.map(|(device, _)| device.clone()).collect();
        let ready = self.handovers.join(&entry.claim.uid, devices).await;
        ready.map_err(|NotReady { device, why }| {
            format!("{device} is not ready for the claim: {why}")
        })
    }

    /// Does what a claim needs done. Blocks.
    pub(super) fn do_it(&self, entry: &Entry, nodes: &[NodeOf]) -> Result<(), String> {
        for (device, node) in nodes {
            presence::check(&self.roots, [node]).map_err(|why| format!("{device}: {why}"))?;
        }
        self.documents.write(entry).map(drop)
    }

    /// Whether a claim was allocated other devices than it has by the record. Where the API server does not say so
    /// soon it was not: the kubelet has just read the claim.
    pub(super) async fn is_allocated_anew(&self, entry: &Entry) -> bool {
        let Some(claims) = &self.claims else { return false };
        let asking = Box::pin(claims.get(&entry.claim));
        let found = deadline::timeout(SOON, asking).await;
        let object = found.ok().and_then(Result::ok).flatten();
        let claim = object.and_then(|it| Claim::read(it, &entry.claim, &self.driver).ok());
        claim.is_some_and(|claim| !entry.is_for(&claim))
    }

    /// Those of the claims that surely have nothing of this node any more, and that the kubelet does not
    /// remember.
    pub(super) async fn stale(&self, known: Vec<Suspect>) -> Vec<Suspect> {
        let record = self.kubelet_record.clone();
        let remembered = blocking(move || record.uids().map_err(|error| error.to_string())).await;
        let (Ok(remembered), Some(claims)) = (remembered, &self.claims) else { return Vec::new() };
        let mut stale = Vec::new();
        for suspect in known.into_iter().filter(|it| !remembered.contains(&it.claim.uid)) {
            let found = claims.get(&suspect.claim).await;
            if found.is_ok_and(|object| self.has_nothing(object, &suspect.claim)) {
                stale.push(suspect);
            }
        }
        stale
    }

    /// Whether it is gone, or another, or not allocated, or allocated elsewhere.
    fn has_nothing(&self, object: Option<ResourceClaim>, claim: &ClaimRef) -> bool {
        let Some(object) = object else { return true };
        match Claim::read(object, claim, &self.driver) {
            Ok(claim) => !claim.results.iter().any(|it| is_pool_of(&self.node, &it.pool)),
            Err(ClaimError::Replaced { .. } | ClaimError::NotAllocated(_)) => true,
            Err(_) => false,
        }
    }
}

/// The nodes of what is held.
pub(super) fn nodes(devices: &[Held], state: &NodeState) -> Vec<NodeOf> {
    let found = devices.iter().filter_map(|held| held.found(&state.inventory));
    let devices: BTreeMap<_, _> = found.map(|device| (&device.id, device)).collect();
    devices
        .into_values()
        .flat_map(|it| it.nodes.iter().map(|node| (it.id.clone(), node.clone())))
        .collect()
}

pub(super) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    spawn_blocking(work).await.expect("it neither panics nor is cancelled")
}
