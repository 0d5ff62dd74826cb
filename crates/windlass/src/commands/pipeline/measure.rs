//! `windlass pipeline measure`: throughput and latency of a running pipeline beside their prediction.

pub(crate) mod figures;
pub(crate) mod load;
#[cfg(feature = "laboratory")]
pub(crate) mod simulated;
mod table;

use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Serialize;
#[cfg(feature = "laboratory")]
use windlass_pipeline::pipeline::Goal;
use windlass_pipeline::{Layout, Pipeline, Plan, Prediction, prediction::USUAL_LOAD};
use windlass_stage::Addresses;

use super::{fleet, pipeline};
use crate::{cli::MeasureArgs, commands::answer, exit::Misuse, screen::Progress};
use figures::MeasuredFigures;
use load::Entrance;

/// The layouts of a pipeline, measured.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MeasureReport {
    pub(crate) pipeline: String,
    /// True for boards that are described, and not there.
    pub(crate) simulated: bool,
    pub(crate) layouts: Vec<MeasuredLayout>,
    /// The layout to take, where several were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) take: Option<&'static str>,
}

/// A layout, measured.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MeasuredLayout {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) layout: Option<&'static str>,
    #[serde(flatten)]
    pub(crate) measured: MeasuredFigures,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) predicted: Option<PredictedBeside>,
}

/// The prediction for what was measured.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PredictedBeside {
    pub(crate) items_per_second: f64,
    /// At the rate of the measurement.
    pub(crate) latency_ms: Option<f64>,
}

pub(super) async fn run(args: MeasureArgs) -> Result<()> {
    let pipeline = pipeline(&args.pipeline)?;
    let report = if args.fleet.boards.is_some() {
        on_boards(&pipeline, &args).await?
    } else {
        deployed(&pipeline, &args).await?
    };
    answer(args.output, &report, || table::print(&report))?;
    let unheard: u64 = report.layouts.iter().map(|layout| layout.measured.account.unheard).sum();
    ensure!(unheard == 0, "{unheard} items went in and nothing was heard of them");
    Ok(())
}

#[cfg(feature = "laboratory")]
async fn on_boards(pipeline: &Pipeline, args: &MeasureArgs) -> Result<MeasureReport> {
    simulated::layouts(pipeline, args).await
}

#[cfg(not(feature = "laboratory"))]
async fn on_boards(_: &Pipeline, _: &MeasureArgs) -> Result<MeasureReport> {
    Err(crate::absent::no_laboratory())
}

/// Measures what runs in the cluster.
async fn deployed(pipeline: &Pipeline, args: &MeasureArgs) -> Result<MeasureReport> {
    let addresses = |stage: usize, given: Option<&Addresses>| -> Result<Addresses> {
        let service = || {
            format!("{}-{}:{}", pipeline.name, pipeline.stages[stage].name, pipeline.port(stage))
        };
        given.cloned().map_or_else(
            || service().parse().map_err(|error| Misuse(anyhow::Error::from(error)).into()),
            Ok,
        )
    };
    let end = |stage: usize| {
        let name = &pipeline.stages[stage].name;
        addresses(stage, args.end.iter().find(|(of, _)| of == name).map(|(_, addresses)| addresses))
    };
    let entrance = Entrance {
        first: pipeline.stages[0].name.clone(),
        addresses: addresses(0, args.first.as_ref())?,
        ends: pipeline.ends().map(end).collect::<Result<_>>()?,
        input: size(pipeline),
    };
    let measured = measure(pipeline, &entrance, args.lasts, "the pipeline").await?;
    let predicted = match args.layout {
        None => None,
        Some(layout) => {
            let fleet = fleet::fleet(&args.fleet).await?;
            let plan = Plan::of(pipeline, &fleet, layout)?;
            let rate = Some(measured.at_items_per_second);
            Some(PredictedBeside::of(&Prediction::at(pipeline, &fleet, &plan.placement, rate)))
        }
    };
    let layout = MeasuredLayout { layout: args.layout.map(Layout::name), measured, predicted };
    Ok(MeasureReport {
        pipeline: pipeline.name.clone(),
        simulated: false,
        layouts: vec![layout],
        take: None,
    })
}

/// Measures as many items as the pipeline takes, then the rate of its file or seventy percent of that.
pub(crate) async fn measure(
    pipeline: &Pipeline,
    entrance: &Entrance,
    lasts: Duration,
    title: &str,
) -> Result<MeasuredFigures> {
    let progress = Progress::new();
    progress.show(&format!("{title}: as many items as it takes, for {} s", lasts.as_secs()));
    let full = entrance.load(load::Plan { rate: None, lasts }).await?;
    let (throughput, _) = figures::throughput(&full);
    ensure!(
        throughput > 0.0,
        "too few items arrived in {} s to tell a rate: use a longer --for",
        lasts.as_secs()
    );
    let rate = pipeline.rate.filter(|rate| *rate < throughput).unwrap_or(USUAL_LOAD * throughput);
    progress.show(&format!("{title}: {rate:.1} items/s, for {} s", lasts.as_secs()));
    let paced = entrance.load(load::Plan { rate: Some(rate), lasts }).await?;
    Ok(MeasuredFigures::of(pipeline, &full, &paced, rate))
}

/// Size of an item as it goes in.
pub(crate) fn size(pipeline: &Pipeline) -> usize {
    usize::try_from(pipeline.input.0).unwrap_or(usize::MAX)
}

// === impl MeasuredLayout ===

impl MeasuredLayout {
    /// The layout that serves the goal best, of several.
    #[cfg(feature = "laboratory")]
    fn best(goal: Goal, layouts: &[Self]) -> Option<&'static str> {
        let worth = |layout: &&Self| match goal {
            Goal::Latency => -layout.measured.latency.mean_ms,
            Goal::Throughput | Goal::ThroughputUnder(_) => layout.measured.items_per_second,
        };
        let best = layouts.iter().max_by(|a, b| worth(a).total_cmp(&worth(b)));
        best.filter(|_| layouts.len() > 1).and_then(|best| best.layout)
    }
}

// === impl PredictedBeside ===

impl PredictedBeside {
    pub(crate) fn of(prediction: &Prediction) -> Self {
        let latency_ms = prediction.latency.as_ref().map(|latency| 1e3 * latency.total);
        Self { items_per_second: prediction.throughput, latency_ms }
    }
}
