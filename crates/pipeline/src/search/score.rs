//! The worth of a placement for the goal of its pipeline.

use crate::{
    pipeline::Goal,
    placement::Replica,
    prediction::{Model, USUAL_LOAD, traffic},
};

/// The worth of a placement for its goal; more is better.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Worth {
    /// False if the rate does not pass, or the latency is too long at any rate.
    pub meets_goal: bool,
    /// Items per second, or the latency in seconds below zero: what the goal counts, or what keeps it from being met.
    pub amount: f64,
}

/// A placement's worth; ties go to fewer replicas, then to less latency.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Score {
    pub(crate) worth: Worth,
    replicas: usize,
    latency: f64,
}

/// Differences below this share are noise of the arithmetic.
const TOLERANCE: f64 = 1e-9;
/// Halvings of an interval of rates.
const HALVINGS: u32 = 30;

// === impl Score ===

impl Score {
    pub(crate) fn of(model: &Model<'_>, replicas: &[Vec<Replica>]) -> Self {
        let traffic = traffic::Traffic::of(model, replicas);
        let (throughput, _) = model.throughput(replicas, &traffic);
        let latency =
            |rate| model.latency(replicas, rate).map_or(f64::INFINITY, |latency| latency.total);
        let count = replicas.iter().map(Vec::len).sum();
        let scored = |meets_goal, amount, latency| {
            let worth = Worth { meets_goal, amount };
            Self { worth, replicas: count, latency }
        };
        let usual = model.pipeline.rate.unwrap_or(USUAL_LOAD * throughput);
        match model.pipeline.goal {
            Goal::Throughput => scored(true, throughput, latency(usual)),
            Goal::Latency if throughput > usual => {
                let latency = latency(usual);
                scored(true, -latency, latency)
            }
            Goal::Latency => scored(false, throughput, f64::INFINITY),
            Goal::ThroughputUnder(limit) => {
                let least = latency(0.0);
                if least > limit.0 {
                    return scored(false, -least, least);
                }
                let (mut low, mut high) = (0.0, throughput);
                for _ in 0..HALVINGS {
                    let middle = f64::midpoint(low, high);
                    if latency(middle) <= limit.0 { low = middle } else { high = middle }
                }
                scored(true, low, latency(low))
            }
        }
    }

    /// True if the worth for the goal is more, ties aside.
    pub(super) fn is_above(&self, other: &Self) -> bool {
        self.worth.is_above(other.worth)
    }

    /// True if the worth for the goal is no less: a branch that reaches this may have the better of two equals.
    pub(super) fn may_beat(&self, other: &Self) -> bool {
        !other.is_above(self) && (self.is_above(other) || self.replicas <= other.replicas)
    }

    /// True if it is better, ties included.
    pub(super) fn beats(&self, other: &Self) -> bool {
        if self.is_above(other) || other.is_above(self) {
            return self.is_above(other);
        }
        (self.replicas, self.latency) < (other.replicas, other.latency)
    }
}

// === impl Worth ===

impl Worth {
    /// True if this is more by more than the noise of the arithmetic.
    pub fn is_above(self, other: Self) -> bool {
        let noise = TOLERANCE * self.amount.abs().max(other.amount.abs());
        (self.meets_goal, self.amount - noise > other.amount) > (other.meets_goal, false)
    }
}
