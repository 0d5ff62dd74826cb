//! Statistics of a measurement: throughput, and latencies as mean, p50, p95 and p99.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};
use windlass_pipeline::Pipeline;

use super::load::{FailedItem, LoadRun};

/// Measured throughput and latency of a pipeline.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct MeasuredFigures {
    /// Throughput in items per second, without a limit of the rate.
    pub(crate) items_per_second: f64,
    /// Half the width of the 95 % confidence interval of `items_per_second`; absent for too few items.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) plus_minus: Option<f64>,
    /// Rate in items per second at which the latencies were measured.
    pub(crate) at_items_per_second: f64,
    pub(crate) latency: Times,
    /// Half the width of the 95 % confidence interval of the mean latency; absent for too few items.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) mean_plus_minus_ms: Option<f64>,
    /// In the order of the pipeline.
    pub(crate) stages: Vec<StageTimes>,
    pub(crate) links: Vec<LinkTimes>,
    pub(crate) account: ItemAccount,
}

/// Outcomes of the items of both runs.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ItemAccount {
    pub(crate) sent: u64,
    pub(crate) arrived: u64,
    /// Number of failed items, by stage and reason.
    pub(crate) failed: BTreeMap<String, u64>,
    /// Number of items without a result or an error.
    pub(crate) unheard: u64,
}

