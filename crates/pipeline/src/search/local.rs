//! A good placement to begin with: each stage at its best place, then one change after another that makes it better.

use super::{Score, Search};
use crate::{
    pipeline::Goal,
    placement::Replica,
    prediction::{Bottleneck, traffic::Traffic},
};

/// A change of one stage.
#[derive(Clone, Copy, Debug)]
enum Change {
    Add(Replica),
    Remove(usize),
    Move(usize, Replica),
}

/// Places of a stage that are tried however large the pipeline is.
const LEAST_TRIED: usize = 8;

// === impl Search ===

impl Search<'_> {
    /// Finds a placement that no single change makes better, and keeps it.
    pub(super) fn climb(&mut self) {
        for stage in 0..self.chosen.len() {
            if !self.place_one(stage) {
                // The exact search finds a way where the stages before can make room.
                return;
            }
        }
        let mut score = self.score();
        self.note(score);
        while self.steps > 0
            && let Some(better) = self.change_one(&score)
        {
            score = better;
            self.note(score);
        }
    }

    /// Gives a stage its first replica, where that is best. False if there is no place.
    fn place_one(&mut self, stage: usize) -> bool {
        let mut best = None;
        for place in self.promising(stage) {
            self.chosen[stage].push(place);
            let score = self.score();
            self.chosen[stage].pop();
            if best.as_ref().is_none_or(|(other, _)| score.beats(other)) {
                best = Some((score, place));
            }
        }
        let Some((_, place)) = best else { return false };
        self.apply(stage, Change::Add(place));
        true
    }

    /// Free places of a stage, as many as the steps allow to try for each: those beside the stages before it, and the fast
    /// ones, come first.
    fn promising(&self, stage: usize) -> Vec<Replica> {
        let (pipeline, stages) = (self.model.pipeline, self.chosen.len() as u64);
        let places = self.room.places(stage).iter().copied();
        let mut free: Vec<_> =
            places.filter(|place| self.room.is_worth_trying(pipeline, stage, *place)).collect();
        let before: Vec<_> = pipeline.links_to(stage).map(|link| &self.chosen[link.from]).collect();
        let is_beside =
            |place: &Replica| before.iter().any(|of| of.iter().any(|one| one.node == place.node));
        let (batch, step) = (pipeline.stages[stage].batch, self.model.fleet.overhead.step);
        let rate = |place: &Replica| place.alternative(pipeline, stage).rate(batch, step);
        free.sort_by(|a, b| is_beside(b).cmp(&is_beside(a)).then(rate(b).total_cmp(&rate(a))));
        let most = self.steps / (stages * stages);
        free.truncate(usize::try_from(most).unwrap_or(usize::MAX).max(LEAST_TRIED));
        free
    }

    /// Makes the first change that helps, and returns its score. `None` if none does.
    fn change_one(&mut self, before: &Score) -> Option<Score> {
        for stage in self.critical() {
            for change in self.changes(stage) {
                if self.steps == 0 {
                    return None;
                }
                let Some(back) = self.apply(stage, change) else { continue };
                let score = self.score();
                if score.beats(before) {
                    return Some(score);
                }
                self.apply(stage, back).expect("it was there before");
            }
        }
        None
    }

    /// The stages whose change can help: for a throughput those at the bottleneck.
    fn critical(&self) -> Vec<usize> {
        let all = 0..self.chosen.len();
        if self.model.pipeline.goal != Goal::Throughput {
            return all.collect();
        }
        let traffic = Traffic::of(&self.model, &self.chosen);
        let (_, bottleneck) = self.model.throughput(&self.chosen, &traffic);
        let is_on = |stage: &usize, node: usize| {
            self.chosen[*stage].iter().any(|replica| replica.node == node)
        };
        match bottleneck {
            Bottleneck::Stage(stage) => vec![stage],
            Bottleneck::Sending(node) | Bottleneck::Receiving(node) => {
                let links = self.model.pipeline.links.iter();
                let touching =
                    links.filter(|link| is_on(&link.from, node) || is_on(&link.to, node));
                let mut stages: Vec<_> = touching.flat_map(|link| [link.from, link.to]).collect();
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
        let count = self.chosen[stage].len();
        let places = self.room.places(stage).iter();
        let places =
            places.filter(|place| self.room.is_worth_trying(self.model.pipeline, stage, **place));
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

    /// Makes a change, and returns the one that undoes it; `None` where there is no room for it.
    fn apply(&mut self, stage: usize, change: Change) -> Option<Change> {
        let pipeline = self.model.pipeline;
        match change {
            Change::Add(place) => {
                self.room.is_free(pipeline, stage, place).then_some(())?;
                self.room.take(pipeline, stage, place);
                self.chosen[stage].push(place);
                Some(Change::Remove(self.chosen[stage].len() - 1))
            }
            Change::Remove(position) => {
                let place = self.chosen[stage].remove(position);
                self.room.give_back(pipeline, stage, place);
                Some(Change::Add(place))
            }
            Change::Move(position, place) => {
                let before = self.chosen[stage][position];
                self.room.give_back(pipeline, stage, before);
                if before == place || !self.room.is_free(pipeline, stage, place) {
                    self.room.take(pipeline, stage, before);
                    return None;
                }
                self.room.take(pipeline, stage, place);
                self.chosen[stage][position] = place;
                Some(Change::Move(position, before))
            }
        }
    }
}
