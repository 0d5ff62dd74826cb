//! Runner: runs cases in parallel, and reports each finding when its case ends.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{task::JoinSet, time::timeout};

use crate::{
    case::{Case, CheckError, CheckResult, Finding, Verdict},
    offers::OfferedApis,
    report::Report,
    subject::Subject,
    testbed::Testbed,
};

/// Limit of a case. The longest case restarts the program several times, each within the subject's limits.
const CASE_LIMIT: Duration = Duration::from_secs(180);

/// Runs the cases, `parallel` at a time, and calls `report` with each finding when its case ends. A program that exits
/// before it serves anything yields a single finding.
///
/// # Panics
///
/// Panics if a case panics, which is a defect of this crate.
pub async fn run(
    cases: &[Case],
    subject: Subject,
    parallel: usize,
    mut report: impl FnMut(&Finding),
) -> Report {
    let subject = Arc::new(subject);
    let started_at = Instant::now();
    let offers = match OfferedApis::detect(&subject, cases).await {
        Ok(offers) => Arc::new(offers),
        Err(start_failure) => {
            let finding = Finding::start_failure(start_failure, started_at.elapsed());
            report(&finding);
            return Report { findings: vec![finding] };
        }
    };
    let (mut waiting, mut running) = (cases.iter().copied().enumerate(), JoinSet::new());
    let mut findings: Vec<Option<Finding>> = cases.iter().map(|_| None).collect();
    loop {
        while running.len() < parallel.max(1)
            && let Some((index, case)) = waiting.next()
        {
            let (subject, offers) = (Arc::clone(&subject), Arc::clone(&offers));
            running.spawn(async move { (index, run_case(case, subject, &offers).await) });
        }
        let Some(result) = running.join_next().await else { break };
        let (index, finding) = result.unwrap_or_else(|error| propagate_panic(error));
        report(&finding);
        findings[index] = Some(finding);
    }
    Report { findings: findings.into_iter().flatten().collect() }
}

fn propagate_panic(error: tokio::task::JoinError) -> ! {
    std::panic::resume_unwind(error.into_panic())
}

async fn run_case(case: Case, subject: Arc<Subject>, offers: &OfferedApis) -> Finding {
    let started_at = Instant::now();
    let testbed = offers.require(case.api()).and_then(|()| Testbed::open(subject));
    let (result, last_words) = match testbed {
        Ok(mut testbed) => (check(case, &mut testbed).await, testbed.last_output()),
        Err(error) => (Err(error), Vec::new()),
    };
    let (verdict, evidence) = match result {
        Ok(evidence) => (Verdict::Pass, evidence),
        Err(CheckError::Failed(reason)) => (Verdict::Fail, reason),
        Err(CheckError::NotApplicable(reason)) => (Verdict::NotApplicable, reason),
    };
    let Case { id, sentence, source, .. } = case;
    let last_words = if verdict == Verdict::Fail { last_words } else { Vec::new() };
    Finding { id, sentence, source, verdict, evidence, last_words, took: started_at.elapsed() }
}

async fn check(case: Case, testbed: &mut Testbed) -> CheckResult {
    testbed.run_setup_hook().await?;
    let result = timeout(CASE_LIMIT, (case.check)(testbed)).await;
    result.unwrap_or_else(|_| {
        Err(CheckError::Failed(format!("the case did not end within {CASE_LIMIT:?}")))
    })
}
