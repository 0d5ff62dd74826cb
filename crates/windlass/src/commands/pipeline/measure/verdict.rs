//! Choice of the best layout among several measured ones.

use serde::Serialize;
use windlass_pipeline::{Pipeline, pipeline::Goal, quantity::Seconds};

use super::MeasuredLayout;

/// Best layout for the goal, and its lead over the next best.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Verdict {
    /// The best layout.
    pub(super) take: &'static str,
    /// The next best layout.
    next: &'static str,
    /// False if no layout sustains the rate of the pipeline file, or all exceed the latency that the goal allows.
    pub(super) meets_goal: bool,
    /// True if the lead is significant: the 95 % intervals do not overlap, or only one layout meets the goal.
    pub(super) is_clear: bool,
    /// Figures of both layouts, as text.
    #[serde(skip)]
    figures: [String; 2],
    /// True if one of the two layouts has no interval.
    #[serde(skip)]
    lacks_interval: bool,
}

/// Figure to rank layouts by, larger is better, with half its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Score {
    /// False if the layout misses the goal; it then ranks below all that meet it.
    meets_goal: bool,
    value: f64,
    plus_minus: Option<f64>,
}

// === impl Verdict ===

impl Verdict {
    /// Ranks the layouts; `None` for fewer than two.
    pub(super) fn of(pipeline: &Pipeline, layouts: &[MeasuredLayout]) -> Option<Self> {
        let mut ranked: Vec<_> = layouts
            .iter()
            .filter_map(|layout| Some((layout.layout?, Score::of(pipeline, layout), layout)))
            .collect();
        ranked.sort_by(|(_, a, _), (_, b, _)| b.compare(a));
        let [(take, best, winner), (next, second, runner_up), ..] = &*ranked else { return None };
        Some(Self {
            take,
            next,
            meets_goal: best.meets_goal,
            is_clear: best.is_clearly_above(second),
            figures: [winner, runner_up].map(|layout| figure(pipeline.goal, layout)),
            lacks_interval: best.plus_minus.is_none() || second.plus_minus.is_none(),
        })
    }

    /// Text for the terminal.
    pub(super) fn text(&self) -> String {
        let Self { take, next, figures: [best, second], .. } = self;
        let advice = if self.meets_goal {
            "The best layout is"
        } else {
            "No layout meets the goal. The nearest is"
        };
        let caveat = match (self.is_clear, self.lacks_interval) {
            (true, _) => "",
            (false, true) => " Too few items for an interval: measure for longer.",
            (false, false) => {
                " Their intervals overlap: measure for longer to distinguish the two."
            }
        };
        format!("{advice} {take}: {best}. The next best is {next}: {second}.{caveat}")
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

// === impl Score ===

impl Score {
    fn of(pipeline: &Pipeline, layout: &MeasuredLayout) -> Self {
        let measured = &layout.measured;
        let throughput = (measured.items_per_second, measured.plus_minus);
        let latency = (-measured.latency.mean_ms, measured.mean_plus_minus_ms);
        // The second run sends at the file's rate, or at a lower one if the layout does not sustain it.
        let sustains_rate = pipeline.rate.is_none_or(|rate| measured.at_items_per_second >= rate);
        let (meets_goal, (value, plus_minus)) = match pipeline.goal {
            // Layouts that do not sustain the rate are ranked by throughput.
            Goal::Latency if !sustains_rate => (false, throughput),
            Goal::Latency => (true, latency),
            // Layouts that exceed the limit are ranked by latency.
            Goal::ThroughputUnder(limit) if measured.latency.mean_ms > 1e3 * limit.0 => {
                (false, latency)
            }
            Goal::Throughput | Goal::ThroughputUnder(_) => (true, throughput),
        };
        Self { meets_goal, value, plus_minus }
    }

    fn compare(&self, other: &Self) -> std::cmp::Ordering {
        self.meets_goal.cmp(&other.meets_goal).then(self.value.total_cmp(&other.value))
    }

    fn is_clearly_above(&self, other: &Self) -> bool {
        let halves = self.plus_minus.zip(other.plus_minus);
        self.meets_goal != other.meets_goal
            || halves.is_some_and(|(half, other_half)| self.value - half > other.value + other_half)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::measurement::figures::{ItemAccount, MeasuredFigures, Times};

    const fn score(meets_goal: bool, value: f64, plus_minus: Option<f64>) -> Score {
        Score { meets_goal, value, plus_minus }
    }

    fn pipeline(goal: &str) -> Pipeline {
        let text =
            format!("name: p\n{goal}\nstages: [{{name: a, on: [{{time: 1ms}}]}}]\nlinks: []");
        Pipeline::parse(Path::new("p.yaml"), &text).expect("a pipeline")
    }

    /// A measured layout with its throughput, and its mean latency in milliseconds at a rate.
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
        let best = score(true, 130.0, Some(2.0));
        assert!(best.is_clearly_above(&score(true, 125.0, Some(2.0))));
        assert!(!best.is_clearly_above(&score(true, 127.0, Some(2.0))));
        assert!(!best.is_clearly_above(&score(true, 10.0, None)), "its interval is unknown");
    }

    #[test]
    fn a_layout_that_does_not_sustain_the_rate_misses_the_goal_at_any_latency() {
        let pipeline = pipeline("goal: latency\nrate: 100");
        let (fast, slow) = (layout("pod", 67.0, 20.0, 47.0), layout("pods", 130.0, 30.0, 100.0));
        let verdict = Verdict::of(&pipeline, &[fast, slow]).expect("two layouts");
        assert_eq!((verdict.take, verdict.meets_goal, verdict.is_clear), ("pods", true, true));
        let layouts = [layout("pod", 67.0, 20.0, 47.0), layout("pods", 90.0, 30.0, 63.0)];
        let verdict = Verdict::of(&pipeline, &layouts).expect("two layouts");
        assert_eq!(
            (verdict.take, verdict.meets_goal),
            ("pods", false),
            "it has the highest throughput"
        );
        assert!(verdict.text().starts_with("No layout meets the goal. The nearest is pods: "));
    }

    #[test]
    fn a_layout_within_the_limit_ranks_above_one_with_more_throughput_and_latency() {
        let pipeline = pipeline("goal: {throughputUnder: 25ms}");
        let layouts = [layout("planned", 130.0, 40.0, 91.0), layout("pod", 60.0, 20.0, 42.0)];
        let verdict = Verdict::of(&pipeline, &layouts).expect("two layouts");
        assert_eq!((verdict.take, verdict.meets_goal, verdict.is_clear), ("pod", true, true));
        let slow_layouts = [layout("planned", 130.0, 40.0, 91.0), layout("pod", 60.0, 30.0, 42.0)];
        let verdict = Verdict::of(&pipeline, &slow_layouts).expect("two layouts");
        assert_eq!((verdict.take, verdict.meets_goal), ("pod", false), "it has the lowest latency");
    }
}
