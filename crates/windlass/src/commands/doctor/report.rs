//! Findings as text for a terminal, and as JSON or YAML.

use anyhow::{Result, ensure};
use serde::Serialize;
use windlass_core::{
    finding::{Finding, Severity},
    inventory::Inventory,
};

use crate::{
    cli::OutputArg,
    commands::{Origin, print_output},
    screen::{Paint, Style, pluralized, print_line, wrapped},
};

/// All findings of a diagnosis.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Diagnosis<'a> {
    #[serde(flatten)]
    origin: Origin<'a>,
    version: &'static str,
    problems: usize,
    warnings: usize,
    findings: Vec<Finding>,
}

// === impl Diagnosis ===

impl<'a> Diagnosis<'a> {
    pub(crate) fn new(findings: Vec<Finding>) -> Self {
        let count =
            |severity| findings.iter().filter(|finding| finding.severity == severity).count();
        Self {
            origin: Origin::default(),
            version: env!("CARGO_PKG_VERSION"),
            problems: count(Severity::Problem),
            warnings: count(Severity::Warning),
            findings,
        }
    }

    pub(super) fn with_origin(self, inventory: &'a Inventory) -> Self {
        Self { origin: Origin::of(inventory), ..self }
    }

    /// Prints problems and warnings, and with `all` the other checks too. Fails if there is a problem.
    pub(crate) fn show(&self, output: OutputArg, all: bool) -> Result<()> {
        print_output(output, self, || self.print(all))?;
        ensure!(self.problems == 0, "{} found", pluralized(self.problems, "problem"));
        Ok(())
    }

    fn print(&self, all: bool) -> Result<()> {
        let paint = Paint::for_stdout();
        self.origin.print(paint)?;
        let is_shown = |finding: &&Finding| all || finding.severity >= Severity::Warning;
        let visible: Vec<_> = self.findings.iter().filter(is_shown).collect();
        for group in visible.chunk_by(|a, b| a.area == b.area) {
            print_line(paint.styled(Style::Heading, group[0].area))?;
            for finding in group {
                print_finding(finding, paint)?;
            }
        }
        let (checks, skipped) = (self.findings.len(), self.skipped());
        let totals = format!(
            "{}: {}, {}, {skipped} skipped",
            pluralized(checks, "check"),
            pluralized(self.problems, "problem"),
            pluralized(self.warnings, "warning"),
        );
        print_line(paint.styled(Style::Muted, totals))?;
        if !all {
            print_line(paint.styled(Style::Muted, "--all shows every check"))?;
        }
        Ok(())
    }

    fn skipped(&self) -> usize {
        self.findings.iter().filter(|finding| finding.severity == Severity::Skipped).count()
    }
}

fn print_finding(finding: &Finding, paint: Paint) -> Result<()> {
    let (word, style) = match finding.severity {
        Severity::Ok => ("ok", Style::Muted),
        Severity::Skipped => ("skipped", Style::Muted),
        Severity::Warning => ("warning", Style::Warning),
        Severity::Problem => ("PROBLEM", Style::Error),
    };
    let text = format!("{}: {}", finding.subject, finding.detail);
    let lead = format!("  {word:<8} ");
    for (position, text) in wrapped(&lead, text.split_whitespace()).into_iter().enumerate() {
        match text.strip_prefix(&lead).filter(|_| position == 0) {
            Some(first_line) => {
                print_line(format!(
                    "  {} {first_line}",
                    paint.styled(style, format!("{word:<8}"))
                ))?;
            }
            None => print_line(text)?,
        }
    }
    if let Some(remedy) = &finding.remedy {
        wrapped("           -> ", remedy.split_whitespace())
            .into_iter()
            .try_for_each(print_line)?;
    }
    Ok(())
}
