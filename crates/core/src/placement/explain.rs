//! Why a choice is what it is: the best set, the best other one, and the term that decided between them.

use std::fmt;

use serde::Serialize;

use super::{
    Choice, Connections, PlacementError, Policy, Question, Request, Score, Term, Topology,
    search::Found,
};
use crate::device::DeviceId;

/// A question, its answer, and what came second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// What made one set better than another.
    pub policy: Policy,
    /// The devices that were chosen from, in the inventory's order.
    pub available: Vec<DeviceId>,
    /// Those that the answer had to hold.
    pub required: Vec<DeviceId>,
    /// Other devices of the container, which the choice is near.
    pub near: Vec<DeviceId>,
    /// The answer.
    pub choice: Choice,
    /// The best of all other sets; `None` where there is no other.
    pub alternative: Option<Alternative>,
}

/// A set that was not chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Alternative {
    /// Its devices, in the inventory's order.
    pub devices: Vec<DeviceId>,
    /// How its pairs are connected.
    pub connections: Connections,
    /// What it is worth.
    pub score: Score,
    /// The first term by which it is worse. By it, it is better where the search that chose was cut off:
    /// what is looked for afterwards may be found then.
    pub lost_by: Term,
    /// Whether no set but the chosen one is better.
    pub exact: bool,
}

/// One comparison in words: `connections of what remains: 4200, the alternative 3900`.
struct Verdict {
    term: Term,
    ours: i64,
    theirs: i64,
}

/// Chooses as [`super::choose`] does, and finds what came second.
///
/// Every other set lacks one of the chosen devices. So the best of them is the best of the answers to
/// the same question without one or the other of these: the search runs once for each.
pub fn explain(topology: &Topology, request: Request<'_>) -> Result<Explanation, PlacementError> {
    let question = Question::read(topology, request)?;
    let found = question.best(topology, |_| true).ok_or_else(|| question.no_node(topology))?;
    let optional = found.positions.iter().filter(|at| !question.required.contains(at));
    let others = optional.filter_map(|&without| question.best(topology, |at| at != without));
    let second = others.reduce(Found::or);
    let alternative = second.map(|second| Alternative {
        devices: topology.ids(&second.positions),
        connections: Connections::of(topology, &second.positions),
        lost_by: found.score.decided_by(&second.score),
        score: second.score,
        exact: second.exact,
    });
    Ok(Explanation {
        policy: question.policy,
        available: topology.ids(&question.available),
        required: topology.ids(&question.required),
        near: topology.ids(&question.near),
        choice: Choice::of(topology, &found),
        alternative,
    })
}

// === impl Explanation ===

impl Explanation {
    /// Why the alternative lost, in a line; `None` where there is no other set.
    pub fn verdict(&self) -> Option<String> {
        let alternative = self.alternative.as_ref()?;
        let term = alternative.lost_by;
        let of = |score: &Score| score.terms().find(|(other, _)| *other == term);
        let is_better = alternative.score > self.choice.score;
        let later = if is_better { "better, and found only by looking longer: " } else { "" };
        Some(match (of(&self.choice.score), of(&alternative.score)) {
            (Some((_, ours)), Some((_, theirs))) => {
                format!("{later}{}", Verdict { term, ours, theirs })
            }
            _ => "as good by every term; the lower positions are taken".to_owned(),
        })
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { term, ours, theirs } = self;
        let comparison = if theirs > ours { "more" } else { "less" };
        write!(f, "{comparison} in {}: {theirs} against {ours}", term.title())
    }
}
