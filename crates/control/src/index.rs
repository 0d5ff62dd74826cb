//! The scheduler's view of the cluster, built from the API server's objects.
//!
//! ```text
//!  Node, Pod ──> facts ──┐  changed nodes
//!  slices, claims ───────┴─────────> ClusterView ──> Scheduler ──> ranks, parts, reasons
//!                    ^                                                  │
//!                    └─────────── assumed pods <──── place ─────────────┘
//! ```
//!
//! # Guarantees
//!
//! The view is a function of the facts: a changed node is rebuilt from its object and its pods, in an order that does
//! not depend on the order of events. A placed pod occupies its devices until its placement fails, or until the pod
//! ends, is deleted, or is bound to another node. No timer frees a device.

mod changes;
mod claim_ranks;
mod claims;
mod deleted_nodes;
mod entry;
mod gangs;
mod inspection;
mod node_set;
mod occupancy;
mod predictions;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    mem,
    sync::Arc,
};

use tokio::sync::Notify;
use windlass_core::annotation::{PlacedGpu, PodPlacement};
use windlass_sched::{
    allocator::Claims,
    fit::{Misfit, fit},
    node::{Node, Part},
    policy::{Policy, Rank},
    request::{Gpus, Request, SizeClass},
    scheduler::Scheduler,
    victims,
    view::{ClusterView, NodeIndex, Placement},
};

use self::{
    claim_ranks::{ClaimRanks, Cluster, ShapeKey},
    claims::ClaimIndex,
    deleted_nodes::DeletedNodes,
    entry::NodeEntry,
    gangs::Gangs,
    predictions::Predictions,
};
pub use self::{
    gangs::{Arrival, GangWait},
    inspection::{Changes, GpuHolder, Holder, NodeSnapshot},
    occupancy::{ClaimPart, Conflict},
    predictions::PredictionCounts,
};
use crate::facts::{
    GangError, GpuFacts, GpuRequest, GpuRequestError, NodeFacts, PodFacts, ShareScheme,
};

/// Facts of a cluster's objects, and the scheduler's view made from them.
#[derive(Debug)]
pub struct Index {
    view: ClusterView,
    scheduler: Scheduler,
    nodes: HashMap<String, NodeIndex>,
    entries: Vec<NodeEntry>,
    pods: HashMap<String, PodEntry>,
    claims: ClaimIndex,
    claim_ranks: ClaimRanks,
    predictions: Predictions,
    gangs: Gangs,
    deleted_nodes: DeletedNodes,
    /// Nodes to rebuild.
    changed: BTreeSet<NodeIndex>,
    /// By node: value of `rebuild_count` at the node's last rebuild. A change of the node's object, pods, slices or
    /// claims rebuilds the node.
    versions: Vec<u64>,
    /// Number of node rebuilds so far.
    rebuild_count: u64,
    /// Number of placement decisions so far.
    decision_count: u64,
    /// By number of a running list call: UIDs of the pods that changed since the call began.
    changed_during_list: BTreeMap<u64, HashSet<String>>,
    /// Number of list calls so far.
    list_count: u64,
    /// UIDs of pods for which kube-scheduler has a new message that no node fits, until they are taken.
    unschedulable: BTreeSet<String>,
    unschedulable_added: Arc<Notify>,
    is_synced: bool,
}

#[derive(Debug)]
struct PodEntry {
    facts: PodFacts,
    /// The decided placement, until the API server confirms it.
    assumed: Option<AssumedPlacement>,
}

#[derive(Debug)]
struct AssumedPlacement {
    node: String,
    part: Part,
    /// True for a reservation: the pod's gang still waits for members, and nothing has been written.
    is_reserved: bool,
    /// Id of the decision by the last bind; zero before the first bind. A later bind has another id.
    decision_id: u64,
    /// Number of writes that may still take effect. The pod keeps its devices until this number is zero.
    pending_writes: u32,
}

/// The devices that were chosen for a pod.
#[derive(Clone, Debug)]
pub struct PlacementDecision {
    /// The devices by their ids; none if no agent published ids.
    pub placement: PodPlacement,
    /// Id of this decision, unique in the index.
    pub id: u64,
    /// The first GPU: its index on the node, and its facts.
    pub first_gpu: Option<(usize, GpuFacts)>,
}

/// The claims of a pod, for checks on several nodes.
#[derive(Clone, Debug)]
pub(crate) enum PodClaims {
    /// The pod has none.
    None,
    /// A claim does not exist yet, is invalid, or has devices.
    NotAllocatable,
    /// Claims that kube-scheduler can allocate.
    Unallocated(Claims),
}

