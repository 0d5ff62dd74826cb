//! Measurement of a running pipeline: its throughput in a run without a limit, then its latency at a rate.

pub(crate) mod figures;
pub(crate) mod load;
pub(crate) mod trace;

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use windlass_pipeline::{Pipeline, prediction::DEFAULT_LOAD};

use crate::screen::Progress;
use figures::{ItemAccount, MeasuredFigures};
use load::{Load, LoadRun, PipelineEndpoints};

/// Result of a measurement.
#[derive(Debug)]
pub(crate) struct Measurement {
    pub(crate) figures: MeasuredFigures,
    /// The run with a limited rate.
    pub(crate) rate_limited: LoadRun,
}

/// Measures a pipeline in two runs of this duration. The second run has the rate of the pipeline's file, if the
/// pipeline sustains it, or else `DEFAULT_LOAD` times the measured throughput.
pub(crate) async fn measure(
    pipeline: &Pipeline,
    endpoints: &PipelineEndpoints,
    duration: Duration,
    title: &str,
) -> Result<Measurement> {
    let progress = Progress::new();
    let seconds = duration.as_secs();
    progress.show(&format!("{title}: as many items as it takes, for {seconds} s"));
    let unlimited = endpoints.run_load(Load { rate: None, duration }).await?;
    let (throughput, _) = figures::throughput(&unlimited);
    if throughput <= 0.0 {
        bail!("{}", no_throughput_reason(&unlimited, seconds));
    }
    let rate = pipeline.rate.filter(|rate| *rate < throughput).unwrap_or(DEFAULT_LOAD * throughput);
    progress.show(&format!("{title}: {rate:.1} items/s, for {seconds} s"));
    let rate_limited = endpoints.run_load(Load { rate: Some(rate), duration }).await;
    let arrived_count = unlimited.arrived.len();
    let rate_limited = rate_limited.with_context(|| {
        format!("after {arrived_count} of {} items had arrived", unlimited.sent)
    })?;
    Ok(Measurement {
        figures: MeasuredFigures::of(pipeline, &unlimited, &rate_limited, rate),
        rate_limited,
    })
}

/// Reason of a run without a throughput: the most frequent failure, or too few items.
fn no_throughput_reason(run: &LoadRun, seconds: u64) -> String {
    let mut account = ItemAccount::default();
    account.add(run);
    let ItemAccount { sent, arrived, failed, .. } = account;
    match failed.iter().max_by_key(|(_, count)| **count) {
        Some((reason, count)) => {
            format!("{arrived} of {sent} items arrived; {count} failed at {reason}")
        }
        None => format!(
            "{arrived} items arrived in {seconds} s, too few for a rate: measure for longer"
        ),
    }
}

/// Size of an item at the first stage of a pipeline, in bytes.
pub(crate) fn input_size(pipeline: &Pipeline) -> usize {
    usize::try_from(pipeline.input.0).unwrap_or(usize::MAX)
}
