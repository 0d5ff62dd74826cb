//! Plan of a gang: a placement for each member, all in one domain (nodes that share the value of a label).

use std::collections::{BTreeMap, HashMap};

use windlass_sched::{
    gang::{MAX_BACKTRACKS, Member, place_gang},
    request::{Gpus, Request},
    view::{NodeIndex, Placement},
};

use super::{
    super::{AssumedPlacement, Index, PlacementDecision, Refusal, current_node, node_set::NodeSet},
    Offers, OtherMembers, by_age, key_of,
};
use crate::facts::{Gang, GpuRequest, PodFacts, ShareScheme};

/// A request, and the scheme of its resource names for shares.
type RequestKind = (Request, Option<ShareScheme>);

/// Reserved placements of other members, by UID.
type Reservations = Vec<(String, AssumedPlacement)>;

// === impl Index ===

impl Index {
    /// Places the pod on a node, and reserves devices for the members that have not arrived.
    pub(super) fn place_and_reserve(
        &mut self,
        pod: &PodFacts,
        gang: &Gang,
        others: &OtherMembers,
        name: &str,
    ) -> Result<PlacementDecision, Refusal> {
        if let Some(decision) = self.assumed_placement(pod, name)? {
            return Ok(decision);
        }
        let node = *self.nodes.get(name).ok_or_else(|| Refusal::UnknownNode(name.to_owned()))?;
        // This is the plan of the filter call, unless the cluster has changed since then.
        let plan = self.plan(pod, gang, others, None).ok();
        let (placement, reservations) = match plan.filter(|(placement, _)| placement.node == node) {
            Some(plan) => plan,
            None => self.plan(pod, gang, others, Some(&NodeSet::from_iter([node])))?,
        };
        let decision = self.assume(pod, placement);
        self.reserve(reservations);
        Ok(decision)
    }

    /// A placement for the pod and for each awaited member, on nodes that kube-scheduler offered for their requests.
    /// The pod itself is placed on a node of `allowed_nodes`, if given.
    pub(super) fn plan(
        &mut self,
        pod: &PodFacts,
        gang: &Gang,
        others: &OtherMembers,
        allowed_nodes: Option<&NodeSet>,
    ) -> Result<(Placement, Reservations), Refusal> {
        self.rebuild_changed();
        // kube-scheduler filters members one by one. Sorting the members gives each of these calls the same plan.
        let mut pods: Vec<&PodFacts> = others.awaited.iter().chain([pod]).collect();
        pods.sort_by(|a, b| by_age(a, b));
        let own_position = pods
            .iter()
            .position(|it| it.uid == pod.uid)
            .expect("the pod is one of the chained pods");
        let requests = pods.iter().map(|pod| pod.resources.request(self.view.catalog()));
        let requests = requests.collect::<Result<Vec<_>, _>>()?;
        let offers = self.gangs.offers.get(&key_of(pod, gang)).cloned().unwrap_or_default();
        let whole_gpus = requests.iter().filter(|it| matches!(it.gpus, Gpus::Whole(_)));
        let whole_gpus: u64 = whole_gpus.map(|request| u64::from(request.gpu_count())).sum();
        let mut remaining_backtracks = MAX_BACKTRACKS;
        for domain in self.domains(pod, gang, others) {
            if whole_gpus > self.free_gpus(&domain) {
                continue;
            }
            let lists = self.node_lists(&pods, &requests, &offers, &domain);
            let nodes_for =
                |position: usize| &lists[&(requests[position], share_scheme(pods[position]))];
            let own_candidates: Vec<_> = allowed_nodes.map_or_else(Vec::new, |allowed_nodes| {
                nodes_for(own_position)
                    .iter()
                    .filter(|node| allowed_nodes.contains(**node))
                    .copied()
                    .collect()
            });
            let members = (0..pods.len()).map(|position| {
                let is_restricted = allowed_nodes.is_some() && position == own_position;
                let nodes = if is_restricted { &own_candidates } else { nodes_for(position) };
                Member { request: requests[position], nodes }
            });
            let members: Vec<_> = members.collect();
            let placements = place_gang(
                &mut self.view,
                &mut self.scheduler,
                &members,
                &mut remaining_backtracks,
            );
            if let Some(placements) = placements {
                let reservations = pods.iter().zip(&placements).enumerate();
                let reservations = reservations.filter(|(position, _)| *position != own_position);
                let reservations =
                    reservations.map(|(_, (pod, placement))| self.reservation(pod, *placement));
                return Ok((placements[own_position], reservations.collect()));
            }
        }
        let (gang, topology_key) = (gang.name.clone(), gang.topology_key.clone());
        Err(Refusal::GangDoesNotFit { gang, pods: pods.len(), topology_key })
    }

