//! The layout to take, of several that were measured.

use serde::Serialize;
use windlass_pipeline::{Pipeline, pipeline::Goal, quantity::Seconds};

use super::MeasuredLayout;

/// The layout that serves the goal best, and how sure that is.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Verdict {
    /// The layout to take.
    pub(super) take: &'static str,
    /// The next best.
    next: &'static str,
    /// False if no layout carries the rate of the pipeline's file, or all are slower than the goal allows.
    pub(super) meets_goal: bool,
    /// True if the two are told apart: their 95 % intervals do not overlap, or only one meets the goal.
    pub(super) is_clear: bool,
    /// The figures of both, for people.
    #[serde(skip)]
    figures: [String; 2],
    /// True if one of the two has no interval.
    #[serde(skip)]
    is_unsure: bool,
}

/// A figure with half its 95 % interval: the larger, the better.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Worth {
    /// False for a layout that misses the goal.
    holds: bool,
    value: f64,
    plus_minus: Option<f64>,
}

// === impl Verdict ===

impl Verdict {
    /// The verdict over layouts; `None` for fewer than two.
    pub(super) fn of(pipeline: &Pipeline, layouts: &[MeasuredLayout]) -> Option<Self> {
        let mut ranked: Vec<_> = layouts
            .iter()
            .filter_map(|one| Some((one.layout?, Worth::of(pipeline, one), one)))
            .collect();
        ranked.sort_by(|(_, a, _), (_, b, _)| b.order(a));
        let [(take, best, winner), (next, second, runner_up), ..] = &*ranked else { return None };
        Some(Self {
            take,
            next,
            meets_goal: best.holds,
            is_clear: best.is_clearly_above(second),
            figures: [winner, runner_up].map(|one| figure(pipeline.goal, one)),
            is_unsure: best.plus_minus.is_none() || second.plus_minus.is_none(),
        })
    }

    /// A sentence or two.
    pub(super) fn text(&self) -> String {
        let Self { take, next, figures: [best, second], .. } = self;
        let advice = if self.meets_goal {
            "Take the layout"
        } else {
            "No layout meets the goal. The nearest is"
        };
        let doubt = match (self.is_clear, self.is_unsure) {
            (true, _) => "",
            (false, true) => " Too few items for an interval: measure for longer.",
            (false, false) => " Their intervals overlap: measure for longer to tell the two apart.",
        };
        format!("{advice} {take}: {best}. Next is {next}: {second}.{doubt}")
    }
}

fn figure(goal: Goal, layout: &MeasuredLayout) -> String {
    let measured = &layout.measured;
    let latency = || {
        let half = measured.mean_plus_minus_ms;
        let half = half.map_or_else(String::new, |ms| format!(" \u{b1} {}", Seconds(ms / 1e3)));
        let (mean, rate) = (Seconds(measured.latency.mean_ms / 1e3), measured.at_items_per_second);
        format!("mean latency {mean}{half} at {rate:.1} items/s")
    };
    let throughput = || {
        let half = measured.plus_minus;
        let half = half.map_or_else(String::new, |half| format!(" \u{b1} {half:.1}"));
        format!("{:.1}{half} items/s", measured.items_per_second)
    };
    match goal {
        Goal::Throughput => throughput(),
        Goal::Latency => latency(),
        Goal::ThroughputUnder(_) => format!("{}, {}", throughput(), latency()),
    }
}

// === impl Worth ===

impl Worth {
    fn of(pipeline: &Pipeline, layout: &MeasuredLayout) -> Self {
        let measured = &layout.measured;
        let throughput = (measured.items_per_second, measured.plus_minus);
        let latency = (-measured.latency.mean_ms, measured.mean_plus_minus_ms);
        // The rate that was set is exact, and less was set where the layout carries less.
        let is_carried = pipeline.rate.is_none_or(|rate| measured.at_items_per_second >= rate);
        let (holds, (value, plus_minus)) = match pipeline.goal {
            // Of layouts that carry less, the one that carries most.
            Goal::Latency if !is_carried => (false, throughput),
            Goal::Latency => (true, latency),
            // Of layouts that are all too slow, the fastest.
            Goal::ThroughputUnder(limit) if measured.latency.mean_ms > 1e3 * limit.0 => {
                (false, latency)
            }
            Goal::Throughput | Goal::ThroughputUnder(_) => (true, throughput),
        };
        Self { holds, value, plus_minus }
    }

