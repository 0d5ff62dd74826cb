//! Memory of each holder on each shared GPU, and the holders that exceed their limits. Pure.

use std::collections::BTreeMap;

use tokio::time::{Duration, Instant};
use windlass_core::device::DeviceId;
use windlass_dra::{MemoryExcess, MemoryExcesses};
use windlass_host::container::GpuProcess;

use super::limits::{Holders, Limit, Limits};

/// Memory of the holders on every shared GPU.
#[derive(Debug, Default)]
pub(super) struct MemoryAccounts(BTreeMap<(DeviceId, Holders), Account>);

/// Memory that holders use on a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    /// Their limit, in bytes.
    pub(super) limit_bytes: u64,
    /// True if they are clients of an MPS daemon.
    pub(super) is_mps: bool,
    /// Their processes.
    pub(super) processes: Vec<GpuProcess>,
}

/// Latest usage of a GPU by holders, and its history of excess.
#[derive(Debug)]
struct Account {
    usage: Usage,
    /// Number of measurements above the limit minus later ones below it, from 0 to [`VIOLATION_THRESHOLD`].
    excess_count: u32,
    /// Last action against the current excess.
    last_action: Option<LastAction>,
}

/// An action against an excess.
#[derive(Clone, Copy, Debug)]
struct LastAction {
    taken_at: Instant,
    /// Memory in use, in bytes.
    bytes: u64,
}

/// Holders that use more than their limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Violation {
    pub(super) device: DeviceId,
    pub(super) holders: Holders,
    pub(super) usage: Usage,
}

/// Value of [`Account::excess_count`] that is a violation. One or two measurements may show a program that has ended
/// and whose memory the driver still counts.
const VIOLATION_THRESHOLD: u32 = 3;

/// Tolerance above a limit: one part in 50 of it, and at least 256 MiB. The driver's own allocations for a program vary
/// by about as much.
const TOLERANCE_DIVISOR: u64 = 50;
const TOLERANCE_BYTES: u64 = 256 << 20;

/// Time after which an action without effect is repeated. The default grace period of a pod is 30 seconds.
const REPEAT_DELAY: Duration = Duration::from_secs(45);

const MIB: u64 = 1 << 20;

// === impl MemoryAccounts ===

impl MemoryAccounts {
    /// Drops the accounts of holders without a limit.
    pub(super) fn retain(&mut self, limits: &Limits) {
        self.0.retain(|(device, holders), _| {
            limits.get(device).is_some_and(|gpu| gpu.combined(holders).is_some())
        });
    }

    /// Records a measurement of a GPU. Returns new violations, and with `repeats` those whose action had no effect.
    pub(super) fn record(
        &mut self,
        device: &DeviceId,
        mut used: BTreeMap<Holders, Usage>,
        now: Instant,
        repeats: bool,
    ) -> Vec<Violation> {
        // An account ends with its holders' usage of the GPU.
        self.0.retain(|(measured, holders), _| measured != device || used.contains_key(holders));
        let mut violations = Vec::new();
        while let Some((holders, usage)) = used.pop_first() {
            let key = (device.clone(), holders);
            let account = self.0.entry(key.clone()).or_insert_with(|| Account::new(usage.clone()));
            if account.measure(usage, now, repeats) {
                let (usage, (device, holders)) = (account.usage.clone(), key);
                violations.push(Violation { device, holders, usage });
            }
        }
        violations
    }

    /// True if holders of a GPU are above their limits, or were at one of the last measurements.
    pub(super) fn is_near_violation(&self, device: &DeviceId) -> bool {
        self.0.iter().any(|((measured, _), account)| measured == device && account.excess_count > 0)
    }

    /// Drops the accounts of a GPU whose measurement failed, so that a violation needs new measurements.
    pub(super) fn drop_measurement(&mut self, device: &DeviceId) {
        self.0.retain(|(measured, _), _| measured != device);
    }

    /// Claims above their memory limits, with their usage at the last action: a claim's condition changes with an
    /// action, not with each measurement.
    pub(super) fn excesses(&self) -> MemoryExcesses {
        let mut excesses = MemoryExcesses::new();
        for ((device, holders), account) in &self.0 {
            let Some(LastAction { bytes, .. }) = account.last_action else { continue };
            let excess =
                MemoryExcess { used_mib: bytes / MIB, limit_mib: account.usage.limit_bytes / MIB };
            let claims = holders.iter().filter(|holder| !holder.is_share());
            excesses.extend(claims.map(|claim| ((claim.uid.clone(), device.clone()), excess)));
        }
        excesses
    }

    /// Latest usage of the holders on each GPU.
    pub(super) fn usages(&self) -> impl Iterator<Item = (&DeviceId, &Holders, &Usage)> {
        self.0.iter().map(|((device, holders), account)| (device, holders, &account.usage))
    }
}

// === impl Account ===

impl Account {
    fn new(usage: Usage) -> Self {
        Self { usage, excess_count: 0, last_action: None }
    }

    /// Records a measurement; true if an action is due.
    fn measure(&mut self, usage: Usage, now: Instant, repeats: bool) -> bool {
        self.usage = usage;
        if !self.usage.is_excessive() {
            self.excess_count = self.excess_count.saturating_sub(1);
            if self.excess_count == 0 {
                self.last_action = None;
            }
            return false;
        }
        self.excess_count = (self.excess_count + 1).min(VIOLATION_THRESHOLD);
        let is_due = self
            .last_action
            .is_none_or(|last_action| repeats && now - last_action.taken_at >= REPEAT_DELAY);
        if self.excess_count < VIOLATION_THRESHOLD || !is_due {
            return false;
        }
        self.last_action = Some(LastAction { taken_at: now, bytes: self.usage.bytes() });
        true
    }
}

