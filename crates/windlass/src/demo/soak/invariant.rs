//! What must hold at every moment of a soak, as pure functions of what is seen.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use tokio::time::Instant;
use windlass_conformance::process::Usage;
use windlass_kubelet_sim::{Device, NodeStatus, PodStatus};

use super::{
    hands::{Hand, Record, by_kubelet, in_one_hand, published_name},
    rig::RESOURCE,
};

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Broken {
    #[error("{device} is in two hands: {}", .hands.iter().cloned().collect::<Vec<_>>().join(", "))]
    TwoHands { device: String, hands: BTreeSet<String> },
    #[error("{device} is told to be healthy {after:?} after it broke")]
    Unnoticed { device: String, after: Duration },
    #[error("{device} is told to be unhealthy, and nothing is or was wrong with it")]
    FalseAlarm { device: String },
    #[error("{device} is told to be healthy again, and is broken still")]
    TakenBack { device: String },
    #[error("{hand} held {held:?}, and the {who} says {now:?}")]
    Lost { hand: Hand, held: BTreeSet<String>, who: &'static str, now: BTreeSet<String> },
    #[error("the kubelet says that {kubelet:?} are held, and the agent says {agent:?}")]
    Miscounted { kubelet: Holders, agent: Holders },
    #[error("{pod} holds the GPUs with the nodes {right:?}, and its container has {given:?}")]
    WrongNodes { pod: String, right: BTreeSet<String>, given: BTreeSet<String> },
    #[error("{what} with {gpus} of {free} free GPUs is refused: {why}")]
    Refused { what: &'static str, gpus: usize, free: usize, why: String },
    #[error("pod {pod} got the devices of a claim that the API server denied")]
    NotDenied { pod: String },
    #[error("{what} took {took:?}, of {limit:?} at most")]
    Late { what: &'static str, took: Duration, limit: Duration },
    #[error(
        "pod {pod} waits for its claim since {since:?}, though nobody else has its devices: {why}"
    )]
    Waits { pod: String, since: Duration, why: String },
    #[error("all pods are gone since {since:?}, and something is left: {left}")]
    Left { since: Duration, left: String },
    #[error("{after:?} after `{blow}` things are not as they should be: {left}")]
    NotBack { blow: &'static str, after: Duration, left: String },
    #[error("the agent has {now} {what}, and had {start} when this process had settled")]
    Grows { what: &'static str, start: u64, now: u64 },
    #[error("the agent ended: {0}")]
    Ended(String),
}

/// Devices and the pods that hold them.
pub(super) type Holders = BTreeMap<String, String>;

/// GPUs that may be told to be unhealthy though they are not broken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Doubted {
    /// All: the agent or the driver has just started, or the kubelet has nobody to ask.
    #[default]
    All,
    /// Those that a fault was about, by UUID, until all is as it should be again.
    These(BTreeSet<String>),
}

/// What is the case on the machine, whoever says otherwise.
#[derive(Clone, Debug, Default)]
pub(super) struct Truth {
    pub(super) doubted: Doubted,
    /// What claims have, or had a moment ago, by the names they know it by: no pod gets it through the device
    /// plugin, of which it is told to be unhealthy.
    pub(super) claimed: BTreeSet<String>,
    /// Since when which GPUs cannot be used.
    pub(super) broken: BTreeMap<String, Instant>,
    /// Since when the agent runs, if it does.
    pub(super) agent_runs_since: Option<Instant>,
}

/// Watches what the kubelet is told over time.
#[derive(Debug, Default)]
pub(super) struct Witness {
    /// Broken GPUs that the agent has told to be so.
    told: BTreeSet<String>,
}

/// How long a broken GPU may be told to be healthy. Alone it is found within a probe and a call's deadline;
/// while NVML is being initialised again for another one, nobody is probed (docs/reliability.md).
const NOTICED_WITHIN: Duration = Duration::from_secs(30);

/// How many descriptors more than at the start are no leak: connections come and go.
const DESCRIPTORS: u64 = 48;

/// How much more memory than at the start is no leak, in KiB: buffers and stacks of threads that wait for a
/// driver that hangs.
const MEMORY_KIB: u64 = 48 * 1024;

/// How many threads more than at the start are no leak: each call that hangs in the driver has one, and so has work
/// that blocks, for some seconds.
const THREADS: u64 = 32;

// === impl Witness ===

impl Witness {
    /// Takes a look.
    pub(super) fn see(
        &mut self,
        now: Instant,
        truth: &Truth,
        node: &NodeStatus,
    ) -> Result<(), Broken> {
        in_one_hand(by_kubelet(node), &Record::default())?;
        self.told.retain(|id| truth.broken.contains_key(id));
        let listed = node.resources.get(RESOURCE).into_iter().flat_map(|it| &it.devices);
        for (id, device) in listed {
            let Some(since) = truth.broken.get(id) else {
                truth.no_false_alarm(device)?;
                continue;
            };
            if !device.is_healthy() {
                self.told.insert(id.clone());
            } else if self.told.contains(id) {
                return Err(Broken::TakenBack { device: id.clone() });
            } else if let Some(runs_since) = truth.agent_runs_since {
                let after = now.saturating_duration_since(runs_since.max(*since));
                let device = id.clone();
                within(after, NOTICED_WITHIN).map_err(|()| Broken::Unnoticed { device, after })?;
            }
        }
        Ok(())
    }
}

// === impl Truth ===

impl Truth {
    /// What is not broken is healthy, unless there is a reason to doubt it.
    fn no_false_alarm(&self, device: &Device) -> Result<(), Broken> {
        let Doubted::These(doubted) = &self.doubted else { return Ok(()) };
        let is_known =
            doubted.contains(&device.id) || self.claimed.contains(&published_name(&device.id));
        if device.is_healthy() || is_known {
            return Ok(());
        }
        Err(Broken::FalseAlarm { device: device.id.clone() })
    }
}

/// Who holds what through the device plugin, by the kubelet.
pub(super) fn holders(node: &NodeStatus) -> Holders {
    let admitted = node.pods.values().filter(|pod| pod.is_admitted());
    let of_pod =
        |pod: &'_ PodStatus| held(pod).into_iter().zip(std::iter::repeat(pod.name.clone()));
    admitted.flat_map(of_pod).collect()
}

/// What a pod holds through the device plugin.
pub(super) fn held(pod: &PodStatus) -> BTreeSet<String> {
    let resources = pod.containers.values().flat_map(|container| container.devices.values());
    resources.flat_map(|numa| numa.values().flatten().cloned()).collect()
}

/// Each pod holds what it was given when it came.
pub(super) fn nothing_lost(
    given: &BTreeMap<String, BTreeSet<String>>,
    node: &NodeStatus,
) -> Result<(), Broken> {
    for (uid, held_then) in given {
        let now = node.pods.get(uid).map(held).unwrap_or_default();
        if now != *held_then {
            let (hand, held) = (Hand::Pod(uid.clone()), held_then.clone());
            return Err(Broken::Lost { hand, held, who: "kubelet", now });
        }
    }
    Ok(())
}

/// Memory, descriptors and threads are about what they were.
pub(super) fn bounded(start: Usage, now: Usage) -> Result<(), Broken> {
    let descriptors = (start.descriptors as u64, now.descriptors as u64);
    let kib = (start.resident_kib, now.resident_kib);
    let threads = (start.threads, now.threads);
    for (what, (start, now), more) in [
        ("descriptors", descriptors, DESCRIPTORS),
        ("KiB in memory", kib, MEMORY_KIB),
        ("threads", threads, THREADS),
    ] {
        if now > start + more {
            return Err(Broken::Grows { what, start, now });
        }
    }
    Ok(())
}

/// What asks for no more than is free is not refused.
pub(super) fn rightly_refused(
    what: &'static str,
    (gpus, free): (usize, usize),
    why: &str,
) -> Result<(), Broken> {
    if gpus > free {
        return Ok(());
    }
    Err(Broken::Refused { what, gpus, free, why: why.to_owned() })
}

/// The agent does its part of something in time.
pub(super) fn in_time(what: &'static str, took: Duration, limit: Duration) -> Result<(), Broken> {
    within(took, limit).map_err(|()| Broken::Late { what, took, limit })
}

fn within(took: Duration, limit: Duration) -> Result<(), ()> {
    if took <= limit { Ok(()) } else { Err(()) }
}

#[cfg(test)]
mod tests {
    use windlass_kubelet_sim::{ContainerStatus, PodPhase, ResourceStatus};

    use super::*;

    /// A node whose pods hold these devices.
    fn pods(of: &[(&str, &[&str])]) -> NodeStatus {
        let pod = |(name, ids): &(&str, &[&str])| {
            let ids = ids.iter().map(|id| (*id).to_owned()).collect();
            let devices = [(RESOURCE.to_owned(), [(0, ids)].into())].into();
            let container = ContainerStatus { devices, ..ContainerStatus::default() };
            let pod = PodStatus {
                name: (*name).to_owned(),
                namespace: "default".to_owned(),
                phase: PodPhase::Admitted,
                containers: [("main".to_owned(), container)].into(),
            };
            ((*name).to_owned(), pod)
        };
        NodeStatus { pods: of.iter().map(pod).collect(), ..NodeStatus::default() }
    }

    /// A node that was told so of one device.
    fn told(id: &str, health: &str) -> NodeStatus {
        let device = Device { id: id.to_owned(), health: health.to_owned(), numa_nodes: None };
        let devices = [(id.to_owned(), device)].into();
        let resource = ResourceStatus { devices, ..ResourceStatus::default() };
        let resources = [(RESOURCE.to_owned(), resource)].into();
        NodeStatus { resources, ..NodeStatus::default() }
    }

    fn set(ids: &[&str]) -> BTreeSet<String> {
        ids.iter().map(|id| (*id).to_owned()).collect()
    }

    #[test]
    fn a_device_in_two_pods_is_found() {
        let mut witness = Witness::default();
        let mut see = |node: &NodeStatus| witness.see(Instant::now(), &Truth::default(), node);
        assert_eq!(see(&pods(&[("a", &["0", "1"]), ("b", &["2"])])), Ok(()));
        let twice = see(&pods(&[("a", &["0", "1"]), ("b", &["1"])]));
        let hands = ["pod a".to_owned(), "pod b".to_owned()].into();
        assert_eq!(twice, Err(Broken::TwoHands { device: "1".to_owned(), hands }));
    }

    #[test]
    fn a_pod_that_ended_holds_nothing() {
        let mut node = pods(&[("a", &["1"]), ("b", &["1"])]);
        node.pods.get_mut("a").expect("there").phase = PodPhase::Succeeded;
        assert_eq!(holders(&node), [("1".to_owned(), "b".to_owned())].into());
    }

    #[test]
    fn a_broken_device_that_is_told_to_be_healthy_is_found_once_there_was_time_to_notice() {
        let broke = Instant::now();
        let truth = |agent| Truth {
            broken: [("0".to_owned(), broke)].into(),
            agent_runs_since: agent,
            ..Truth::default()
        };
        let (node, late) = (told("0", "Healthy"), NOTICED_WITHIN + Duration::from_millis(1));
        let see = |now, agent| Witness::default().see(now, &truth(agent), &node);
        assert_eq!(see(broke + NOTICED_WITHIN, Some(broke)), Ok(()), "there is time");
        assert_eq!(see(broke + late, None), Ok(()), "nobody is there to notice");
        assert_eq!(see(broke + late, Some(broke + late)), Ok(()), "it has just started");
        let lie = Broken::Unnoticed { device: "0".to_owned(), after: late };
        assert_eq!(see(broke + late, Some(broke)), Err(lie));
    }

    #[test]
    fn what_was_told_to_be_broken_is_not_healthy_before_it_is_mended() {
        let now = Instant::now();
        let mut truth = Truth {
            broken: [("0".to_owned(), now)].into(),
            agent_runs_since: Some(now),
            ..Truth::default()
        };
        let mut witness = Witness::default();
        assert_eq!(witness.see(now, &truth, &told("0", "Unhealthy")), Ok(()));
        let lie = Broken::TakenBack { device: "0".to_owned() };
        assert_eq!(witness.see(now, &truth, &told("0", "Healthy")), Err(lie));
        truth.broken.clear();
        assert_eq!(witness.see(now, &truth, &told("0", "Healthy")), Ok(()));
    }

    #[test]
    fn what_is_told_to_be_unhealthy_without_a_reason_is_found() {
        let see = |truth: &Truth, health| {
            Witness::default().see(Instant::now(), truth, &told("GPU-0", health))
        };
        let alarm = Err(Broken::FalseAlarm { device: "GPU-0".to_owned() });
        let none = Truth { doubted: Doubted::These(BTreeSet::new()), ..Truth::default() };
        assert_eq!((see(&none, "Healthy"), see(&none, "Unhealthy")), (Ok(()), alarm));
        let doubted = Doubted::These(set(&["GPU-0"]));
        for reason in [
            Truth { doubted, ..none.clone() },
            Truth { doubted: Doubted::All, ..none.clone() },
            Truth { claimed: set(&["gpu-0"]), ..none.clone() },
            Truth { broken: [("GPU-0".to_owned(), Instant::now())].into(), ..none },
        ] {
            assert_eq!(see(&reason, "Unhealthy"), Ok(()), "{reason:?}");
        }
    }

    #[test]
    fn a_pod_that_holds_less_or_else_than_it_was_given_is_found() {
        let given = [("a".to_owned(), set(&["0", "1"]))].into();
        assert_eq!(nothing_lost(&given, &pods(&[("a", &["0", "1"])])), Ok(()));
        for (node, now) in [
            (pods(&[("a", &["0"])]), set(&["0"])),
            (pods(&[("a", &["0", "2"])]), set(&["0", "2"])),
            (pods(&[]), set(&[])),
        ] {
            let (hand, held) = (Hand::Pod("a".to_owned()), set(&["0", "1"]));
            let lost = Broken::Lost { hand, held, who: "kubelet", now };
            assert_eq!(nothing_lost(&given, &node), Err(lost));
        }
    }

    #[test]
    fn an_agent_that_grows_is_found() {
        let start = Usage { descriptors: 40, resident_kib: 20_000, ..Usage::default() };
        let few = Usage { descriptors: 60, resident_kib: 30_000, ..start };
        assert_eq!(bounded(start, few), Ok(()));
        let descriptors = bounded(start, Usage { descriptors: 400, ..start });
        assert!(matches!(descriptors, Err(Broken::Grows { what: "descriptors", .. })));
        let memory = bounded(start, Usage { resident_kib: 200_000, ..start });
        assert!(matches!(memory, Err(Broken::Grows { what: "KiB in memory", .. })));
        let threads = bounded(start, Usage { threads: 100, ..start });
        assert!(matches!(threads, Err(Broken::Grows { what: "threads", .. })));
    }

    #[test]
    fn who_asks_for_no_more_than_is_free_is_not_refused() {
        assert_eq!(rightly_refused("a pod", (3, 2), "too few"), Ok(()));
        let wrongly = rightly_refused("a claim", (2, 2), "too few");
        assert!(matches!(wrongly, Err(Broken::Refused { gpus: 2, free: 2, .. })));
    }

    #[test]
    fn an_answer_that_comes_late_is_found() {
        let limit = Duration::from_secs(1);
        assert_eq!(in_time("this", limit, limit), Ok(()));
        let took = Duration::from_millis(1_001);
        assert_eq!(in_time("this", took, limit), Err(Broken::Late { what: "this", took, limit }));
    }
}
