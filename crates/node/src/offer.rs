//! What is offered to the kubelet: the inventory cut into resources.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use windlass_core::{
    attribute::AttributeValue,
    device::{Device, DeviceId},
    inventory::Inventory,
    resource::ResourceName,
};

use crate::{config::Resources, discovery::PROFILE};

/// The resources of a node by name.
pub(crate) type Offers = BTreeMap<ResourceName, Arc<Offer>>;

/// One resource: every device that the kubelet is told of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) devices: BTreeMap<DeviceId, OfferedDevice>,
}

/// A device as the kubelet is told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OfferedDevice {
    /// Whether it may be allocated; if not, why.
    pub(crate) state: Allocatable,
    /// The NUMA node, where the machine tells it.
    pub(crate) numa_node: Option<u32>,
    /// Whether it was allocatable through this resource since the agent started.
    given: bool,
}

/// Through whom the kubelet may have given a device away.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Given {
    /// Through this resource, since the agent started.
    Here,
    /// By an earlier life of the agent, or another resource.
    Elsewhere,
}

/// Whether a device may be allocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Allocatable {
    Yes,
    No(String),
}

/// Device ids that containers held when the agent started, per resource.
pub(crate) type Held = BTreeMap<ResourceName, BTreeSet<DeviceId>>;

/// Cuts the inventory into resources.
///
/// A device stays with the resource that it was once allocatable through, whatever position the rules
/// find it at later, and one that a container holds is allocatable through no other resource: the
/// kubelet counts each resource by itself, and would give it away a second time. Ids that were
/// allocatable, or are held, stay listed when their device is gone or cut into parts: a kubelet that
/// finds an id missing may panic (kubelet reference, trap 3).
pub(crate) fn plan(
    resources: &Resources,
    inventory: &Inventory,
    previous: &Offers,
    held: &Held,
) -> Offers {
    let mut offers: BTreeMap<ResourceName, Offer> = BTreeMap::new();
    for device in inventory.devices.iter().filter(|device| !device.partitioned) {
        let wanted = resources.name_for(device, profile(device));
        let given = previous.iter().find(|(_, offer)| offer.gave(&device.id)).map(|(name, _)| name);
        let Some(name) = given.or(wanted.as_ref()) else { continue };
        let offer = offers.entry(name.clone()).or_default();
        let holder = held.iter().find(|(_, ids)| ids.contains(&device.id)).map(|(name, _)| name);
        let offered = match holder.filter(|holder| *holder != name) {
            None => OfferedDevice::of(device, given.is_some()),
            Some(holder) => OfferedDevice::held_as(holder, device),
        };
        offer.devices.insert(device.id.clone(), offered);
    }
    for (name, offer) in previous {
        let offered = offers.entry(name.clone()).or_default();
        let given = offer.devices.keys().filter(|id| offer.gave(id));
        given.for_each(|id| offered.keep(id, inventory, Given::Here));
    }
    for (name, offer) in &mut offers {
        held.get(name)
            .into_iter()
            .flatten()
            .for_each(|id| offer.keep(id, inventory, Given::Elsewhere));
    }
    offers.into_iter().map(|(name, offer)| share(name, offer, previous)).collect()
}

fn profile(device: &Device) -> Option<&str> {
    match device.attributes.get(&PROFILE) {
        Some(AttributeValue::String(profile)) => Some(profile),
        _ => None,
    }
}

/// An offer that did not change stays the same allocation, so that comparing it costs nothing.
fn share(name: ResourceName, offer: Offer, previous: &Offers) -> (ResourceName, Arc<Offer>) {
    let unchanged = previous.get(&name).filter(|earlier| ***earlier == offer);
    let offer = unchanged.cloned().unwrap_or_else(|| Arc::new(offer));
    (name, offer)
}

// === impl Offer ===

impl Offer {
    /// Whether the device was allocatable through this resource since the agent started.
    fn gave(&self, id: &DeviceId) -> bool {
        self.devices.get(id).is_some_and(|device| device.given)
    }

