//! `windlass pipeline measure`: throughput and latency of a running pipeline beside their prediction.

mod picture;
#[cfg(feature = "laboratory")]
mod simulated;
mod table;

use std::fs::{self, File};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use windlass_pipeline::{Layout, Pipeline, Plan, Prediction};
use windlass_stage::Addresses;

use super::{fleet, pipeline};
use crate::{
    cli::MeasureArgs,
    commands::answer,
    exit::Misuse,
    measurement::{figures::MeasuredFigures, input_size, load::Entrance, measure, trace::Traces},
};

/// The layouts of a pipeline, measured.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MeasureReport {
    pipeline: String,
    /// True for boards that are described, and not there.
    simulated: bool,
    layouts: Vec<MeasuredLayout>,
    /// The layout to take, where several were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    take: Option<&'static str>,
}

/// A layout, measured.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MeasuredLayout {
    #[serde(skip_serializing_if = "Option::is_none")]
    layout: Option<&'static str>,
    #[serde(flatten)]
    measured: MeasuredFigures,
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted: Option<PredictedBeside>,
}

/// The prediction for what was measured.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct PredictedBeside {
    items_per_second: f64,
    /// At the rate of the measurement.
    latency_ms: Option<f64>,
}

pub(super) async fn run(args: MeasureArgs) -> Result<()> {
    let pipeline = pipeline(&args.pipeline)?;
    // A file that cannot be written is told before the measurement.
    for path in args.trace.iter().chain(&args.picture) {
        File::create(path)
            .with_context(|| format!("cannot write {}", path.display()))
            .map_err(Misuse)?;
    }
    let mut traces = Traces::default();
    let report = match args.fleet.boards {
        Some(_) => on_boards(&pipeline, &args, &mut traces).await?,
        None => deployed(&pipeline, &args, &mut traces).await?,
    };
    answer(args.output, &report, || table::print(&report))?;
    if let Some(path) = &args.trace {
        traces.write(&pipeline, path)?;
    }
    if let Some(path) = &args.picture {
        let written = fs::write(path, picture::svg(&report));
        written.with_context(|| format!("cannot write {}", path.display()))?;
    }

    let unheard: u64 = report.layouts.iter().map(|layout| layout.measured.account.unheard).sum();
    ensure!(unheard == 0, "{unheard} items went in and nothing was heard of them");
    Ok(())
}

#[cfg(feature = "laboratory")]
async fn on_boards(
    pipeline: &Pipeline,
    args: &MeasureArgs,
    traces: &mut Traces,
) -> Result<MeasureReport> {
    simulated::layouts(pipeline, args, traces).await
}

#[cfg(not(feature = "laboratory"))]
async fn on_boards(_: &Pipeline, _: &MeasureArgs, _: &mut Traces) -> Result<MeasureReport> {
    Err(crate::absent::no_laboratory())
}

/// Measures what runs in the cluster.
async fn deployed(
    pipeline: &Pipeline,
    args: &MeasureArgs,
    traces: &mut Traces,
) -> Result<MeasureReport> {
    let end = |stage: usize| {
        let name = &pipeline.stages[stage].name;
        let given = args.end.iter().find(|(of, _)| of == name).map(|(_, addresses)| addresses);
        addresses(pipeline, stage, given)
    };
    let entrance = Entrance {
        first: pipeline.stages[0].name.clone(),
        addresses: addresses(pipeline, 0, args.first.as_ref())?,
        ends: pipeline.ends().map(end).collect::<Result<_>>()?,
        input: input_size(pipeline),
    };
    let planned = match args.layout {
        None => None,
        Some(layout) => {
            // Before the measurement, whose figures a failure would lose.
            let fleet = fleet::fleet(&args.fleet, pipeline).await?;
            Some((Plan::of(pipeline, &fleet, layout)?, fleet))
        }
    };
    let measurement = measure(pipeline, &entrance, args.lasts, &pipeline.name).await?;
    if args.trace.is_some() {
        traces.add(pipeline, &measurement.paced, &pipeline.name);
    }
    let measured = measurement.figures;
    let predicted = planned.map(|(plan, fleet)| {
        let rate = Some(measured.at_items_per_second);
        PredictedBeside::of(&Prediction::at(pipeline, &fleet, &plan.placement, rate))
    });
    let layout = MeasuredLayout { layout: args.layout.map(Layout::name), measured, predicted };
    let pipeline = pipeline.name.clone();
    Ok(MeasureReport { pipeline, simulated: false, layouts: vec![layout], take: None })
}

/// The given addresses of a stage, or its Service.
fn addresses(pipeline: &Pipeline, stage: usize, given: Option<&Addresses>) -> Result<Addresses> {
    if let Some(given) = given {
        return Ok(given.clone());
    }
    let name = &pipeline.stages[stage].name;
    let service = format!("{}-{name}:{}", pipeline.name, pipeline.port(stage));
    Ok(service.parse().map_err(|error| Misuse(anyhow::Error::from(error)))?)
}

// === impl PredictedBeside ===

impl PredictedBeside {
    fn of(prediction: &Prediction) -> Self {
        let latency_ms = prediction.latency.as_ref().map(|latency| 1e3 * latency.total);
        Self { items_per_second: prediction.throughput, latency_ms }
    }
}
