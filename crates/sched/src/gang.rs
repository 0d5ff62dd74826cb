//! Placement of a gang (pods that start together or not at all), by backtracking.
//!
//! The largest requests are placed first, each on the node that ranks best. If a later member finds no node, the search
//! backtracks to the next best node of an earlier member. It skips equal choices: nodes in an equal state, and equal
//! members, whose order makes no difference.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::{
    fit::fit,
    policy::Rank,
    request::Request,
    scheduler::Scheduler,
    view::{ClusterView, NodeIndex, Placement},
};

/// A pod of a gang.
#[derive(Clone, Copy, Debug)]
pub struct Member<'a> {
    /// The pod's request.
    pub request: Request,
    /// Nodes that may serve the pod. Among equal ranks the first node wins.
    pub nodes: &'a [NodeIndex],
}

/// Maximum number of backtracking steps over all members. Beyond it, a gang counts as not fitting. A gang of equal
/// members needs no backtracking.
pub const MAX_BACKTRACKS: usize = 4096;
/// Maximum number of nodes that are tried for one member, best first.
const MAX_NODES: usize = 64;
/// If fewer than one in this many of the view's nodes may serve a member, they are ranked one by one, without the
/// cache.
const CACHE_DIVISOR: usize = 8;

/// Depth-first search for placements.
struct Search<'a> {
    view: &'a mut ClusterView,
    scheduler: &'a mut Scheduler,
    /// The members, in the order in which they are placed.
    members: Vec<Member<'a>>,
    /// By member: true if this and all later members are equal, so that another node for this member cannot help the
    /// later ones.
    is_uniform: Vec<bool>,
    placements: Vec<Placement>,
    /// Remaining backtracking steps.
    remaining_backtracks: &'a mut usize,
}

/// Finds a placement for each member, in the order of the members; `None` if they do not fit at the same time. The
/// nodes of the view are unchanged afterwards, but their versions may be newer. At zero `remaining_backtracks` the
/// search does not backtrack.
pub fn place_gang(
    view: &mut ClusterView,
    scheduler: &mut Scheduler,
    members: &[Member<'_>],
    remaining_backtracks: &mut usize,
) -> Option<Vec<Placement>> {
    let mut order: Vec<usize> = (0..members.len()).collect();
    order.sort_by_key(|position| {
        let Member { request, nodes } = members[*position];
        let gpus = (request.gpu_count(), view.average_milli(&request));
        (Reverse((gpus, request)), nodes.len())
    });
    let ordered_members: Vec<_> = order.iter().map(|position| members[*position]).collect();
    let mut search = Search {
        is_uniform: uniform(&ordered_members, view.nodes().len()),
        placements: Vec::with_capacity(ordered_members.len()),
        members: ordered_members,
        remaining_backtracks,
        view,
        scheduler,
    };
    if !search.place_from(0) {
        return None;
    }
    let mut placements: Vec<_> = order.into_iter().zip(search.placements).collect();
    placements.sort_by_key(|(position, _)| *position);
    Some(placements.into_iter().map(|(_, placement)| placement).collect())
}

impl Search<'_> {
    /// Places the members from the `nth` on. Returns true on success. The view's nodes are unchanged afterwards.
    fn place_from(&mut self, nth: usize) -> bool {
        let Some(Member { request, nodes }) = self.members.get(nth).copied() else { return true };
        let mut failed_nodes: Vec<NodeIndex> = Vec::new();
        for node in self.candidates(nth, &request, nodes) {
            if failed_nodes.iter().any(|other| self.are_equal(nth, *other, node)) {
                continue;
            }
            // The first choice is free: only backtracking is expensive.
            if !failed_nodes.is_empty() {
                if *self.remaining_backtracks == 0 {
                    return false;
                }
                *self.remaining_backtracks -= 1;
            }
            let Some(part) = self.scheduler.choose_part(self.view, node, &request) else {
                continue;
            };
            let (placement, before) = (Placement { node, part }, self.view.node(node).clone());
            if self.view.allocate(&request, placement).is_err() {
                continue;
            }
            self.placements.push(placement);
            let all_are_placed = self.place_from(nth + 1);
            self.view.replace(node, before);
            if all_are_placed {
                return true;
            }
            self.placements.pop();
            failed_nodes.push(node);
        }
        false
    }

    /// The nodes to try for the `nth` member, best first.
    fn candidates(&mut self, nth: usize, request: &Request, nodes: &[NodeIndex]) -> Vec<NodeIndex> {
        let ranks = self.ranks(request, nodes);
        let ranked = ranks.into_iter().enumerate();
        let ranked = ranked.filter_map(|(position, rank)| Some((rank?, Reverse(position))));
        let mut ranked: BinaryHeap<_> = ranked.collect();
        let limit = if self.is_uniform[nth] { 1 } else { MAX_NODES };
        let best = std::iter::from_fn(|| ranked.pop()).take(limit);
        best.map(|(_, Reverse(position))| nodes[position]).collect()
    }

    /// The rank of each of these nodes; `None` if the member does not fit. Ranks of few nodes are computed, ranks of
    /// many nodes come from the scheduler's cache.
    fn ranks(&mut self, request: &Request, nodes: &[NodeIndex]) -> Vec<Option<Rank>> {
        if nodes.len() < self.view.nodes().len() / CACHE_DIVISOR {
            let rank = |node: &NodeIndex| {
                let fit = fit(self.view.catalog(), self.view.node(*node), request).ok()?;
                Some(self.scheduler.choose(self.view, *node, request, &fit).0)
            };
            return nodes.iter().map(rank).collect();
        }
        let mut ranks = vec![None; self.view.nodes().len()];
        for (node, rank) in self.scheduler.ranks(self.view, request) {
            ranks[node.0 as usize] = Some(rank);
        }
        nodes.iter().map(|node| ranks[node.0 as usize]).collect()
    }

    /// True if the two nodes are interchangeable for the members from the `nth` on.
    fn are_equal(&self, nth: usize, first: NodeIndex, second: NodeIndex) -> bool {
        let members = &self.members[nth..];
        self.view.node(first) == self.view.node(second)
            && members.iter().all(|it| it.nodes.contains(&first) == it.nodes.contains(&second))
    }
}

/// By member: true if this and all later members have the same request, and the nodes of each are a subset of the next
/// member's nodes.
fn uniform(members: &[Member<'_>], nodes: usize) -> Vec<bool> {
    let mut uniform = vec![true; members.len()];
    for nth in (0..members.len().saturating_sub(1)).rev() {
        let (this, next) = (&members[nth], &members[nth + 1]);
        uniform[nth] = uniform[nth + 1]
            && this.request == next.request
            && (std::ptr::eq(this.nodes, next.nodes) || is_subset(this.nodes, next.nodes, nodes));
    }
    uniform
}

fn is_subset(subset: &[NodeIndex], superset: &[NodeIndex], node_count: usize) -> bool {
    let mut is_member = vec![false; node_count];
    for node in superset {
        is_member[node.0 as usize] = true;
    }
    subset.iter().all(|node| is_member[node.0 as usize])
}