/// First reason why a pod is not placed on a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The index has no Node object of this name.
    #[error("node {0} is unknown to Windlass: its object has not been seen yet")]
    UnknownNode(String),
    /// The pod's GPU request is invalid.
    #[error(transparent)]
    InvalidRequest(#[from] GpuRequestError),
    /// The pod does not fit the node.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// The pod's annotations accept too few of the node's GPUs.
    #[error(
        "{accepted} of the node's GPUs are accepted by the pod's nvidia.com/use-gpuuuid and nouse-gpuuuid: {misfit}"
    )]
    NotAccepted {
        /// Number of accepted GPUs of the node.
        accepted: usize,
        /// The reason why the accepted GPUs do not fit.
        misfit: Misfit,
    },
    /// The pod requests shares with HAMi's resource names, and this node offers whole GPUs under `nvidia.com/gpu`.
    #[error(
        "node {0} gives whole GPUs as nvidia.com/gpu: its agent needs `shares.gpus` to serve HAMi's amounts"
    )]
    NoVirtualGpus(String),
    /// A GPU of the node has no id, so no agent of Windlass serves shares of it.
    #[error("node {0} runs no agent of Windlass, which has to give the share to the pod")]
    NoAgent(String),
    /// A bind is in flight, or its outcome is unknown.
    #[error("a bind to node {0} may have succeeded: the API server is asked")]
    OutcomeUnknown(String),
    /// The pod's gang labels or annotations are invalid.
    #[error(transparent)]
    InvalidGang(#[from] GangError),
    /// Some members of the pod's gang do not exist yet.
    #[error("gang {gang} has {existing} of the {size} pods that start together")]
    GangIncomplete {
        /// Name of the gang.
        gang: String,
        /// Number of existing members.
        existing: usize,
        /// Number of members that start together.
        size: usize,
    },
    /// The members of the pod's gang do not fit at the same time.
    #[error("gang {gang}: its {pods} pods without a place do not fit side by side{}", topology_suffix(.topology_key.as_ref()))]
    GangDoesNotFit {
        /// Name of the gang.
        gang: String,
        /// Number of members without a placement.
        pods: usize,
        /// Key of the node label whose value all nodes of the gang must share.
        topology_key: Option<String>,
    },
    /// The limit of waiting gang members is reached.
    #[error("limit reached: {0} pods wait for the other members of their gangs: try again")]
    TooManyWaiting(usize),
    /// A node of the pod's gang can no longer serve it.
    #[error("node {0} can no longer serve its part of the pod's gang")]
    GangLostNode(String),
    /// The gang's plan places the pod on another node.
    #[error("the plan of the pod's gang places this pod on node {0}")]
    GangPlannedElsewhere(String),
    /// The pod has been bound to another node.
    #[error("pod {pod} is on node {node} already")]
    AlreadyBound {
        /// `namespace/name`.
        pod: String,
        /// The pod's node.
        node: String,
    },
}

// === impl Index ===

impl Default for Index {
    fn default() -> Self {
        Self {
            view: ClusterView::default(),
            scheduler: Scheduler::learning(Policy::Windlass, 0),
            nodes: HashMap::new(),
            entries: Vec::new(),
            pods: HashMap::new(),
            claims: ClaimIndex::default(),
            claim_ranks: ClaimRanks::default(),
            predictions: Predictions::default(),
            gangs: Gangs::default(),
            deleted_nodes: DeletedNodes::default(),
            versions: Vec::new(),
            rebuild_count: 0,
            decision_count: 0,
            changed: BTreeSet::new(),
            changed_during_list: BTreeMap::new(),
            list_count: 0,
            unschedulable: BTreeSet::new(),
            unschedulable_added: Arc::default(),
            is_synced: false,
        }
    }
}

impl Index {
    /// True once the initial lists of all watches have been read.
    pub fn is_synced(&self) -> bool {
        self.is_synced
    }

    /// Notifies of new [unschedulable pods](Self::take_unschedulable).
    pub(crate) fn unschedulable_added(&self) -> Arc<Notify> {
        self.unschedulable_added.clone()
    }

    /// UIDs of the pods for which kube-scheduler has had a new message since the last call: no node fits.
    pub(crate) fn take_unschedulable(&mut self) -> BTreeSet<String> {
        mem::take(&mut self.unschedulable)
    }

