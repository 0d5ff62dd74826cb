//! Measurement of a running pipeline: as many items as it takes, then a rate at which its latency is looked at.

pub(crate) mod figures;
pub(crate) mod load;
pub(crate) mod trace;

use std::time::Duration;

use anyhow::{Result, ensure};
use windlass_pipeline::{Pipeline, prediction::USUAL_LOAD};

use crate::screen::Progress;
use figures::MeasuredFigures;
use load::{Entrance, Load, LoadRun};

/// A pipeline, measured.
#[derive(Debug)]
pub(crate) struct Measurement {
    pub(crate) figures: MeasuredFigures,
    /// The run at a rate.
    pub(crate) paced: LoadRun,
}

/// Measures a pipeline: twice for this time. The rate of the second run is that of the pipeline's file, or seventy percent
/// of what the pipeline takes.
pub(crate) async fn measure(
    pipeline: &Pipeline,
    entrance: &Entrance,
    lasts: Duration,
    title: &str,
) -> Result<Measurement> {
    let progress = Progress::new();
    let seconds = lasts.as_secs();
    progress.show(&format!("{title}: as many items as it takes, for {seconds} s"));
    let full = entrance.load(Load { rate: None, lasts }).await?;
    let (throughput, _) = figures::throughput(&full);
    ensure!(
        throughput > 0.0,
        "too few items arrived in {seconds} s to tell a rate: measure for longer"
    );
    let rate = pipeline.rate.filter(|rate| *rate < throughput).unwrap_or(USUAL_LOAD * throughput);
    progress.show(&format!("{title}: {rate:.1} items/s, for {seconds} s"));
    let paced = entrance.load(Load { rate: Some(rate), lasts }).await?;
    Ok(Measurement { figures: MeasuredFigures::of(pipeline, &full, &paced, rate), paced })
}

/// Size of an item as it goes into a pipeline.
pub(crate) fn input_size(pipeline: &Pipeline) -> usize {
    usize::try_from(pipeline.input.0).unwrap_or(usize::MAX)
}
