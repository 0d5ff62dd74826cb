//! Measures layouts in a cluster, one after another: each is applied, and a Job beside it puts load on it.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use tokio::time::{Instant, sleep};
use windlass_control::application::{Application, ApplicationError, JobState, Readiness};
use windlass_pipeline::{Fleet, Layout, Pipeline, Plan, manifests::manifests};

use super::{LeftOutLayout, MeasureReport, MeasuredLayout, job, plans, verdict::Verdict};
use crate::{
    cli::MeasureArgs, commands::pipeline::fleet, exit::Interrupted, screen::Progress, stop::Stop,
};

/// A layout, ready to be applied.
struct Candidate {
    plan: Plan,
    objects: Vec<Value>,
}

/// The run of one layout after another.
struct Comparison<'a> {
    pipeline: &'a Pipeline,
    fleet: &'a Fleet,
    lasts: Duration,
    application: &'a Application,
    /// The Job that puts load on the stages.
    job: &'a Value,
    progress: Progress,
}

/// Time for the pods of a layout to start or to end: images may have to be pulled by small boards.
const START_LIMIT: Duration = Duration::from_secs(300);
/// Time for which the API server may fail to answer.
const ABSENCE_LIMIT: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Measures every layout that has a place, and leaves the best one in the cluster.
pub(super) async fn layouts(
    pipeline: &Pipeline,
    text: &str,
    args: &MeasureArgs,
) -> Result<MeasureReport> {
    let job = job::manifest(pipeline, text, args)?;
    let fleet = fleet::fleet(&args.fleet, pipeline).await?;
    let (plans, mut left_out) = plans(pipeline, &fleet, &Layout::ALL);
    let mut candidates = Vec::new();
    for plan in plans {
        match manifests(pipeline, &fleet, &plan) {
            Ok(objects) => candidates.push(Candidate { plan, objects }),
            Err(error) => left_out.push(LeftOutLayout::failed(plan.layout, &error.into())),
        }
    }
    let access = args.fleet.view.kubeconfig.clone();
    let application = Application::new(access, args.namespace.clone(), &pipeline.name).await?;
    // Layouts have objects in common, such as Services.
    let mut objects = Vec::new();
    for object in candidates.iter().flat_map(|one| &one.objects) {
        if !objects.contains(&object) {
            objects.push(object);
        }
    }
    application.check(&objects, &job).await?;
    if candidates.is_empty() {
        let pipeline = pipeline.name.clone();
        return Ok(MeasureReport { pipeline, left_out, ..MeasureReport::default() });
    }
    let comparison = Comparison {
        pipeline,
        fleet: &fleet,
        lasts: args.lasts,
        application: &application,
        job: &job,
        progress: Progress::new(),
    };
    let mut stop = Stop::listen()?;
    let report = tokio::select! {
        report = Box::pin(comparison.run(&candidates, left_out)) => report,
        signal = stop.requested() => Err(Interrupted(signal).into()),
    };
    report.with_context(|| {
        let (namespace, selector) = (application.namespace(), application.selector());
        format!(
            "objects of {} may be left: `kubectl -n {namespace} get all -l {selector}`",
            pipeline.name
        )
    })
}

// === impl Comparison ===

