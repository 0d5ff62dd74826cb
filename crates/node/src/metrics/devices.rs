//! Device metrics: identity, health, telemetry and holders.
//!
//! Telemetry of an exclusively held device has the labels of its container, as in NVIDIA's exporter. For a shared
//! device, only `device_holder` has them. Pod names require `disclose: [pods]`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use prometheus_client::{collector::Collector, encoding::DescriptorEncoder};
use windlass_allocations::{
    ledger::{ClaimRef, Ledger},
    podresources::{Holder, Holders},
};
use windlass_config::Disclosed;
use windlass_core::{
    attribute::AttributeName,
    device::{Device, DeviceId},
    health::{HealthState, Reason},
    inventory::Inventory,
};
use windlass_host::counters::Labels;

use super::{
    MetricSources,
    family::{FamilyDescriptor, Value},
    measures, withheld,
};

#[derive(Debug)]
pub(super) struct DeviceCollector(pub(super) MetricSources);

/// Disclosure of holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HolderNames {
    /// Lines name pods and claims.
    Shown,
    /// Lines name devices only.
    Hidden,
}

const INFO: FamilyDescriptor = FamilyDescriptor::new("device", "Identity and location of a device");
const HEALTHY: FamilyDescriptor =
    FamilyDescriptor::new("device_healthy", "1 if the device is healthy");
const UNHEALTHY: FamilyDescriptor = FamilyDescriptor::new(
    "device_unhealthy",
    "1 while a device is unhealthy, with the reason and the operator's remedy",
);
const WITHHELD: FamilyDescriptor = FamilyDescriptor::new(
    "device_withheld",
    "1 while new pods cannot have a device, with the reason",
);
const FAULTS: FamilyDescriptor =
    FamilyDescriptor::new("device_faults", "Faults of a device, by class");
const LAST_XID: FamilyDescriptor =
    FamilyDescriptor::new("device_last_xid", "The newest XID that made a device unhealthy");
const HOLDER: FamilyDescriptor = FamilyDescriptor::new(
    "device_holder",
    "Devices and replicas that a container or a claim holds",
);
const DRIVER: AttributeName = AttributeName::new("nvidia.com", "driverVersion");

// === impl DeviceCollector ===

impl Collector for DeviceCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let state = self.0.state.borrow().clone();
        let holders = self.0.holders.borrow().clone();
        let devices = &state.inventory.devices;
        INFO.infos(&mut encoder, devices.iter().map(info_labels))?;
        // A MIG instance vanishes with a new MIG layout, which is no failure: it raises no alert.
        let is_removed_instance =
            |device: &&Device| device.parent.is_some() && device.health.has_vanished();
        let listed = || devices.iter().filter(|device| !is_removed_instance(device));
        let health =
            listed().map(|device| (device_labels(device), device.health.is_healthy().into()));
        HEALTHY.gauges(&mut encoder, health)?;
        let unhealthy = listed().filter_map(unhealthy_labels);
        UNHEALTHY.gauges(&mut encoder, unhealthy.map(|labels| (labels, Value::Integer(1))))?;
        let (offerings, ledger) = (state.device_offers(), self.0.ledger.borrow().clone());
        let withheld = listed().filter_map(|device| {
            let reason = withheld::reason(&state, &ledger, offerings.get(&device.id), device)?;
            let labels = device_labels(device).into_iter().chain([("reason", reason.to_owned())]);
            Some((labels.collect(), Value::Integer(1)))
        });
        WITHHELD.gauges(&mut encoder, withheld)?;
        FAULTS.counters(&mut encoder, devices.iter().flat_map(faults))?;
        let xids = devices.iter().filter_map(|device| Some((id_labels(device), last_xid(device)?)));
        LAST_XID.gauges(&mut encoder, xids)?;
        self.measures(&mut encoder, &state.inventory, &holders)?;
        let offered = state.resources().keys().map(ToString::to_string).collect();
        let containers = holder_lines(&offered, &holders, self.names());
        HOLDER.gauges(&mut encoder, containers.chain(claim_lines(&ledger, self.names())))
    }
}

impl DeviceCollector {
    fn names(&self) -> HolderNames {
        if self.0.disclosed.contains(&Disclosed::Pods) {
            HolderNames::Shown
        } else {
            HolderNames::Hidden
        }
    }

