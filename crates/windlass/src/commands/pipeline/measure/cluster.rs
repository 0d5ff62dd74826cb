//! Measures layouts in a cluster, one after another: each is applied, and a Job beside it puts load on it.

use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::Value;
use tokio::time::{Instant, sleep};
use windlass_control::application::{Application, ApplicationError, JobState};
use windlass_pipeline::{Fleet, Layout, Pipeline, Plan, Prediction, manifests::manifests};

use super::{
    LeftOutLayout, MeasureReport, MeasuredLayout, PredictedBeside, job, plans, verdict::Verdict,
};
use crate::{
    cli::MeasureArgs, commands::pipeline::fleet, exit::Interrupted, screen::Progress, stop::Stop,
};

/// A layout, ready to be applied.
struct Candidate {
    plan: Plan,
    objects: Vec<Value>,
}

struct Comparison<'a> {
    pipeline: &'a Pipeline,
    fleet: &'a Fleet,
    lasts: Duration,
    application: &'a Application,
    /// The Job that puts load on the stages.
    job: Value,
    progress: Progress,
}

/// Time for the pods of a layout to start or to end: images may have to be pulled by small boards.
const START_LIMIT: Duration = Duration::from_secs(300);
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
            Err(error) => left_out.push(LeftOutLayout::without_place(plan.layout, &error)),
        }
    }
    let access = args.fleet.view.kubeconfig.clone();
    let application = Application::new(access, args.namespace.clone(), &pipeline.name).await?;
    let comparison = Comparison {
        pipeline,
        fleet: &fleet,
        lasts: args.lasts,
        application: &application,
        job,
        progress: Progress::new(),
    };
    let mut stop = Stop::listen()?;
    tokio::select! {
        report = Box::pin(comparison.run(&candidates, left_out)) => report,
        signal = stop.requested() => {
            application.delete_job(comparison.job_name()).await?;
            let left = format!(
                "objects of the layout that ran last stay in namespace {}: see `kubectl get all -l {}`",
                application.namespace(), application.selector()
            );
            Err(anyhow::Error::from(Interrupted(signal)).context(left))
        }
    }
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
        let verdict = Verdict::of(self.pipeline.goal, &measured);
        let only = measured.first().and_then(|only| only.layout);
        let best = verdict.as_ref().map(|verdict| verdict.take).or(only);
        self.leave(best, candidates).await?;
        Ok(MeasureReport {
            pipeline: self.pipeline.name.clone(),
            simulated: false,
            layouts: measured,
            left_out,
            verdict,
            runs_in: best.map(|_| self.application.namespace().to_owned()),
        })
    }

    /// Leaves this layout in the cluster; nothing, if none was measured.
    async fn leave(&self, best: Option<&str>, candidates: &[Candidate]) -> Result<()> {
        let is_best = |one: &&Candidate| Some(one.plan.layout.name()) == best;
        match candidates.iter().find(is_best) {
            _ if candidates.last().as_ref().is_none_or(is_best) => Ok(()),
            Some(best) => self.put(best).await,
            None => self.until("the last layout ends", async || self.gone().await).await,
        }
    }

    async fn measure(&self, candidate: &Candidate) -> Result<MeasuredLayout> {
        self.put(candidate).await?;
        let name = candidate.plan.layout.name();
        self.application.apply(std::slice::from_ref(&self.job)).await?;
        let log = self.load(name).await;
        self.application.delete_job(self.job_name()).await?;
        let measured = job::figures(&log?)?;
        let rate = Some(measured.at_items_per_second);
        let prediction = Prediction::at(self.pipeline, self.fleet, &candidate.plan.placement, rate);
        let predicted = Some(PredictedBeside::of(&prediction));
        Ok(MeasuredLayout { layout: Some(name), measured, predicted })
    }

    /// Applies a layout in place of what runs. The old pods end first: they hold the devices.
    async fn put(&self, candidate: &Candidate) -> Result<()> {
        let name = candidate.plan.layout.name();
        self.until(&format!("layout {name}: the one before ends"), async || self.gone().await)
            .await?;
        self.application.apply(&candidate.objects).await?;
        let starts = format!("layout {name} starts");
        self.until(&starts, async || self.application.pending().await).await
    }

    /// Deletes what runs; the reason while some of it is there.
    async fn gone(&self) -> Result<Option<String>, ApplicationError> {
        let is_gone = self.application.delete().await?;
        Ok((!is_gone).then(|| "its pods end".to_owned()))
    }

    /// Waits until nothing is missing any more.
    async fn until(
        &self,
        title: &str,
        missing: impl AsyncFn() -> Result<Option<String>, ApplicationError>,
    ) -> Result<()> {
        let begun = Instant::now();
        while let Some(reason) = missing().await? {
            let waited = begun.elapsed();
            ensure!(waited < START_LIMIT, "not within {} s: {reason}", START_LIMIT.as_secs());
            self.progress.show(&format!("{title}, {} s: {reason}", waited.as_secs()));
            sleep(LOOK_EVERY).await;
        }
        Ok(())
    }

    fn job_name(&self) -> &str {
        self.job["metadata"]["name"].as_str().unwrap_or_default()
    }

    /// Waits for the Job, which Kubernetes stops if it takes too long; its output.
    async fn load(&self, layout: &str) -> Result<String> {
        let mut runs_since = None;
        loop {
            let text = match self.application.job(self.job_name()).await? {
                JobState::Ended(output) => return Ok(output),
                JobState::Pending(reason) => reason,
                JobState::Running => {
                    let since = runs_since.get_or_insert_with(Instant::now).elapsed().as_secs();
                    format!("{since} s of about {} s", (2 * self.lasts).as_secs())
                }
            };
            self.progress.show(&format!("layout {layout} is measured: {text}"));
            sleep(LOOK_EVERY).await;
        }
    }
}