impl Comparison<'_> {
    async fn run(
        &self,
        candidates: &[Candidate],
        mut left_out: Vec<LeftOutLayout>,
    ) -> Result<MeasureReport> {
        let mut measured = Vec::new();
        for candidate in candidates {
            match self.measure(candidate).await {
                Ok(layout) => measured.push(layout),
                Err(error) if error.is::<ApplicationError>() => return Err(error),
                // The others may still be told apart.
                Err(error) => left_out.push(LeftOutLayout::failed(candidate.plan.layout, &error)),
            }
        }
        let verdict = Verdict::of(self.pipeline, &measured);
        let only = measured.first().and_then(|only| only.layout);
        let best = verdict.as_ref().map(|verdict| verdict.take).or(only);
        let is_best = |one: &&Candidate| Some(one.plan.layout.name()) == best;
        let best = candidates.iter().find(is_best);
        let runs = self.leave(best, candidates).await;
        let runs_in = runs.is_ok() && best.is_some();
        // The figures are worth more than the layout.
        if let (Some(best), Err(error)) = (best, runs) {
            left_out.push(LeftOutLayout::failed(best.plan.layout, &error.context("not put back")));
        }
        Ok(MeasureReport {
            pipeline: self.pipeline.name.clone(),
            simulated: false,
            layouts: measured,
            left_out,
            verdict,
            runs_in: runs_in.then(|| self.application.namespace().to_owned()),
        })
    }

    /// Leaves the best layout in the cluster; nothing, if none was measured.
    async fn leave(&self, best: Option<&Candidate>, candidates: &[Candidate]) -> Result<()> {
        let Some(best) = best else { return self.clear("the last layout ends").await };
        let runs = candidates.last().is_some_and(|last| last.plan.layout == best.plan.layout);
        if runs { Ok(()) } else { self.put(best).await }
    }

    async fn measure(&self, candidate: &Candidate) -> Result<MeasuredLayout> {
        self.put(candidate).await?;
        let name = candidate.plan.layout.name();
        let job = self.application.start_job(self.job).await?;
        // Dropped with the last look at the Job, and by itself if this program ends before.
        let log = self.load(name, &job).await;
        self.application.delete_job(&job).await?;
        let measured = job::figures(&log?)?;
        let placement = &candidate.plan.placement;
        Ok(MeasuredLayout::beside(
            candidate.plan.layout,
            measured,
            (self.pipeline, self.fleet, placement),
        ))
    }

    /// Applies a layout in place of what runs. The old pods end first: they hold the devices.
    async fn put(&self, candidate: &Candidate) -> Result<()> {
        let name = candidate.plan.layout.name();
        self.clear(&format!("layout {name}: the one before ends")).await?;
        self.application.apply(&candidate.objects).await?;
        let is_deployment = |object: &&Value| object["kind"] == "Deployment";
        let deployments = candidate.objects.iter().filter(is_deployment).count();
        let starts = format!("layout {name} starts");
        self.until(&starts, async || self.application.readiness(deployments).await).await
    }

    /// Deletes what runs, and waits until it has ended.
    async fn clear(&self, title: &str) -> Result<()> {
        self.application.delete().await?;
        let readiness = async || {
            let pods = self.application.pods().await?;
            Ok(match &*pods {
                [] => Readiness::Ready,
                pods => Readiness::Waiting(format!("still there: {}", pods.join(", "))),
            })
        };
        self.until(title, readiness).await
    }

    async fn until(
        &self,
        title: &str,
        look: impl AsyncFn() -> Result<Readiness, ApplicationError>,
    ) -> Result<()> {
        let (begun, mut answered) = (Instant::now(), Instant::now());
        loop {
            let reason = match look().await {
                Ok(Readiness::Ready) => return Ok(()),
                Ok(Readiness::Failed(reason)) => bail!(reason),
                Ok(Readiness::Waiting(reason)) => {
                    answered = Instant::now();
                    reason
                }
                Err(error) => no_answer(error, answered)?,
            };
            let waited = begun.elapsed();
            ensure!(waited < START_LIMIT, "not within {} s: {reason}", START_LIMIT.as_secs());
            self.progress.show(&format!("{title}, {} s: {reason}", waited.as_secs()));
            sleep(LOOK_EVERY).await;
        }
    }

    /// Waits for a Job, which Kubernetes stops if it takes too long; its output.
    async fn load(&self, layout: &str, job: &str) -> Result<String> {
        let (begun, mut answered, mut runs_since) = (Instant::now(), Instant::now(), None);
        loop {
            let state = self.application.job(job).await;
            if state.is_ok() {
                answered = Instant::now();
            }
            let text = match state {
                Ok(JobState::Ended(output)) => return Ok(output),
                Ok(JobState::Pending(reason)) => {
                    ensure!(begun.elapsed() < START_LIMIT, "the Job does not start: {reason}");
                    reason
                }
                Ok(JobState::Running) => {
                    let since = runs_since.get_or_insert_with(Instant::now).elapsed().as_secs();
                    format!("{since} s of about {} s", (2 * self.lasts).as_secs())
                }
                Err(error) => no_answer(error, answered)?,
            };
            self.progress.show(&format!("layout {layout} is measured: {text}"));
            sleep(LOOK_EVERY).await;
        }
    }
}

/// The reason to wait on for the API server, which answered last at this time.
fn no_answer(error: ApplicationError, answered: Instant) -> Result<String, ApplicationError> {
    if error.is_transient() && answered.elapsed() < ABSENCE_LIMIT {
        Ok(windlass_host::causes(&error))
    } else {
        Err(error)
    }
}
