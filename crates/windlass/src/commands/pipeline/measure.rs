//! `windlass pipeline measure`: throughput and latency of a running pipeline, compared with the prediction.

mod cluster;
mod job;
mod picture;
#[cfg(feature = "laboratory")]
mod simulated;
mod table;
mod verdict;

use std::fs::{self, File};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;
use windlass_host::causes;
use windlass_pipeline::{Fleet, Layout, Pipeline, Placement, Plan, Prediction};
use windlass_stage::Addresses;

use super::{fleet, parse, text};
use crate::{
    cli::MeasureArgs,
    commands::print_output,
    exit::UsageError,
    measurement::{
        figures::MeasuredFigures, input_size, load::PipelineEndpoints, measure, trace::Traces,
    },
};
use verdict::Verdict;

/// Measured layouts of a pipeline.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct MeasureReport {
    pipeline: String,
    /// True for simulated boards.
    simulated: bool,
    layouts: Vec<MeasuredLayout>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<SkippedLayout>,
    /// Best layout; absent if fewer than two were measured.
    #[serde(flatten)]
    verdict: Option<Verdict>,
    /// Namespace in which the best layout runs now, after a comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    runs_in: Option<String>,
}

/// A requested layout that was not measured, or could not be applied again.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SkippedLayout {
    layout: &'static str,
    reason: String,
    /// True if its measurement failed, or its application as the best layout; false if it has no placement.
    has_failed: bool,
}

/// A measured layout.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct MeasuredLayout {
    #[serde(skip_serializing_if = "Option::is_none")]
    layout: Option<&'static str>,
    #[serde(flatten)]
    measured: MeasuredFigures,
    #[serde(skip_serializing_if = "Option::is_none")]
    predicted: Option<ComparedPrediction>,
}

/// Prediction for a measured layout.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ComparedPrediction {
    items_per_second: f64,
    /// Mean latency at the measured rate, in milliseconds.
    latency_ms: Option<f64>,
}

pub(super) async fn run(args: MeasureArgs) -> Result<()> {
    let text = text(&args.pipeline)?;
    let pipeline = parse(&args.pipeline, &text, Pipeline::parse)?;
    // Report an unwritable file before the measurement.
    for path in args.trace.iter().chain(&args.picture) {
        File::create(path)
            .with_context(|| format!("cannot write {}", path.display()))
            .map_err(UsageError)?;
    }
    let mut traces = Traces::default();
    let report = match args.fleet.boards {
        Some(_) => measure_on_boards(&pipeline, &args, &mut traces).await?,
        None if args.compare => cluster::layouts(&pipeline, &text, &args).await?,
        None => measure_deployed(&pipeline, &args, &mut traces).await?,
    };
    print_output(args.output, &report, || table::print(&report))?;
    if let Some(path) = &args.trace {
        traces.write(&pipeline, path)?;
    }
    if let Some(path) = &args.picture {
        let result = fs::write(path, picture::svg(&report));
        result.with_context(|| format!("cannot write {}", path.display()))?;
    }

    let unknown_count: u64 =
        report.layouts.iter().map(|layout| layout.measured.account.unheard).sum();
    ensure!(unknown_count == 0, "the outcome of {unknown_count} items is unknown");
    ensure!(!report.layouts.is_empty(), "no layout was measured");
    let failures = report.left_out.iter().filter(|skipped| skipped.has_failed);
    let names = failures.map(|skipped| skipped.layout).collect::<Vec<_>>().join(", ");
    ensure!(names.is_empty(), "not measured: {names}");
    let meets_goal = report.verdict.as_ref().is_none_or(|verdict| verdict.meets_goal);
    ensure!(meets_goal, "no layout meets the goal");
    Ok(())
}

/// Plans of the layouts with a placement, and the layouts without one.
fn plans(
    pipeline: &Pipeline,
    fleet: &Fleet,
    layouts: &[Layout],
) -> (Vec<Plan>, Vec<SkippedLayout>) {
    let (mut plans, mut left_out) = (Vec::new(), Vec::new());
    for layout in layouts.iter().copied() {
        match Plan::of(pipeline, fleet, layout) {
            Ok(plan) => plans.push(plan),
            Err(error) => left_out.push(SkippedLayout::without_placement(layout, &error)),
        }
    }
    (plans, left_out)
}

