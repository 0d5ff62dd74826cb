//! The best placement: branch and bound over the stages, from a good placement found by local search.
//!
//! The search is exact where it ends within its steps; else its bound says how much better a placement could be. Devices
//! of a node that serve the same stages are one group, and untouched nodes that are alike count as one node, so equal
//! placements are looked at once.

mod local;
mod room;
mod score;

use crate::{
    fleet::Fleet,
    pipeline::Pipeline,
    placement::{Placement, Replica},
    prediction::Model,
};
use room::Room;
pub(crate) use score::Score;
pub use score::Worth;

/// The result of a search.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) placement: Placement,
    /// The best of the other placements that were looked at.
    pub(crate) runner_up: Option<Placement>,
    /// No placement is better than this.
    pub(crate) bound: Score,
    /// True if no placement is better than the one that was found.
    pub(crate) is_exact: bool,
}

/// A stage, or a pod of all stages, that no free device or node can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{subject} fits nowhere: {reason}")]
pub struct Unplaceable {
    subject: String,
    /// The first reason, and what would help.
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

/// Placements that a search looks at. A small pipeline needs some hundred, and as many as this take half a second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effort {
    /// Work in stages and replicas that are looked at: a placement of ten stages with a replica each is twenty.
    pub(crate) steps: u64,
}

/// A port of a node is looked at in a part of the time of a stage.
const NODES_PER_STEP: usize = 8;

/// State of a search.
struct Search<'a> {
    model: Model<'a>,
    room: Room,
    chosen: Vec<Vec<Replica>>,
    best: Option<(Score, Vec<Vec<Replica>>)>,
    runner_up: Option<(Score, Vec<Vec<Replica>>)>,
    /// The best bound among the branches that were left for want of steps.
    left: Option<Score>,
    steps: u64,
}

/// The reason of the first stage that has no place even by itself.
pub(crate) fn unplaceable(pipeline: &Pipeline, fleet: &Fleet) -> Option<Unplaceable> {
    Room::of(pipeline, fleet).err()
}

/// Finds the best placement.
///
/// # Errors
///
/// A stage fits nowhere.
pub(crate) fn best(
    pipeline: &Pipeline,
    fleet: &Fleet,
    effort: Effort,
) -> Result<Found, Unplaceable> {
    let room = Room::of(pipeline, fleet)?;
    let optimum = room.best_of_stages(pipeline, fleet.overhead.step);
    let model = Model { pipeline, fleet, best: &optimum };
    let stages = pipeline.stages.len();
    let mut search = Search {
        model,
        room,
        chosen: vec![Vec::new(); stages],
        best: None,
        runner_up: None,
        left: None,
        steps: effort.steps,
    };
    search.climb();
    search.chosen = vec![Vec::new(); stages];
    search.room.clear();
    search.steps = effort.steps;
    search.branch(0, 0);
    let Search { room, best, runner_up, left, .. } = search;
    let (score, chosen) = best.ok_or_else(|| Room::no_room(pipeline, left.is_some()))?;
    let bound = left.filter(|left| left.is_above(&score)).unwrap_or(score);
    let finished = |(_, chosen): (Score, Vec<Vec<Replica>>)| room.with_devices(&chosen);
    Ok(Found {
        placement: room.with_devices(&chosen),
        runner_up: runner_up.map(finished),
        is_exact: !bound.is_above(&score),
        bound,
    })
}

// === impl Search ===

impl Search<'_> {
    /// Places this stage and those after it in every way that may be better than the best so far: adds replicas, from
    /// this position among the stage's places on, and goes on to the next stage.
    fn branch(&mut self, stage: usize, from: usize) {
        if !self.chosen[stage].is_empty() {
            let reach = self.score();
            if self.steps == 0 {
                self.leave(reach);
                return;
            }
            if self.may_win(&reach) {
                if stage + 1 == self.chosen.len() {
                    self.note(reach);
                } else {
                    self.branch(stage + 1, 0);
                }
            }
        }
        let most = self.model.pipeline.stages[stage].max_replicas as usize;
        if self.chosen[stage].len() == most {
            return;
        }
        for position in from..self.room.places(stage).len() {
            let place = self.room.places(stage)[position];
            if !self.room.is_worth_trying(self.model.pipeline, stage, place) {
                continue;
            }
            if self.steps == 0 {
                let reach = self.reach_with_more(stage);
                self.leave(reach);
                return;
            }
            self.room.take(self.model.pipeline, stage, place);
            self.chosen[stage].push(place);
            self.branch(stage, position);
            self.chosen[stage].pop();
            self.room.give_back(self.model.pipeline, stage, place);
        }
    }

    /// The score of what is chosen, with the best for what is not.
    fn score(&mut self) -> Score {
        let replicas: usize = self.chosen.iter().map(Vec::len).sum();
        let nodes = self.model.fleet.nodes.len() / NODES_PER_STEP;
        self.steps = self.steps.saturating_sub((self.chosen.len() + replicas + nodes) as u64);
        Score::of(&self.model, &self.chosen)
    }

    /// The score that this and all later stages could reach with further replicas.
    fn reach_with_more(&mut self, stage: usize) -> Score {
        let chosen = std::mem::take(&mut self.chosen[stage]);
        let reach = self.score();
        self.chosen[stage] = chosen;
        reach
    }

    fn may_win(&self, reach: &Score) -> bool {
        self.best.as_ref().is_none_or(|(best, _)| reach.may_beat(best))
    }

    fn leave(&mut self, reach: Score) {
        if self.left.as_ref().is_none_or(|left| reach.is_above(left)) {
            self.left = Some(reach);
        }
    }

    /// Keeps a complete placement if it is the best or the second one.
    fn note(&mut self, score: Score) {
        let Some((best, _)) = &self.best else {
            self.best = Some((score, self.chosen.clone()));
            return;
        };
        if score.beats(best) {
            self.runner_up = self.best.replace((score, self.chosen.clone()));
        } else if best.beats(&score) {
            // Others as good are the same with other nodes of the same kind.
            if self.runner_up.as_ref().is_none_or(|(second, _)| score.beats(second)) {
                self.runner_up = Some((score, self.chosen.clone()));
            }
        }
    }
}