    /// Number of nodes whose object exists, and of pods that have not ended.
    pub fn counts(&self) -> (usize, usize) {
        (self.entries.iter().filter(|entry| entry.has_object).count(), self.pods.len())
    }

    /// Number of `ResourceClaims`.
    pub fn claim_count(&self) -> usize {
        self.claims.claim_count()
    }

    /// The pod with this UID.
    pub fn pod(&self, uid: &str) -> Option<&PodFacts> {
        self.pods.get(uid).map(|entry| &entry.facts)
    }

    /// The named nodes, each with `Ok` if it can serve the pod, else with the first reason why it cannot.
    pub fn filter<'a>(
        &mut self,
        pod: &PodFacts,
        names: &'a [String],
    ) -> Vec<(&'a str, Result<(), Refusal>)> {
        self.rebuild_changed();
        if let Some(node) = self.assumed_node(&pod.uid).map(str::to_owned) {
            let check = |name: &String| {
                if *name == node { Ok(()) } else { Err(Refusal::OutcomeUnknown(node.clone())) }
            };
            return names.iter().map(|name| (name.as_str(), check(name))).collect();
        }
        let gang_node = self.gang_node(pod, names);
        let request = pod.resources.request(self.view.catalog());
        let check = |name: &String| match &gang_node {
            Ok(None) => self.check(pod, &request, name),
            Ok(Some(node)) if node == name => Ok(()),
            Ok(Some(node)) => {
                self.check(pod, &request, name)?;
                Err(Refusal::GangPlannedElsewhere(node.clone()))
            }
            Err(refusal @ Refusal::GangDoesNotFit { .. }) => {
                self.check(pod, &request, name)?;
                Err(refusal.clone())
            }
            Err(refusal) => Err(refusal.clone()),
        };
        names.iter().map(|name| (name.as_str(), check(name))).collect()
    }

    /// Up to `limit` of the named nodes that can serve the pod, best first. Equal ranks are ordered by name.
    pub fn rank<'a>(&mut self, pod: &PodFacts, names: &'a [String], limit: usize) -> Vec<&'a str> {
        loop {
            if let Some(ranked) = self.rank_step(pod, names, limit) {
                return ranked;
            }
        }
    }

    /// One step of [`rank`](Self::rank), of a few milliseconds. `None` until the last step.
    pub fn rank_step<'a>(
        &mut self,
        pod: &PodFacts,
        names: &'a [String],
        limit: usize,
    ) -> Option<Vec<&'a str>> {
        self.rebuild_changed();
        if let Some(node) = self.assumed_node(&pod.uid) {
            return Some(names.iter().filter(|it| *it == node).map(String::as_str).collect());
        }
        let Ok(request) = pod.resources.request(self.view.catalog()) else {
            return Some(Vec::new());
        };
        let mut ranks: Vec<Option<Rank>> = vec![None; self.entries.len()];
        let nodes: Vec<_> = names.iter().map(|name| self.nodes.get(name).copied()).collect();
        if !pod.resources.accepted.accepts_all_ids() {
            self.rank_by_ids(pod, &request, nodes.iter().flatten().copied(), &mut ranks);
        } else if pod.claims.is_empty() {
            for (node, rank) in self.scheduler.ranks(&self.view, &request) {
                ranks[node.0 as usize] = Some(rank);
            }
        } else if !self.rank_by_claims(pod, request, nodes.iter().flatten().copied(), &mut ranks) {
            return None;
        }
        let ranked = names
            .iter()
            .zip(nodes)
            .filter_map(|(name, node)| Some((Reverse(ranks[node?.0 as usize]?), name.as_str())));
        let mut ranked: Vec<_> = ranked.collect();
        if ranked.len() > limit {
            ranked.select_nth_unstable(limit);
            ranked.truncate(limit);
        }
        ranked.sort_unstable();
        Some(ranked.into_iter().map(|(_, name)| name).collect())
    }

    /// Chooses devices of the node for the pod and assumes the placement: from now on the devices count as allocated.
    /// The caller then writes the Binding. While the outcome of a bind is unknown, a repeated call for the same node
    /// returns the same devices.
    ///
    /// # Errors
    ///
    /// The node can no longer serve the pod, or the pod is bound. The index is unchanged.
    pub fn place(&mut self, pod: &PodFacts, name: &str) -> Result<PlacementDecision, Refusal> {
        self.rebuild_changed();
        if let Some(decision) = self.assumed_placement(pod, name)? {
            return Ok(decision);
        }
        let request = pod.resources.request(self.view.catalog());
        self.check(pod, &request, name)?;
        let (request, node) = (request?, self.nodes[name]);
        let restricted_state = self.with_accepted_gpus(pod, node);
        let state = restricted_state.as_ref().unwrap_or(self.view.node(node));
        let fit = fit(self.view.catalog(), state, &request)?;
        let (_, part) = self.scheduler.choose(&self.view, node, &request, &fit);
        Ok(self.assume(pod, Placement { node, part }))
    }

    /// The pod's assumed placement on this node, if any. Fails if the pod is bound, or assumed on another node.
    fn assumed_placement(
        &self,
        pod: &PodFacts,
        name: &str,
    ) -> Result<Option<PlacementDecision>, Refusal> {
        let entry = self.pods.get(&pod.uid);
        let bound_node =
            pod.node.clone().or_else(|| entry.and_then(|entry| entry.facts.node.clone()));
        if let Some(node) = bound_node {
            return Err(Refusal::AlreadyBound { pod: pod.namespaced_name(), node });
        }
        let Some(AssumedPlacement { node, part, decision_id, .. }) =
            entry.and_then(|entry| entry.assumed.as_ref())
        else {
            return Ok(None);
        };
        if node != name {
            return Err(Refusal::OutcomeUnknown(node.clone()));
        }
        let node = self.nodes.get(name).copied().filter(|node| {
            // A node that was deleted and created again may have other GPUs.
            let gpus = &self.entries[node.0 as usize].facts.gpus;
            part.gpus.iter().all(|position| position < gpus.len())
        });
        let node = node.ok_or_else(|| Refusal::UnknownNode(name.to_owned()))?;
        Ok(Some(self.decision(node, pod, *part, *decision_id)))
    }

    /// Assumes the placement: from now on its devices count as allocated.
    fn assume(&mut self, pod: &PodFacts, Placement { node, part }: Placement) -> PlacementDecision {
        let decision_id = self.next_decision_id();
        let decision = self.decision(node, pod, part, decision_id);
        let name = self.name_of(node).to_owned();
        self.record_pod_change(&pod.uid);
        self.move_pod(&pod.uid, None, Some(&name));
        let assumed = Some(AssumedPlacement {
            node: name,
            part,
            is_reserved: false,
            decision_id,
            pending_writes: 0,
        });
        self.gangs.set(self.pods.get(&pod.uid).map(|entry| &entry.facts), pod);
        self.pods.insert(pod.uid.clone(), PodEntry { facts: pod.clone(), assumed });
        decision
    }

    /// True if the pod would fit the node without the pods of these UIDs.
    pub fn fits_without(&mut self, pod: &PodFacts, name: &str, victims: &[String]) -> bool {
        self.rebuild_changed();
        let Ok(request) = pod.resources.request(self.view.catalog()) else { return false };
        let Some(node) = self.nodes.get(name) else { return false };
        if self.check_share_scheme(pod, *node).is_err() {
            return false;
        }
        let is_other = |uid: &&String| !victims.contains(uid);
        let entry = &self.entries[node.0 as usize];
        let pods = entry.pods.iter().filter(is_other).filter_map(|uid| self.pods.get(uid));
        let pods = pods.map(PodEntry::as_holder).collect();
        let Ok(empty_node) = entry.facts.empty_node(self.view.catalog_mut()) else { return false };
        let claims = entry.claim_parts(&self.claims);
        let (state, _) =
            occupancy::occupy(self.view.catalog(), &entry.facts, empty_node, &claims, pods);
        let state = with_accepted_gpus(pod, &entry.facts, &state).unwrap_or(state);
        fit(self.view.catalog(), &state, &request).is_ok()
    }

    /// The pod's claims, prepared for [`check_claims`](Self::check_claims).
    pub(crate) fn pod_claims(&self, pod: &PodFacts) -> PodClaims {
        match pod.claims.as_slice() {
            [] => PodClaims::None,
            names => match self.claims.prepare(&pod.namespace, names) {
                Some(claims) => PodClaims::Unallocated(claims),
                None => PodClaims::NotAllocatable,
            },
        }
    }

    /// Fails with the reason if kube-scheduler could not allocate the claims on this node.
    pub(crate) fn check_claims(&self, claims: &PodClaims, node: &str) -> Result<(), String> {
        match claims {
            PodClaims::None => Ok(()),
            PodClaims::NotAllocatable => {
                Err("its claims do not exist yet, or have devices already".to_owned())
            }
            PodClaims::Unallocated(claims) => {
                self.claims.check(claims, node).map_err(|error| error.to_string())
            }
        }
    }

    /// True if the index can tell where the claims fit: they exist without devices, and all devices of the cluster belong
    /// to a node.
    pub(crate) fn can_judge_claims(&self, claims: &PodClaims) -> bool {
        match claims {
            PodClaims::None => true,
            PodClaims::NotAllocatable => false,
            PodClaims::Unallocated(_) => !self.claims.has_network_devices(),
        }
    }

    /// Terms of the node's rank for the pod, in one line. `None` if the node does not fit, or if the pod selects GPUs
    /// by id.
    pub fn explain(&mut self, pod: &PodFacts, name: &str) -> Option<String> {
        self.rebuild_changed();
        let request = pod.resources.request(self.view.catalog()).ok()?;
        let node = *self.nodes.get(name)?;
        if !pod.resources.accepted.accepts_all_ids() {
            return None;
        }
        if pod.claims.is_empty() {
            let explanation = self.scheduler.explain(&self.view, node, &request).ok()?;
            return Some(explanation.to_string());
        }
        let claims = self.claims.prepare(&pod.namespace, &pod.claims)?;
        let explanation = self.cluster().1.explain(node, &request, &claims)?;
        Some(explanation.to_string())
    }

    /// UIDs of lower-priority pods to evict in addition to `victim_uids` so that the pod fits the node. They have
    /// the least [`Cost`](victims::Cost), which compares priorities first. `None` if the pod does not fit even without
    /// all lower-priority pods.
    pub fn additional_victims(
        &mut self,
        pod: &PodFacts,
        name: &str,
        victim_uids: &[String],
    ) -> Option<Vec<String>> {
        self.rebuild_changed();
        // Evictions for one member are useless if the other members do not fit.
        if pod.gang.is_some() {
            return None;
        }
        let request = pod.resources.request(self.view.catalog()).ok()?;
        let node = *self.nodes.get(name)?;
        self.check_share_scheme(pod, node).ok()?;
        let entry = &self.entries[node.0 as usize];
        let mut state = self.view.node(node).clone();
        let (mut candidates, mut candidate_uids) = (Vec::new(), Vec::new());
        for (uid, part) in entry.occupancy.parts() {
            let Some(holder) = self.pods.get(uid) else { continue };
            // kube-scheduler does not know of a reservation, so it may be unable to evict this pod from this node.
            let is_reserved = holder.assumed.as_ref().is_some_and(|it| it.is_reserved);
            if is_reserved && !victim_uids.contains(uid) {
                continue;
            }
            let holder_request =
                holder.facts.resources.request_on(&entry.facts, self.view.catalog());
            let Ok(holder_request) = holder_request else { continue };
            if holder_request.gpu_count() != part.gpus.len() {
                continue;
            }
            if victim_uids.contains(uid) {
                state.release(&holder_request, part);
            } else {
                let priority = holder.facts.priority;
                candidates.push(victims::Pod {
                    request: holder_request,
                    part,
                    priority,
                    violates_budget: false,
                });
                candidate_uids.push(uid.clone());
            }
        }
        let state = with_accepted_gpus(pod, &entry.facts, &state).unwrap_or(state);
        let additional =
            victims::victims(self.view.catalog(), &state, &candidates, &request, pod.priority)?;
        Some(additional.pods.into_iter().map(|position| candidate_uids[position].clone()).collect())
    }

    /// Sorted names of the nodes whose object exists.
    pub fn node_names(&self) -> Vec<String> {
        self.existing_nodes().into_iter().map(|(name, _)| name.clone()).collect()
    }

    /// Pods that hold GPUs of a node: UID, `namespace/name`, and the number of GPUs, shared ones included.
    pub fn holders(&mut self, name: &str) -> Vec<(String, String, u32)> {
        self.rebuild_changed();
        let Some(node) = self.nodes.get(name) else { return Vec::new() };
        let parts = self.entries[node.0 as usize].occupancy.parts();
        let gpu_holders = parts.filter(|(_, part)| !part.gpus.is_empty());
        let holder = |(uid, part): (&String, Part)| {
            Some((uid.clone(), self.pods.get(uid)?.facts.namespaced_name(), part.gpus.len()))
        };
        gpu_holders.filter_map(holder).collect()
    }

    /// True if the pod's assumed placement is still this decision, so that it may be written.
    pub fn is_current_decision(&self, uid: &str, decision_id: u64) -> bool {
        let assumed = self.pods.get(uid).and_then(|entry| entry.assumed.as_ref());
        assumed.is_some_and(|assumed| assumed.decision_id == decision_id)
    }

    /// Records that a write of the placement has begun.
    pub fn begin_write(&mut self, uid: &str, decision_id: u64) {
        if let Some(assumed) = self.assumed_mut(uid, decision_id) {
            assumed.pending_writes += 1;
        }
    }

    /// Records that a write of the placement ended without effect. After the last such write the placement is removed.
    pub fn end_write(&mut self, uid: &str, decision_id: u64) {
        if let Some(assumed) = self.assumed_mut(uid, decision_id) {
            assumed.pending_writes = assumed.pending_writes.saturating_sub(1);
        }
        self.forget(uid, decision_id);
    }

    /// Removes the assumed placement of this decision, unless a write of it may still take effect.
    pub fn forget(&mut self, uid: &str, decision_id: u64) {
        if self.assumed_mut(uid, decision_id).is_some_and(|assumed| assumed.pending_writes == 0) {
            self.forget_pod(uid);
        }
    }

    fn assumed_mut(&mut self, uid: &str, decision_id: u64) -> Option<&mut AssumedPlacement> {
        let assumed = self.pods.get_mut(uid)?.assumed.as_mut()?;
        (assumed.decision_id == decision_id).then_some(assumed)
    }

    /// Removes the pod's assumed placement, if any.
    fn forget_pod(&mut self, uid: &str) {
        let Some(entry) = self.pods.get_mut(uid) else { return };
        if let Some(assumed) = entry.assumed.take() {
            let node = entry.facts.node.clone();
            self.move_pod(uid, Some(&assumed.node), node.as_deref());
        }
    }

    /// Expected number of idle GPUs that a typical pod cannot use.
    pub fn fragmentation(&mut self) -> f64 {
        self.rebuild_changed();
        self.scheduler.fragmentation(&self.view)
    }

    /// The same for the typical pods of each size, for sizes that have some.
    pub fn fragmentation_by_size(&mut self) -> Vec<(SizeClass, f64)> {
        self.rebuild_changed();
        self.scheduler.fragmentation_by_size(&self.view)
    }

    /// Predicts the allocation of the pod's claims if kube-scheduler chooses this node.
    pub(crate) fn predict_claims(&mut self, pod: &PodFacts, node: &str) {
        for (name, allocation) in self.claims.allocate(&pod.namespace, &pod.claims, node) {
            self.predictions.add((pod.namespace.clone(), name), node, &allocation);
        }
    }

    /// Numbers of claims that kube-scheduler allocated as predicted, and otherwise.
    pub(crate) fn prediction_counts(&self) -> PredictionCounts {
        self.predictions.counts()
    }

    /// Number of pods and claims that hold more than their node has free, or GPUs that it lacks.
    pub fn conflicts(&mut self) -> usize {
        self.rebuild_changed();
        self.entries.iter().map(|entry| entry.occupancy.conflicts().len()).sum()
    }

    /// Nodes whose object exists, sorted by name.
    fn existing_nodes(&self) -> Vec<(&String, NodeIndex)> {
        let nodes = self.nodes.iter().map(|(name, node)| (name, *node));
        let mut nodes: Vec<_> =
            nodes.filter(|(_, node)| self.entries[node.0 as usize].has_object).collect();
        nodes.sort_unstable();
        nodes
    }

    fn name_of(&self, node: NodeIndex) -> &str {
        &self.entries[node.0 as usize].object.name
    }

    fn next_decision_id(&mut self) -> u64 {
        self.decision_count += 1;
        self.decision_count
    }

    fn decision(
        &self,
        node: NodeIndex,
        pod: &PodFacts,
        part: Part,
        decision_id: u64,
    ) -> PlacementDecision {
        let gpus = &self.entries[node.0 as usize].facts.gpus;
        let request = pod.resources.gpus.as_ref().ok();
        let device = |position: usize| {
            let GpuFacts { id, memory_mib, .. } = &gpus[position];
            let id = id.clone()?;
            Some(match request.and_then(|request| request.share_of(*memory_mib)) {
                Some((compute_milli, memory_mib)) => {
                    PlacedGpu::share(id, memory_mib, compute_milli)
                }
                None => PlacedGpu::whole(id),
            })
        };
        let placement = PodPlacement { devices: part.gpus.iter().filter_map(device).collect() };
        let first = part.gpus.iter().next().map(|position| (position, gpus[position].clone()));
        PlacementDecision { placement, id: decision_id, first_gpu: first }
    }

    /// The node of the pod's bind, if that bind is in flight or its outcome is unknown.
    fn assumed_node(&self, uid: &str) -> Option<&str> {
        let assumed = self.pods.get(uid)?.assumed.as_ref()?;
        (!assumed.is_reserved).then_some(assumed.node.as_str())
    }

    fn check(
        &self,
        pod: &PodFacts,
        request: &Result<Request, GpuRequestError>,
        name: &str,
    ) -> Result<(), Refusal> {
        let request = request.as_ref().map_err(Clone::clone)?;
        let node = self.nodes.get(name).filter(|node| self.entries[node.0 as usize].has_object);
        let node = node.ok_or_else(|| Refusal::UnknownNode(name.to_owned()))?;
        // Checked first: preemption cannot make a node serve these resource names.
        self.check_share_scheme(pod, *node)?;
        fit(self.view.catalog(), self.view.node(*node), request)?;
        if let Some(state) = self.with_accepted_gpus(pod, *node) {
            fit(self.view.catalog(), &state, request).map_err(|misfit| {
                let gpus = self.entries[node.0 as usize].facts.gpus.iter();
                let is_accepted =
                    |gpu: &&GpuFacts| pod.resources.accepted.accepts_id(gpu.id.as_ref());
                Refusal::NotAccepted { accepted: gpus.filter(is_accepted).count(), misfit }
            })?;
        }
        Ok(())
    }

    /// Fails if the pod requests shares and the node's agent does not serve the pod's resource names.
    fn check_share_scheme(&self, pod: &PodFacts, node: NodeIndex) -> Result<(), Refusal> {
        let Ok(GpuRequest::Share { scheme, .. }) = &pod.resources.gpus else { return Ok(()) };
        let facts = &self.entries[node.0 as usize].facts;
        let has_ids = facts.gpus.iter().all(|gpu| gpu.id.is_some());
        match scheme {
            ShareScheme::Windlass | ShareScheme::Hami { .. } if !has_ids => {
                Err(Refusal::NoAgent(facts.name.clone()))
            }
            ShareScheme::Hami { .. } if !facts.virtual_gpus => {
                Err(Refusal::NoVirtualGpus(facts.name.clone()))
            }
            _ => Ok(()),
        }
    }

    /// The node's state with only the GPUs whose ids the pod accepts usable; `None` if it accepts all ids.
    fn with_accepted_gpus(&self, pod: &PodFacts, node: NodeIndex) -> Option<Node> {
        with_accepted_gpus(pod, &self.entries[node.0 as usize].facts, self.view.node(node))
    }

    /// Writes the ranks of the nodes that can serve the pod with the GPUs whose ids it accepts.
    fn rank_by_ids(
        &mut self,
        pod: &PodFacts,
        request: &Request,
        nodes: impl Iterator<Item = NodeIndex>,
        ranks: &mut [Option<Rank>],
    ) {
        for node in nodes {
            let Some(state) = self.with_accepted_gpus(pod, node) else { continue };
            let fit = fit(self.view.catalog(), &state, request).ok();
            ranks[node.0 as usize] =
                fit.map(|fit| self.scheduler.choose(&self.view, node, request, &fit).0);
        }
    }

    /// Does one step of ranking nodes for a pod with claims. Returns true once all nodes are ranked.
    fn rank_by_claims(
        &mut self,
        pod: &PodFacts,
        request: Request,
        nodes: impl Iterator<Item = NodeIndex>,
        ranks: &mut [Option<Rank>],
    ) -> bool {
        let Some(specs) = self.claims.specs(&pod.namespace, &pod.claims) else { return true };
        let key =
            ShapeKey { specs, request: Request { memory_mib: 0, gpus: Gpus::None, ..request } };
        let (cache, mut cluster) = self.cluster();
        let claims = cluster.claims;
        let prepare = || claims.prepare(&pod.namespace, &pod.claims);
        cache.step(key, prepare, &mut cluster, nodes, ranks)
    }

    /// The cache of ranks for pods with claims, and the parts of the index from which these ranks are computed.
    fn cluster(&mut self) -> (&mut ClaimRanks, Cluster<'_>) {
        let Self { claims, entries, versions, view, scheduler, claim_ranks, .. } = self;
        (claim_ranks, Cluster { claims, entries, versions, view, scheduler })
    }

    /// Rebuilds every changed node in the view.
    fn rebuild_changed(&mut self) {
        while let Some(node) = self.changed.pop_first() {
            let (view, entry) = (&mut self.view, &mut self.entries[node.0 as usize]);
            self.rebuild_count += 1;
            self.versions[node.0 as usize] = self.rebuild_count;
            entry.set_gpus(&self.claims.gpus(&entry.object.name));
            let claims = entry.claim_parts(&self.claims);
            let empty_node = entry.facts.empty_node(view.catalog_mut()).unwrap_or_else(|error| {
                tracing::error!(node = entry.facts.name, %error, "node left out");
                entry.clear_gpus();
                Node::default()
            });
            let pods = entry.pods.iter().filter_map(|uid| self.pods.get(uid));
            let pods: Vec<_> = pods.map(PodEntry::as_holder).collect();
            let (state, occupancy) =
                occupancy::occupy(view.catalog(), &entry.facts, empty_node, &claims, pods);
            let logged_conflicts = entry.occupancy.conflicts();
            for conflict in occupancy.conflicts().iter().filter(|it| !logged_conflicts.contains(it))
            {
                let node = &entry.facts.name;
                tracing::warn!(node, %conflict, "a pod holds devices that its node does not have free");
            }
            entry.occupancy = occupancy;
            if *view.node(node) != state {
                view.replace(node, state);
            }
            self.free_if_deleted(node);
        }
    }

    fn move_pod(&mut self, uid: &str, from: Option<&str>, to: Option<&str>) {
        if let Some(from) = from {
            let node = self.node_of(from);
            self.entry(node).pods.remove(uid);
            self.changed.insert(node);
        }
        if let Some(to) = to {
            let node = self.node_of(to);
            self.entry(node).pods.insert(uid.to_owned());
            self.changed.insert(node);
        }
    }

    /// The node's position. A new name gets a free position, or a new one if none is free.
    fn node_of(&mut self, name: &str) -> NodeIndex {
        if let Some(node) = self.nodes.get(name) {
            return *node;
        }
        let object = NodeFacts { name: name.to_owned(), ..NodeFacts::default() };
        let entry = NodeEntry { facts: object.clone(), object, ..NodeEntry::default() };
        let node = self.deleted_nodes.take_position().unwrap_or_else(|| {
            self.entries.push(NodeEntry::default());
            self.versions.push(0);
            self.view.add(Node::default())
        });
        self.entries[node.0 as usize] = entry;
        self.nodes.insert(name.to_owned(), node);
        node
    }

    fn entry(&mut self, node: NodeIndex) -> &mut NodeEntry {
        &mut self.entries[node.0 as usize]
    }
}

