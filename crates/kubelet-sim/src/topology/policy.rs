//! Topology policies: merge the hints of all resources, and admit or reject by the merged hint.
//!
//! Source: `pkg/kubelet/cm/topologymanager` of Kubernetes 1.36 (`policy.go`).

use super::{Hint, Hints, NumaMask};

/// The kubelet's `topologyManagerPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopologyPolicy {
    /// `none`: hints are ignored.
    #[default]
    None,
    /// `best-effort`: the best merged hint applies, preferred or not.
    BestEffort,
    /// `restricted`: admission requires a preferred merged hint.
    Restricted,
    /// `single-numa-node`: admission requires a preferred merged hint of one node.
    SingleNumaNode,
}

/// The kubelet's `topologyManagerScope`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopologyScope {
    /// `container`: one merged hint per container.
    #[default]
    Container,
    /// `pod`: one merged hint for all containers of a pod.
    Pod,
}

/// Decision of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PolicyDecision {
    /// NUMA nodes to take devices from; `None` for any.
    pub(crate) affinity: Option<NumaMask>,
    /// True if the policy admits the container or pod.
    pub(crate) admitted: bool,
}

/// Merges the hints of all resources and applies the policy. `all_nodes` has the nodes of the machine.
pub(crate) fn merge(
    policy: TopologyPolicy,
    all_nodes: NumaMask,
    hints: &[Hints],
) -> PolicyDecision {
    let hint_lists: Vec<Vec<Hint>> = if hints.is_empty() {
        vec![vec![Hint { affinity: None, preferred: true }]]
    } else {
        hints.iter().map(hint_list).collect()
    };
    match policy {
        TopologyPolicy::None => PolicyDecision { affinity: None, admitted: true },
        TopologyPolicy::BestEffort => {
            PolicyDecision { affinity: best_hint(all_nodes, &hint_lists).affinity, admitted: true }
        }
        TopologyPolicy::Restricted => {
            let hint = best_hint(all_nodes, &hint_lists);
            PolicyDecision { affinity: hint.affinity, admitted: hint.preferred }
        }
        TopologyPolicy::SingleNumaNode => {
            let single: Vec<_> = hint_lists.into_iter().map(single_node).collect();
            let hint = best_hint(all_nodes, &single);
            let affinity = hint.affinity.filter(|mask| *mask != all_nodes);
            PolicyDecision { affinity, admitted: hint.preferred }
        }
    }
}

/// Hints of one resource as a non-empty list.
fn hint_list(hints: &Hints) -> Vec<Hint> {
    match hints {
        Hints::NoPreference => vec![Hint { affinity: None, preferred: true }],
        Hints::Masks(hints) if !hints.is_empty() => hints.clone(),
        Hints::Masks(_) | Hints::Unsatisfiable => vec![Hint { affinity: None, preferred: false }],
    }
}

/// Preferred hints of one node, or of any nodes.
fn single_node(hints: Vec<Hint>) -> Vec<Hint> {
    hints
        .into_iter()
        .filter(|hint| hint.preferred && hint.affinity.is_none_or(|mask| mask.count() == 1))
        .collect()
}

/// The best merge of one hint per resource. If no merge contains a node: all nodes of the machine, not
/// preferred.
fn best_hint(all_nodes: NumaMask, hint_lists: &[Vec<Hint>]) -> Hint {
    let best_count = max_of_min_affinity_counts(hint_lists);
    permutations(hint_lists)
        .iter()
        .map(|hints| merge_permutation(all_nodes, hints))
        .filter(|hint| affinity_of(*hint).count() > 0)
        .reduce(|current, candidate| better_hint(current, candidate, best_count))
        .unwrap_or(Hint { affinity: Some(all_nodes), preferred: false })
}

/// The maximum, over all resources, of the number of nodes in the resource's smallest hint.
fn max_of_min_affinity_counts(hint_lists: &[Vec<Hint>]) -> u32 {
    hint_lists
        .iter()
        .filter_map(|hints| {
            hints.iter().filter_map(|hint| hint.affinity).map(NumaMask::count).min()
        })
        .max()
        .unwrap_or(0)
}

/// All lists with one hint per resource.
fn permutations(hint_lists: &[Vec<Hint>]) -> Vec<Vec<Hint>> {
    hint_lists.iter().fold(vec![Vec::new()], |prefixes, hints| {
        let extend = |prefix: &Vec<Hint>| {
            let prefix = prefix.clone();
            hints.iter().map(move |hint| [&prefix[..], &[*hint]].concat())
        };
        prefixes.iter().flat_map(extend).collect()
    })
}

/// Merges one hint per resource: the intersection of all masks. The merged hint is preferred if all
/// hints are preferred and all masks are equal.
fn merge_permutation(all_nodes: NumaMask, hints: &[Hint]) -> Hint {
    let masks: Vec<NumaMask> = hints.iter().filter_map(|hint| hint.affinity).collect();
    let all_equal = masks.windows(2).all(|pair| pair[0] == pair[1]);
    let merged = masks.iter().fold(all_nodes, |nodes, mask| nodes.and(*mask));
    let preferred = all_equal && hints.iter().all(|hint| hint.preferred);
    Hint { affinity: Some(merged), preferred }
}

