//! Choice of a container's devices: the real manager's `devicesToAllocate`.
//!
//! ```text
//!  held already ─> Nothing
//!  reusable enough ─> Devices
//!  aligned enough, or exactly ─────> Undecided(aligned) ─ plugin's wish ─> Devices
//!  otherwise: all aligned, then ───> Undecided(available) ─ plugin's wish ─> Devices
//! ```
//!
//! The plugin may be asked in between, with the manager unlocked. The plugin's answer only orders the pick.

use std::collections::BTreeMap;

use super::{Manager, Refusal};
use crate::{
    device::{Device, DeviceIds, NO_NODE},
    topology::NumaMask,
};

/// One resource of one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Pod UID.
    pub(crate) pod: String,
    /// Container name.
    pub(crate) container: String,
    /// Resource name.
    pub(crate) resource: String,
    /// Number of devices.
    pub(crate) size: usize,
}

/// The outcome of a choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The container holds its devices already, or asks for none: no `Allocate` follows.
    Nothing,
    /// Devices of a choice without the plugin's preference.
    Devices(DeviceIds),
    /// A choice that the plugin's preference completes.
    Undecided(Undecided),
}

/// A choice that waits for the plugin's preference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Undecided {
    /// Request of the container.
    pub(crate) request: Request,
    /// Chosen devices, sent to the plugin as must-include.
    pub(crate) taken: DeviceIds,
    /// Devices that the plugin's preference may pick.
    pub(crate) eligible: DeviceIds,
    /// Further sources, in this order.
    pub(crate) fallbacks: Vec<DeviceIds>,
}

/// Free devices by their relation to the topology hint.
#[derive(Debug, Default, PartialEq, Eq)]
struct ByAffinity {
    aligned: DeviceIds,
    unaligned: DeviceIds,
    without: DeviceIds,
}

// === impl Undecided ===

impl Undecided {
    /// Devices that the plugin gets as available.
    pub(crate) fn available(&self) -> DeviceIds {
        self.eligible.union(&self.taken).cloned().collect()
    }
}

impl Manager {
    /// Chooses devices, up to a call to the plugin.
    pub(crate) fn choose(&mut self, request: &Request) -> Result<Choice, Refusal> {
        if self.is_held(request)? {
            return Ok(Choice::Nothing);
        }
        let mut taken = DeviceIds::new();
        let reusable = self.reusable.of(&request.pod, &request.resource);
        if self.take(request, &mut taken, &reusable) {
            return Ok(Choice::Devices(taken));
        }
        let available = self.available(&request.resource);
        let needed = request.size - taken.len();
        if available.len() < needed {
            let resource = request.resource.clone();
            let available = available.len();
            return Err(Refusal::Unavailable { resource, requested: needed, available });
        }
        let split = self.by_affinity(request, &available);
        let (eligible, fallbacks) = if needed < split.aligned.len() {
            (split.aligned.clone(), vec![split.aligned])
        } else {
            if self.take(request, &mut taken, &split.aligned) {
                return Ok(Choice::Devices(taken));
            }
            (available, vec![split.unaligned, split.without])
        };
        Ok(Choice::Undecided(Undecided { request: request.clone(), taken, eligible, fallbacks }))
    }

    /// Completes a choice with the plugin's preference, which may be empty, short or invalid.
    pub(crate) fn settle(
        &mut self,
        choice: Undecided,
        preferred: &DeviceIds,
    ) -> Result<DeviceIds, Refusal> {
        let Undecided { request, mut taken, eligible, fallbacks } = choice;
        let wished = preferred.intersection(&eligible).cloned().collect();
        for source in std::iter::once(&wished).chain(&fallbacks) {
            if self.take(&request, &mut taken, source) {
                return Ok(taken);
            }
        }
        Err(Refusal::Short { requested: request.size, got: taken.len() })
    }

    /// True if the container needs no `Allocate`, or the reason why it cannot have devices. The
    /// order of the checks is the real one's.
    fn is_held(&self, request: &Request) -> Result<bool, Refusal> {
        let Request { pod, container, resource, size } = request;
        let held = self.holdings.get(pod, container, resource).map(super::Held::ids);
        if let Some(held) = &held
            && held.len() != *size
        {
            return Err(Refusal::ChangedRequest {
                pod: pod.clone(),
                container: container.clone(),
                resource: resource.clone(),
                from: held.len(),
                to: *size,
            });
        }
        if !self.sources_ready && self.was_running_at_start(pod, container) {
            return Ok(true);
        }
        let healthy = self.healthy.get(resource);
        let healthy = healthy.ok_or_else(|| Refusal::Unregistered(resource.clone()))?;
        if healthy.is_empty() {
            return Err(Refusal::NoHealthy(resource.clone()));
        }
        if held.as_ref().is_some_and(|held| !held.is_subset(healthy)) {
            return Err(Refusal::Lost(resource.clone()));
        }
        Ok(held.is_some() || *size == 0)
    }

