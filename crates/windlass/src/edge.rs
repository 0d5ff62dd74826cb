//! Simulated boards: each stage is a process, each link between boards a TCP connection with the board's rate and
//! delay.
//!
//! ```text
//! stage ──> link (chunks wait for both boards' ports) ──> stage of another board
//!      └──> stage of the same board, directly
//! ```

mod boards;
mod calibration;
mod link;
mod port;

use std::{path::Path, time::Duration};

use anyhow::{Context as _, Result};
use windlass_pipeline::{Fleet, Pipeline, Plan};

use crate::measurement::{Measurement, input_size, load::PipelineEndpoints, measure};
pub(crate) use boards::SimulatedBoards;
pub(crate) use calibration::measure_overhead;

/// Runs a plan on simulated boards, and measures it. `folder` is the working folder of the stages.
pub(crate) async fn measure_plan(
    pipeline: &Pipeline,
    fleet: &Fleet,
    plan: &Plan,
    duration: Duration,
    folder: &Path,
) -> Result<Measurement> {
    let boards = SimulatedBoards::start(pipeline, fleet, &plan.placement, folder).await?;
    let title = format!("layout {}", plan.layout.name());
    let result = match endpoints(pipeline, &boards) {
        Ok(endpoints) => measure(pipeline, &endpoints, duration, &title).await,
        Err(error) => Err(error),
    };
    boards.stop().await;
    result
}

/// Addresses at which items enter and leave a pipeline on simulated boards.
pub(crate) fn endpoints(
    pipeline: &Pipeline,
    boards: &SimulatedBoards<'_>,
) -> Result<PipelineEndpoints> {
    let addresses = |stage| boards.addresses(stage).parse().context("addresses of this machine");
    Ok(PipelineEndpoints {
        first: pipeline.stages[0].name.clone(),
        addresses: addresses(0)?,
        ends: pipeline.final_stages().map(addresses).collect::<Result<_>>()?,
        input: input_size(pipeline),
    })
}
