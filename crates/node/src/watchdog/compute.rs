//! Use of a shared GPU's time by its holders, beside the compute that each asked for. Time slices limit nobody's: a holder that
//! takes far more than its share while others wait is reported, and goes on. Pure.

use std::collections::{BTreeMap, BTreeSet};

use windlass_core::device::DeviceId;

use super::{
    accounts::Usage,
    limits::{GpuLimits, Holders, Limit, Limits},
};

/// Use of every shared GPU's time by its holders.
#[derive(Debug, Default)]
pub(super) struct ComputeAccounts(BTreeMap<DeviceId, BTreeMap<Holders, Average>>);

/// Use by the holders of a GPU.
#[derive(Debug, Default)]
struct Average {
    /// Time in which their kernels ran, in percent, over about the last [`LOOKS`] measurements.
    percent: f64,
    /// True from a report on until they are within their share again.
    is_told: bool,
}

/// Holders that use far more of a GPU's time than their share, while it is busy.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ComputeExcess {
    pub(super) device: DeviceId,
    pub(super) holders: Holders,
    /// UIDs of the pods whose processes use it.
    pub(super) pods: BTreeSet<String>,
    /// Use and share, in percent of the GPU's time.
    pub(super) percent: f64,
    pub(super) share: u32,
}

/// Measurements of an average: about a minute.
const LOOKS: f64 = 60.0;

/// Use that is far above a share: half as much again, and at least so many percent of the GPU.
const FAR_ABOVE: f64 = 1.5;
const FAR_PERCENT: f64 = 10.0;

/// Use of the GPU by all holders from which on they wait for each other, in percent.
const BUSY: f64 = 90.0;

// === impl ComputeAccounts ===

impl ComputeAccounts {
    /// Forgets holders that have no share any more.
    pub(super) fn retain(&mut self, limits: &Limits) {
        self.0.retain(|device, averages| {
            let limits = limits.get(device);
            averages.retain(|holders, _| limits.is_some_and(|gpu| gpu.of(holders).is_some()));
            !averages.is_empty()
        });
    }

    /// Takes in a measurement of a GPU; returns new excesses. Processes that the driver does not measure use nothing.
    pub(super) fn record(
        &mut self,
        device: &DeviceId,
        used: &BTreeMap<Holders, Usage>,
        limits: &GpuLimits,
    ) -> Vec<ComputeExcess> {
        let averages = self.0.entry(device.clone()).or_default();
        for holders in used.keys() {
            averages.entry(holders.clone()).or_default();
        }
        for (holders, average) in averages.iter_mut() {
            average.measure(used.get(holders).map_or(0, Usage::compute_percent));
        }
        let is_busy = averages.values().map(|average| average.percent).sum::<f64>() >= BUSY;
        let mut excesses = Vec::new();
        for (holders, average) in averages {
            let share = limits.of(holders).and_then(Limit::time_share);
            let (Some(share), Some(usage)) = (share, used.get(holders)) else { continue };
            if average.is_news(share, is_busy) {
                excesses.push(ComputeExcess {
                    device: device.clone(),
                    holders: holders.clone(),
                    pods: usage.processes.iter().map(|it| it.container.pod.clone()).collect(),
                    percent: average.percent,
                    share,
                });
            }
        }
        excesses
    }
}

// === impl Average ===

impl Average {
    fn measure(&mut self, percent: u32) {
        self.percent += (f64::from(percent) - self.percent) / LOOKS;
    }

    /// True if it is far above a share, in percent of a busy GPU, and was not told so since it was within the share.
    fn is_news(&mut self, share: u32, is_busy: bool) -> bool {
        let above = self.percent - f64::from(share);
        let is_far = above >= FAR_PERCENT && self.percent >= f64::from(share) * FAR_ABOVE;
        let is_news = is_far && is_busy && !self.is_told;
        self.is_told = above > 0.0 && (self.is_told || is_news);
        is_news
    }
}

#[cfg(test)]
mod tests {
    use windlass_allocations::ledger::ClaimRef;
    use windlass_host::container::ContainerId;

    use super::*;
    use crate::watchdog::accounts::HeldMemory;

    fn pod(name: &str) -> Holders {
        [ClaimRef::of_share("ns", name, name)].into()
    }

    /// Excesses after so many measurements of pods that have a share of 25 % each, and use so much.
    fn told(
        accounts: &mut ComputeAccounts,
        looks: u32,
        used: &[(&str, u32)],
    ) -> Vec<(String, u32)> {
        let gpu = "GPU-a".parse().expect("an id");
        let limit = Limit { mib: 1, compute_percent: 25, is_mps: false };
        let limits = GpuLimits::test(
            ["a", "b", "c"].map(|name| (pod(name).pop_first().expect("one"), limit)),
        );
        let usage = |(name, percent): &(&str, u32)| {
            let container = ContainerId { pod: (*name).to_owned(), id: "c".to_owned() };
            let process =
                HeldMemory { pid: 1, container, bytes: 0, compute_percent: Some(*percent) };
            (pod(name), Usage { processes: vec![process], ..Usage::none_of(limit) })
        };
        let used = used.iter().map(usage).collect();
        let all = (0..looks).flat_map(|_| accounts.record(&gpu, &used, &limits));
        all.map(|it| (it.pods.into_iter().collect::<String>(), it.share)).collect()
    }

    #[test]
    fn a_pod_far_above_its_share_of_a_busy_gpu_is_told_once() {
        let mut accounts = ComputeAccounts::default();
        assert_eq!(told(&mut accounts, 30, &[("a", 70), ("b", 28)]), [], "a moment is no minute");
        assert_eq!(told(&mut accounts, 300, &[("a", 70), ("b", 28)]), [("a".to_owned(), 25)]);
        assert_eq!(told(&mut accounts, 300, &[("a", 70), ("b", 28)]), [], "it is known");
        assert_eq!(told(&mut accounts, 300, &[("a", 20), ("b", 28)]), []);
        assert_eq!(told(&mut accounts, 300, &[("a", 70), ("b", 28)]), [("a".to_owned(), 25)]);
    }

    #[test]
    fn nobody_is_blamed_for_time_that_nobody_else_wants() {
        let mut accounts = ComputeAccounts::default();
        assert_eq!(told(&mut accounts, 600, &[("a", 80)]), [], "the GPU is idle for a fifth");
        assert_eq!(told(&mut accounts, 600, &[("a", 34), ("b", 33), ("c", 33)]), [], "near enough");
        let ended = told(&mut accounts, 600, &[]);
        assert_eq!(ended, []);
    }
}
