//! Search for the best placement: branch and bound over the stages, starting from the result of a local search.
//!
//! The search is exact if it finishes within its budget of steps. Otherwise it returns an upper bound as well. To visit
//! equivalent placements only once, devices of a node that serve the same alternatives form one group, and of
//! equivalent empty nodes only the first one is tried.

mod local;
mod resources;
mod score;

use crate::{
    fleet::Fleet,
    pipeline::Pipeline,
    placement::{Placement, Replica},
    prediction::Model,
};
use resources::FreeResources;
pub use score::ObjectiveValue;
pub(crate) use score::Score;

/// The result of a search.
#[derive(Clone, Debug)]
pub(crate) struct SearchResult {
    pub(crate) placement: Placement,
    /// The second-best placement that the search evaluated.
    pub(crate) runner_up: Option<Placement>,
    /// Upper bound on the score of every placement.
    pub(crate) bound: Score,
    /// True if `placement` is proven to be the best one.
    pub(crate) is_exact: bool,
}

/// A stage, or a pod of all stages, that fits on no node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{subject} fits nowhere: {reason}")]
pub struct Unplaceable {
    subject: String,
    /// The cause, and for a stage usually a remedy.
    reason: String,
}

// === impl Unplaceable ===

impl Unplaceable {
    pub(crate) fn stage(name: &str, reason: impl Into<String>) -> Self {
        Self { subject: format!("stage {name:?}"), reason: reason.into() }
    }

    pub(crate) fn one_pod(reason: impl Into<String>) -> Self {
        Self { subject: "one pod".to_owned(), reason: reason.into() }
    }
}

/// Budget of a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SearchBudget {
    /// Steps, as [`Search::score`] counts them: scoring ten stages with one replica each costs about twenty.
    pub(crate) steps: u64,
}

/// Number of nodes whose ports are scored at the cost of one step.
const NODES_PER_STEP: usize = 8;

/// State of a search.
struct Search<'a> {
    model: Model<'a>,
    free: FreeResources,
    /// Chosen replicas by stage.
    replicas: Vec<Vec<Replica>>,
    best: Option<(Score, Vec<Vec<Replica>>)>,
    runner_up: Option<(Score, Vec<Vec<Replica>>)>,
    /// Best bound of the branches that were not explored because the steps ran out.
    unexplored: Option<Score>,
    /// Remaining steps.
    steps: u64,
}

/// The first stage that fits on no node even if all nodes are empty, with the reason.
pub(crate) fn unplaceable(pipeline: &Pipeline, fleet: &Fleet) -> Option<Unplaceable> {
    FreeResources::of(pipeline, fleet).err()
}

/// Searches for the best placement.
///
/// # Errors
///
/// A stage fits nowhere.
pub(crate) fn best(
    pipeline: &Pipeline,
    fleet: &Fleet,
    budget: SearchBudget,
) -> Result<SearchResult, Unplaceable> {
    let free = FreeResources::of(pipeline, fleet)?;
    let bounds = free.stage_bounds(pipeline, fleet.overhead.batch_gap);
    let model = Model { pipeline, fleet, bounds: &bounds };
    let stages = pipeline.stages.len();
    let mut search = Search {
        model,
        free,
        replicas: vec![Vec::new(); stages],
        best: None,
        runner_up: None,
        unexplored: None,
        steps: budget.steps,
    };
    search.hill_climb();
    search.replicas = vec![Vec::new(); stages];
    search.free.clear();
    search.steps = budget.steps;
    search.branch(0, 0);
    let Search { free, best, runner_up, unexplored, .. } = search;
    let (score, replicas) =
        best.ok_or_else(|| FreeResources::no_combination(pipeline, unexplored.is_some()))?;
    let bound = unexplored.filter(|unexplored| unexplored.is_above(&score)).unwrap_or(score);
    let with_devices = |(_, replicas): (Score, Vec<Vec<Replica>>)| free.with_devices(&replicas);
    Ok(SearchResult {
        placement: free.with_devices(&replicas),
        runner_up: runner_up.map(with_devices),
        is_exact: !bound.is_above(&score),
        bound,
    })
}

// === impl Search ===

impl Search<'_> {
    /// Explores all placements of this stage and the later ones that can beat the best so far. Adds replicas of the
    /// stage at its places from index `first_place` on, and recurses into the next stage.
    fn branch(&mut self, stage: usize, first_place: usize) {
        if !self.replicas[stage].is_empty() {
            let bound = self.score();
            if self.steps == 0 {
                self.record_unexplored(bound);
                return;
            }
            if self.can_beat_best(&bound) {
                if stage + 1 == self.replicas.len() {
                    self.record(bound);
                } else {
                    self.branch(stage + 1, 0);
                }
            }
        }
        let max = self.model.pipeline.stages[stage].max_replicas as usize;
        if self.replicas[stage].len() == max {
            return;
        }
        for position in first_place..self.free.places(stage).len() {
            let place = self.free.places(stage)[position];
            if !self.free.is_candidate(self.model.pipeline, stage, place) {
                continue;
            }
            if self.steps == 0 {
                let bound = self.bound_with_more(stage);
                self.record_unexplored(bound);
                return;
            }
            self.free.allocate(self.model.pipeline, stage, place);
            self.replicas[stage].push(place);
            self.branch(stage, position);
            self.replicas[stage].pop();
            self.free.release(self.model.pipeline, stage, place);
        }
    }

    /// Score of the chosen replicas; unplaced stages count with their bounds. Consumes steps.
    fn score(&mut self) -> Score {
        let replicas: usize = self.replicas.iter().map(Vec::len).sum();
        let nodes = self.model.fleet.nodes.len() / NODES_PER_STEP;
        self.steps = self.steps.saturating_sub((self.replicas.len() + replicas + nodes) as u64);
        Score::of(&self.model, &self.replicas)
    }

    /// Upper bound of the score if this stage gets further replicas: the stage counts as unplaced.
    fn bound_with_more(&mut self, stage: usize) -> Score {
        let replicas = std::mem::take(&mut self.replicas[stage]);
        let bound = self.score();
        self.replicas[stage] = replicas;
        bound
    }

    fn can_beat_best(&self, bound: &Score) -> bool {
        self.best.as_ref().is_none_or(|(best, _)| bound.can_beat(best))
    }

    fn record_unexplored(&mut self, bound: Score) {
        if self.unexplored.as_ref().is_none_or(|unexplored| bound.is_above(unexplored)) {
            self.unexplored = Some(bound);
        }
    }

    /// Stores the complete placement if it is the best or the second-best one.
    fn record(&mut self, score: Score) {
        let Some((best, _)) = &self.best else {
            self.best = Some((score, self.replicas.clone()));
            return;
        };
        if score.beats(best) {
            self.runner_up = self.best.replace((score, self.replicas.clone()));
        } else if best.beats(&score) {
            // Equal scores are skipped: such a placement differs only by equivalent nodes.
            if self.runner_up.as_ref().is_none_or(|(runner_up, _)| score.beats(runner_up)) {
                self.runner_up = Some((score, self.replicas.clone()));
            }
        }
    }
}