    /// Keeps an id that is no longer offered for its own sake.
    fn keep(&mut self, id: &DeviceId, inventory: &Inventory, given: Given) {
        if !self.devices.contains_key(id) {
            let device = inventory.get(id.as_str());
            self.devices.insert(id.clone(), OfferedDevice::withdrawn(device, given));
        }
    }

    /// How many devices may be allocated.
    pub(crate) fn allocatable(&self) -> usize {
        self.devices.values().filter(|device| device.state == Allocatable::Yes).count()
    }
}

// === impl OfferedDevice ===

impl OfferedDevice {
    fn of(device: &Device, given_before: bool) -> Self {
        let healthy = device.health.is_healthy();
        let state = match device.health.trouble() {
            _ if healthy => Allocatable::Yes,
            Some(trouble) => Allocatable::No(trouble.to_string()),
            None => Allocatable::No("not probed yet".to_owned()),
        };
        Self { state, numa_node: device.place.numa_node, given: healthy || given_before }
    }

    /// The same device is in use through another resource.
    fn held_as(holder: &ResourceName, device: &Device) -> Self {
        let why = format!("a container holds it as {holder}");
        Self { state: Allocatable::No(why), numa_node: device.place.numa_node, given: false }
    }

    fn withdrawn(device: Option<&Device>, given: Given) -> Self {
        let why = match device {
            Some(device) if device.partitioned => "cut into MIG instances",
            Some(_) => "offered as another resource",
            None => "no longer on this node",
        };
        let numa_node = device.and_then(|device| device.place.numa_node);
        Self { state: Allocatable::No(why.to_owned()), numa_node, given: given == Given::Here }
    }
}

#[cfg(test)]
mod tests {
    use windlass_core::{
        device::DeviceKind,
        health::{HealthTracker, Observation, Reason},
    };

    use super::*;

    fn device(id: &str, observation: &Observation) -> Device {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let mut tracker = HealthTracker::new(std::time::Duration::from_secs(1), now);
        tracker.observe(observation, now);
        Device {
            id: id.parse().expect("valid"),
            kind: DeviceKind::Gpu,
            index: 0,
            health: tracker.health().clone(),
            attributes: BTreeMap::new(),
            capacity: BTreeMap::new(),
            place: windlass_core::device::Place::default(),
            nodes: Vec::new(),
            parent: None,
            part: None,
            partitioned: false,
        }
    }

    fn inventory(devices: Vec<Device>) -> Inventory {
        Inventory { devices, ..Inventory::default() }
    }

    fn gpu() -> ResourceName {
        "nvidia.com/gpu".parse().expect("valid")
    }

    fn reasons(offers: &Offers) -> Vec<(String, String)> {
        let state = |(id, device): (&DeviceId, &OfferedDevice)| match &device.state {
            Allocatable::Yes => (id.to_string(), String::new()),
            Allocatable::No(why) => (id.to_string(), why.clone()),
        };
        offers[&gpu()].devices.iter().map(state).collect()
    }

    #[test]
    fn an_id_that_was_offered_is_never_dropped() {
        let all =
            inventory(vec![device("a", &Observation::Passed), device("b", &Observation::Passed)]);
        let first = plan(&Resources::Default, &all, &Offers::new(), &Held::new());
        assert_eq!(first[&gpu()].allocatable(), 2);
        let mut cut = device("b", &Observation::Passed);
        cut.partitioned = true;
        let then = plan(&Resources::Default, &inventory(vec![cut]), &first, &Held::new());
        assert_eq!(
            reasons(&then),
            [
                ("a".into(), "no longer on this node".into()),
                ("b".into(), "cut into MIG instances".into())
            ]
        );
    }

    fn all_gpus_as(name: &ResourceName) -> Resources {
        let devices = crate::config::Selector::all(DeviceKind::Gpu);
        Resources::Rules(vec![crate::config::ResourceRule {
            name: name.clone(),
            devices,
            sharing: crate::config::Sharing::Exclusive,
        }])
    }

