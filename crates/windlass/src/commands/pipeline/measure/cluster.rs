//! Measures layouts in a cluster, one after another: applies each, and runs a Job that sends items to its stages.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use tokio::time::{Instant, sleep};
use windlass_control::application::{Application, ApplicationError, JobState, Readiness};
use windlass_pipeline::{Fleet, Layout, Pipeline, Plan, manifests::manifests};

use super::{MeasureReport, MeasuredLayout, SkippedLayout, job, plans, verdict::Verdict};
use crate::{
    cli::MeasureArgs, commands::pipeline::fleet, exit::Interrupted, screen::Progress,
    stop::StopSignals,
};

/// A layout, ready to be applied.
struct Candidate {
    plan: Plan,
    objects: Vec<Value>,
}

/// Measurement of one layout after another.
struct Comparison<'a> {
    pipeline: &'a Pipeline,
    fleet: &'a Fleet,
    duration: Duration,
    application: &'a Application,
    /// Manifest of the Job that sends items to the stages.
    job: &'a Value,
    progress: Progress,
}

/// Time limit for the pods of a layout to start or to end. Small boards may have to pull images.
const START_LIMIT: Duration = Duration::from_secs(300);
/// Time limit without an answer from the API server.
const UNREACHABLE_LIMIT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Measures every layout with a placement, and leaves the best one in the cluster.
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
            Err(error) => left_out.push(SkippedLayout::failed(plan.layout, &error.into())),
        }
    }
    let access = args.fleet.view.kubeconfig.clone();
    let application = Application::new(access, args.namespace.clone(), &pipeline.name).await?;
    // Layouts have objects in common, such as Services.
    let mut objects = Vec::new();
    for object in candidates.iter().flat_map(|candidate| &candidate.objects) {
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
        duration: args.duration,
        application: &application,
        job: &job,
        progress: Progress::new(),
    };
    let mut signals = StopSignals::listen()?;
    let report = tokio::select! {
        report = Box::pin(comparison.run(&candidates, left_out)) => report,
        signal = signals.recv() => Err(Interrupted(signal).into()),
    };
    report.with_context(|| {
        let (namespace, selector) = (application.namespace(), application.selector());
        format!(
            "objects of {} may remain: `kubectl -n {namespace} get all -l {selector}`",
            pipeline.name
        )
    })
}

// === impl Comparison ===

