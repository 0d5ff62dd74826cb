//! `windlass conformance`: run the conformance cases against a device plugin or DRA driver.

mod itself;
mod show;

use std::{fs, time::Duration};

use anyhow::{Context as _, Result, anyhow};
use windlass_conformance::{Case, Hooks, Subject, catalogue, run as run_cases};

use super::print_output;
use crate::{
    cli::ConformanceArgs,
    exit::{AlreadyLogged, UsageError},
};

pub(crate) async fn run(args: ConformanceArgs) -> Result<()> {
    let cases = select_cases(&args.cases)?;
    if args.list {
        return print_output(args.output, &cases, || show::list(&cases));
    }
    let mut subject =
        if args.itself { itself::subject(&args.machine)? } else { subject_from_args(&args) };
    subject.check().map_err(|error| UsageError(error.into()))?;
    subject.limits.start = Duration::from_secs(args.start_within);
    let name = subject.command.join(" ");
    let mut progress = show::CaseProgress::new(cases.len());
    let report =
        run_cases(&cases, subject, args.jobs.get(), |finding| progress.show(finding)).await;
    drop(progress);
    if let Some(path) = &args.junit {
        let result = fs::write(path, report.junit(&name));
        result.with_context(|| format!("cannot write {}", path.display()))?;
    }
    print_output(args.output, &show::document(&name, &report), || show::report(&report))?;
    // A run in which no case passed is a failure.
    let totals = report.totals();
    if totals.fail > 0 || totals.pass == 0 { Err(AlreadyLogged.into()) } else { Ok(()) }
}

/// Cases whose ids have one of the prefixes; all cases without a prefix.
fn select_cases(prefixes: &[String]) -> Result<Vec<Case>> {
    let cases = catalogue();
    let matches_none =
        |text: &&String| !cases.iter().any(|case| case.id.starts_with(text.as_str()));
    if let Some(text) = prefixes.iter().find(matches_none) {
        let problem =
            anyhow!("no case id begins with {text:?}: `windlass conformance --list` shows all");
        return Err(UsageError(problem).into());
    }
    let is_selected = |case: &Case| {
        prefixes.is_empty() || prefixes.iter().any(|text| case.id.starts_with(text.as_str()))
    };
    Ok(cases.into_iter().filter(is_selected).collect())
}

/// Program of the command line.
fn subject_from_args(args: &ConformanceArgs) -> Subject {
    let ConformanceArgs { setup, fail, heal, .. } = args;
    let hooks = Hooks { setup: setup.clone(), fail: fail.clone(), heal: heal.clone() };
    let subject = Subject::new(args.command.clone());
    let cdi_dirs = args.cdi_dirs.clone().unwrap_or(subject.cdi_dirs);
    Subject { hooks, cdi_dirs, devices: args.devices.clone(), ..subject }
}
