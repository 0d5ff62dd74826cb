//! Choice of a container's devices: the real manager's `devicesToAllocate`.
//!
//! ```text
//!  devices held already ──────────────────────────────────> Choice::NotNeeded
//!  enough reusable devices ───────────────────────────────> Choice::Devices
//!  more aligned devices than needed ──────────────────────> Choice::Pending, among aligned devices
//!  as many as needed ─────────────────────────────────────> Choice::Devices, all aligned devices
//!  fewer ─────> take all aligned devices ─────────────────> Choice::Pending, among all free devices
//! ```
//!
//! The caller completes a pending choice with the plugin's preference. During the call to the plugin
//! the manager is unlocked. Preferred devices are taken first; an invalid preference has no effect.

use std::collections::BTreeMap;

use super::{Manager, ManagerError};
use crate::{
    device::{Device, DeviceIds, NO_NODE},
    topology::NumaMask,
};

/// Request of one container for devices of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Pod UID.
    pub(crate) pod: String,
    /// Container name.
    pub(crate) container: String,
    /// Resource name.
    pub(crate) resource: String,
    /// Number of requested devices.
    pub(crate) size: usize,
}

/// Outcome of [`Manager::choose`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The container holds its devices already, or requests none. No `Allocate` follows.
    NotNeeded,
    /// The chosen devices. No preference is needed.
    Devices(DeviceIds),
    /// A choice that the plugin's preference completes.
    Pending(PendingChoice),
}

/// A choice that waits for the plugin's preference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PendingChoice {
    /// Request of the container.
    pub(crate) request: Request,
    /// Chosen devices, sent to the plugin as must-include.
    pub(crate) chosen: DeviceIds,
    /// Devices that the plugin may prefer.
    pub(crate) eligible: DeviceIds,
    /// Sets to take the missing devices from if the preference is too short, in this order.
    pub(crate) fallbacks: Vec<DeviceIds>,
}

/// Free devices, split by the topology manager's hint.
#[derive(Debug, Default, PartialEq, Eq)]
struct DevicesByAffinity {
    /// Devices with a node in the hint.
    aligned: DeviceIds,
    /// Devices with other nodes only.
    unaligned: DeviceIds,
    /// Devices without a node. All devices, if there is no hint or the resource has no topology.
    without_node: DeviceIds,
}

// === impl PendingChoice ===

impl PendingChoice {
    /// Devices that the plugin gets as available.
    pub(crate) fn available(&self) -> DeviceIds {
        self.eligible.union(&self.chosen).cloned().collect()
    }
}

impl Manager {
    /// Chooses devices and marks them as allocated, up to the point that needs the plugin's preference.
    pub(crate) fn choose(&mut self, request: &Request) -> Result<Choice, ManagerError> {
        if self.needs_no_allocation(request)? {
            return Ok(Choice::NotNeeded);
        }
        let mut chosen = DeviceIds::new();
        let reusable = self.reusable.reusable_for(&request.pod, &request.resource);
        if self.take_devices(request, &mut chosen, &reusable) {
            return Ok(Choice::Devices(chosen));
        }
        let available = self.available(&request.resource);
        let needed = request.size - chosen.len();
        if available.len() < needed {
            let resource = request.resource.clone();
            let available = available.len();
            return Err(ManagerError::TooFewAvailable { resource, requested: needed, available });
        }
        let by_affinity = self.filter_by_affinity(request, &available);
        let (eligible, fallbacks) = if needed < by_affinity.aligned.len() {
            (by_affinity.aligned.clone(), vec![by_affinity.aligned])
        } else {
            if self.take_devices(request, &mut chosen, &by_affinity.aligned) {
                return Ok(Choice::Devices(chosen));
            }
            (available, vec![by_affinity.unaligned, by_affinity.without_node])
        };
        Ok(Choice::Pending(PendingChoice { request: request.clone(), chosen, eligible, fallbacks }))
    }

    /// Completes a choice with the plugin's preference, which may be empty, short or invalid.
    pub(crate) fn complete(
        &mut self,
        choice: PendingChoice,
        preferred: &DeviceIds,
    ) -> Result<DeviceIds, ManagerError> {
        let PendingChoice { request, mut chosen, eligible, fallbacks } = choice;
        let preferred = preferred.intersection(&eligible).cloned().collect();
        for source in std::iter::once(&preferred).chain(&fallbacks) {
            if self.take_devices(&request, &mut chosen, source) {
                return Ok(chosen);
            }
        }
        Err(ManagerError::ChoiceIncomplete { requested: request.size, got: chosen.len() })
    }