impl Comparison<'_> {
    async fn run(
        &self,
        candidates: &[Candidate],
        mut left_out: Vec<SkippedLayout>,
    ) -> Result<MeasureReport> {
        let mut measured = Vec::new();
        for candidate in candidates {
            match self.measure(candidate).await {
                Ok(layout) => measured.push(layout),
                Err(error) if error.is::<ApplicationError>() => return Err(error),
                // The other layouts can still be compared.
                Err(error) => left_out.push(SkippedLayout::failed(candidate.plan.layout, &error)),
            }
        }
        let verdict = Verdict::of(self.pipeline, &measured);
        let first = measured.first().and_then(|layout| layout.layout);
        let best = verdict.as_ref().map(|verdict| verdict.take).or(first);
        let is_best = |candidate: &&Candidate| Some(candidate.plan.layout.name()) == best;
        let best = candidates.iter().find(is_best);
        let result = self.apply_best(best, candidates).await;
        let is_running = result.is_ok() && best.is_some();
        // A failure to apply the best layout must not lose the figures.
        if let (Some(best), Err(error)) = (best, result) {
            left_out.push(SkippedLayout::failed(
                best.plan.layout,
                &error.context("the best layout is not applied again"),
            ));
        }
        Ok(MeasureReport {
            pipeline: self.pipeline.name.clone(),
            simulated: false,
            layouts: measured,
            left_out,
            verdict,
            runs_in: is_running.then(|| self.application.namespace().to_owned()),
        })
    }

    /// Leaves the best layout in the cluster, or no layout if none was measured.
    async fn apply_best(&self, best: Option<&Candidate>, candidates: &[Candidate]) -> Result<()> {
        let Some(best) = best else {
            return self.delete_layout("waiting for the last layout to end").await;
        };
        let is_running = candidates.last().is_some_and(|last| last.plan.layout == best.plan.layout);
        if is_running { Ok(()) } else { self.replace_layout(best).await }
    }

    async fn measure(&self, candidate: &Candidate) -> Result<MeasuredLayout> {
        self.replace_layout(candidate).await?;
        let name = candidate.plan.layout.name();
        let job = self.application.start_job(self.job).await?;
        // The Job is deleted here, or by Kubernetes after a while if this program ends before.
        let log = self.await_job(name, &job).await;
        self.application.delete_job(&job).await?;
        let measured = job::parse_figures(&log?)?;
        let placement = &candidate.plan.placement;
        Ok(MeasuredLayout::with_prediction(
            candidate.plan.layout,
            measured,
            (self.pipeline, self.fleet, placement),
        ))
    }

    /// Replaces the running layout. Its pods end first, because they hold the devices.
    async fn replace_layout(&self, candidate: &Candidate) -> Result<()> {
        let name = candidate.plan.layout.name();
        self.delete_layout(&format!("layout {name}: waiting for the previous layout to end"))
            .await?;
        self.application.apply(&candidate.objects).await?;
        let is_deployment = |object: &&Value| object["kind"] == "Deployment";
        let deployments = candidate.objects.iter().filter(is_deployment).count();
        let title = format!("layout {name} starts");
        self.wait_until_ready(&title, async || self.application.readiness(deployments).await).await
    }

    /// Deletes the running layout, and waits until its pods have ended.
    async fn delete_layout(&self, title: &str) -> Result<()> {
        self.application.delete().await?;
        let readiness = async || {
            let pods = self.application.pods().await?;
            Ok(match &*pods {
                [] => Readiness::Ready,
                pods => Readiness::Waiting(format!("remaining pods: {}", pods.join(", "))),
            })
        };
        self.wait_until_ready(title, readiness).await
    }

    async fn wait_until_ready(
        &self,
        title: &str,
        poll: impl AsyncFn() -> Result<Readiness, ApplicationError>,
    ) -> Result<()> {
        let (start, mut last_answer) = (Instant::now(), Instant::now());
        loop {
            let reason = match poll().await {
                Ok(Readiness::Ready) => return Ok(()),
                Ok(Readiness::Failed(reason)) => bail!(reason),
                Ok(Readiness::Waiting(reason)) => {
                    last_answer = Instant::now();
                    reason
                }
                Err(error) => no_answer(error, last_answer)?,
            };
            let elapsed = start.elapsed();
            ensure!(
                elapsed < START_LIMIT,
                "the limit of {} s is exceeded: {reason}",
                START_LIMIT.as_secs()
            );
            self.progress.show(&format!("{title}, {} s: {reason}", elapsed.as_secs()));
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits for a Job, and returns its output. Kubernetes stops a Job that takes too long.
    async fn await_job(&self, layout: &str, job: &str) -> Result<String> {
        let (start, mut last_answer, mut running_since) = (Instant::now(), Instant::now(), None);
        loop {
            let state = self.application.job(job).await;
            if state.is_ok() {
                last_answer = Instant::now();
            }
            let text = match state {
                Ok(JobState::Ended(output)) => return Ok(output),
                Ok(JobState::Pending(reason)) => {
                    ensure!(start.elapsed() < START_LIMIT, "the Job does not start: {reason}");
                    reason
                }
                Ok(JobState::Running) => {
                    let seconds =
                        running_since.get_or_insert_with(Instant::now).elapsed().as_secs();
                    format!("{seconds} s of about {} s", (2 * self.duration).as_secs())
                }
                Err(error) => no_answer(error, last_answer)?,
            };
            self.progress.show(&format!("measuring layout {layout}: {text}"));
            sleep(POLL_INTERVAL).await;
        }
    }
}

/// Returns a transient error as a reason to wait, until `UNREACHABLE_LIMIT` after the API server's last answer.
fn no_answer(error: ApplicationError, last_answer: Instant) -> Result<String, ApplicationError> {
    if error.is_transient() && last_answer.elapsed() < UNREACHABLE_LIMIT {
        Ok(windlass_host::causes(&error))
    } else {
        Err(error)
    }
}