    fn measures(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
        inventory: &Inventory,
        holders: &Holders,
    ) -> fmt::Result {
        let samples: Vec<_> = inventory
            .devices
            .iter()
            .filter_map(|device| {
                let sample = self.0.sample(&device.id)?;
                let container_labels = match self.names() {
                    HolderNames::Shown => container_labels(holders, &device.id),
                    HolderNames::Hidden => Labels::new(),
                };
                Some((
                    device_labels(device).into_iter().chain(container_labels).collect::<Labels>(),
                    sample,
                ))
            })
            .collect();
        measures::write(encoder, &samples)
    }
}

fn device_labels(device: &Device) -> Labels {
    let labels = [
        ("device", Some(device.id.to_string())),
        ("kind", Some(device.kind.to_string())),
        ("index", Some(device.index.to_string())),
        ("model", device.product().map(str::to_owned)),
        ("profile", device.mig_profile().map(str::to_owned)),
        ("parent", device.parent.as_ref().map(ToString::to_string)),
    ];
    present(labels).collect()
}

/// The labels that have a value.
fn present<const N: usize>(
    labels: [(&'static str, Option<String>); N],
) -> impl Iterator<Item = (&'static str, String)> {
    labels.into_iter().filter_map(|(key, value)| Some((key, value?)))
}

fn info_labels(device: &Device) -> Labels {
    let location_labels = [
        ("pci_bus_id", device.place.pci.map(|address| address.to_string())),
        ("numa_node", device.place.numa_node.map(|node| node.to_string())),
        ("driver_version", device.text_attribute(&DRIVER).map(str::to_owned)),
    ];
    device_labels(device).into_iter().chain(present(location_labels)).collect()
}

/// Labels of an unhealthy device. Their values are bounded: classes of reasons, and the operator's remedies.
fn unhealthy_labels(device: &Device) -> Option<Labels> {
    let health = &device.health;
    let reason = health.failure().filter(|_| health.state == HealthState::Unhealthy)?.reason;
    let action = reason.action().filter(|action| action.concerns_operator());
    let failure_labels = [
        ("reason", Some(reason.class().to_owned())),
        ("action", action.map(|action| action.to_string())),
    ];
    Some(device_labels(device).into_iter().chain(present(failure_labels)).collect())
}

/// One line per class of fault, from the first scrape on: without a preceding 0, `increase()` misses the first fault.
fn faults(device: &Device) -> impl Iterator<Item = (Labels, Value)> {
    let zeros = device.kind.facts().reasons.iter().map(|reason| (reason.class(), 0));
    let mut counts: BTreeMap<_, u64> = zeros.collect();
    for failure in &device.health.failures {
        *counts.entry(failure.reason.class()).or_default() += u64::from(failure.count);
    }
    counts.into_iter().map(move |(class, count)| {
        let labels = id_labels(device).into_iter().chain([("reason", class.to_owned())]);
        (labels.collect(), Value::Integer(count))
    })
}

fn last_xid(device: &Device) -> Option<Value> {
    device.health.failures.iter().rev().find_map(|failure| match failure.reason {
        Reason::Xid(code) => Some(Value::Integer(code)),
        _ => None,
    })
}

fn id_labels(device: &Device) -> Labels {
    vec![("device", device.id.to_string()), ("kind", device.kind.to_string())]
}

/// Labels of the container that holds the device exclusively.
fn container_labels(holders: &Holders, id: &DeviceId) -> Labels {
    let holders = holders.by_device.get(id).into_iter().flatten();
    let containers: BTreeSet<_> = holders
        .map(|holder| (&holder.namespace, &holder.pod, &holder.container, holder.replica))
        .collect();
    match containers.first() {
        Some((namespace, pod, container, None)) if containers.len() == 1 => vec![
            ("namespace", (*namespace).clone()),
            ("pod", (*pod).clone()),
            ("container", (*container).clone()),
        ],
        _ => Labels::new(),
    }
}

/// Lines for the holders of this agent's resources; the kubelet also reports other plugins' resources. Without pod
/// names, several holders of one device are one line.
fn holder_lines(
    offered: &BTreeSet<String>,
    holders: &Holders,
    names: HolderNames,
) -> impl Iterator<Item = (Labels, Value)> + use<> {
    let holders = holders.by_device.iter();
    let holders = holders.flat_map(|(id, holders)| holders.iter().map(move |holder| (id, holder)));
    let offered = holders.filter(|(_, holder)| offered.contains(&holder.resource));
    let lines: BTreeSet<_> = offered.map(|(id, holder)| holder_labels(id, holder, names)).collect();
    lines.into_iter().map(|labels| (labels, Value::Integer(1)))
}

/// Claims, and pods with shares by amounts. Without names, several holders of one device are one line.
fn claim_lines(
    ledger: &Ledger,
    names: HolderNames,
) -> impl Iterator<Item = (Labels, Value)> + use<> {
    let claims = ledger.claims().iter();
    let claims = claims.flat_map(|(id, holds)| holds.values().map(move |hold| (id, hold.claim())));
    // A claim with admin access monitors devices that others hold, and does not use them.
    let claims = claims.filter(|(id, claim)| ledger.claim_uids(id).any(|uid| uid == claim.uid));
    let labels = |(id, claim): (&DeviceId, &ClaimRef)| {
        let holder = if claim.is_share() { "pod" } else { "claim" };
        let name_labels = [("namespace", claim.namespace.clone()), (holder, claim.name.clone())];
        let name_labels = name_labels.into_iter().filter(|_| names == HolderNames::Shown);
        [("device", id.to_string())].into_iter().chain(name_labels).collect::<Labels>()
    };
    let lines: BTreeSet<_> = claims.map(labels).collect();
    lines.into_iter().map(|labels| (labels, Value::Integer(1)))
}

fn holder_labels(id: &DeviceId, holder: &Holder, names: HolderNames) -> Labels {
    let if_shown = |name: &String| (names == HolderNames::Shown).then(|| name.clone());
    let labels = [
        ("device", Some(id.to_string())),
        ("resource", Some(holder.resource.clone())),
        ("replica", holder.replica.map(|replica| replica.to_string())),
        ("namespace", if_shown(&holder.namespace)),
        ("pod", if_shown(&holder.pod)),
        ("container", if_shown(&holder.container)),
    ];
    present(labels).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use jiff::Timestamp;
    use windlass_core::{
        attribute::AttributeValue,
        device::{DeviceKind, SourceName},
        health::{HealthTracker, Observation},
    };

    use super::*;

    fn holder(resource: &str, pod: &str, replica: Option<u32>) -> Holder {
        Holder {
            resource: resource.to_owned(),
            replica,
            namespace: "team".to_owned(),
            pod: pod.to_owned(),
            container: "main".to_owned(),
        }
    }

    fn holders(list: Vec<Holder>) -> (DeviceId, Holders) {
        let id: DeviceId = "GPU-a".parse().expect("valid");
        let by_device = [(id.clone(), list.into_iter().collect())].into();
        (id, Holders::from_answer(by_device))
    }

    #[test]
    fn devices_of_every_vendor_have_their_product_as_model() {
        let model = |domain, name, value| {
            let (id, source) = ("d".parse().expect("valid"), "s".parse().expect("valid"));
            let mut device = Device::new(id, DeviceKind::Gpu, source, Timestamp::UNIX_EPOCH);
            device
                .attributes
                .insert(AttributeName::new(domain, name), AttributeValue::string(value));
            let labels = super::device_labels(&device);
            labels.into_iter().find(|(key, _)| *key == "model").map(|(_, model)| model)
        };
        for (domain, name, product) in [
            ("nvidia.com", "productName", "NVIDIA H100 80GB HBM3"),
            ("gpu.amd.com", "productName", "AMD Instinct MI300X"),
            ("windlass.dev", "model", "SAMSUNG MZWLR"),
        ] {
            assert_eq!(model(domain, name, product).as_deref(), Some(product));
        }
        assert_eq!(model("windlass.dev", "driver", "mlx5_core"), None);
    }

    #[test]
    fn an_exclusive_device_has_its_containers_labels_and_a_shared_one_has_none() {
        let gpu = "nvidia.com/gpu";
        for (list, expected) in [
            (vec![], None),
            (vec![holder(gpu, "a", None)], Some("a")),
            (vec![holder(gpu, "a", Some(0))], None),
            (vec![holder(gpu, "a", Some(0)), holder(gpu, "b", Some(1))], None),
            (vec![holder(gpu, "a", None), holder(gpu, "b", None)], None),
        ] {
            let (id, holders) = holders(list);
            let labels = container_labels(&holders, &id);
            let pod = labels.iter().find(|(key, _)| *key == "pod").map(|(_, pod)| pod.as_str());
            assert_eq!(pod, expected, "{holders:?}");
        }
    }

    #[test]
    fn every_replica_has_a_line_and_devices_of_other_plugins_have_none() {
        let list = vec![
            holder("nvidia.com/gpu.shared", "a", Some(0)),
            holder("nvidia.com/gpu.shared", "b", Some(1)),
            holder("example.com/nic", "c", None),
        ];
        let (_, holders) = holders(list);
        let offered = ["nvidia.com/gpu.shared".to_owned()].into();
        let lines = |names| holder_lines(&offered, &holders, names).map(|(labels, _)| labels);
        let lines: Vec<_> = lines(HolderNames::Shown).collect();
        let replica = |labels: &Labels| {
            labels.iter().find(|(key, _)| *key == "replica").map(|(_, replica)| replica.clone())
        };
        let replicas: Vec<_> = lines.iter().map(replica).collect();
        assert_eq!(replicas, [Some("0".to_owned()), Some("1".to_owned())]);
    }

    #[test]
    fn without_disclosure_several_holders_are_one_line_without_names() {
        let gpu = "nvidia.com/gpu";
        let (_, holders) = holders(vec![holder(gpu, "a", None), holder(gpu, "b", None)]);
        let offered = [gpu.to_owned()].into();
        let lines: Vec<_> = holder_lines(&offered, &holders, HolderNames::Hidden).collect();
        let [(labels, Value::Integer(1))] = lines.as_slice() else { panic!("not one line") };
        let keys: Vec<_> = labels.iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, ["device", "resource"]);
    }

    #[test]
    fn an_unhealthy_device_has_its_newest_reason_and_the_operators_remedy() {
        let now = Timestamp::UNIX_EPOCH;
        let (id, source) = ("GPU-a".parse().expect("valid"), SourceName::NVIDIA);
        let mut gpu = Device::new(id, DeviceKind::Gpu, source, now);
        let mut tracker = HealthTracker::new(Duration::ZERO, now);
        let mut labels_after = |observation: Observation| {
            tracker.observe(&observation, now);
            gpu.health = tracker.health().clone();
            let labels = unhealthy_labels(&gpu)?;
            let value =
                |key| labels.iter().find(|(name, _)| *name == key).map(|(_, value)| value.clone());
            Some((value("reason").expect("an unhealthy device has a reason"), value("action")))
        };
        let detail = String::new;
        assert_eq!(labels_after(Observation::TimedOut(detail())), None, "unknown is not unhealthy");
        for (reason, class, action) in [
            (Reason::Xid(79), "XID", Some("restart the machine")),
            (Reason::Xid(38), "XID", None),
            (Reason::RowRemapFailed, "row remapping failed", Some("contact support")),
            (Reason::Unresponsive, "unresponsive", None),
        ] {
            let expected = Some((class.to_owned(), action.map(str::to_owned)));
            assert_eq!(labels_after(Observation::Fault(reason, detail())), expected);
        }
        assert_eq!(labels_after(Observation::Passed), None);
    }

    #[test]
    fn every_class_of_fault_has_a_line_from_the_start_and_xids_are_one_class() {
        let now = Timestamp::UNIX_EPOCH;
        let (id, source) = ("GPU-a".parse().expect("valid"), SourceName::NVIDIA);
        let mut gpu = Device::new(id, DeviceKind::Gpu, source, now);
        let count = |gpu: &Device, class: &str| {
            let is_of_class =
                |(labels, _): &(Labels, Value)| labels.contains(&("reason", class.into()));
            match faults(gpu).find(is_of_class) {
                Some((_, Value::Integer(count))) => Some(count),
                _ => None,
            }
        };
        assert_eq!((count(&gpu, "XID"), count(&gpu, "lost")), (Some(0), Some(0)));
        assert!(last_xid(&gpu).is_none());
        let mut tracker = HealthTracker::new(Duration::ZERO, now);
        for reason in [Reason::Xid(48), Reason::Xid(79), Reason::Xid(48), Reason::Unreachable] {
            tracker.observe(&Observation::Fault(reason, "detail".to_owned()), now);
        }
        gpu.health = tracker.health().clone();
        assert_eq!((count(&gpu, "XID"), count(&gpu, "lost")), (Some(3), Some(0)));
        assert_eq!(
            count(&gpu, "unreachable"),
            Some(1),
            "classes that the device kind does not list are counted too"
        );
        assert!(matches!(last_xid(&gpu), Some(Value::Integer(48))));
    }
}
