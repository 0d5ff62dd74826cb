//! Findings as text for a terminal, and as JSON or YAML.

use anyhow::{Result, ensure};
use serde::Serialize;
use windlass_core::{
    finding::{Finding, Severity},
    inventory::Inventory,
};

use crate::{
    cli::OutputArg,
    commands::print_output,
    screen::{Paint, Tone, count, line, wrapped},
};

/// All findings of a diagnosis.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Diagnosis {
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded: Option<String>,
    version: &'static str,
    problems: usize,
    warnings: usize,
    findings: Vec<Finding>,
}

// === impl Diagnosis ===

impl Diagnosis {
    pub(crate) fn new(findings: Vec<Finding>) -> Self {
        let number = |severity| findings.iter().filter(|it| it.severity == severity).count();
        Self {
            simulated: None,
            recorded: None,
            version: env!("CARGO_PKG_VERSION"),
            problems: number(Severity::Problem),
            warnings: number(Severity::Warning),
            findings,
        }
    }

    pub(super) fn about(mut self, inventory: &Inventory) -> Self {
        self.simulated.clone_from(&inventory.simulated);
        self.recorded.clone_from(&inventory.recorded);
        self
    }

    /// Prints problems and warnings, and with `all` the other checks too. Fails if there is a problem.
    pub(crate) fn show(&self, output: OutputArg, all: bool) -> Result<()> {
        print_output(output, self, || self.print(all))?;
        ensure!(self.problems == 0, "{} found", count(self.problems, "problem"));
        Ok(())
    }

    fn print(&self, all: bool) -> Result<()> {
        let paint = Paint::for_stdout();
        if let Some(profile) = &self.simulated {
            line(paint.text(Tone::Notable, format!("SIMULATED machine {profile}")))?;
        }
        if let Some(made) = &self.recorded {
            line(paint.text(Tone::Notable, format!("RECORDED host, {made}")))?;
        }
        let is_shown = |finding: &&Finding| all || finding.severity >= Severity::Warning;
        let shown: Vec<_> = self.findings.iter().filter(is_shown).collect();
        for group in shown.chunk_by(|a, b| a.area == b.area) {
            line(paint.text(Tone::Strong, group[0].area))?;
            for finding in group {
                print_finding(finding, paint)?;
            }
        }
        let (done, skipped) = (self.findings.len(), self.skipped());
        let sum = format!(
            "{}: {}, {}, {skipped} skipped",
            count(done, "check"),
            count(self.problems, "problem"),
            count(self.warnings, "warning"),
        );
        line(paint.text(Tone::Quiet, sum))?;
        if !all {
            line(paint.text(Tone::Quiet, "--all shows every check"))?;
        }
        Ok(())
    }

    fn skipped(&self) -> usize {
        self.findings.iter().filter(|finding| finding.severity == Severity::Skipped).count()
    }
}

fn print_finding(finding: &Finding, paint: Paint) -> Result<()> {
    let (word, tone) = match finding.severity {
        Severity::Ok => ("ok", Tone::Quiet),
        Severity::Skipped => ("skipped", Tone::Quiet),
        Severity::Warning => ("warning", Tone::Notable),
        Severity::Problem => ("PROBLEM", Tone::Bad),
    };
    let text = format!("{}: {}", finding.subject, finding.detail);
    let lead = format!("  {word:<8} ");
    for (position, text) in wrapped(&lead, text.split_whitespace()).into_iter().enumerate() {
        match text.strip_prefix(&lead).filter(|_| position == 0) {
            Some(rest) => line(format!("  {} {rest}", paint.text(tone, format!("{word:<8}"))))?,
            None => line(text)?,
        }
    }
    if let Some(remedy) = &finding.remedy {
        wrapped("           -> ", remedy.split_whitespace()).into_iter().try_for_each(line)?;
    }
    Ok(())
}
