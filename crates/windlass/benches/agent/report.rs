//! The table: what was measured, beside what it may be.

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
    compared: String,
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

/// Prints rows as they come, and counts the budgets.
#[derive(Debug)]
pub(crate) struct Report {
    met: usize,
    missed: usize,
}

// === impl Row ===

impl Row {
    /// A figure that was taken many times.
    pub(crate) fn with_samples(what: impl Into<String>, samples: &Samples) -> Self {
        Self {
            p99: ShortDuration(samples.p99()).to_string(),
            ..Self::single_value(what, ShortDuration(samples.median()))
        }
    }

    /// A figure that was taken once.
    pub(crate) fn single_value(what: impl Into<String>, figure: impl Display) -> Self {
        Self { label: what.into(), median: figure.to_string(), ..Self::default() }
    }

    /// A sentence in place of a figure.
    pub(crate) fn note(text: impl Into<String>) -> Self {
        Self { label: text.into(), ..Self::default() }
    }

    /// Meaning of the figure, such as its ratio to a baseline.
    pub(crate) fn with_comparison(self, compared: impl Into<String>) -> Self {
        Self { compared: compared.into(), ..self }
    }

    /// May take this long.
    pub(crate) fn with_time_budget(self, taken: Duration, limit: Duration) -> Self {
        self.with_verdict(format!("{limit:?}"), taken <= limit)
    }

    /// May be this much, in the unit that the text has.
    pub(crate) fn with_budget(self, figure: f64, limit: f64, unit: &str) -> Self {
        self.with_verdict(format!("{limit}{unit}"), figure <= limit)
    }

    fn with_verdict(self, budget: String, kept: bool) -> Self {
        Self { budget, verdict: if kept { Verdict::Ok } else { Verdict::OverBudget }, ..self }
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

    /// Prints one part's rows.
    pub(crate) fn show(&mut self, rows: &[Row]) -> io::Result<()> {
        for row in rows {
            self.met += usize::from(row.verdict == Verdict::Ok);
            self.missed += usize::from(row.verdict == Verdict::OverBudget);
            let Row { label: what, median, p99, compared, budget, verdict } = row;
            line([what, median, p99, compared, budget, verdict.text()])?;
        }
        line([""; 6])
    }

    /// Prints the sum. Returns how many budgets were missed.
    pub(crate) fn end(self) -> io::Result<usize> {
        let Self { met: kept, missed } = self;
        writeln!(io::stdout(), "{kept} budgets kept, {missed} missed")?;
        Ok(missed)
    }
}

/// Text to the left, figures to the right.
fn line([what, median, p99, compared, budget, verdict]: [&str; 6]) -> io::Result<()> {
    let text = format!("{what:<44}{median:>9}{p99:>10}  {compared:<34}{budget:>8}  {verdict}");
    writeln!(io::stdout(), "{}", text.trim_end())
}
