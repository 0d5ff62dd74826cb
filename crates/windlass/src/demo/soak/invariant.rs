//! Invariants of a soak, as pure functions of observations.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;
use windlass_conformance::process::Usage;
use windlass_kubelet_sim::{Device, NodeStatus, PodStatus};

use super::{
    owners::{DriverRecord, Owner, check_exclusive, kubelet_owners, published_name},
    rig::GPU_RESOURCE,
};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Violation {
    #[error("{device} has two owners: {}", .owners.iter().cloned().collect::<Vec<_>>().join(", "))]
    TwoOwners { device: String, owners: BTreeSet<String> },
    #[error("{device} is reported healthy {after:?} after it broke")]
    UnreportedFailure { device: String, after: Duration },
    #[error("{device} is reported unhealthy without a fault")]
    FalseAlarm { device: String },
    #[error("{device} is reported healthy again but is still broken")]
    HealthyTooEarly { device: String },
    #[error("{owner} held {held:?}, but the {reporter} reports {now:?}")]
    AllocationLost {
        owner: Owner,
        held: BTreeSet<String>,
        reporter: &'static str,
        now: BTreeSet<String>,
    },
    #[error("the kubelet reports the holders {kubelet:?}, but the agent {agent:?}")]
    HoldersDiffer { kubelet: Holders, agent: Holders },
    #[error("{pod} holds the GPUs with the nodes {expected:?}, but its container has {actual:?}")]
    WrongNodes { pod: String, expected: BTreeSet<String>, actual: BTreeSet<String> },
    #[error("{what} with {gpus} of {free} free GPUs is refused: {why}")]
    WronglyRefused { what: &'static str, gpus: usize, free: usize, why: String },
    #[error("pod {pod} got the devices of a claim that the API server denied")]
    DeniedClaimStarted { pod: String },
    #[error("{what} took {took:?}, over the limit of {limit:?}")]
    DeadlineMissed { what: &'static str, took: Duration, limit: Duration },
    #[error(
        "pod {pod} has waited for its claim for {since:?} although its devices are free: {why}"
    )]
    ClaimStuck { pod: String, since: Duration, why: String },
    #[error("{since:?} after the last pod something remains: {problem}")]
    Leftover { since: Duration, problem: String },
    #[error("not recovered {after:?} after `{fault}`: {problem}")]
    NotRecovered { fault: &'static str, after: Duration, problem: String },
    #[error("the agent has {now} {what}, up from {start} when the process had settled")]
    ResourceGrowth { what: &'static str, start: u64, now: u64 },
    #[error("the agent ended: {0}")]
    AgentExited(String),
}

/// Pod names by device id.
pub(super) type Holders = BTreeMap<String, String>;

/// GPUs that may be reported unhealthy although they are not broken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum MaybeUnhealthy {
    /// All GPUs: the agent or the driver has just started, or the plugin is not registered.
    #[default]
    All,
    /// UUIDs of GPUs that a fault affects, until the recovery.
    Only(BTreeSet<String>),
}

/// State of the simulated machine, independent of any report.
#[derive(Clone, Debug, Default)]
pub(super) struct GroundTruth {
    pub(super) maybe_unhealthy: MaybeUnhealthy,
    /// Devices of claims, current or recent, by published name. The device plugin reports them as unhealthy.
    pub(super) claimed: BTreeSet<String>,
    /// Broken GPUs, with the time of the failure.
    pub(super) broken: BTreeMap<String, Instant>,
    /// Start of the current agent process, if it runs.
    pub(super) agent_runs_since: Option<Instant>,
}

/// Checks the kubelet's device lists over time.
#[derive(Debug, Default)]
pub(super) struct Monitor {
    /// Broken GPUs that were reported as unhealthy.
    reported: BTreeSet<String>,
}

/// Deadline for reporting a broken GPU. A single one is found within a probe interval and a call deadline. While NVML
/// is initialised again for another GPU, the agent does not probe (docs/reliability.md).
const DETECTION_LIMIT: Duration = Duration::from_secs(30);

/// Tolerated growth of file descriptors: the number of connections varies.
const MAX_DESCRIPTOR_GROWTH: u64 = 48;

/// Tolerated growth of memory in KiB: buffers, and stacks of threads that hang in the driver.
const MAX_MEMORY_GROWTH_KIB: u64 = 48 * 1024;

/// Tolerated growth of threads. Each hanging driver call and each blocking operation has a thread for some seconds.
const MAX_THREAD_GROWTH: u64 = 32;

// === impl Violation ===

impl Violation {
    /// Turns the problem that remains after a fault into a violation.
    pub(super) fn not_recovered(
        fault: &'static str,
        after: Duration,
    ) -> impl FnOnce(String) -> Self {
        move |problem| Self::NotRecovered { fault, after, problem }
    }
}

// === impl Monitor ===

impl Monitor {
    pub(super) fn check(
        &mut self,
        now: Instant,
        truth: &GroundTruth,
        node: &NodeStatus,
    ) -> Result<(), Violation> {
        check_exclusive(kubelet_owners(node), &DriverRecord::default())?;
        self.reported.retain(|id| truth.broken.contains_key(id));
        let resource = node.resources.get(GPU_RESOURCE).into_iter();
        for (id, device) in resource.flat_map(|resource| &resource.devices) {
            let Some(since) = truth.broken.get(id) else {
                truth.check_false_alarm(device)?;
                continue;
            };
            if !device.is_healthy() {
                self.reported.insert(id.clone());
            } else if self.reported.contains(id) {
                return Err(Violation::HealthyTooEarly { device: id.clone() });
            } else if let Some(runs_since) = truth.agent_runs_since {
                let after = now.saturating_duration_since(runs_since.max(*since));
                let device = id.clone();
                within(after, DETECTION_LIMIT)
                    .map_err(|()| Violation::UnreportedFailure { device, after })?;
            }
        }
        Ok(())
    }
}

// === impl GroundTruth ===

impl GroundTruth {
    /// Fails if a device is reported unhealthy without a reason.
    fn check_false_alarm(&self, device: &Device) -> Result<(), Violation> {
        let MaybeUnhealthy::Only(maybe_unhealthy) = &self.maybe_unhealthy else { return Ok(()) };
        let is_known = maybe_unhealthy.contains(&device.id)
            || self.claimed.contains(&published_name(&device.id));
        if device.is_healthy() || is_known {
            return Ok(());
        }
        Err(Violation::FalseAlarm { device: device.id.clone() })
    }
}

/// Pods by device, according to the kubelet.
pub(super) fn holders(node: &NodeStatus) -> Holders {
    let admitted = node.pods.values().filter(|pod| pod.is_admitted());
    let pod_holders =
        |pod: &'_ PodStatus| held(pod).into_iter().zip(std::iter::repeat(pod.name.clone()));
    admitted.flat_map(pod_holders).collect()
}

/// Devices of a pod through the device plugin.
pub(super) fn held(pod: &PodStatus) -> BTreeSet<String> {
    let resources = pod.containers.values().flat_map(|container| container.devices.values());
    resources.flat_map(|numa| numa.values().flatten().cloned()).collect()
}

/// Checks that each pod still has its original devices.
pub(super) fn check_allocations_unchanged(
    allocated: &BTreeMap<String, BTreeSet<String>>,
    node: &NodeStatus,
) -> Result<(), Violation> {
    for (uid, original_devices) in allocated {
        let now = node.pods.get(uid).map(held).unwrap_or_default();
        if now != *original_devices {
            let (owner, held) = (Owner::Pod(uid.clone()), original_devices.clone());
            return Err(Violation::AllocationLost { owner, held, reporter: "kubelet", now });
        }
    }
    Ok(())
}

/// Checks the growth of memory, descriptors and threads.
pub(super) fn check_growth(start: Usage, now: Usage) -> Result<(), Violation> {
    let descriptors = (start.descriptors as u64, now.descriptors as u64);
    let kib = (start.resident_kib, now.resident_kib);
    let threads = (start.threads, now.threads);
    for (what, (start, now), max_growth) in [
        ("descriptors", descriptors, MAX_DESCRIPTOR_GROWTH),
        ("KiB in memory", kib, MAX_MEMORY_GROWTH_KIB),
        ("threads", threads, MAX_THREAD_GROWTH),
    ] {
        if now > start + max_growth {
            return Err(Violation::ResourceGrowth { what, start, now });
        }
    }
    Ok(())
}

/// Fails if a request within the free devices was refused.
pub(super) fn check_refusal(
    what: &'static str,
    gpus: usize,
    free: usize,
    why: &str,
) -> Result<(), Violation> {
    if gpus > free {
        return Ok(());
    }
    Err(Violation::WronglyRefused { what, gpus, free, why: why.to_owned() })
}

/// Fails if an action missed its limit.
pub(super) fn check_deadline(
    what: &'static str,
    took: Duration,
    limit: Duration,
) -> Result<(), Violation> {
    within(took, limit).map_err(|()| Violation::DeadlineMissed { what, took, limit })
}

fn within(took: Duration, limit: Duration) -> Result<(), ()> {
    if took <= limit { Ok(()) } else { Err(()) }
}

#[cfg(test)]
mod tests {
    use windlass_kubelet_sim::{ContainerStatus, PodPhase, ResourceStatus};

    use super::*;

    /// Node whose pods have these devices.
    fn pods(pods: &[(&str, &[&str])]) -> NodeStatus {
        let pod = |(name, ids): &(&str, &[&str])| {
            let ids = ids.iter().map(|id| (*id).to_owned()).collect();
            let devices = [(GPU_RESOURCE.to_owned(), [(0, ids)].into())].into();
            let container = ContainerStatus { devices, ..ContainerStatus::default() };
            let pod = PodStatus {
                name: (*name).to_owned(),
                namespace: "default".to_owned(),
                phase: PodPhase::Admitted,
                containers: [("main".to_owned(), container)].into(),
            };
            ((*name).to_owned(), pod)
        };
        NodeStatus { pods: pods.iter().map(pod).collect(), ..NodeStatus::default() }
    }

    /// Node whose resource lists one device with this health.
    fn node_with(id: &str, health: &str) -> NodeStatus {
        let device = Device { id: id.to_owned(), health: health.to_owned(), numa_nodes: None };
        let devices = [(id.to_owned(), device)].into();
        let resource = ResourceStatus { devices, ..ResourceStatus::default() };
        let resources = [(GPU_RESOURCE.to_owned(), resource)].into();
        NodeStatus { resources, ..NodeStatus::default() }
    }

    fn set(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn a_device_in_two_pods_is_found() {
        let mut monitor = Monitor::default();
        let mut check =
            |node: &NodeStatus| monitor.check(Instant::now(), &GroundTruth::default(), node);
        assert_eq!(check(&pods(&[("a", &["0", "1"]), ("b", &["2"])])), Ok(()));
        let twice = check(&pods(&[("a", &["0", "1"]), ("b", &["1"])]));
        let owners = ["pod a".to_owned(), "pod b".to_owned()].into();
        assert_eq!(twice, Err(Violation::TwoOwners { device: "1".to_owned(), owners }));
    }

    #[test]
    fn a_pod_that_ended_holds_nothing() {
        let mut node = pods(&[("a", &["1"]), ("b", &["1"])]);
        node.pods.get_mut("a").expect("pod a is in the status").phase = PodPhase::Succeeded;
        assert_eq!(holders(&node), [("1".to_owned(), "b".to_owned())].into());
    }

    #[test]
    fn a_broken_device_that_is_reported_healthy_is_found_after_the_deadline() {
        let failed_at = Instant::now();
        let truth = |agent| GroundTruth {
            broken: [("0".to_owned(), failed_at)].into(),
            agent_runs_since: agent,
            ..GroundTruth::default()
        };
        let (node, over_limit) =
            (node_with("0", "Healthy"), DETECTION_LIMIT + Duration::from_millis(1));
        let check = |now, agent| Monitor::default().check(now, &truth(agent), &node);
        assert_eq!(
            check(failed_at + DETECTION_LIMIT, Some(failed_at)),
            Ok(()),
            "the deadline has not passed"
        );
        assert_eq!(check(failed_at + over_limit, None), Ok(()), "no agent runs");
        assert_eq!(
            check(failed_at + over_limit, Some(failed_at + over_limit)),
            Ok(()),
            "the agent has just started"
        );
        let violation = Violation::UnreportedFailure { device: "0".to_owned(), after: over_limit };
        assert_eq!(check(failed_at + over_limit, Some(failed_at)), Err(violation));
    }

    #[test]
    fn a_device_that_is_reported_healthy_before_its_repair_is_found() {
        let now = Instant::now();
        let mut truth = GroundTruth {
            broken: [("0".to_owned(), now)].into(),
            agent_runs_since: Some(now),
            ..GroundTruth::default()
        };
        let mut monitor = Monitor::default();
        assert_eq!(monitor.check(now, &truth, &node_with("0", "Unhealthy")), Ok(()));
        let violation = Violation::HealthyTooEarly { device: "0".to_owned() };
        assert_eq!(monitor.check(now, &truth, &node_with("0", "Healthy")), Err(violation));
        truth.broken.clear();
        assert_eq!(monitor.check(now, &truth, &node_with("0", "Healthy")), Ok(()));
    }

    #[test]
    fn a_device_that_is_reported_unhealthy_without_a_reason_is_found() {
        let check = |truth: &GroundTruth, health| {
            Monitor::default().check(Instant::now(), truth, &node_with("GPU-0", health))
        };
        let alarm = Err(Violation::FalseAlarm { device: "GPU-0".to_owned() });
        let no_reason = GroundTruth {
            maybe_unhealthy: MaybeUnhealthy::Only(BTreeSet::new()),
            ..GroundTruth::default()
        };
        assert_eq!((check(&no_reason, "Healthy"), check(&no_reason, "Unhealthy")), (Ok(()), alarm));
        let maybe_unhealthy = MaybeUnhealthy::Only(set(&["GPU-0"]));
        for reason in [
            GroundTruth { maybe_unhealthy, ..no_reason.clone() },
            GroundTruth { maybe_unhealthy: MaybeUnhealthy::All, ..no_reason.clone() },
            GroundTruth { claimed: set(&["gpu-0"]), ..no_reason.clone() },
            GroundTruth { broken: [("GPU-0".to_owned(), Instant::now())].into(), ..no_reason },
        ] {
            assert_eq!(check(&reason, "Unhealthy"), Ok(()), "{reason:?}");
        }
    }

    #[test]
    fn a_pod_whose_devices_differ_from_its_allocation_is_found() {
        let allocated = [("a".to_owned(), set(&["0", "1"]))].into();
        assert_eq!(check_allocations_unchanged(&allocated, &pods(&[("a", &["0", "1"])])), Ok(()));
        for (node, now) in [
            (pods(&[("a", &["0"])]), set(&["0"])),
            (pods(&[("a", &["0", "2"])]), set(&["0", "2"])),
            (pods(&[]), set(&[])),
        ] {
            let (owner, held) = (Owner::Pod("a".to_owned()), set(&["0", "1"]));
            let lost = Violation::AllocationLost { owner, held, reporter: "kubelet", now };
            assert_eq!(check_allocations_unchanged(&allocated, &node), Err(lost));
        }
    }

    #[test]
    fn an_agent_that_grows_is_found() {
        let start = Usage { descriptors: 40, resident_kib: 20_000, ..Usage::default() };
        let tolerated = Usage { descriptors: 60, resident_kib: 30_000, ..start };
        assert_eq!(check_growth(start, tolerated), Ok(()));
        let descriptors = check_growth(start, Usage { descriptors: 400, ..start });
        assert!(matches!(descriptors, Err(Violation::ResourceGrowth { what: "descriptors", .. })));
        let memory = check_growth(start, Usage { resident_kib: 200_000, ..start });
        assert!(matches!(memory, Err(Violation::ResourceGrowth { what: "KiB in memory", .. })));
        let threads = check_growth(start, Usage { threads: 100, ..start });
        assert!(matches!(threads, Err(Violation::ResourceGrowth { what: "threads", .. })));
    }

    #[test]
    fn a_refused_request_for_free_devices_is_found() {
        assert_eq!(check_refusal("a pod", 3, 2, "too few"), Ok(()));
        let violation = check_refusal("a claim", 2, 2, "too few");
        assert!(matches!(violation, Err(Violation::WronglyRefused { gpus: 2, free: 2, .. })));
    }

    #[test]
    fn a_missed_deadline_is_found() {
        let limit = Duration::from_secs(1);
        assert_eq!(check_deadline("this", limit, limit), Ok(()));
        let took = Duration::from_millis(1_001);
        assert_eq!(
            check_deadline("this", took, limit),
            Err(Violation::DeadlineMissed { what: "this", took, limit })
        );
    }
}
