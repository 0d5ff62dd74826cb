//! The table: what was measured, beside what it may be.

use std::{
    fmt::Display,
    io::{self, Write as _},
    time::Duration,
};

use crate::samples::{Samples, Short};

/// One line of the table.
#[derive(Debug, Default)]
pub(crate) struct Row {
    what: String,
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
    Over,
}

/// Prints rows as they come, and counts the budgets.
#[derive(Debug)]
pub(crate) struct Report {
    kept: usize,
    missed: usize,
}

// === impl Row ===

impl Row {
    /// A figure that was taken many times.
    pub(crate) fn timed(what: impl Into<String>, samples: &Samples) -> Self {
        Self { p99: Short(samples.p99()).to_string(), ..Self::once(what, Short(samples.median())) }
    }

    /// A figure that was taken once.
    pub(crate) fn once(what: impl Into<String>, figure: impl Display) -> Self {
        Self { what: what.into(), median: figure.to_string(), ..Self::default() }
    }

    /// A sentence in place of a figure.
    pub(crate) fn note(text: impl Into<String>) -> Self {
        Self { what: text.into(), ..Self::default() }
    }

    /// Meaning of the figure, such as its ratio to a baseline.
    pub(crate) fn compared(self, compared: impl Into<String>) -> Self {
        Self { compared: compared.into(), ..self }
    }

    /// May take this long.
    pub(crate) fn at_most(self, taken: Duration, limit: Duration) -> Self {
        self.judged(format!("{limit:?}"), taken <= limit)
    }

    /// May be this much, in the unit that the text has.
    pub(crate) fn limited(self, figure: f64, limit: f64, unit: &str) -> Self {
        self.judged(format!("{limit}{unit}"), figure <= limit)
    }

    fn judged(self, budget: String, kept: bool) -> Self {
        Self { budget, verdict: if kept { Verdict::Ok } else { Verdict::Over }, ..self }
    }
}

// === impl Verdict ===

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Self::NoBudget => "",
            Self::Ok => "ok",
            Self::Over => "OVER",
        }
    }
}

// === impl Report ===

impl Report {
    /// Prints the headings.
    pub(crate) fn begin() -> io::Result<Self> {
        line(["", "MEDIAN", "P99", "COMPARED", "BUDGET", ""])?;
        Ok(Self { kept: 0, missed: 0 })
    }

    /// Prints one part's rows.
    pub(crate) fn show(&mut self, rows: &[Row]) -> io::Result<()> {
        for row in rows {
            self.kept += usize::from(row.verdict == Verdict::Ok);
            self.missed += usize::from(row.verdict == Verdict::Over);
            let Row { what, median, p99, compared, budget, verdict } = row;
            line([what, median, p99, compared, budget, verdict.text()])?;
        }
        line([""; 6])
    }

    /// Prints the sum. Returns how many budgets were missed.
    pub(crate) fn end(self) -> io::Result<usize> {
        let Self { kept, missed } = self;
        writeln!(io::stdout(), "{kept} budgets kept, {missed} missed")?;
        Ok(missed)
    }
}

/// Text to the left, figures to the right.
fn line([what, median, p99, compared, budget, verdict]: [&str; 6]) -> io::Result<()> {
    let text = format!("{what:<44}{median:>9}{p99:>10}  {compared:<34}{budget:>8}  {verdict}");
    writeln!(io::stdout(), "{}", text.trim_end())
}