    fn reservation(&self, pod: &PodFacts, placement: Placement) -> (String, AssumedPlacement) {
        let Placement { node, part } = placement;
        let node = self.name_of(node).to_owned();
        (
            pod.uid.clone(),
            AssumedPlacement { node, part, is_reserved: true, decision_id: 0, pending_writes: 0 },
        )
    }

    /// The domains in which the gang may be placed, each with its nodes sorted by name. Domains with the fewest failed
    /// attempts come first, then those with the least idle GPUs.
    fn domains(&self, pod: &PodFacts, gang: &Gang, others: &OtherMembers) -> Vec<Vec<NodeIndex>> {
        let existing = self.existing_nodes().into_iter().map(|(_, node)| node);
        let Some(label) = &gang.topology_key else { return vec![existing.collect()] };
        let value = |node: NodeIndex| self.entries[node.0 as usize].object.labels.get(label);
        // Members that already have a node decide the domain.
        let members_with_node = others.bound.iter().chain(&others.arrived);
        let mut values = members_with_node.filter_map(|uid| {
            let node = current_node(self.pods.get(uid)).and_then(|it| self.nodes.get(&it).copied());
            node.and_then(value)
        });
        let required_value = values.next();
        let mut domains: BTreeMap<&String, Vec<NodeIndex>> = BTreeMap::new();
        for node in existing {
            let value = value(node);
            if let Some(value) =
                value.filter(|it| required_value.is_none_or(|required_value| required_value == *it))
            {
                domains.entry(value).or_default().push(node);
            }
        }
        let failed_attempts = self.gangs.failed_attempts.get(&key_of(pod, gang));
        let failed_attempts =
            |value: &String| failed_attempts.and_then(|it| it.get(value)).copied().unwrap_or(0);
        let mut domains: Vec<_> = domains.into_iter().collect();
        domains.sort_by_cached_key(|(value, nodes)| {
            let idle = nodes.iter().map(|node| u64::from(self.view.node(*node).idle_milli()));
            (failed_attempts(value), idle.sum::<u64>())
        });
        domains.into_iter().map(|(_, nodes)| nodes).collect()
    }

    fn free_gpus(&self, nodes: &[NodeIndex]) -> u64 {
        nodes.iter().map(|node| u64::from(self.view.node(*node).free_gpus().len())).sum()
    }

    /// By kind of request: the nodes of the domain that may serve it.
    fn node_lists(
        &self,
        pods: &[&PodFacts],
        requests: &[Request],
        offers: &Offers,
        domain: &[NodeIndex],
    ) -> HashMap<RequestKind, Vec<NodeIndex>> {
        let mut lists = HashMap::new();
        for (pod, request) in pods.iter().zip(requests) {
            lists.entry((*request, share_scheme(pod))).or_insert_with(|| {
                let offered = offers.get(request);
                let may_serve = |node: &&NodeIndex| {
                    offered.is_none_or(|offered| offered.contains(**node))
                        && self.check_share_scheme(pod, **node).is_ok()
                };
                domain.iter().filter(may_serve).copied().collect()
            });
        }
        lists
    }
}

/// The scheme of the pod's resource names for shares; `None` without a share. A node may serve only some schemes.
fn share_scheme(pod: &PodFacts) -> Option<ShareScheme> {
    match pod.resources.gpus {
        Ok(GpuRequest::Share { scheme, .. }) => Some(scheme),
        _ => None,
    }
}
