//! Overhead of the stages' programs on this machine, an input of predictions for simulated boards.

use std::{path::Path, time::Duration};

use anyhow::Result;
use windlass_pipeline::{Fleet, Layout, Pipeline, Plan, fleet::Overhead, quantity::Seconds};

use super::{SimulatedBoards, endpoints};
use crate::measurement::{
    figures,
    load::{Load, LoadRun},
};

/// Three stages on one board. The time beyond their known work is overhead.
const PIPELINE: &str = "
name: calibration
input: 1KiB
stages:
- {name: first, output: 1KiB, on: [{cpus: 0.1, time: 2ms}]}
- {name: second, output: 1KiB, on: [{cpus: 0.1, time: 2ms}]}
- {name: third, on: [{cpus: 0.1, time: 2ms}]}
links: [{from: first, to: second}, {from: second, to: third}]
";
const BOARD: &str = "nodes: [{name: board}]";
/// Work of a stage in the pipeline above, in seconds per item.
const WORK: f64 = 0.002;
const STAGES: f64 = 3.0;
/// Items per second: a tenth of the stages' capacity, so that items do not queue.
const RATE: f64 = 50.0;
/// Duration of each of the two runs.
const RUN_DURATION: Duration = Duration::from_millis(1500);

/// Measures the overhead of a hop and of a step, in three seconds.
pub(crate) async fn measure_overhead(folder: &Path) -> Result<Overhead> {
    let pipeline = Pipeline::parse(Path::new("calibration"), PIPELINE)?;
    let fleet = Fleet::parse(Path::new("calibration"), BOARD)?;
    let plan = Plan::of(&pipeline, &fleet, Layout::Pod)?;
    let boards = SimulatedBoards::start(&pipeline, &fleet, &plan.placement, folder).await?;
    let endpoints = endpoints(&pipeline, &boards)?;
    let unlimited = endpoints.run_load(Load { rate: None, duration: RUN_DURATION }).await;
    let rate_limited = endpoints.run_load(Load { rate: Some(RATE), duration: RUN_DURATION }).await;
    boards.stop().await;
    let (throughput, _) = figures::throughput(&unlimited?);
    let step = (1.0 / throughput - WORK).max(0.0);
    // Hops: from the source, between the stages, and to the listener.
    let hop = (mean_latency(&rate_limited?) - STAGES * WORK) / (STAGES + 1.0);
    Ok(Overhead { hop: Seconds(hop.max(0.0)), batch_gap: Seconds(step) })
}

fn mean_latency(run: &LoadRun) -> f64 {
    let sum: Duration = run.arrived.iter().map(|arrival| arrival.latency).sum();
    sum.as_secs_f64() / f64::from(u32::try_from(run.arrived.len().max(1)).unwrap_or(u32::MAX))
}