#[cfg(feature = "laboratory")]
async fn measure_on_boards(
    pipeline: &Pipeline,
    args: &MeasureArgs,
    traces: &mut Traces,
) -> Result<MeasureReport> {
    simulated::layouts(pipeline, args, traces).await
}

#[cfg(not(feature = "laboratory"))]
async fn measure_on_boards(_: &Pipeline, _: &MeasureArgs, _: &mut Traces) -> Result<MeasureReport> {
    Err(crate::absent::no_laboratory())
}

/// Measures the pipeline that runs in the cluster.
async fn measure_deployed(
    pipeline: &Pipeline,
    args: &MeasureArgs,
    traces: &mut Traces,
) -> Result<MeasureReport> {
    let end = |stage: usize| {
        let name = &pipeline.stages[stage].name;
        let argument = args.end.iter().find(|(end, _)| end == name);
        addresses(pipeline, stage, argument.map(|(_, addresses)| addresses))
    };
    let endpoints = PipelineEndpoints {
        first: pipeline.stages[0].name.clone(),
        addresses: addresses(pipeline, 0, args.first.as_ref())?,
        ends: pipeline.final_stages().map(end).collect::<Result<_>>()?,
        input: input_size(pipeline),
    };
    let prediction_input = match args.layout {
        None => None,
        Some(layout) => {
            // Plan before the measurement: a later failure would lose its figures.
            let fleet = fleet::fleet(&args.fleet, pipeline).await?;
            Some((Plan::of(pipeline, &fleet, layout)?, fleet))
        }
    };
    let measurement = measure(pipeline, &endpoints, args.duration, &pipeline.name).await?;
    if args.trace.is_some() {
        traces.add(pipeline, &measurement.rate_limited, &pipeline.name);
    }
    let measured = measurement.figures;
    let layout = match prediction_input {
        Some((plan, fleet)) => MeasuredLayout::with_prediction(
            plan.layout,
            measured,
            (pipeline, &fleet, &plan.placement),
        ),
        None => MeasuredLayout { layout: None, measured, predicted: None },
    };
    let pipeline = pipeline.name.clone();
    let layouts = vec![layout];
    Ok(MeasureReport { pipeline, layouts, ..MeasureReport::default() })
}

/// Addresses of a stage from the command line, or else its Service.
fn addresses(pipeline: &Pipeline, stage: usize, argument: Option<&Addresses>) -> Result<Addresses> {
    if let Some(argument) = argument {
        return Ok(argument.clone());
    }
    let name = &pipeline.stages[stage].name;
    let service = format!("{}-{name}:{}", pipeline.name, pipeline.port(stage));
    Ok(service.parse().map_err(|error| UsageError(anyhow::Error::from(error)))?)
}

// === impl MeasuredLayout ===

impl MeasuredLayout {
    /// Combines the figures of a placed layout with their prediction.
    fn with_prediction(
        layout: Layout,
        measured: MeasuredFigures,
        (pipeline, fleet, placement): (&Pipeline, &Fleet, &Placement),
    ) -> Self {
        let rate = Some(measured.at_items_per_second);
        let prediction = Prediction::at(pipeline, fleet, placement, rate);
        let latency_ms = prediction.latency.as_ref().map(|latency| 1e3 * latency.total);
        let predicted = ComparedPrediction { items_per_second: prediction.throughput, latency_ms };
        Self { layout: Some(layout.name()), measured, predicted: Some(predicted) }
    }
}

// === impl SkippedLayout ===

impl SkippedLayout {
    fn without_placement(layout: Layout, reason: &dyn std::error::Error) -> Self {
        Self { layout: layout.name(), reason: causes(reason), has_failed: false }
    }

    fn failed(layout: Layout, reason: &anyhow::Error) -> Self {
        Self { layout: layout.name(), reason: causes(&**reason), has_failed: true }
    }
}