/// Times in milliseconds.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
#[expect(clippy::struct_field_names, reason = "the unit is in each name")]
pub(crate) struct Times {
    pub(crate) mean_ms: f64,
    pub(crate) p50_ms: f64,
    pub(crate) p95_ms: f64,
    pub(crate) p99_ms: f64,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StageTimes {
    pub(crate) stage: String,
    /// Time in the queue.
    pub(crate) waited: Times,
    pub(crate) worked: Times,
    /// Time of the wait for room at the next stage.
    pub(crate) sending: Times,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LinkTimes {
    /// Receiving stage.
    pub(crate) to: String,
    pub(crate) time: Times,
}

/// Number of parts of a run, from which the confidence intervals are computed.
const PARTS: usize = 8;
/// Minimum number of items in a part.
const MIN_PART_ITEMS: usize = 8;
/// Student's t for seven degrees of freedom, two-sided, 95 %.
const STUDENT: f64 = 2.365;

// === impl MeasuredFigures ===

impl MeasuredFigures {
    /// Statistics of two runs: `unlimited`, for the throughput, and `rate_limited` at `rate`, for the latencies.
    pub(crate) fn of(
        pipeline: &Pipeline,
        unlimited: &LoadRun,
        rate_limited: &LoadRun,
        rate: f64,
    ) -> Self {
        let (items_per_second, plus_minus) = throughput(unlimited);
        let visits = |stage: &str, time: fn(&windlass_stage::Visit) -> Duration| {
            let visits = rate_limited.arrived.iter().flat_map(|arrival| &arrival.visits);
            Times::of(visits.filter(|visit| visit.stage == stage).map(time).collect())
        };
        let stages = pipeline.stages.iter().map(|stage| StageTimes {
            stage: stage.name.clone(),
            waited: visits(&stage.name, |visit| visit.queueing),
            worked: visits(&stage.name, |visit| visit.processing),
            sending: visits(&stage.name, |visit| visit.sending),
        });
        let links = pipeline.stages.iter().skip(1).map(|stage| LinkTimes {
            to: stage.name.clone(),
            time: visits(&stage.name, |visit| visit.link),
        });
        let mut account = ItemAccount::default();
        for run in [unlimited, rate_limited] {
            account.add(run);
        }
        let latencies: Vec<_> =
            rate_limited.arrived.iter().map(|arrival| arrival.latency).collect();
        Self {
            items_per_second,
            plus_minus,
            at_items_per_second: rate,
            mean_plus_minus_ms: mean_interval(&latencies),
            latency: Times::of(latencies),
            stages: stages.collect(),
            links: links.collect(),
            account,
        }
    }
}

/// Items per second at the end of the pipeline, and half the confidence interval. Leaves out the first quarter of the
/// arrivals, in which the queues fill.
pub(crate) fn throughput(run: &LoadRun) -> (f64, Option<f64>) {
    let mut times: Vec<f64> = run.arrived.iter().map(|arrival| arrival.at.as_secs_f64()).collect();
    // After the last send, items in transit drain at the rate of the slowest replica. They count only if few items
    // arrived before.
    let is_in_time = |time: &f64| *time <= run.duration.as_secs_f64();
    if times.iter().filter(|time| is_in_time(time)).count() >= 2 * PARTS {
        times.retain(is_in_time);
    }
    times.sort_by(f64::total_cmp);
    let steady = &times[times.len() / 4..];
    let [first, .., last] = steady else { return (0.0, None) };
    // Items that all arrive at the same time give no rate.
    if last <= first {
        return (0.0, None);
    }
    let rate = to_f64(steady.len() - 1) / (last - first);
    let size = (steady.len() - 1) / PARTS;
    if size < MIN_PART_ITEMS {
        return (rate, None);
    }
    // A part begins at the last item of the part before: items arrive in batches, and the pauses between them count.
    let ends: Vec<f64> = steady.iter().step_by(size).copied().collect();
    let rates: Vec<f64> =
        ends.windows(2).take(PARTS).map(|pair| to_f64(size) / (pair[1] - pair[0])).collect();
    // A batch that is larger than a part gives an infinite rate, and no confidence interval.
    let is_finite = rates.iter().all(|rate| rate.is_finite());
    (rate, is_finite.then(|| half_interval(&rates)))
}

/// Half the 95 % confidence interval of the mean latency, in milliseconds. It is computed from the means of parts,
/// because consecutive items wait together.
fn mean_interval(latencies: &[Duration]) -> Option<f64> {
    let size = latencies.len() / PARTS;
    let mean = |part: &[Duration]| 1e3 * part.iter().sum::<Duration>().as_secs_f64() / to_f64(size);
    let means: Vec<f64> = latencies.chunks_exact(size.max(1)).take(PARTS).map(mean).collect();
    (size >= MIN_PART_ITEMS).then(|| half_interval(&means))
}

/// Half the 95 % confidence interval of the mean of one value per part.
fn half_interval(parts: &[f64]) -> f64 {
    let mean = parts.iter().sum::<f64>() / to_f64(PARTS);
    let variance = parts.iter().map(|part| (part - mean).powi(2)).sum::<f64>() / to_f64(PARTS - 1);
    STUDENT * (variance / to_f64(PARTS)).sqrt()
}

/// A number that is exact below 2^32, which no count here reaches.
pub(crate) fn to_f64(items: usize) -> f64 {
    f64::from(u32::try_from(items).unwrap_or(u32::MAX))
}

// === impl ItemAccount ===

impl ItemAccount {
    /// Adds the items of a run.
    pub(crate) fn add(&mut self, run: &LoadRun) {
        self.sent += run.sent;
        self.arrived += run.arrived.len() as u64;
        self.unheard += run.missing;
        for FailedItem { failure, .. } in &run.failures {
            *self.failed.entry(format!("{}: {}", failure.stage, failure.reason)).or_default() += 1;
        }
    }
}

// === impl Times ===

impl Times {
    fn of(times: Vec<Duration>) -> Self {
        let mut ms: Vec<f64> = times.into_iter().map(|time| 1e3 * time.as_secs_f64()).collect();
        ms.sort_by(f64::total_cmp);
        let quantile = |percent: usize| {
            ms.get((ms.len().saturating_sub(1)) * percent / 100).copied().unwrap_or_default()
        };
        Self {
            mean_ms: ms.iter().sum::<f64>() / to_f64(ms.len().max(1)),
            p50_ms: quantile(50),
            p95_ms: quantile(95),
            p99_ms: quantile(99),
        }
    }
}