    /// True if the container needs no `Allocate`. Fails if the container cannot get its devices. The
    /// order of the checks is that of the real manager.
    fn needs_no_allocation(&self, request: &Request) -> Result<bool, ManagerError> {
        let Request { pod, container, resource, size } = request;
        let held_ids = self.holdings.get(pod, container, resource).map(super::Holding::ids);
        if let Some(held_ids) = &held_ids
            && held_ids.len() != *size
        {
            return Err(ManagerError::ChangedRequest {
                pod: pod.clone(),
                container: container.clone(),
                resource: resource.clone(),
                from: held_ids.len(),
                to: *size,
            });
        }
        if !self.sources_ready && self.was_running_at_start(pod, container) {
            return Ok(true);
        }
        let healthy = self.healthy.get(resource);
        let healthy = healthy.ok_or_else(|| ManagerError::Unregistered(resource.clone()))?;
        if healthy.is_empty() {
            return Err(ManagerError::NoHealthyDevice(resource.clone()));
        }
        if held_ids.as_ref().is_some_and(|held_ids| !held_ids.is_subset(healthy)) {
            return Err(ManagerError::HeldDeviceUnhealthy(resource.clone()));
        }
        Ok(held_ids.is_some() || *size == 0)
    }

    /// Adds devices of `source` to `chosen`, up to the requested number, and marks them as allocated.
    /// Returns true if `chosen` has the requested number.
    fn take_devices(
        &mut self,
        request: &Request,
        chosen: &mut DeviceIds,
        source: &DeviceIds,
    ) -> bool {
        let in_use = self.allocated.entry(request.resource.clone()).or_default();
        let missing = request.size - chosen.len();
        let devices: Vec<_> = source.difference(chosen).take(missing).cloned().collect();
        in_use.extend(devices.iter().cloned());
        chosen.extend(devices);
        chosen.len() == request.size
    }

    /// Splits free devices by the topology manager's hint for the container.
    fn filter_by_affinity(&self, request: &Request, available: &DeviceIds) -> DevicesByAffinity {
        let key = (request.pod.clone(), request.container.clone());
        let hint = self.affinities.get(&key).copied();
        let listed = self.devices.get(&request.resource);
        let (Some(hint), Some(listed)) =
            (hint.filter(|_| self.has_topology(&request.resource)), listed)
        else {
            return DevicesByAffinity {
                without_node: available.clone(),
                ..DevicesByAffinity::default()
            };
        };
        split_by_hint(hint, available, listed)
    }
}