/// The better of two merged hints. A preferred hint beats others. Of two preferred hints, the smaller
/// one is better. Of two hints that are not preferred, the order is:
///
/// 1. hints with `max_of_min_affinity_counts` nodes,
/// 2. smaller hints, the largest of them first,
/// 3. larger hints, the smallest of them first.
fn better_hint(current: Hint, candidate: Hint, best_count: u32) -> Hint {
    use std::cmp::Ordering::{Equal, Greater, Less};

    if current.preferred != candidate.preferred {
        return if current.preferred { current } else { candidate };
    }
    if current.preferred {
        return narrower(current, candidate);
    }
    let (current_count, candidate_count) =
        (affinity_of(current).count(), affinity_of(candidate).count());
    match (current_count.cmp(&best_count), candidate_count.cmp(&best_count)) {
        (Greater, _) | (Equal, Equal) => narrower(current, candidate),
        (Equal, _) | (Less, Greater) => current,
        (Less, Equal) => candidate,
        (Less, Less) => match candidate_count.cmp(&current_count) {
            Greater => candidate,
            Less => current,
            Equal => narrower(current, candidate),
        },
    }
}

fn narrower(current: Hint, candidate: Hint) -> Hint {
    let current_mask = affinity_of(current);
    if current_mask.narrowest(affinity_of(candidate)) == current_mask { current } else { candidate }
}

/// Nodes of a merged hint, which always has an affinity.
fn affinity_of(merged: Hint) -> NumaMask {
    merged.affinity.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use TopologyPolicy::{BestEffort, None as NoPolicy, Restricted, SingleNumaNode};

    use super::*;

    fn nodes(nodes: &[i64]) -> NumaMask {
        NumaMask::of(nodes.iter().copied())
    }

    /// Hints of one resource, as nodes and preference.
    fn masks(hints: &[(&[i64], bool)]) -> Hints {
        Hints::Masks(
            hints
                .iter()
                .map(|(mask, preferred)| Hint {
                    affinity: Some(nodes(mask)),
                    preferred: *preferred,
                })
                .collect(),
        )
    }

    /// Checks the affinity and the admission on a machine with nodes 0 and 1.
    fn check(policy: TopologyPolicy, hints: &[Hints], expected: (Option<&[i64]>, bool)) {
        let decision = merge(policy, nodes(&[0, 1]), hints);
        let (affinity, admitted) = expected;
        let expected = PolicyDecision { affinity: affinity.map(nodes), admitted };
        assert_eq!(decision, expected, "{policy:?} {hints:?}");
    }

    #[test]
    fn an_aligned_request_is_admitted_by_every_policy_on_the_lowest_node() {
        let aligned = [masks(&[(&[0], true), (&[1], true), (&[0, 1], false)])];
        check(NoPolicy, &aligned, (None, true));
        for policy in [BestEffort, Restricted, SingleNumaNode] {
            check(policy, &aligned, (Some(&[0]), true));
        }
    }

    #[test]
    fn a_request_that_must_cross_nodes_is_refused_by_single_numa_node_only() {
        let crossing = [masks(&[(&[0, 1], true)])];
        check(BestEffort, &crossing, (Some(&[0, 1]), true));
        check(Restricted, &crossing, (Some(&[0, 1]), true));
        check(SingleNumaNode, &crossing, (None, false));
    }

    #[test]
    fn a_request_that_crosses_nodes_for_lack_of_free_devices_is_refused_by_restricted_too() {
        let misaligned = [masks(&[(&[0, 1], false)])];
        check(BestEffort, &misaligned, (Some(&[0, 1]), true));
        check(Restricted, &misaligned, (Some(&[0, 1]), false));
        check(SingleNumaNode, &misaligned, (None, false));
    }

    #[test]
    fn best_effort_admits_an_unsatisfiable_request_on_all_nodes() {
        for hints in [Hints::Unsatisfiable, Hints::Masks(Vec::new())] {
            check(BestEffort, std::slice::from_ref(&hints), (Some(&[0, 1]), true));
            check(Restricted, std::slice::from_ref(&hints), (Some(&[0, 1]), false));
            check(SingleNumaNode, &[hints], (None, false));
        }
    }

    #[test]
    fn resources_without_preference_follow_the_others() {
        let mixed = [Hints::NoPreference, masks(&[(&[1], true), (&[0, 1], false)])];
        for policy in [BestEffort, Restricted, SingleNumaNode] {
            check(policy, &mixed, (Some(&[1]), true));
        }
        check(SingleNumaNode, &[Hints::NoPreference], (None, true));
        check(Restricted, &[], (Some(&[0, 1]), true));
    }

    #[test]
    fn two_resources_get_the_node_that_both_prefer() {
        let common = [
            masks(&[(&[0], true), (&[1], true), (&[0, 1], false)]),
            masks(&[(&[1], true), (&[0, 1], false)]),
        ];
        check(Restricted, &common, (Some(&[1]), true));
        let disjoint = [masks(&[(&[0], true)]), masks(&[(&[1], true)])];
        check(Restricted, &disjoint, (Some(&[0, 1]), false));
    }
}
