//! The page's model of the node (`PageState`), updated from the agent's snapshots.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use windlass_allocations::podresources::Holders;
use windlass_config::Disclosed;
use windlass_core::{
    device::{Device, DeviceId},
    health::HealthState,
    topology::ConnectionMatrix,
};
use windlass_host::shared::Shared;
use windlass_page::{
    DeviceView, Health, HolderView, LinkView, NodeView, PageState, Snapshot, Source,
};
use windlass_resources::{DeviceOffer, NodeState};

use crate::metrics::MetricSources;

/// Limit of devices in the list of links. Each pair of devices has a link, so the list grows with the square of the
/// devices. The largest machines have two NICs and a disk per GPU.
const MAX_LINKED: usize = 64;

/// The node as the page shows it, with its history.
#[derive(Debug)]
pub(super) struct NodeDashboard {
    sources: MetricSources,
    /// Holders of the kubelet's last successful answer.
    last_holders: Shared<Option<Arc<Holders>>>,
    node: String,
    board: Shared<PageState>,
}

// === impl NodeDashboard ===

impl NodeDashboard {
    pub(super) fn new(sources: MetricSources, node: String) -> Self {
        let board = PageState::new(Source::Node, env!("CARGO_PKG_VERSION"), sources.clock.now());
        let last_holders = Shared::default();
        Self { sources, last_holders, node, board: Shared::new(board) }
    }

    /// State of the page as JSON: complete, or the changes since a revision. Concurrent readers share the bytes.
    pub(super) fn json(&self, after: Option<&str>) -> Bytes {
        self.update();
        self.board.with_lock(|board| board.json(after))
    }

    /// Records every change of devices and holders, until the agent's snapshots end.
    pub(super) async fn record_changes(&self) {
        let (mut state, mut holders) = (self.sources.state.clone(), self.sources.holders.clone());
        let mut ledger = self.sources.ledger.clone();
        loop {
            self.update();
            let is_over = tokio::select! {
                changed = state.changed() => changed.is_err(),
                changed = holders.changed() => changed.is_err(),
                changed = ledger.changed() => changed.is_err(),
            };
            if is_over {
                return;
            }
        }
    }

    fn update(&self) {
        let state = self.sources.state.borrow().clone();
        if state.inventory.generation == 0 {
            return;
        }
        let (holders, has_first_holders) = self.newest_holders();
        let changed = vec![self.view(&state, &holders)];
        let snapshot = Snapshot { has_first_holders, changed, ..Snapshot::default() };
        let now = self.sources.clock.now();
        self.board.with_lock(|board| board.update(now, snapshot));
    }

    /// Holders in the kubelet's last successful answer. The flag is true up to and including the first such answer:
    /// its holders are not changes.
    fn newest_holders(&self) -> (Arc<Holders>, bool) {
        let current = self.sources.holders.borrow().clone();
        let is_success = matches!(current.last_result, Some(Ok(())));
        self.last_holders.with_lock(|last_holders| {
            let is_first = last_holders.is_none();
            if is_success {
                *last_holders = Some(current.clone());
            }
            (last_holders.clone().unwrap_or(current), is_first)
        })
    }

    fn view(&self, state: &NodeState, holders: &Holders) -> NodeView {
        let offerings = state.device_offers();
        let devices: Vec<_> = state.inventory.devices.iter().collect();
        let view = |device: &&Device| self.device_view(device, &offerings, holders);
        let mut views: Vec<_> = devices.iter().map(view).collect();
        sum_up_parts(&mut views);
        let gpus = views.iter().filter(|view| view.kind == "gpu" && view.parent.is_none());
        NodeView {
            name: self.node.clone(),
            agent: true,
            simulated: state.inventory.simulated.is_some(),
            free_gpus: gpus.clone().filter(|gpu| is_free(gpu)).count(),
            idle_gpus: gpus.map(|gpu| gpu.idle).sum(),
            links: links(&devices),
            devices: views,
            ..NodeView::default()
        }
    }