    /// Takes devices up to the requested number. Returns true at that number.
    fn take(&mut self, request: &Request, taken: &mut DeviceIds, source: &DeviceIds) -> bool {
        let in_use = self.allocated.entry(request.resource.clone()).or_default();
        let missing = request.size - taken.len();
        let more: Vec<_> = source.difference(taken).take(missing).cloned().collect();
        in_use.extend(more.iter().cloned());
        taken.extend(more);
        taken.len() == request.size
    }

    /// Splits free devices by the topology manager's hint for the container.
    fn by_affinity(&self, request: &Request, available: &DeviceIds) -> ByAffinity {
        let key = (request.pod.clone(), request.container.clone());
        let hint = self.affinities.get(&key).copied();
        let listed = self.devices.get(&request.resource);
        let (Some(hint), Some(listed)) =
            (hint.filter(|_| self.has_topology(&request.resource)), listed)
        else {
            return ByAffinity { without: available.clone(), ..ByAffinity::default() };
        };
        split(hint, available, listed)
    }
}

/// Sorts each device under the first of its nodes. Nodes in the hint come first, then the others,
/// then no node. Within a group, nodes with few devices come first.
fn split(hint: NumaMask, available: &DeviceIds, listed: &BTreeMap<String, Device>) -> ByAffinity {
    let mut by_node = BTreeMap::<i64, DeviceIds>::new();
    for id in available {
        for node in listed.get(id).map_or(&[NO_NODE][..], Device::sorted_under) {
            by_node.entry(*node).or_default().insert(id.clone());
        }
    }
    let mut nodes: Vec<(i64, DeviceIds)> = by_node.into_iter().collect();
    nodes.sort_by_key(|(node, ids)| (!hint.contains(*node), *node == NO_NODE, ids.len()));

    let mut result = ByAffinity::default();
    let mut seen = DeviceIds::new();
    for (node, ids) in nodes {
        let group = match node {
            node if hint.contains(node) => &mut result.aligned,
            NO_NODE => &mut result.without,
            _ => &mut result.unaligned,
        };
        group.extend(ids.into_iter().filter(|id| seen.insert(id.clone())));
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

    fn plain(count: usize) -> Manager {
        manager((0..count).map(|index| device(&format!("d{index}"), &[])).collect())
    }

    fn align(manager: &mut Manager, nodes: &[i64]) {
        let key = ("pod".to_owned(), "c".to_owned());
        manager.affinities.insert(key, NumaMask::of(nodes.iter().copied()));
    }

    fn undecided(manager: &mut Manager, size: usize) -> Undecided {
        match manager.choose(&request("pod", "c", size)) {
            Ok(Choice::Undecided(undecided)) => undecided,
            other => panic!("expected an open choice, got {other:?}"),
        }
    }

    #[test]
    fn without_topology_the_plugin_is_asked_even_when_everything_will_be_taken() {
        let mut manager = plain(2);
        let open = undecided(&mut manager, 2);
        assert_eq!((open.available(), open.taken.clone()), (ids("d0 d1"), ids("")));
        assert_eq!(manager.settle(open, &ids("")), Ok(ids("d0 d1")));
    }

    #[test]
    fn the_plugins_preference_is_followed_as_far_as_it_makes_sense() {
        for (preferred, expected) in [
            ("d2 d3", "d2 d3"),
            ("d3", "d0 d3"),
            ("", "d0 d1"),
            ("bogus d2", "d0 d2"),
            ("d1 d2 d3", "d1 d2"),
        ] {
            let mut manager = plain(4);
            let open = undecided(&mut manager, 2);
            assert_eq!(manager.settle(open, &ids(preferred)), Ok(ids(expected)), "{preferred}");
            assert_eq!(manager.allocated[GPU], ids(expected));
        }
    }

    #[test]
    fn with_a_hint_the_plugin_chooses_among_aligned_devices_only() {
        let mut manager = two_nodes();
        align(&mut manager, &[1]);
        let open = undecided(&mut manager, 2);
        assert_eq!(open.available(), ids("b0 b1 b2 b3"));
        assert_eq!(manager.settle(open, &ids("a0 b2")), Ok(ids("b0 b2")));
    }

    #[test]
    fn exactly_the_aligned_devices_are_taken_without_asking() {
        let mut manager = two_nodes();
        align(&mut manager, &[0]);
        let choice = manager.choose(&request("pod", "c", 4));
        assert_eq!(choice, Ok(Choice::Devices(ids("a0 a1 a2 a3"))));
    }

    #[test]
    fn more_than_the_aligned_devices_must_include_all_of_them() {
        let mut manager = two_nodes();
        align(&mut manager, &[0]);
        let open = undecided(&mut manager, 5);
        assert_eq!(open.taken, ids("a0 a1 a2 a3"));
        assert_eq!(open.available(), ids("a0 a1 a2 a3 b0 b1 b2 b3"));
        assert_eq!(manager.settle(open, &ids("b2")), Ok(ids("a0 a1 a2 a3 b2")));
    }

    #[test]
    fn devices_without_topology_come_after_unaligned_ones() {
        let mut manager = manager(vec![device("a", &[0]), device("b", &[1]), device("c", &[])]);
        align(&mut manager, &[0]);
        let open = undecided(&mut manager, 2);
        assert_eq!(open.fallbacks, [ids("b"), ids("c")]);
        assert_eq!(manager.settle(open, &ids("")), Ok(ids("a b")));
    }

    #[test]
    fn reusable_devices_come_first_and_must_be_included() {
        let mut manager = two_nodes();
        hold(&mut manager, "pod", "init", "a0 a1");
        manager.lend("pod", "init");
        let covered = manager.choose(&request("pod", "c", 2));
        assert_eq!(covered, Ok(Choice::Devices(ids("a0 a1"))));

        align(&mut manager, &[0]);
        let open = undecided(&mut manager, 3);
        assert_eq!(open.taken, ids("a0 a1"));
        assert_eq!((open.available(), open.request.size), (ids("a0 a1 a2 a3"), 3));
    }

    /// Catalogue row 79.
    #[test]
    fn a_collection_while_the_plugin_is_asked_changes_nothing_about_the_choice() {
        let mut manager = two_nodes();
        hold(&mut manager, "gone", "c", "b0");
        align(&mut manager, &[0]);
        let open = undecided(&mut manager, 5);
        manager.pods.clear();
        manager.collect_garbage();
        assert_eq!(manager.settle(open, &ids("b1")), Ok(ids("a0 a1 a2 a3 b1")));
    }

    #[test]
    fn a_device_of_several_nodes_is_counted_once() {
        let mut manager = manager(vec![device("x", &[0, 1]), device("y", &[1])]);
        align(&mut manager, &[0]);
        let open = undecided(&mut manager, 2);
        assert_eq!((open.taken, open.fallbacks), (ids("x"), vec![ids("y"), ids("")]));
    }

    #[test]
    fn refusals_say_what_the_kubelet_says() {
        let check = |manager: &mut Manager, size, expected: &str| {
            let refusal = manager.choose(&request("pod", "c", size)).expect_err("refused");
            assert_eq!(refusal.to_string(), expected);
        };
        let mut small = plain(2);
        hold(&mut small, "other", "c", "d0");
        check(
            &mut small,
            2,
            "requested number of devices unavailable for example.com/gpu. Requested: 2, Available: 1",
        );

        let mut grown = plain(2);
        hold(&mut grown, "pod", "c", "d0");
        check(
            &mut grown,
            2,
            "pod \"pod\" container \"c\" changed request for resource \"example.com/gpu\" from 1 to 2",
        );

        let mut lost = plain(2);
        hold(&mut lost, "pod", "c", "d7");
        check(
            &mut lost,
            1,
            "previously allocated devices are no longer healthy; cannot allocate unhealthy devices example.com/gpu",
        );

        let none = "no healthy devices present; cannot allocate unhealthy devices example.com/gpu";
        let mut sick = plain(1);
        sick.mark_unhealthy(GPU);
        check(&mut sick, 1, none);
        check(&mut sick, 0, none);

        let mut unregistered = Manager::default();
        check(&mut unregistered, 1, "cannot allocate unregistered device example.com/gpu");
    }

    #[test]
    fn nothing_is_done_for_zero_devices_or_for_devices_held_already() {
        let mut manager = plain(2);
        assert_eq!(manager.choose(&request("pod", "c", 0)), Ok(Choice::Nothing));
        hold(&mut manager, "pod", "c", "d0");
        assert_eq!(manager.choose(&request("pod", "c", 1)), Ok(Choice::Nothing));
    }
}
