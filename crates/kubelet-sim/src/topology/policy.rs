//! Merge of the hints of all resources, and admission by the result.
//!
//! Facts from `pkg/kubelet/cm/topologymanager` of Kubernetes 1.36 (`policy.go`).

use super::{Hint, Hints, NumaMask};

/// The kubelet's `topologyManagerPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopologyPolicy {
    /// The policy collects no hints.
    #[default]
    None,
    /// The best hint is used, preferred or not.
    BestEffort,
    /// Only a preferred hint admits the container.
    Restricted,
    /// Only a preferred hint of one node admits the container.
    SingleNumaNode,
}

/// The kubelet's `topologyManagerScope`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopologyScope {
    /// A hint for each container.
    #[default]
    Container,
    /// One hint for all containers of a pod.
    Pod,
}

/// Result of a policy for the hints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// NUMA nodes of the devices.
    pub(crate) affinity: Option<NumaMask>,
    /// True if the container is admitted.
    pub(crate) admitted: bool,
}

/// Merges the hints of all resources on a machine with the nodes of `machine`.
pub(crate) fn merge(policy: TopologyPolicy, machine: NumaMask, wishes: &[Hints]) -> Verdict {
    let options: Vec<Vec<Hint>> = if wishes.is_empty() {
        vec![vec![Hint { affinity: None, preferred: true }]]
    } else {
        wishes.iter().map(options).collect()
    };
    match policy {
        TopologyPolicy::None => Verdict { affinity: None, admitted: true },
        TopologyPolicy::BestEffort => {
            Verdict { affinity: best(machine, &options).affinity, admitted: true }
        }
        TopologyPolicy::Restricted => {
            let hint = best(machine, &options);
            Verdict { affinity: hint.affinity, admitted: hint.preferred }
        }
        TopologyPolicy::SingleNumaNode => {
            let single: Vec<_> = options.into_iter().map(single_node).collect();
            let hint = best(machine, &single);
            let affinity = hint.affinity.filter(|mask| *mask != machine);
            Verdict { affinity, admitted: hint.preferred }
        }
    }
}

fn options(wish: &Hints) -> Vec<Hint> {
    match wish {
        Hints::NoPreference => vec![Hint { affinity: None, preferred: true }],
        Hints::Masks(hints) if !hints.is_empty() => hints.clone(),
        Hints::Masks(_) | Hints::Unsatisfiable => vec![Hint { affinity: None, preferred: false }],
    }
}

fn single_node(hints: Vec<Hint>) -> Vec<Hint> {
    hints
        .into_iter()
        .filter(|hint| hint.preferred && hint.affinity.is_none_or(|mask| mask.count() == 1))
        .collect()
}

/// The best merge of one hint of each resource; without any, all nodes, not preferred.
fn best(machine: NumaMask, options: &[Vec<Hint>]) -> Hint {
    let widest_need = widest_need(options);
    permutations(options)
        .iter()
        .map(|hints| merge_one(machine, hints))
        .filter(|hint| mask(*hint).count() > 0)
        .reduce(|current, candidate| better(current, candidate, widest_need))
        .unwrap_or(Hint { affinity: Some(machine), preferred: false })
}

/// The largest number of nodes that a resource needs at best.
fn widest_need(options: &[Vec<Hint>]) -> u32 {
    options
        .iter()
        .filter_map(|hints| {
            hints.iter().filter_map(|hint| hint.affinity).map(NumaMask::count).min()
        })
        .max()
        .unwrap_or(0)
}

fn permutations(options: &[Vec<Hint>]) -> Vec<Vec<Hint>> {
    options.iter().fold(vec![Vec::new()], |prefixes, hints| {
        let extend = |prefix: &Vec<Hint>| {
            let prefix = prefix.clone();
            hints.iter().map(move |hint| [&prefix[..], &[*hint]].concat())
        };
        prefixes.iter().flat_map(extend).collect()
    })
}

/// The nodes in all masks. The hint is preferred if all hints are and their masks are equal.
fn merge_one(machine: NumaMask, hints: &[Hint]) -> Hint {
    let masks: Vec<NumaMask> = hints.iter().filter_map(|hint| hint.affinity).collect();
    let equal = masks.windows(2).all(|pair| pair[0] == pair[1]);
    let merged = masks.iter().fold(machine, |all, mask| all.and(*mask));
    let preferred = equal && hints.iter().all(|hint| hint.preferred);
    Hint { affinity: Some(merged), preferred }
}

