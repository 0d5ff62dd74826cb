//! Use of a shared GPU's time by its holders, compared with the compute that each requested. Time slices limit no
//! holder: one that takes far more than its share while others wait is reported, and continues. Pure.

use std::collections::{BTreeMap, BTreeSet};

use windlass_core::device::DeviceId;

use super::{
    accounts::Usage,
    limits::{GpuLimits, Holders, Limit, Limits},
};

/// Use of every shared GPU's time by its holders.
#[derive(Debug, Default)]
pub(super) struct ComputeAccounts(BTreeMap<DeviceId, BTreeMap<Holders, Average>>);

/// Average use of a GPU's time by holders.
#[derive(Debug, Default)]
struct Average {
    /// Time in which their kernels ran, in percent, over about the last [`AVERAGE_WINDOW`] measurements. Use above the
    /// share counts only while other holders want the time.
    percent: f64,
    /// True from a report until the use is near the share again.
    is_reported: bool,
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

/// Measurements in an average: about a minute at the default interval. In that time the driver updates its numbers six
/// times.
const AVERAGE_WINDOW: f64 = 60.0;

/// Use far above a share: 1.5 times the share, and at least [`EXCESS_PERCENT`] percent of the GPU more.
const EXCESS_FACTOR: f64 = 1.5;
const EXCESS_PERCENT: f64 = 10.0;

/// Least use of the GPU by all holders at which they wait for each other, in percent.
const BUSY_PERCENT: u32 = 90;

// === impl ComputeAccounts ===

impl ComputeAccounts {
    /// Drops holders without a share.
    pub(super) fn retain(&mut self, limits: &Limits) {
        self.0.retain(|device, averages| {
            let limits = limits.get(device);
            averages.retain(|holders, _| limits.is_some_and(|gpu| gpu.combined(holders).is_some()));
            !averages.is_empty()
        });
    }

    /// Records a measurement of a GPU; returns new excesses. A process that the driver does not measure counts as idle.
    pub(super) fn record(
        &mut self,
        device: &DeviceId,
        usage_by_holders: &BTreeMap<Holders, Usage>,
        limits: &GpuLimits,
    ) -> Vec<ComputeExcess> {
        let averages = self.0.entry(device.clone()).or_default();
        for holders in usage_by_holders.keys() {
            averages.entry(holders.clone()).or_default();
        }
        let active =
            usage_by_holders.values().map(Usage::compute_percent).filter(|percent| *percent > 0);
        let (count, percent) = active
            .fold((0, 0), |(count, sum), percent| (count + 1, u32::saturating_add(sum, percent)));
        let is_contended = count > 1 && percent >= BUSY_PERCENT;
        let mut excesses = Vec::new();
        for (holders, average) in averages {
            let Some(share) = limits.combined(holders).and_then(Limit::time_share) else {
                continue;
            };
            let percent = usage_by_holders.get(holders).map_or(0, Usage::compute_percent);
            // Time that no other holder wants is no excess.
            average.measure(if is_contended { percent } else { percent.min(share) });
            let is_new = average.is_new(share);
            if let Some(usage) = usage_by_holders.get(holders).filter(|_| is_new) {
                excesses.push(ComputeExcess {
                    device: device.clone(),
                    holders: holders.clone(),
                    pods: usage
                        .processes
                        .iter()
                        .map(|process| process.container.pod.clone())
                        .collect(),
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
        self.percent += (f64::from(percent) - self.percent) / AVERAGE_WINDOW;
    }

    /// True if the use is far above the share, and was not reported since it was last near the share.
    fn is_new(&mut self, share: u32) -> bool {
        let excess = self.percent - f64::from(share);
        let is_far = excess >= EXCESS_PERCENT && self.percent >= f64::from(share) * EXCESS_FACTOR;
        let is_new = is_far && !self.is_reported;
        self.is_reported = excess > EXCESS_PERCENT / 2.0 && (self.is_reported || is_new);
        is_new
    }
}

#[cfg(test)]
mod tests {
    use windlass_allocations::ledger::ClaimRef;
    use windlass_host::container::{ContainerId, GpuProcess};

    use super::*;

    fn pod(name: &str) -> Holders {
        [ClaimRef::of_share("ns", name, name)].into()
    }

    /// Excesses after this many measurements of pods with a share of 25 % each and this use in percent.
    fn reported(
        accounts: &mut ComputeAccounts,
        measurements: u32,
        percents: &[(&str, u32)],
    ) -> Vec<(String, u32)> {
        let gpu = "GPU-a".parse().expect("an id");
        let limit = Limit { mib: 1, compute_percent: 25, is_mps: false };
        let holder = |name: &str| (ClaimRef::of_share("ns", name, name), limit);
        let limits = ["a", "b", "c"].map(holder).into_iter().collect();
        let usage = |(name, percent): &(&str, u32)| {
            let container = ContainerId { pod: (*name).to_owned(), id: "c".to_owned() };
            let process =
                GpuProcess { pid: 1, container, memory_bytes: 0, compute_percent: Some(*percent) };
            (pod(name), Usage { processes: vec![process], ..Usage::zero(limit) })
        };
        let usage_by_pods = percents.iter().map(usage).collect();
        let excesses =
            (0..measurements).flat_map(|_| accounts.record(&gpu, &usage_by_pods, &limits));
        excesses.map(|excess| (excess.pods.into_iter().collect::<String>(), excess.share)).collect()
    }

    #[test]
    fn a_pod_far_above_its_share_of_a_busy_gpu_is_reported_once() {
        let mut accounts = ComputeAccounts::default();
        assert_eq!(
            reported(&mut accounts, 10, &[("a", 70), ("b", 28)]),
            [],
            "ten measurements are too few"
        );
        assert_eq!(reported(&mut accounts, 300, &[("a", 70), ("b", 28)]), [("a".to_owned(), 25)]);
        assert_eq!(reported(&mut accounts, 300, &[("a", 70), ("b", 28)]), [], "it was reported");
        assert_eq!(reported(&mut accounts, 300, &[("a", 20), ("b", 28)]), []);
        assert_eq!(reported(&mut accounts, 300, &[("a", 70), ("b", 28)]), [("a".to_owned(), 25)]);
    }

    #[test]
    fn time_that_no_other_pod_wants_is_no_excess() {
        let mut accounts = ComputeAccounts::default();
        assert_eq!(reported(&mut accounts, 600, &[("a", 100)]), [], "it is alone");
        assert_eq!(reported(&mut accounts, 600, &[("a", 70), ("b", 10)]), [], "a fifth is free");
        assert_eq!(
            reported(&mut accounts, 600, &[("a", 34), ("b", 33), ("c", 33)]),
            [],
            "near its share"
        );
        let ended = reported(&mut accounts, 600, &[]);
        assert_eq!(ended, []);
    }
}
