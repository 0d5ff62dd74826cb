//! Runner: plays cases in parallel, and reports each finding as it comes.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{task::JoinSet, time::timeout};

use crate::{
    case::{Case, Checked, Finding, Unmet, Verdict},
    offers::Offers,
    report::Report,
    stage::Stage,
    subject::Subject,
};

/// Limit of a case. The longest restarts a program several times, each within its limits.
const LONGEST: Duration = Duration::from_secs(180);

/// Plays the cases, a number of them in parallel, and reports each finding when its case ends. A program that exits
/// before it serves anything yields one finding only.
///
/// # Panics
///
/// Panics if a case panics, which is a defect of this crate.
pub async fn run(
    cases: &[Case],
    subject: Subject,
    at_once: usize,
    mut tell: impl FnMut(&Finding),
) -> Report {
    let subject = Arc::new(subject);
    let begun = Instant::now();
    let offers = match Offers::look(&subject, cases).await {
        Ok(offers) => Arc::new(offers),
        Err(stillborn) => {
            let finding = Finding::stillborn(stillborn, begun.elapsed());
            tell(&finding);
            return Report { findings: vec![finding] };
        }
    };
    let (mut waiting, mut playing) = (cases.iter().copied().enumerate(), JoinSet::new());
    let mut findings: Vec<Option<Finding>> = cases.iter().map(|_| None).collect();
    loop {
        while playing.len() < at_once.max(1)
            && let Some((place, case)) = waiting.next()
        {
            let (subject, offers) = (Arc::clone(&subject), Arc::clone(&offers));
            playing.spawn(async move { (place, play(case, subject, &offers).await) });
        }
        let Some(ended) = playing.join_next().await else { break };
        let (place, finding) = ended.unwrap_or_else(|error| resume(error));
        tell(&finding);
        findings[place] = Some(finding);
    }
    Report { findings: findings.into_iter().flatten().collect() }
}

fn resume(error: tokio::task::JoinError) -> ! {
    std::panic::resume_unwind(error.into_panic())
}

async fn play(case: Case, subject: Arc<Subject>, offers: &Offers) -> Finding {
    let begun = Instant::now();
    let stage = offers.has(case.api()).and_then(|()| Stage::open(subject));
    let (checked, last_words) = match stage {
        Ok(mut stage) => (check(case, &mut stage).await, stage.last_words()),
        Err(unmet) => (Err(unmet), Vec::new()),
    };
    let (verdict, evidence) = match checked {
        Ok(seen) => (Verdict::Pass, seen),
        Err(Unmet::Failed(why)) => (Verdict::Fail, why),
        Err(Unmet::NotApplicable(why)) => (Verdict::NotApplicable, why),
    };
    let Case { id, sentence, source, .. } = case;
    let last_words = if verdict == Verdict::Fail { last_words } else { Vec::new() };
    Finding { id, sentence, source, verdict, evidence, last_words, took: begun.elapsed() }
}

async fn check(case: Case, stage: &mut Stage) -> Checked {
    stage.set_up().await?;
    let checked = timeout(LONGEST, (case.check)(stage)).await;
    checked.unwrap_or_else(|_| Err(Unmet::Failed(format!("not over after {LONGEST:?}"))))
}