    fn order(&self, other: &Self) -> std::cmp::Ordering {
        self.holds.cmp(&other.holds).then(self.value.total_cmp(&other.value))
    }

    fn is_clearly_above(&self, other: &Self) -> bool {
        let halves = self.plus_minus.zip(other.plus_minus);
        self.holds != other.holds
            || halves.is_some_and(|(own, others)| self.value - own > other.value + others)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::measurement::figures::{ItemAccount, MeasuredFigures, Times};

    const fn worth(holds: bool, value: f64, plus_minus: Option<f64>) -> Worth {
        Worth { holds, value, plus_minus }
    }

    fn pipeline(goal: &str) -> Pipeline {
        let text =
            format!("name: p\n{goal}\nstages: [{{name: a, on: [{{time: 1ms}}]}}]\nlinks: []");
        Pipeline::parse(Path::new("p.yaml"), &text).expect("a pipeline")
    }

    /// A layout of so many items per second, with a mean latency in milliseconds at a rate.
    fn layout(
        name: &'static str,
        items_per_second: f64,
        mean_ms: f64,
        rate: f64,
    ) -> MeasuredLayout {
        let measured = MeasuredFigures {
            items_per_second,
            plus_minus: Some(1.0),
            at_items_per_second: rate,
            latency: Times { mean_ms, ..Times::default() },
            mean_plus_minus_ms: Some(1.0),
            stages: Vec::new(),
            links: Vec::new(),
            account: ItemAccount::default(),
        };
        MeasuredLayout { layout: Some(name), measured, predicted: None }
    }

    #[test]
    fn a_better_figure_is_clear_once_the_intervals_are_apart() {
        let best = worth(true, 130.0, Some(2.0));
        assert!(best.is_clearly_above(&worth(true, 125.0, Some(2.0))));
        assert!(!best.is_clearly_above(&worth(true, 127.0, Some(2.0))));
        assert!(!best.is_clearly_above(&worth(true, 10.0, None)), "its interval is unknown");
    }

    #[test]
    fn a_layout_that_does_not_carry_the_rate_misses_the_goal_however_fast_it_is() {
        let pipeline = pipeline("goal: latency\nrate: 100");
        let (fast, slow) = (layout("pod", 67.0, 20.0, 47.0), layout("pods", 130.0, 30.0, 100.0));
        let verdict = Verdict::of(&pipeline, &[fast, slow]).expect("two layouts");
        assert_eq!((verdict.take, verdict.meets_goal, verdict.is_clear), ("pods", true, true));
        let none = [layout("pod", 67.0, 20.0, 47.0), layout("pods", 90.0, 30.0, 63.0)];
        let verdict = Verdict::of(&pipeline, &none).expect("two layouts");
        assert_eq!((verdict.take, verdict.meets_goal), ("pods", false), "it carries most");
        assert!(verdict.text().starts_with("No layout meets the goal. The nearest is pods: "));
    }

    #[test]
    fn a_layout_within_the_limit_comes_before_a_faster_one_that_is_too_slow() {
        let pipeline = pipeline("goal: {throughputUnder: 25ms}");
        let both = [layout("planned", 130.0, 40.0, 91.0), layout("pod", 60.0, 20.0, 42.0)];
        let verdict = Verdict::of(&pipeline, &both).expect("two layouts");
        assert_eq!((verdict.take, verdict.meets_goal, verdict.is_clear), ("pod", true, true));
        let late = [layout("planned", 130.0, 40.0, 91.0), layout("pod", 60.0, 30.0, 42.0)];
        let verdict = Verdict::of(&pipeline, &late).expect("two layouts");
        assert_eq!((verdict.take, verdict.meets_goal), ("pod", false), "the fastest of them");
    }
}
