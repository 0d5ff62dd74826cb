//! Shares of this node's pods, and the CDI documents that persist them. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;
use windlass_allocations::{
    follow::{Allocations, ContainerIds},
    ledger::CHECKPOINT_GRACE,
};
use windlass_cluster::BoundPod;
use windlass_config::ShareResources;
use windlass_core::device::DeviceId;
use windlass_resources::offers::ShareableGpus;

use super::{
    choice::Choice,
    documents::ShareDocument,
    hold::{Amounts, Hold},
};

/// Shares of this node's pods.
#[derive(Debug, Default)]
pub(super) struct Holds {
    /// Share of each pod, by UID.
    pub(super) pods: BTreeMap<String, BoundShare>,
    /// Documents by name. The files on disk are brought to match this map.
    pub(super) documents: BTreeMap<String, ShareDocument>,
    /// Names of documents whose shares cannot be read.
    pub(super) unreadable: BTreeSet<String>,
    /// Amounts of pods that may run with a share without a document, by the pod's UID; `None` before the first reading
    /// of the checkpoint.
    pub(super) unknown: Option<BTreeMap<String, Amounts>>,
}

/// A share in the ledger.
#[derive(Clone, Debug)]
pub(super) struct BoundShare {
    pub(super) hold: Hold,
    /// Time of the decision; `None` if an earlier agent made it.
    pub(super) bound_at: Option<Instant>,
    /// Choice of its GPUs that is not reported yet: a later step of the request may fail.
    pub(super) unreported: Option<(BoundPod, Choice)>,
}

/// Shares of ended pods, and the names of their documents.
pub(super) struct EndedShares {
    pub(super) holds: Vec<Hold>,
    pub(super) names: Vec<String>,
}

/// Pods in one reading of the checkpoint.
pub(super) struct CheckpointPods {
    pub(super) read_at: Instant,
    /// UIDs of all pods with ids.
    pub(super) recorded: BTreeSet<String>,
    /// UIDs of pods with an id that is still held.
    pub(super) held: BTreeSet<String>,
}

// === impl Holds ===

impl Holds {
    pub(super) fn of(
        documents: BTreeMap<String, ShareDocument>,
        unreadable: BTreeSet<String>,
    ) -> Self {
        let mut pods: BTreeMap<String, BoundShare> = BTreeMap::new();
        for ShareDocument { hold, .. } in documents.values() {
            let amounts = pods.get(&hold.pod.uid).map(|share| share.hold.first.amounts);
            if amounts.is_none_or(|amounts| amounts.is_within(hold.first.amounts)) {
                pods.insert(
                    hold.pod.uid.clone(),
                    BoundShare { hold: hold.clone(), bound_at: None, unreported: None },
                );
            }
        }
        Self { pods, documents, unreadable, unknown: None }
    }

    /// Finds `unknown` pods in the first reading of the checkpoint: pods with tokens, but without a share. They may run
    /// with a share whose document was lost.
    pub(super) fn find_unknown(&mut self, containers: &[ContainerIds], resources: &ShareResources) {
        if self.unknown.is_some() {
            return;
        }
        let uids = containers
            .iter()
            .map(|container| &container.pod)
            .filter(|uid| !self.pods.contains_key(*uid));
        let amounts =
            |uid: &String| (uid.clone(), Amounts::upper_bound(containers, uid, resources));
        let has_amounts = |(_, amounts): &(String, Amounts)| *amounts != Amounts::default();
        self.unknown = Some(uids.map(amounts).filter(has_amounts).collect());
    }

    /// Handles the start of a container of a pod: its share is known from then on.
    pub(super) fn record_container_start(&mut self, uid: &str) {
        if let Some(unknown) = &mut self.unknown {
            unknown.remove(uid);
        }
    }

    /// Amounts of pods whose GPUs are unknown.
    pub(super) fn unknown_amounts(&self) -> Amounts {
        let amounts = self.unknown.iter().flat_map(BTreeMap::values);
        amounts.fold(Amounts::default(), |sum, amounts| sum.saturating_add(*amounts))
    }

    /// Drops a pod's share of a GPU that became unusable before any container started with it.
    pub(super) fn drop_unusable(&mut self, uid: &str, gpus: &ShareableGpus) -> Option<Hold> {
        let is_free = |id: &DeviceId| gpus.get(id).is_some_and(|gpu| gpu.obstacle.is_none());
        let is_usable = self.pods.get(uid)?.hold.devices().all(is_free);
        let is_documented = self.documents.values().any(|document| document.hold.pod.uid == uid);
        if is_usable || is_documented {
            return None;
        }
        self.pods.remove(uid).map(|share| share.hold)
    }

    /// Drops the shares of pods that the checkpoint no longer has.
    pub(super) fn release(&mut self, checkpoint: &CheckpointPods) -> EndedShares {
        if let Some(unknown) = &mut self.unknown {
            unknown.retain(|uid, _| checkpoint.recorded.contains(uid));
        }
        let ended = |(uid, share): (&String, &BoundShare)| {
            // A checkpoint that was read before the share was bound need not name its pod. Pod resources lag behind.
            let is_newer =
                |margin: Duration| share.bound_at.is_none_or(|at| checkpoint.read_at > at + margin);
            let is_gone = !checkpoint.recorded.contains(uid) && is_newer(Duration::ZERO);
            let is_released = !checkpoint.held.contains(uid) && is_newer(CHECKPOINT_GRACE);
            (is_gone || is_released).then(|| uid.clone())
        };
        let uids: BTreeSet<_> = self.pods.iter().filter_map(ended).collect();
        let has_ended = |document: &ShareDocument| uids.contains(&document.hold.pod.uid);
        let names = self
            .documents
            .iter()
            .filter(|(_, document)| has_ended(document))
            .map(|(name, _)| name.clone());
        let names: Vec<_> = names.collect();
        self.documents.retain(|_, document| !has_ended(document));
        let holds = uids.iter().filter_map(|uid| self.pods.remove(uid)).map(|share| share.hold);
        EndedShares { holds: holds.collect(), names }
    }
}

// === impl CheckpointPods ===

impl CheckpointPods {
    /// Pods of a reading; `None` if the checkpoint could not be read.
    pub(super) fn of(allocations: &Allocations) -> Option<Self> {
        let (containers, held) = (allocations.containers()?, allocations.held_ids()?);
        let is_held = |container: &&ContainerIds| {
            held.get(&container.resource).is_some_and(|ids| !ids.is_disjoint(&container.ids))
        };
        Some(Self {
            read_at: allocations.read_at()?,
            recorded: containers.iter().map(|container| container.pod.clone()).collect(),
            held: containers
                .iter()
                .filter(is_held)
                .map(|container| container.pod.clone())
                .collect(),
        })
    }
}
