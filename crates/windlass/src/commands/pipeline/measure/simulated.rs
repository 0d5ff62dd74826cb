//! Measures layouts on simulated boards, one after another.

use anyhow::{Context as _, Result};
use tempfile::tempdir;
use windlass_pipeline::{Layout, Pipeline};

use super::{MeasureReport, MeasuredLayout, plans, verdict::Verdict};
use crate::{
    cli::MeasureArgs,
    commands::pipeline::fleet,
    edge::{measure_overhead, measure_plan},
    exit::Interrupted,
    measurement::{Measurement, trace::Traces},
    screen::Progress,
    stop::StopSignals,
};

/// Measures the layouts. Ctrl-C ends the measurement; the stages are processes that end with this program.
pub(super) async fn layouts(
    pipeline: &Pipeline,
    args: &MeasureArgs,
    traces: &mut Traces,
) -> Result<MeasureReport> {
    let mut signals = StopSignals::listen()?;
    tokio::select! {
        report = Box::pin(each_layout(pipeline, args, traces)) => report,
        signal = signals.recv() => Err(Interrupted(signal).into()),
    }
}

async fn each_layout(
    pipeline: &Pipeline,
    args: &MeasureArgs,
    traces: &mut Traces,
) -> Result<MeasureReport> {
    let mut fleet = fleet::fleet(&args.fleet, pipeline).await?;
    let layouts = args.layout.map_or_else(|| Layout::ALL.to_vec(), |layout| vec![layout]);
    let folder = tempdir().context("cannot create a temporary folder")?;
    let progress = Progress::new();
    progress.show("measuring the overhead of this machine");
    fleet.overhead =
        measure_overhead(folder.path()).await.context("cannot measure this machine")?;
    drop(progress);
    let mut measured = Vec::new();
    let (plans, left_out) = plans(pipeline, &fleet, &layouts);
    for plan in plans {
        let title = || format!("layout {}", plan.layout.name());
        let measurement = measure_plan(pipeline, &fleet, &plan, args.duration, folder.path()).await;
        let Measurement { figures, rate_limited: traced_run } = measurement.with_context(title)?;
        if args.trace.is_some() {
            traces.add(pipeline, &traced_run, &format!("{}, {}", pipeline.name, title()));
        }
        let prediction_input = (pipeline, &fleet, &plan.placement);
        measured.push(MeasuredLayout::with_prediction(plan.layout, figures, prediction_input));
    }
    let verdict = Verdict::of(pipeline, &measured);
    let (pipeline, layouts) = (pipeline.name.clone(), measured);
    Ok(MeasureReport { pipeline, simulated: true, layouts, left_out, verdict, runs_in: None })
}