    #[test]
    fn a_device_that_a_container_holds_is_allocatable_through_no_other_resource() {
        let mine: ResourceName = "a.com/mine".parse().expect("valid");
        let held = Held::from([(gpu(), BTreeSet::from(["a".parse().expect("valid")]))]);
        let all =
            inventory(vec![device("a", &Observation::Passed), device("b", &Observation::Passed)]);
        let offers = plan(&all_gpus_as(&mine), &all, &Offers::new(), &held);
        assert_eq!((offers[&mine].devices.len(), offers[&mine].allocatable()), (2, 1));
        let released = plan(&all_gpus_as(&mine), &all, &offers, &Held::new());
        assert_eq!(released[&mine].allocatable(), 2);
    }

    #[test]
    fn planning_again_changes_nothing() {
        let mine: ResourceName = "a.com/mine".parse().expect("valid");
        let rule = |name: &ResourceName, id: &str| {
            let mut devices = crate::config::Selector::all(DeviceKind::Gpu);
            devices.ids.insert(id.to_owned());
            crate::config::ResourceRule {
                name: name.clone(),
                devices,
                sharing: crate::config::Sharing::Exclusive,
            }
        };
        let rules = Resources::Rules(vec![rule(&mine, "a"), rule(&gpu(), "b")]);
        let held = Held::from([(gpu(), BTreeSet::from(["a".parse().expect("valid")]))]);
        let all =
            inventory(vec![device("a", &Observation::Passed), device("b", &Observation::Passed)]);
        let first = plan(&rules, &all, &Offers::new(), &held);
        assert_eq!((first[&mine].allocatable(), first[&gpu()].allocatable()), (0, 1));
        assert_eq!(plan(&rules, &all, &first, &held), first);
        let released = plan(&rules, &all, &first, &Held::new());
        assert_eq!((released[&mine].allocatable(), released[&gpu()].devices.len()), (1, 1));
    }

    #[test]
    fn a_device_that_was_renumbered_stays_with_its_resource() {
        let other: ResourceName = "a.com/other".parse().expect("valid");
        let all = inventory(vec![device("a", &Observation::Passed)]);
        let first = plan(&all_gpus_as(&gpu()), &all, &Offers::new(), &Held::new());
        let then = plan(&all_gpus_as(&other), &all, &first, &Held::new());
        assert_eq!((then[&gpu()].allocatable(), then.get(&other)), (1, None));
    }

    #[test]
    fn an_id_that_never_worked_is_forgotten() {
        let lost = Observation::Failed(Reason::Lost, "lost".into());
        let placeholder = inventory(vec![device("nvidia-index-0", &lost)]);
        let first = plan(&Resources::Default, &placeholder, &Offers::new(), &Held::new());
        let named = inventory(vec![device("a", &Observation::Passed)]);
        let then = plan(&Resources::Default, &named, &first, &Held::new());
        assert_eq!(reasons(&then), [("a".into(), String::new())]);
    }

    #[test]
    fn what_a_container_held_before_the_agent_started_is_listed() {
        let held = Held::from([(gpu(), BTreeSet::from(["lost".parse().expect("valid")]))]);
        let present = inventory(vec![device("a", &Observation::Passed)]);
        let offers = plan(&Resources::Default, &present, &Offers::new(), &held);
        assert_eq!(
            reasons(&offers),
            [("a".into(), String::new()), ("lost".into(), "no longer on this node".into())]
        );
        let nothing = plan(&Resources::Default, &inventory(Vec::new()), &Offers::new(), &held);
        assert!(nothing.is_empty(), "a node without devices offers no resource");
    }

    #[test]
    fn an_unhealthy_device_says_why_and_an_unchanged_offer_is_shared() {
        let failed = Observation::Fault(Reason::Xid(79), "fell off".into());
        let present = inventory(vec![device("a", &failed)]);
        let offers = plan(&Resources::Default, &present, &Offers::new(), &Held::new());
        assert_eq!(reasons(&offers), [("a".into(), "XID 79, fell off".into())]);
        let again = plan(&Resources::Default, &present, &offers, &Held::new());
        assert!(Arc::ptr_eq(&offers[&gpu()], &again[&gpu()]));
    }
}
