//! Durations of a repeated measurement.

use std::{fmt, time::Duration};

/// Durations in the order of the measurements.
#[derive(Debug, Default)]
pub(crate) struct Samples(Vec<Duration>);

/// A duration with three digits, in the largest unit in which it is at least one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortDuration(pub(crate) Duration);

// === impl Samples ===

impl Samples {
    pub(crate) fn push(&mut self, sample: Duration) {
        self.0.push(sample);
    }

    pub(crate) fn median(&self) -> Duration {
        self.quantile(50)
    }

    /// 99th percentile; the slowest of few samples.
    pub(crate) fn p99(&self) -> Duration {
        self.quantile(99)
    }

    /// The median as a multiple of another one.
    pub(crate) fn ratio_to(&self, baseline: &Self) -> f64 {
        self.median().as_secs_f64() / baseline.median().as_secs_f64()
    }

    fn quantile(&self, percent: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() * percent / 100).copied().unwrap_or_default()
    }
}

// === impl ShortDuration ===

impl fmt::Display for ShortDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        let (value, unit) = match self.0.as_nanos() {
            0..1_000 => (seconds * 1e9, "ns"),
            1_000..1_000_000 => (seconds * 1e6, "us"),
            1_000_000..1_000_000_000 => (seconds * 1e3, "ms"),
            _ => (seconds, "s"),
        };
        let digits = match value {
            0.0..10.0 => 2,
            10.0..100.0 => 1,
            _ => 0,
        };
        write!(f, "{value:.digits$} {unit}")
    }
}
