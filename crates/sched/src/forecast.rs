//! Forecast of future requests: the counts of past requests.

use std::{cmp::Reverse, collections::HashMap};

use crate::{request::Request, view::ClusterView};

/// Typical requests are the most frequent requests that together make up this fraction of all pods, as in FGD.
const TYPICAL_FRACTION: f64 = 0.95;

/// Counts of requests. Requests that differ only in main memory count as equal.
#[derive(Clone, Debug, Default)]
pub struct Forecast {
    counts: HashMap<Request, u64>,
    total: u64,
}

/// Number of pods with one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestCount {
    /// The request, without main memory.
    pub request: Request,
    /// GPUs of each pod, in thousandths of an average GPU of the cluster: see [`ClusterView::average_milli`].
    pub gpu_milli: u32,
    /// Number of pods.
    pub pods: f64,
}

impl RequestCount {
    /// Sum of the GPUs of all these pods, in thousandths.
    pub fn demand_milli(&self) -> f64 {
        f64::from(self.gpu_milli) * self.pods
    }
}

/// A typical request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TypicalRequest {
    /// The request, without main memory.
    pub request: Request,
    /// Frequency among the typical requests, from 0 to 1.
    pub weight: f64,
}

impl Forecast {
    /// Counts the request of a new pod.
    pub fn observe(&mut self, request: &Request) {
        *self.counts.entry(Request { memory_mib: 0, ..*request }).or_default() += 1;
        self.total += 1;
    }

    /// Number of pods counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Counts by request, most frequent first, in a deterministic order.
    pub fn counts(&self, view: &ClusterView) -> Vec<RequestCount> {
        let mut counts: Vec<_> = self.counts.iter().collect();
        counts.sort_unstable_by_key(|(request, pods)| (Reverse(**pods), **request));
        counts
            .into_iter()
            .map(|(request, pods)| RequestCount {
                request: *request,
                gpu_milli: view.average_milli(request),
                pods: number(*pods),
            })
            .collect()
    }
}

/// The most frequent requests that together make up 95 % of all pods, in the order of `counts`.
pub fn typical_requests(counts: &[RequestCount]) -> Vec<TypicalRequest> {
    let target = TYPICAL_FRACTION * counts.iter().map(|count| count.pods).sum::<f64>();
    let mut covered = 0.0;
    let is_typical = |count: &&RequestCount| {
        let is_typical = covered < target;
        covered += if is_typical { count.pods } else { 0.0 };
        is_typical
    };
    let typical: Vec<_> = counts.iter().filter(is_typical).collect();
    typical
        .into_iter()
        .map(|count| TypicalRequest { request: count.request, weight: count.pods / covered })
        .collect()
}

#[expect(clippy::cast_precision_loss, reason = "counts of pods are far below 2^52")]
fn number(pods: u64) -> f64 {
    pods as f64
}
