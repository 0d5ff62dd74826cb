//! Measures layouts on simulated boards, one after another.

use anyhow::{Context as _, Result};
use tempfile::tempdir;
use windlass_pipeline::{Layout, Pipeline, Plan, Prediction, pipeline::Goal};

use super::{MeasureReport, MeasuredLayout, PredictedBeside};
use crate::{
    cli::MeasureArgs,
    commands::pipeline::fleet,
    edge::{measure_plan, overhead},
    exit::Interrupted,
    measurement::{Measurement, trace::Traces},
    screen::Progress,
    stop::Stop,
};

/// Measures until Ctrl-C: the stages end with this program.
pub(super) async fn layouts(
    pipeline: &Pipeline,
    args: &MeasureArgs,
    traces: &mut Traces,
) -> Result<MeasureReport> {
    let mut stop = Stop::listen()?;
    tokio::select! {
        report = Box::pin(each_layout(pipeline, args, traces)) => report,
        signal = stop.requested() => Err(Interrupted(signal).into()),
    }
}

async fn each_layout(
    pipeline: &Pipeline,
    args: &MeasureArgs,
    traces: &mut Traces,
) -> Result<MeasureReport> {
    let mut fleet = fleet::fleet(&args.fleet, pipeline).await?;
    let layouts = args.layout.map_or_else(|| Layout::ALL.to_vec(), |layout| vec![layout]);
    let folder = tempdir().context("cannot make a temporary folder")?;
    let progress = Progress::new();
    progress.show("the programs' own times on this machine");
    fleet.overhead = overhead(folder.path()).await.context("cannot measure this machine")?;
    drop(progress);
    let mut measured = Vec::new();
    for layout in layouts {
        let title = || format!("layout {}", layout.name());
        let plan = Plan::of(pipeline, &fleet, layout).with_context(title)?;
        let measured_plan = measure_plan(pipeline, &fleet, &plan, args.lasts, folder.path()).await;
        let Measurement { figures, paced } = measured_plan.with_context(title)?;
        if args.trace.is_some() {
            traces.add(pipeline, &paced, &format!("{}, {}", pipeline.name, title()));
        }
        let rate = Some(figures.at_items_per_second);
        let prediction = Prediction::at(pipeline, &fleet, &plan.placement, rate);
        measured.push(MeasuredLayout {
            layout: Some(layout.name()),
            measured: figures,
            predicted: Some(PredictedBeside::of(&prediction)),
        });
    }
    let take = best(pipeline.goal, &measured);
    let pipeline = pipeline.name.clone();
    Ok(MeasureReport { pipeline, simulated: true, layouts: measured, take })
}

/// The layout that serves the goal best, of several.
fn best(goal: Goal, layouts: &[MeasuredLayout]) -> Option<&'static str> {
    let worth = |layout: &&MeasuredLayout| {
        let (items, ms) = (layout.measured.items_per_second, layout.measured.latency.mean_ms);
        match goal {
            Goal::Latency => (true, -ms),
            // Of layouts that are all too slow, the fastest.
            Goal::ThroughputUnder(limit) if ms > 1e3 * limit.0 => (false, -ms),
            Goal::Throughput | Goal::ThroughputUnder(_) => (true, items),
        }
    };
    let above = |a: &&MeasuredLayout, b: &&MeasuredLayout| {
        let ((a_holds, a), (b_holds, b)) = (worth(a), worth(b));
        a_holds.cmp(&b_holds).then(a.total_cmp(&b))
    };
    let best = layouts.iter().max_by(above);
    best.filter(|_| layouts.len() > 1).and_then(|best| best.layout)
}