// === impl Usage ===

impl Usage {
    /// Usage of no memory, under a limit.
    pub(super) fn zero(limit: Limit) -> Self {
        let Limit { mib, is_mps, .. } = limit;
        Self { limit_bytes: mib.saturating_mul(MIB), is_mps, processes: Vec::new() }
    }

    /// Memory of all processes, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.processes.iter().fold(0, |sum, process| sum.saturating_add(process.memory_bytes))
    }

    /// Time in which kernels of the processes ran, in percent of the GPU's time.
    pub(super) fn compute_percent(&self) -> u32 {
        let percents = self.processes.iter().filter_map(|process| process.compute_percent);
        percents.fold(0, u32::saturating_add)
    }

    /// True above the limit and its tolerance. A limit of zero bytes is no limit: the holders share compute alone.
    fn is_excessive(&self) -> bool {
        let tolerated = (self.limit_bytes / TOLERANCE_DIVISOR).max(TOLERANCE_BYTES);
        self.limit_bytes > 0 && self.bytes() > self.limit_bytes.saturating_add(tolerated)
    }
}

#[cfg(test)]
mod tests {
    use windlass_allocations::ledger::ClaimRef;
    use windlass_host::container::ContainerId;

    use super::*;

    const GIB: u64 = 1 << 30;

    fn gpu() -> DeviceId {
        "GPU-a".parse().expect("an id")
    }

    fn pod(name: &str) -> Holders {
        [ClaimRef::of_share("ns", name, name)].into()
    }

    /// Usage of pods in bytes, each with a limit of 8 GiB.
    fn used(pods: &[(&str, u64)]) -> BTreeMap<Holders, Usage> {
        let usage = |memory_bytes| {
            let container = ContainerId { pod: "u".to_owned(), id: "c".to_owned() };
            let processes =
                vec![GpuProcess { pid: 1, container, memory_bytes, compute_percent: None }];
            Usage { limit_bytes: 8 * GIB, is_mps: false, processes }
        };
        pods.iter().map(|(name, bytes)| (pod(name), usage(*bytes))).collect()
    }

    /// Holders in violation after each of these measurements, which are a second apart.
    fn violations(measurements: &[&[(&str, u64)]], repeats: bool) -> Vec<Vec<Holders>> {
        let (mut accounts, start) = (MemoryAccounts::default(), Instant::now());
        let measure = |(second, pods): (u64, &&[(&str, u64)])| {
            let now = start + Duration::from_secs(second);
            let new_violations = accounts.record(&gpu(), used(pods), now, repeats);
            new_violations.into_iter().map(|violation| violation.holders).collect()
        };
        (0..).zip(measurements).map(measure).collect()
    }

    #[tokio::test]
    async fn three_measurements_above_the_limit_are_a_violation() {
        let above_limit = 9 * GIB;
        let memory_of_pods: &[_] = &[("a", above_limit), ("b", 8 * GIB)];
        let violating = violations(&[memory_of_pods; 4], true);
        assert_eq!(violating, [vec![], vec![], vec![pod("a")], vec![]], "and it is reported once");
        let (above, below): (&[_], &[_]) = (&[("a", above_limit)], &[("a", GIB)]);
        let violating = violations(&[above, above, below, above, below, above], true);
        assert_eq!(violating.concat(), []);
        // A program that drops below its limit now and then is still a violation.
        let violating = violations(&[above, above, below, above, above], true);
        assert_eq!(violating.concat(), [pod("a")]);
        // A program that ended and was started again is another violation.
        let above: &[_] = &[("a", above_limit)];
        let violating = violations(&[above, above, above, &[], above, above, above], true);
        assert_eq!(violating.concat(), [pod("a"), pod("a")]);
    }

    #[tokio::test]
    async fn the_drivers_own_allocations_are_tolerated() {
        let tolerated: &[_] = &[("a", 8 * GIB + (256 << 20))];
        assert_eq!(violations(&[tolerated; 5], true).concat(), []);
        let excessive: &[_] = &[("a", 8 * GIB + (257 << 20))];
        assert_eq!(violations(&[excessive; 5], true).concat(), [pod("a")]);
    }

    #[tokio::test]
    async fn an_action_without_effect_is_repeated() {
        let above: &[_] = &[("a", 9 * GIB)];
        let rounds = violations(&[above; 100], true);
        let violating_rounds: Vec<_> =
            (0..).zip(&rounds).filter(|(_, violating)| !violating.is_empty()).collect();
        let seconds: Vec<_> =
            violating_rounds.into_iter().map(|(second, _): (u64, _)| second).collect();
        assert_eq!(seconds, [2, 47, 92]);
        assert_eq!(violations(&[above; 100], false).concat(), [pod("a")], "a report is enough");
    }

    #[tokio::test]
    async fn a_missing_measurement_starts_the_count_again() {
        let (mut accounts, now) = (MemoryAccounts::default(), Instant::now());
        for _ in 0..5 {
            assert_eq!(accounts.record(&gpu(), used(&[("a", 9 * GIB)]), now, true), []);
            assert_eq!(accounts.record(&gpu(), used(&[("a", 9 * GIB)]), now, true), []);
            accounts.drop_measurement(&gpu());
        }
    }
}
