//! Preemption: the pods of a node to evict so that a pod of higher priority fits.
//!
//! The search begins like kube-scheduler's: it removes all pods of lower priority, then puts each pod back that leaves
//! enough free, the most valuable first. After that it tries every other choice that may cost less.

use std::cmp::Reverse;

use crate::{
    fit::fit,
    node::{Node, Part},
    request::{Gpus, Request, ShareMemory},
    view::Catalog,
};

/// Maximum number of search steps beyond one per pod. It suffices for an exhaustive search over twelve different pods.
const MAX_STEPS: usize = 1 << 13;

/// A pod of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pod {
    /// The pod's request.
    pub request: Request,
    /// The part of the node's GPUs that the pod holds.
    pub part: Part,
    /// The pod's priority; larger is higher.
    pub priority: i32,
    /// True if the pod's eviction would violate a `PodDisruptionBudget`.
    pub violates_budget: bool,
}

/// Pods to evict. The set is minimal: the request does not fit if one of them stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Victims {
    /// Positions in the node's pods, ascending.
    pub pods: Vec<usize>,
    /// The cost, for comparison with other nodes.
    pub cost: Cost,
}

/// Cost of victims; smaller is better. The criteria are ordered as in kube-scheduler's `pickOneNodeForPreemption`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Number of `PodDisruptionBudget` violations.
    pub violations: usize,
    /// The highest priority among the victims; `i32::MIN` without victims.
    pub highest_priority: i32,
    /// Sum of the priorities, each counted from `i32::MIN`.
    pub priority_sum: i64,
    /// Number of victims.
    pub count: usize,
}

struct Search<'a> {
    catalog: &'a Catalog,
    pods: &'a [Pod],
    request: &'a Request,
    /// Pods of lower priority, most valuable first: the order in which the search tries to keep them.
    order: Vec<usize>,
    /// The node without the victims and without the undecided pods.
    node: Node,
    victims: Vec<usize>,
    best: Option<Victims>,
    steps: usize,
}

/// Finds the pods of the node to evict so that a request of this priority fits; `None` if the request would not fit
/// even without all pods of lower priority.
///
/// The cost is minimal, unless the search exceeds its limit of steps. Equal inputs give equal victims.
pub fn victims(
    catalog: &Catalog,
    node: &Node,
    pods: &[Pod],
    request: &Request,
    priority: i32,
) -> Option<Victims> {
    let pods: Vec<_> = pods.iter().map(Pod::without_empty_shares).collect();
    let mut order: Vec<_> = (0..pods.len()).filter(|it| pods[*it].priority < priority).collect();
    order.sort_by_key(|it| {
        let Pod { request, part, priority, violates_budget } = pods[*it];
        (Reverse(violates_budget), Reverse(priority), request, part)
    });
    let mut node = node.clone();
    for position in &order {
        node.release(&pods[*position].request, pods[*position].part);
    }
    fit(catalog, &node, request).ok()?;
    let steps = MAX_STEPS + order.len();
    let (victims, best) = (Vec::new(), None);
    let mut search = Search { catalog, pods: &pods, request, order, node, victims, best, steps };
    search.decide(0, Cost::NONE);
    let best = search.best.take()?;
    Some(search.reprieve(best))
}

impl Pod {
    /// The pod, without GPUs if its shares have zero amounts: another pod may hold these GPUs as a whole.
    fn without_empty_shares(&self) -> Self {
        match self.request.gpus {
            Gpus::Share {
                compute_milli: 0,
                memory: ShareMemory::Mib(0) | ShareMemory::Percent(0),
                ..
            } => {
                let request = Request { gpus: Gpus::None, ..self.request };
                Self { request, part: Part::default(), ..*self }
            }
            _ => *self,
        }
    }
}

impl Cost {
    const NONE: Self =
        Self { violations: 0, highest_priority: i32::MIN, priority_sum: 0, count: 0 };

    fn plus(self, pod: &Pod) -> Self {
        Self {
            violations: self.violations + usize::from(pod.violates_budget),
            highest_priority: self.highest_priority.max(pod.priority),
            priority_sum: self.priority_sum + i64::from(pod.priority) - i64::from(i32::MIN),
            count: self.count + 1,
        }
    }
}

impl Search<'_> {
    /// Decides about the pods from the `nth` on.
    fn decide(&mut self, nth: usize, cost: Cost) {
        let is_worse = self.best.as_ref().is_some_and(|best| cost >= best.cost);
        if is_worse || self.steps == 0 {
            return;
        }
        self.steps -= 1;
        let Some(position) = self.order.get(nth).copied() else {
            let mut pods = self.victims.clone();
            pods.sort_unstable();
            self.best = Some(Victims { pods, cost });
            return;
        };
        let pods = self.pods;
        // Of equal pods the first ones stay, so equal choices are tried once.
        let previous = nth.checked_sub(1).map(|previous| self.order[previous]);
        let equals_victim = self.victims.last().copied() == previous
            && previous.is_some_and(|previous| pods[previous] == pods[position]);
        if !equals_victim && self.try_keep(position) {
            self.decide(nth + 1, cost);
            self.node.release(&pods[position].request, pods[position].part);
        }
        self.victims.push(position);
        self.decide(nth + 1, cost.plus(&pods[position]));
        self.victims.pop();
    }

    /// Puts the pod back on the node if the request then still fits. Returns true if it did.
    fn try_keep(&mut self, position: usize) -> bool {
        let Pod { request, part, .. } = &self.pods[position];
        if self.node.allocate(request, *part).is_err() {
            return false;
        }
        let fits = fit(self.catalog, &self.node, self.request).is_ok();
        if !fits {
            self.node.release(request, *part);
        }
        fits
    }

    /// Removes victims that need not be evicted. Only a search that reached its limit of steps returns such victims.
    fn reprieve(mut self, mut victims: Victims) -> Victims {
        let order = std::mem::take(&mut self.order);
        let (evicted, kept): (Vec<_>, Vec<_>) =
            order.into_iter().partition(|position| victims.pods.contains(position));
        for position in kept {
            self.try_keep(position);
        }
        let reprieved: Vec<_> =
            evicted.into_iter().filter(|position| self.try_keep(*position)).collect();
        victims.pods.retain(|position| !reprieved.contains(position));
        let cost =
            victims.pods.iter().fold(Cost::NONE, |cost, position| cost.plus(&self.pods[*position]));
        Victims { cost, ..victims }
    }
}
