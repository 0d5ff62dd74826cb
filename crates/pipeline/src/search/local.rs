//! Local search (hill climbing): places each stage at its best place, then applies single changes that raise the score.

use super::{Score, Search};
use crate::{
    pipeline::Goal,
    placement::Replica,
    prediction::{Bottleneck, traffic::Traffic},
};

/// A change of one stage. The `usize` is the index of a replica.
#[derive(Clone, Copy, Debug)]
enum Change {
    Add(Replica),
    Remove(usize),
    Move(usize, Replica),
}

/// Minimum number of places that are tried per stage.
const MIN_CANDIDATES: usize = 8;

// === impl Search ===

impl Search<'_> {
    /// Finds and records a placement that no single change improves, or the last one before the steps run out.
    pub(super) fn hill_climb(&mut self) {
        for stage in 0..self.replicas.len() {
            if !self.place_one(stage) {
                // Earlier stages occupy the space. The exact search tries other places for them.
                return;
            }
        }
        let mut score = self.score();
        self.record(score);
        while self.steps > 0
            && let Some(higher_score) = self.improve(&score)
        {
            score = higher_score;
            self.record(score);
        }
    }

    /// Places the first replica of a stage at its best place. Returns false if no place is free.
    fn place_one(&mut self, stage: usize) -> bool {
        let mut best = None;
        for place in self.candidates(stage) {
            self.replicas[stage].push(place);
            let score = self.score();
            self.replicas[stage].pop();
            if best.as_ref().is_none_or(|(best_score, _)| score.beats(best_score)) {
                best = Some((score, place));
            }
        }
        let Some((_, place)) = best else { return false };
        self.apply(stage, Change::Add(place));
        true
    }

    /// Free places of a stage: first those on a node of a preceding stage, then the others; the fastest first in both.
    /// The remaining steps limit their number, with a minimum of [`MIN_CANDIDATES`].
    fn candidates(&self, stage: usize) -> Vec<Replica> {
        let (pipeline, stages) = (self.model.pipeline, self.replicas.len() as u64);
        let places = self.free.places(stage).iter().copied();
        let mut free_places: Vec<_> =
            places.filter(|place| self.free.is_candidate(pipeline, stage, *place)).collect();
        let sender_replicas: Vec<_> =
            pipeline.links_to(stage).map(|link| &self.replicas[link.from]).collect();
        let is_adjacent = |place: &Replica| {
            sender_replicas
                .iter()
                .any(|replicas| replicas.iter().any(|replica| replica.node == place.node))
        };
        let (batch, batch_gap) =
            (pipeline.stages[stage].batch, self.model.fleet.overhead.batch_gap);
        let rate = |place: &Replica| place.alternative(pipeline, stage).rate(batch, batch_gap);
        free_places
            .sort_by(|a, b| is_adjacent(b).cmp(&is_adjacent(a)).then(rate(b).total_cmp(&rate(a))));
        let limit = self.steps / (stages * stages);
        free_places.truncate(usize::try_from(limit).unwrap_or(usize::MAX).max(MIN_CANDIDATES));
        free_places
    }

    /// Applies the first change that raises the score, and returns the new score. `None` if none does, or out of steps.
    fn improve(&mut self, current_score: &Score) -> Option<Score> {
        for stage in self.relevant_stages() {
            for change in self.changes(stage) {
                if self.steps == 0 {
                    return None;
                }
                let Some(undo) = self.apply(stage, change) else { continue };
                let score = self.score();
                if score.beats(current_score) {
                    return Some(score);
                }
                self.apply(stage, undo).expect("the previous state was valid");
            }
        }
        None
    }

    /// Stages whose change can raise the score: for the goal throughput, only those at the bottleneck.
    fn relevant_stages(&self) -> Vec<usize> {
        let all_stages = 0..self.replicas.len();
        if self.model.pipeline.goal != Goal::Throughput {
            return all_stages.collect();
        }
        let traffic = Traffic::of(&self.model, &self.replicas);
        let (_, bottleneck) = self.model.throughput(&self.replicas, &traffic);
        let is_on = |stage: &usize, node: usize| {
            self.replicas[*stage].iter().any(|replica| replica.node == node)
        };
        match bottleneck {
            Bottleneck::Stage(stage) => vec![stage],
            Bottleneck::Egress(node) | Bottleneck::Ingress(node) => {
                let links = self.model.pipeline.links.iter();
                let affected_links =
                    links.filter(|link| is_on(&link.from, node) || is_on(&link.to, node));
                let mut stages: Vec<_> =
                    affected_links.flat_map(|link| [link.from, link.to]).collect();
                stages.sort_unstable();
                stages.dedup();
                stages
            }
            Bottleneck::Window(link) => {
                let link = &self.model.pipeline.links[link];
                vec![link.from, link.to]
            }
        }
    }

    fn changes(&self, stage: usize) -> Vec<Change> {
        let count = self.replicas[stage].len();
        let places = self.free.places(stage).iter();
        let places =
            places.filter(|place| self.free.is_candidate(self.model.pipeline, stage, **place));
        let places: Vec<_> = places.collect();
        let mut changes = Vec::new();
        for replica in 0..count {
            changes.extend(places.iter().map(|place| Change::Move(replica, **place)));
        }
        if count < self.model.pipeline.stages[stage].max_replicas as usize {
            changes.extend(places.iter().map(|place| Change::Add(**place)));
        }
        if count > 1 {
            changes.extend((0..count).map(Change::Remove));
        }
        changes
    }

    /// Applies a change, and returns the change that undoes it; `None` if the new place is not free.
    fn apply(&mut self, stage: usize, change: Change) -> Option<Change> {
        let pipeline = self.model.pipeline;
        match change {
            Change::Add(place) => {
                self.free.is_free(pipeline, stage, place).then_some(())?;
                self.free.allocate(pipeline, stage, place);
                self.replicas[stage].push(place);
                Some(Change::Remove(self.replicas[stage].len() - 1))
            }
            Change::Remove(position) => {
                let place = self.replicas[stage].remove(position);
                self.free.release(pipeline, stage, place);
                Some(Change::Add(place))
            }
            Change::Move(position, place) => {
                let old_place = self.replicas[stage][position];
                self.free.release(pipeline, stage, old_place);
                if old_place == place || !self.free.is_free(pipeline, stage, place) {
                    self.free.allocate(pipeline, stage, old_place);
                    return None;
                }
                self.free.allocate(pipeline, stage, place);
                self.replicas[stage][position] = place;
                Some(Change::Move(position, old_place))
            }
        }
    }
}
