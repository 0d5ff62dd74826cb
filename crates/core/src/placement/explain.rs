//! Explanation of a choice: the best set, the runner-up, and the term that decided.

use std::fmt;

use serde::Serialize;

use super::{
    Choice, Connections, PlacementError, Policy, Request, ResolvedRequest, Score, Term, Topology,
    search::SearchResult,
};
use crate::device::DeviceId;

/// A request, its answer and the runner-up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// Objective.
    pub policy: Policy,
    /// Candidates, in the inventory's order.
    pub available: Vec<DeviceId>,
    /// Devices that the answer had to contain.
    pub required: Vec<DeviceId>,
    /// Other devices of the container.
    pub near: Vec<DeviceId>,
    /// The answer.
    pub choice: Choice,
    /// The best of all other sets; `None` without one.
    pub alternative: Option<Alternative>,
}

/// The best set other than the choice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Alternative {
    /// Its devices, in the inventory's order.
    pub devices: Vec<DeviceId>,
    /// Connections among its devices.
    pub connections: Connections,
    /// Score of the set.
    pub score: Score,
    /// The first term that differs. The alternative may be better in it if the first search stopped at its work
    /// limit.
    pub lost_by: Term,
    /// True if no set except the choice is better.
    pub exact: bool,
}

/// Comparison of the runner-up with the choice in one term, as text: `less in connections of what remains: 3900 against
/// 4200`.
struct TermComparison {
    term: Term,
    chosen: i64,
    other: i64,
}

/// Chooses as [`super::choose`] does, and finds the runner-up.
///
/// Every other set lacks one of the chosen devices. So the search runs again without each of them in turn; the
/// best result is the runner-up.
pub fn explain(topology: &Topology, request: Request<'_>) -> Result<Explanation, PlacementError> {
    let resolved = ResolvedRequest::resolve(topology, request)?;
    let best = resolved.best(topology, |_| true).ok_or_else(|| resolved.numa_error(topology))?;
    let optional = best.positions.iter().filter(|position| !resolved.required.contains(position));
    let without_one =
        optional.filter_map(|&excluded| resolved.best(topology, |position| position != excluded));
    let runner_up = without_one.reduce(SearchResult::better);
    let alternative = runner_up.map(|runner_up| Alternative {
        devices: topology.ids(&runner_up.positions),
        connections: Connections::of_positions(topology, &runner_up.positions),
        lost_by: best.score.first_difference(&runner_up.score),
        score: runner_up.score,
        exact: runner_up.exact,
    });
    Ok(Explanation {
        policy: resolved.policy,
        available: topology.ids(&resolved.available),
        required: topology.ids(&resolved.required),
        near: topology.ids(&resolved.near),
        choice: Choice::of(topology, &best),
        alternative,
    })
}

// === impl Explanation ===

impl Explanation {
    /// The deciding difference in one line; `None` without an alternative.
    pub fn deciding_difference(&self) -> Option<String> {
        let alternative = self.alternative.as_ref()?;
        let term = alternative.lost_by;
        let value_of = |score: &Score| score.terms().find(|(other, _)| *other == term);
        let is_better = alternative.score > self.choice.score;
        let prefix = if is_better { "better, found only by a longer search: " } else { "" };
        Some(match (value_of(&self.choice.score), value_of(&alternative.score)) {
            (Some((_, chosen)), Some((_, other))) => {
                format!("{prefix}{}", TermComparison { term, chosen, other })
            }
            _ => "equal on every term; ties go to the lower index".to_owned(),
        })
    }
}

impl fmt::Display for TermComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { term, chosen, other } = self;
        let comparison = if other > chosen { "more" } else { "less" };
        write!(f, "{comparison} in {}: {other} against {chosen}", term.title())
    }
}
