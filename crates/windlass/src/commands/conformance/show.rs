//! Output of conformance: cases, progress, results.

use anyhow::Result;
use serde::Serialize;
use windlass_conformance::{Case, Finding, Report, Totals, Verdict};

use crate::screen::{Paint, Progress, Style, Table, print_line, wrapped};

/// Report in JSON and YAML.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ReportDocument<'a> {
    command: &'a str,
    totals: Totals,
    cases: &'a [Finding],
}

/// Progress line with the numbers of finished and failed cases.
pub(super) struct CaseProgress {
    total: usize,
    done: usize,
    failed: usize,
    progress: Progress,
}

pub(super) fn document<'a>(command: &'a str, report: &'a Report) -> ReportDocument<'a> {
    ReportDocument { command, totals: report.totals(), cases: &report.findings }
}

pub(super) fn list(cases: &[Case]) -> Result<()> {
    let mut table = Table::new(["CASE", "THE PROGRAM ..."]);
    for Case { id, sentence, source, .. } in cases {
        table.add_row([(*id).to_owned(), (*sentence).to_owned()]);
        table.add_row([String::new(), format!("  {source}")]);
    }
    Ok(table.print()?)
}

pub(super) fn report(report: &Report) -> Result<()> {
    let paint = Paint::for_stdout();
    for finding in &report.findings {
        show(finding, paint)?;
    }
    let Totals { pass, fail, not_applicable } = report.totals();
    let style = if fail == 0 && pass > 0 { Style::Success } else { Style::Error };
    let total = format!("{pass} passed, {fail} failed, {not_applicable} not applicable");
    Ok(print_line(format!("\n{}", paint.styled(style, total)))?)
}

fn show(finding: &Finding, paint: Paint) -> Result<()> {
    let (style, word) = match finding.verdict {
        Verdict::Pass => (Style::Success, "pass"),
        Verdict::Fail => (Style::Error, "FAIL"),
        Verdict::NotApplicable => (Style::Muted, "n/a "),
    };
    let Finding { id, sentence, source, evidence, last_words, .. } = finding;
    print_line(format!("{} {id}  {sentence}", paint.styled(style, word)))?;
    let print_muted = |text: String| print_line(paint.styled(Style::Muted, text));
    wrapped("          ", evidence.split_whitespace()).into_iter().try_for_each(print_muted)?;
    if finding.verdict == Verdict::Fail {
        print_muted(format!("          expected by {source}"))?;
        last_words.iter().try_for_each(|line| print_muted(format!("          | {line}")))?;
    }
    Ok(())
}

// === impl CaseProgress ===

impl CaseProgress {
    pub(super) fn new(total: usize) -> Self {
        Self { total, done: 0, failed: 0, progress: Progress::new() }
    }

    pub(super) fn show(&mut self, finding: &Finding) {
        self.done += 1;
        self.failed += usize::from(finding.verdict == Verdict::Fail);
        let Self { total, done, failed, .. } = self;
        self.progress.show(&format!("{done} of {total} cases, {failed} failed"));
    }
}