    fn device_view(
        &self,
        device: &Device,
        offerings: &BTreeMap<DeviceId, DeviceOffer>,
        holders: &Holders,
    ) -> DeviceView {
        let offering = offerings.get(&device.id);
        let memory_bytes = device.memory_mib().map(|mib| mib << 20);
        let holders = self.holder_views(device, holders);
        let failure = device.health.failure();
        let health = match device.health.state {
            HealthState::Healthy => Health::Healthy,
            HealthState::Unhealthy => Health::Unhealthy,
            HealthState::Unknown => Health::Unknown,
        };
        let action = failure.and_then(|failure| failure.reason.action());
        let action = action.filter(|action| action.concerns_operator());
        let mut view = DeviceView {
            id: device.id.to_string(),
            index: device.index as usize,
            kind: device.kind.to_string(),
            product: device.product().unwrap_or_default().to_owned(),
            health,
            reason: failure.map(ToString::to_string),
            action: action.map(|action| action.to_string()),
            resource: offering
                .and_then(|offering| offering.resource.as_ref())
                .map(ToString::to_string),
            idle: if health == Health::Healthy {
                free_fraction(memory_bytes, &holders)
            } else {
                0.0
            },
            enforcement: offering
                .and_then(|offering| offering.enforcement)
                .map(|enforcement| enforcement.to_string()),
            memory_bytes,
            numa_node: device.place.numa_node.map(i64::from),
            pci_address: device.place.pci.map(|address| address.to_string()),
            parent: device.parent.as_ref().map(ToString::to_string),
            holders,
            ..DeviceView::default()
        };
        self.add_measurements(&device.id, &mut view);
        view
    }

    /// Adds the newest measurements.
    fn add_measurements(&self, id: &DeviceId, view: &mut DeviceView) {
        let Some(sample) = self.sources.sample(id) else { return };
        view.memory_bytes = sample.memory_bytes.or(view.memory_bytes);
        view.memory_used_bytes = sample.memory_used_bytes;
        view.utilization = sample.compute_percent.map(|percent| f64::from(percent) / 100.0);
        view.temperature_celsius = sample.temperature_celsius;
        // Whole watts: tenths would change at every update.
        let watts =
            sample.power_milliwatts.and_then(|milliwatts| u32::try_from(milliwatts / 1000).ok());
        view.power_watts = watts.map(f64::from);
    }

    /// Pods and claims that hold the device, with names only if the configuration discloses pods.
    fn holder_views(&self, device: &Device, holders: &Holders) -> Vec<HolderView> {
        let mut views = Vec::new();
        for holder in holders.by_device.get(&device.id).into_iter().flatten() {
            let pod = format!("{}/{}", holder.namespace, holder.pod);
            let view = get_or_insert_holder(&mut views, pod, false);
            // Several containers of a pod count as one holder.
            let is_first = view.container.is_none();
            view.container = is_first.then(|| holder.container.clone());
        }
        let ledger = self.sources.ledger.borrow();
        for hold in ledger.claims().get(&device.id).into_iter().flat_map(|holds| holds.values()) {
            let claim = hold.claim();
            let name = format!("{}/{}", claim.namespace, claim.name);
            let view = get_or_insert_holder(&mut views, name, !claim.is_share());
            if let Some(portion) = hold.portion() {
                let percent = u32::try_from(portion.compute).unwrap_or(u32::MAX);
                set_amounts(view, portion.memory, percent);
            }
        }
        drop(ledger);
        let shared = self.sources.memory.borrow().get(&device.id).cloned();
        // A pod of replicas has no name here before the API server has told it. It is among the containers above.
        let limits = shared.iter().flat_map(|shared| &shared.limits);
        for limit in limits.filter(|limit| !limit.namespace.is_empty()) {
            let name = format!("{}/{}", limit.namespace, limit.name);
            let view = get_or_insert_holder(&mut views, name, limit.is_claim);
            set_amounts(view, limit.mib, limit.compute_percent);
        }
        for usage in shared.iter().flat_map(|shared| &shared.containers) {
            let pod = format!("{}/{}", usage.namespace, usage.pod);
            if let Some(view) = views.iter_mut().find(|view| view.pod.as_ref() == Some(&pod)) {
                let bytes = view.memory_used_bytes.unwrap_or_default() + usage.bytes;
                view.memory_used_bytes = Some(bytes);
                view.over_limit = view.memory_bytes.is_some_and(|limit| bytes > limit);
            }
        }
        if !self.sources.disclosed.contains(&Disclosed::Pods) {
            for view in &mut views {
                (view.pod, view.container, view.claim) = (None, None, None);
            }
        }
        views
    }
}