// === impl PodEntry ===

impl PodEntry {
    /// The pod, if it requests GPUs or has claims, and has neither a node nor an assumed placement.
    fn pending(&self) -> Option<&PodFacts> {
        let is_pending = self.facts.node.is_none() && self.assumed.is_none();
        (is_pending && self.facts.needs_devices()).then_some(&self.facts)
    }

    /// The pod, and its assumed part of the node, if any.
    fn as_holder(&self) -> (&PodFacts, Option<Part>) {
        (&self.facts, self.assumed.as_ref().map(|assumed| assumed.part))
    }
}

/// Suffix of the message: the label whose value all nodes of the gang must share.
fn topology_suffix(label: Option<&String>) -> String {
    label.map(|label| format!(" on nodes with one {label}")).unwrap_or_default()
}

/// A node's state with only the GPUs whose ids the pod accepts usable; `None` if it accepts all ids.
fn with_accepted_gpus(pod: &PodFacts, facts: &NodeFacts, state: &Node) -> Option<Node> {
    let accepted = &pod.resources.accepted;
    if accepted.accepts_all_ids() {
        return None;
    }
    let mut state = state.clone();
    for (gpu, facts) in state.gpus.iter_mut().zip(&facts.gpus) {
        gpu.is_usable &= accepted.accepts_id(facts.id.as_ref());
    }
    Some(state)
}

/// The node on which the pod is bound or assumed.
fn current_node(pod: Option<&PodEntry>) -> Option<String> {
    let pod = pod?;
    pod.facts.node.clone().or_else(|| pod.assumed.as_ref().map(|assumed| assumed.node.clone()))
}
