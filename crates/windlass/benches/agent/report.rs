//! Table of the measurements, with budgets and verdicts.

use std::{
    fmt::Display,
    io::{self, Write as _},
    time::Duration,
};

use crate::samples::{Samples, ShortDuration};

/// One line of the table.
#[derive(Debug, Default)]
pub(crate) struct Row {
    label: String,
    median: String,
    p99: String,
    comparison: String,
    budget: String,
    verdict: Verdict,
}

/// Comparison of a figure with its budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Verdict {
    #[default]
    NoBudget,
    Ok,
    OverBudget,
}

/// Prints rows, and counts met and missed budgets.
#[derive(Debug)]
pub(crate) struct Report {
    met: usize,
    missed: usize,
}

// === impl Row ===

impl Row {
    /// A figure with many samples: the row has its median and 99th percentile.
    pub(crate) fn with_samples(label: impl Into<String>, samples: &Samples) -> Self {
        Self {
            p99: ShortDuration(samples.p99()).to_string(),
            ..Self::single_value(label, ShortDuration(samples.median()))
        }
    }

    /// A figure with a single value.
    pub(crate) fn single_value(label: impl Into<String>, figure: impl Display) -> Self {
        Self { label: label.into(), median: figure.to_string(), ..Self::default() }
    }

    /// A sentence in place of a figure.
    pub(crate) fn note(text: impl Into<String>) -> Self {
        Self { label: text.into(), ..Self::default() }
    }

    /// Meaning of the figure, such as its ratio to a baseline.
    pub(crate) fn with_comparison(self, comparison: impl Into<String>) -> Self {
        Self { comparison: comparison.into(), ..self }
    }

    /// Sets the budget of a duration.
    pub(crate) fn with_time_budget(self, duration: Duration, limit: Duration) -> Self {
        self.with_verdict(format!("{limit:?}"), duration <= limit)
    }

    /// Sets the budget of a figure. `unit` is a suffix of the printed budget.
    pub(crate) fn with_budget(self, figure: f64, limit: f64, unit: &str) -> Self {
        self.with_verdict(format!("{limit}{unit}"), figure <= limit)
    }

    fn with_verdict(self, budget: String, is_met: bool) -> Self {
        Self { budget, verdict: if is_met { Verdict::Ok } else { Verdict::OverBudget }, ..self }
    }
}

// === impl Verdict ===

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Self::NoBudget => "",
            Self::Ok => "ok",
            Self::OverBudget => "OVER",
        }
    }
}

// === impl Report ===

impl Report {
    /// Prints the headings.
    pub(crate) fn begin() -> io::Result<Self> {
        line(["", "MEDIAN", "P99", "COMPARED", "BUDGET", ""])?;
        Ok(Self { met: 0, missed: 0 })
    }

    /// Prints the rows of one benchmark.
    pub(crate) fn show(&mut self, rows: &[Row]) -> io::Result<()> {
        for row in rows {
            self.met += usize::from(row.verdict == Verdict::Ok);
            self.missed += usize::from(row.verdict == Verdict::OverBudget);
            let Row { label, median, p99, comparison: compared, budget, verdict } = row;
            line([label, median, p99, compared, budget, verdict.text()])?;
        }
        line([""; 6])
    }

    /// Prints the numbers of met and missed budgets. Returns the latter.
    pub(crate) fn end(self) -> io::Result<usize> {
        let Self { met, missed } = self;
        writeln!(io::stdout(), "{met} budgets met, {missed} missed")?;
        Ok(missed)
    }
}

/// Prints one line: text aligned to the left, figures to the right.
fn line([label, median, p99, compared, budget, verdict]: [&str; 6]) -> io::Result<()> {
    let text = format!("{label:<44}{median:>9}{p99:>10}  {compared:<34}{budget:>8}  {verdict}");
    writeln!(io::stdout(), "{}", text.trim_end())
}
