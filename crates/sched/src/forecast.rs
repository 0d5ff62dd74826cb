//! The requests that are likely to come, counted from those that came.

use std::{cmp::Reverse, collections::HashMap};

use crate::{request::Request, view::View};

/// FGD counts the most popular requests until they are this part of all pods.
const POPULAR_SHARE: f64 = 0.95;

/// Counts of requests by their shape. Main memory is not part of the shape.
#[derive(Clone, Debug, Default)]
pub struct Forecast {
    counts: HashMap<Request, u64>,
    total: u64,
}

/// Pods that came with one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Count {
    /// The request, without main memory.
    pub request: Request,
    /// GPUs of each, in thousandths; memory and partitions count as their part of a usual GPU.
    pub gpu_milli: u32,
    /// Their number.
    pub pods: f64,
}

impl Count {
    /// GPUs of all these pods, in thousandths.
    pub fn demand_milli(&self) -> f64 {
        f64::from(self.gpu_milli) * self.pods
    }
}

/// A request that is likely to come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Typical {
    /// The request, without main memory.
    pub request: Request,
    /// Its part of the popular requests, from 0 to 1.
    pub weight: f64,
}

impl Forecast {
    /// Counts a pod that came.
    pub fn observe(&mut self, request: &Request) {
        *self.counts.entry(Request { memory_mib: 0, ..*request }).or_default() += 1;
        self.total += 1;
    }

    /// Number of pods counted.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Counts by request, the most frequent first, in an order that does not depend on chance.
    pub fn counts(&self, view: &View) -> Vec<Count> {
        let mut counts: Vec<_> = self.counts.iter().collect();
        counts.sort_unstable_by_key(|(request, pods)| (Reverse(**pods), **request));
        counts
            .into_iter()
            .map(|(request, pods)| Count {
                request: *request,
                gpu_milli: view.usual_milli(request),
                pods: number(*pods),
            })
            .collect()
    }
}

/// The most popular requests, as many as make up 95 % of all pods. The most frequent comes first, as in the counts.
pub fn typical(counts: &[Count]) -> Vec<Typical> {
    let enough = POPULAR_SHARE * counts.iter().map(|it| it.pods).sum::<f64>();
    let mut seen = 0.0;
    let is_wanted = |it: &&Count| {
        let is_wanted = seen < enough;
        seen += if is_wanted { it.pods } else { 0.0 };
        is_wanted
    };
    let popular: Vec<_> = counts.iter().filter(is_wanted).collect();
    popular.into_iter().map(|it| Typical { request: it.request, weight: it.pods / seen }).collect()
}

#[expect(clippy::cast_precision_loss, reason = "counts of pods are far below 2^52")]
fn number(pods: u64) -> f64 {
    pods as f64
}
