//! Score of a placement for the goal of its pipeline.

use crate::{
    pipeline::Goal,
    placement::Replica,
    prediction::{DEFAULT_LOAD, Model, traffic},
};

/// Value of a placement for the pipeline's goal; a larger value is better.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct ObjectiveValue {
    /// False if the pipeline cannot sustain its rate, or exceeds the latency limit at every rate.
    pub meets_goal: bool,
    /// Items per second, or the negative latency in seconds. It is the objective of the goal, or the quantity that
    /// misses the goal.
    pub amount: f64,
}

/// Objective value of a placement; ties go to fewer replicas, then to less latency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Score {
    pub(crate) objective: ObjectiveValue,
    replicas: usize,
    latency: f64,
}

/// Relative differences below this value are rounding errors.
const TOLERANCE: f64 = 1e-9;
/// Bisection steps in the search for the largest rate within a latency limit.
const BISECTIONS: u32 = 30;

// === impl Score ===

impl Score {
    pub(crate) fn of(model: &Model<'_>, replicas: &[Vec<Replica>]) -> Self {
        let traffic = traffic::Traffic::of(model, replicas);
        let (throughput, _) = model.throughput(replicas, &traffic);
        let latency =
            |rate| model.latency(replicas, rate).map_or(f64::INFINITY, |latency| latency.total);
        let count = replicas.iter().map(Vec::len).sum();
        let score = |meets_goal, amount, latency| {
            let objective = ObjectiveValue { meets_goal, amount };
            Self { objective, replicas: count, latency }
        };
        let rate = model.pipeline.rate.unwrap_or(DEFAULT_LOAD * throughput);
        match model.pipeline.goal {
            Goal::Throughput => score(true, throughput, latency(rate)),
            Goal::Latency if throughput > rate => {
                let latency = latency(rate);
                score(true, -latency, latency)
            }
            Goal::Latency => score(false, throughput, f64::INFINITY),
            Goal::ThroughputUnder(limit) => {
                let minimum_latency = latency(0.0);
                if minimum_latency > limit.0 {
                    return score(false, -minimum_latency, minimum_latency);
                }
                let (mut lower_rate, mut upper_rate) = (0.0, throughput);
                for _ in 0..BISECTIONS {
                    let middle_rate = f64::midpoint(lower_rate, upper_rate);
                    if latency(middle_rate) <= limit.0 {
                        lower_rate = middle_rate;
                    } else {
                        upper_rate = middle_rate;
                    }
                }
                score(true, lower_rate, latency(lower_rate))
            }
        }
    }

    /// True if the objective value is higher, without tie-breaking.
    pub(super) fn is_above(&self, other: &Self) -> bool {
        self.objective.is_above(other.objective)
    }

    /// True if a branch with this bound can beat `other`: its objective value is higher, or equal without more
    /// replicas.
    pub(super) fn can_beat(&self, other: &Self) -> bool {
        !other.is_above(self) && (self.is_above(other) || self.replicas <= other.replicas)
    }

    /// True if the score is higher, with tie-breaking.
    pub(super) fn beats(&self, other: &Self) -> bool {
        if self.is_above(other) || other.is_above(self) {
            return self.is_above(other);
        }
        (self.replicas, self.latency) < (other.replicas, other.latency)
    }
}

// === impl ObjectiveValue ===

impl ObjectiveValue {
    /// True if this value is higher by more than rounding errors. Meeting the goal outweighs the amount.
    pub fn is_above(self, other: Self) -> bool {
        let tolerance = TOLERANCE * self.amount.abs().max(other.amount.abs());
        (self.meets_goal, self.amount - tolerance > other.amount) > (other.meets_goal, false)
    }
}