/// Splits devices by their nodes. A device of several nodes counts for the first one in this order:
/// nodes in the hint, then the others, each group by ascending number of devices.
fn split_by_hint(
    hint: NumaMask,
    available: &DeviceIds,
    listed: &BTreeMap<String, Device>,
) -> DevicesByAffinity {
    let mut by_node = BTreeMap::<i64, DeviceIds>::new();
    for id in available {
        for node in listed.get(id).map_or(&[NO_NODE][..], Device::grouping_nodes) {
            by_node.entry(*node).or_default().insert(id.clone());
        }
    }
    let mut nodes: Vec<(i64, DeviceIds)> = by_node.into_iter().collect();
    nodes.sort_by_key(|(node, ids)| (!hint.contains(*node), *node == NO_NODE, ids.len()));

    let mut result = DevicesByAffinity::default();
    let mut counted = DeviceIds::new();
    for (node, ids) in nodes {
        let group = match node {
            node if hint.contains(node) => &mut result.aligned,
            NO_NODE => &mut result.without_node,
            _ => &mut result.unaligned,
        };
        group.extend(ids.into_iter().filter(|id| counted.insert(id.clone())));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::{
        super::tests::{GPU, device, hold, ids, manager, request},
        *,
    };

    /// Four devices on each of two nodes: `a0`..`a3` on 0, `b0`..`b3` on 1.
    fn two_nodes() -> Manager {
        let devices = (0..4).flat_map(|index| {
            [device(&format!("a{index}"), &[0]), device(&format!("b{index}"), &[1])]
        });
        manager(devices.collect())
    }

    /// Devices `d0`, `d1`, ... without topology.
    fn without_topology(count: usize) -> Manager {
        manager((0..count).map(|index| device(&format!("d{index}"), &[])).collect())
    }

    fn align(manager: &mut Manager, nodes: &[i64]) {
        let key = ("pod".to_owned(), "c".to_owned());
        manager.affinities.insert(key, NumaMask::of(nodes.iter().copied()));
    }

    fn choose_pending(manager: &mut Manager, size: usize) -> PendingChoice {
        match manager.choose(&request("pod", "c", size)) {
            Ok(Choice::Pending(pending)) => pending,
            other => panic!("expected a pending choice, got {other:?}"),
        }
    }

    #[test]
    fn without_topology_the_plugin_is_called_even_if_all_devices_are_needed() {
        let mut manager = without_topology(2);
        let pending = choose_pending(&mut manager, 2);
        assert_eq!((pending.available(), pending.chosen.clone()), (ids("d0 d1"), ids("")));
        assert_eq!(manager.complete(pending, &ids("")), Ok(ids("d0 d1")));
    }

    #[test]
    fn eligible_preferred_devices_are_taken_first() {
        for (preferred, expected) in [
            ("d2 d3", "d2 d3"),
            ("d3", "d0 d3"),
            ("", "d0 d1"),
            ("bogus d2", "d0 d2"),
            ("d1 d2 d3", "d1 d2"),
        ] {
            let mut manager = without_topology(4);
            let pending = choose_pending(&mut manager, 2);
            assert_eq!(
                manager.complete(pending, &ids(preferred)),
                Ok(ids(expected)),
                "{preferred}"
            );
            assert_eq!(manager.allocated[GPU], ids(expected));
        }
    }

    #[test]
    fn with_a_hint_the_plugin_chooses_among_aligned_devices_only() {
        let mut manager = two_nodes();
        align(&mut manager, &[1]);
        let pending = choose_pending(&mut manager, 2);
        assert_eq!(pending.available(), ids("b0 b1 b2 b3"));
        assert_eq!(manager.complete(pending, &ids("a0 b2")), Ok(ids("b0 b2")));
    }

    #[test]
    fn a_request_for_exactly_the_aligned_devices_needs_no_preference() {
        let mut manager = two_nodes();
        align(&mut manager, &[0]);
        let choice = manager.choose(&request("pod", "c", 4));
        assert_eq!(choice, Ok(Choice::Devices(ids("a0 a1 a2 a3"))));
    }

    #[test]
    fn a_request_for_more_than_the_aligned_devices_must_include_all_of_them() {
        let mut manager = two_nodes();
        align(&mut manager, &[0]);
        let pending = choose_pending(&mut manager, 5);
        assert_eq!(pending.chosen, ids("a0 a1 a2 a3"));
        assert_eq!(pending.available(), ids("a0 a1 a2 a3 b0 b1 b2 b3"));
        assert_eq!(manager.complete(pending, &ids("b2")), Ok(ids("a0 a1 a2 a3 b2")));
    }

    #[test]
    fn devices_without_topology_come_after_unaligned_ones() {
        let mut manager = manager(vec![device("a", &[0]), device("b", &[1]), device("c", &[])]);
        align(&mut manager, &[0]);
        let pending = choose_pending(&mut manager, 2);
        assert_eq!(pending.fallbacks, [ids("b"), ids("c")]);
        assert_eq!(manager.complete(pending, &ids("")), Ok(ids("a b")));
    }

    #[test]
    fn reusable_devices_come_first_and_must_be_included() {
        let mut manager = two_nodes();
        hold(&mut manager, "pod", "init", "a0 a1");
        manager.allow_reuse("pod", "init");
        let choice = manager.choose(&request("pod", "c", 2));
        assert_eq!(choice, Ok(Choice::Devices(ids("a0 a1"))));

        align(&mut manager, &[0]);
        let pending = choose_pending(&mut manager, 3);
        assert_eq!(pending.chosen, ids("a0 a1"));
        assert_eq!((pending.available(), pending.request.size), (ids("a0 a1 a2 a3"), 3));
    }

    #[test]
    fn a_garbage_collection_during_the_call_leaves_the_choice_unchanged() {
        let mut manager = two_nodes();
        hold(&mut manager, "gone", "c", "b0");
        align(&mut manager, &[0]);
        let pending = choose_pending(&mut manager, 5);
        manager.pods.clear();
        manager.collect_garbage();
        assert_eq!(manager.complete(pending, &ids("b1")), Ok(ids("a0 a1 a2 a3 b1")));
    }

    #[test]
    fn a_device_of_several_nodes_is_counted_once() {
        let mut manager = manager(vec![device("x", &[0, 1]), device("y", &[1])]);
        align(&mut manager, &[0]);
        let pending = choose_pending(&mut manager, 2);
        assert_eq!((pending.chosen, pending.fallbacks), (ids("x"), vec![ids("y"), ids("")]));
    }

    #[test]
    fn errors_have_the_kubelets_texts() {
        let check = |manager: &mut Manager, size, expected: &str| {
            let error = manager.choose(&request("pod", "c", size)).expect_err("refused");
            assert_eq!(error.to_string(), expected);
        };
        let mut small = without_topology(2);
        hold(&mut small, "other", "c", "d0");
        check(
            &mut small,
            2,
            "requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1",
        );

        let mut grown = without_topology(2);
        hold(&mut grown, "pod", "c", "d0");
        check(
            &mut grown,
            2,
            "pod \"pod\" container \"c\" changed request for resource \"example.com/gpu\" from 1 to 2",
        );

        let mut lost = without_topology(2);
        hold(&mut lost, "pod", "c", "d7");
        check(
            &mut lost,
            1,
            "previously allocated devices are no longer healthy; cannot allocate unhealthy devices example.com/gpu",
        );

        let none = "no healthy devices present; cannot allocate unhealthy devices example.com/gpu";
        let mut unhealthy = without_topology(1);
        unhealthy.mark_unhealthy(GPU);
        check(&mut unhealthy, 1, none);
        check(&mut unhealthy, 0, none);

        let mut unregistered = Manager::default();
        check(&mut unregistered, 1, "cannot allocate unregistered device example.com/gpu");
    }

    #[test]
    fn a_request_for_no_devices_or_for_held_devices_needs_no_choice() {
        let mut manager = without_topology(2);
        assert_eq!(manager.choose(&request("pod", "c", 0)), Ok(Choice::NotNeeded));
        hold(&mut manager, "pod", "c", "d0");
        assert_eq!(manager.choose(&request("pod", "c", 1)), Ok(Choice::NotNeeded));
    }
}