/// The better hint: preferred ones first, then narrow ones. Among hints that are not preferred, the
/// best is as wide as the neediest resource. Then comes the widest one below, then the narrowest
/// one above.
fn better(current: Hint, candidate: Hint, widest_need: u32) -> Hint {
    use std::cmp::Ordering::{Equal, Greater, Less};

    if current.preferred != candidate.preferred {
        return if current.preferred { current } else { candidate };
    }
    if current.preferred {
        return narrower(current, candidate);
    }
    let (have, offered) = (mask(current).count(), mask(candidate).count());
    match (have.cmp(&widest_need), offered.cmp(&widest_need)) {
        (Greater, _) | (Equal, Equal) => narrower(current, candidate),
        (Equal, _) | (Less, Greater) => current,
        (Less, Equal) => candidate,
        (Less, Less) => match offered.cmp(&have) {
            Greater => candidate,
            Less => current,
            Equal => narrower(current, candidate),
        },
    }
}

fn narrower(current: Hint, candidate: Hint) -> Hint {
    let (have, offered) = (mask(current), mask(candidate));
    if have.narrowest(offered) == have { current } else { candidate }
}

fn mask(merged: Hint) -> NumaMask {
    merged.affinity.unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use TopologyPolicy::{BestEffort, None as NoPolicy, Restricted, SingleNumaNode};

    use super::*;

    fn nodes(nodes: &[i64]) -> NumaMask {
        NumaMask::of(nodes.iter().copied())
    }

    fn wish(hints: &[(&[i64], bool)]) -> Hints {
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

    fn check(policy: TopologyPolicy, wishes: &[Hints], expected: (Option<&[i64]>, bool)) {
        let verdict = merge(policy, nodes(&[0, 1]), wishes);
        let (affinity, admitted) = expected;
        let expected = Verdict { affinity: affinity.map(nodes), admitted };
        assert_eq!(verdict, expected, "{policy:?} {wishes:?}");
    }

    #[test]
    fn an_aligned_request_is_admitted_by_every_policy_on_the_lowest_node() {
        let aligned = [wish(&[(&[0], true), (&[1], true), (&[0, 1], false)])];
        check(NoPolicy, &aligned, (None, true));
        for policy in [BestEffort, Restricted, SingleNumaNode] {
            check(policy, &aligned, (Some(&[0]), true));
        }
    }

    #[test]
    fn a_request_that_must_cross_nodes_is_refused_by_single_numa_node_only() {
        let crossing = [wish(&[(&[0, 1], true)])];
        check(BestEffort, &crossing, (Some(&[0, 1]), true));
        check(Restricted, &crossing, (Some(&[0, 1]), true));
        check(SingleNumaNode, &crossing, (None, false));
    }

    #[test]
    fn a_request_that_crosses_nodes_only_now_is_refused_by_restricted_too() {
        let misaligned = [wish(&[(&[0, 1], false)])];
        check(BestEffort, &misaligned, (Some(&[0, 1]), true));
        check(Restricted, &misaligned, (Some(&[0, 1]), false));
        check(SingleNumaNode, &misaligned, (None, false));
    }

    #[test]
    fn an_unsatisfiable_request_is_best_effort_on_all_nodes() {
        for wish in [Hints::Unsatisfiable, Hints::Masks(Vec::new())] {
            check(BestEffort, std::slice::from_ref(&wish), (Some(&[0, 1]), true));
            check(Restricted, std::slice::from_ref(&wish), (Some(&[0, 1]), false));
            check(SingleNumaNode, &[wish], (None, false));
        }
    }

    #[test]
    fn resources_without_preference_follow_the_others() {
        let mixed = [Hints::NoPreference, wish(&[(&[1], true), (&[0, 1], false)])];
        for policy in [BestEffort, Restricted, SingleNumaNode] {
            check(policy, &mixed, (Some(&[1]), true));
        }
        check(SingleNumaNode, &[Hints::NoPreference], (None, true));
        check(Restricted, &[], (Some(&[0, 1]), true));
    }

    #[test]
    fn two_resources_meet_on_the_node_that_both_prefer() {
        let meeting = [
            wish(&[(&[0], true), (&[1], true), (&[0, 1], false)]),
            wish(&[(&[1], true), (&[0, 1], false)]),
        ];
        check(Restricted, &meeting, (Some(&[1]), true));
        let apart = [wish(&[(&[0], true)]), wish(&[(&[1], true)])];
        check(Restricted, &apart, (Some(&[0, 1]), false));
    }
}