/// Returns the holder with this name; adds a missing one.
fn get_or_insert_holder(
    views: &mut Vec<HolderView>,
    name: String,
    is_claim: bool,
) -> &mut HolderView {
    let is_named =
        |view: &HolderView| if is_claim { &view.claim } else { &view.pod } == &Some(name.clone());
    let position = views.iter().position(is_named).unwrap_or(views.len());
    if position == views.len() {
        let (pod, claim) = if is_claim { (None, Some(name)) } else { (Some(name), None) };
        views.push(HolderView { pod, claim, ..HolderView::default() });
    }
    &mut views[position]
}

/// Sets a holder's amounts of memory and compute. Zero clears the amount.
fn set_amounts(view: &mut HolderView, mib: u64, percent: u32) {
    view.memory_bytes = (mib > 0).then_some(mib << 20);
    view.compute = (percent > 0).then(|| f64::from(percent) / 100.0);
}

/// Free fraction of a device (0 to 1): the lower one of memory and compute. A holder without amounts has the whole
/// device.
fn free_fraction(memory_bytes: Option<u64>, holders: &[HolderView]) -> f64 {
    let has_whole = |holder: &HolderView| holder.memory_bytes.is_none() && holder.compute.is_none();
    if holders.iter().any(has_whole) {
        return 0.0;
    }
    let memory: u64 = holders.iter().filter_map(|holder| holder.memory_bytes).sum();
    let memory =
        memory_bytes.filter(|total| *total > 0).map_or(0.0, |total| mib(memory) / mib(total));
    let compute: f64 = holders.iter().filter_map(|holder| holder.compute).sum();
    1.0 - memory.max(compute).min(1.0)
}

/// Marks partitioned devices, and sets their free fraction to that of their parts, weighted by memory.
fn sum_up_parts(views: &mut [DeviceView]) {
    let parts = views.iter().filter_map(|view| {
        Some((view.parent.clone()?, mib(view.memory_bytes.unwrap_or(0)), view.idle))
    });
    let parts: Vec<_> = parts.collect();
    for view in views {
        let own_parts: Vec<_> = parts.iter().filter(|(parent, ..)| *parent == view.id).collect();
        if own_parts.is_empty() {
            continue;
        }
        let total: f64 = own_parts.iter().map(|(_, mib, _)| mib).sum();
        let idle: f64 = own_parts.iter().map(|(_, mib, idle)| mib * idle).sum();
        (view.is_cut, view.idle) = (true, if total > 0.0 { idle / total } else { 0.0 });
    }
}

fn mib(bytes: u64) -> f64 {
    f64::from(u32::try_from(bytes >> 20).unwrap_or(u32::MAX))
}

fn is_free(view: &DeviceView) -> bool {
    view.health == Health::Healthy && view.holders.is_empty() && !view.is_cut
}

/// Links between whole devices whose location (path or NUMA node) is known. Of more than [`MAX_LINKED`], only the
/// first [`MAX_LINKED`] GPUs have links.
fn links(devices: &[&Device]) -> Vec<LinkView> {
    let is_placed = |position: &usize| {
        let Device { place, parent, .. } = devices[*position];
        parent.is_none() && (place.path.is_some() || place.numa_node.is_some())
    };
    let mut positions: Vec<_> = (0..devices.len()).filter(is_placed).collect();
    if positions.len() > MAX_LINKED {
        positions.retain(|position| devices[*position].kind.is_gpu());
        positions.truncate(MAX_LINKED);
    }
    let placed: Vec<_> = positions.iter().map(|position| devices[*position]).collect();
    let matrix = ConnectionMatrix::from_devices(&placed);
    let pairs = (0..placed.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
    let link =
        |(a, b)| LinkView { a: positions[a], b: positions[b], kind: matrix.at(a, b).to_string() };
    pairs.map(link).collect()
}
