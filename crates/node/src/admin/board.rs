//! The board behind the page, kept from the agent's snapshots.

use std::collections::BTreeMap;

use windlass_allocations::podresources::Holders;
use windlass_config::Disclosed;
use windlass_core::{
    device::{Device, DeviceId},
    health::HealthState,
    topology::ConnectionMatrix,
};
use windlass_host::shared::Shared;
use windlass_page::{
    Board, DeviceView, Document, Health, HolderView, LinkView, NodeView, Snapshot, Source,
};
use windlass_resources::{NodeState, Offering};

use crate::metrics::{HolderLimit, MetricSources, SharedGpu};

/// The node as the page shows it, with its history.
#[derive(Debug)]
pub(super) struct NodeBoard {
    sources: MetricSources,
    node: String,
    board: Shared<Board>,
}

// === impl NodeBoard ===

impl NodeBoard {
    pub(super) fn new(sources: MetricSources, node: String) -> Self {
        let board = Board::new(Source::Node, env!("CARGO_PKG_VERSION"), sources.clock.now());
        Self { sources, node, board: Shared::new(board) }
    }

    /// The document, complete or since a revision.
    pub(super) fn document(&self, after: Option<&str>) -> Document {
        self.look();
        self.board.step(|board| board.document(after))
    }

    /// Notes every change of devices and holders. Ends with the agent's snapshots.
    pub(super) async fn follow(&self) {
        let (mut state, mut holders) = (self.sources.state.clone(), self.sources.holders.clone());
        loop {
            self.look();
            let is_over = tokio::select! {
                changed = state.changed() => changed.is_err(),
                changed = holders.changed() => changed.is_err(),
            };
            if is_over {
                return;
            }
        }
    }

    fn look(&self) {
        let state = self.sources.state.borrow().clone();
        if state.inventory.generation == 0 {
            return;
        }
        let snapshot = Snapshot { changed: vec![self.view(&state)], ..Snapshot::default() };
        let now = self.sources.clock.now();
        self.board.step(|board| board.update(now, snapshot));
    }

    fn view(&self, state: &NodeState) -> NodeView {
        let (holders, offerings) = (self.sources.holders.borrow().clone(), state.offerings());
        let devices: Vec<_> = state.inventory.devices.iter().collect();
        let view = |device: &&Device| self.device(device, &offerings, &holders);
        let views: Vec<_> = devices.iter().map(view).collect();
        let gpus = views.iter().filter(|view| view.kind == "gpu");
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

    fn device(
        &self,
        device: &Device,
        offerings: &BTreeMap<DeviceId, Offering>,
        holders: &Holders,
    ) -> DeviceView {
        let offering = offerings.get(&device.id);
        let memory_bytes = device.memory_mib().map(|mib| mib << 20);
        let shared = self.sources.memory.borrow().get(&device.id).cloned();
        let holders = self.holders(device, holders, shared.as_ref());
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
            resource: offering.and_then(|it| it.resource.as_ref()).map(ToString::to_string),
            idle: if health == Health::Healthy { idle(memory_bytes, &holders) } else { 0.0 },
            enforcement: offering.and_then(|it| it.enforcement).map(|it| it.to_string()),
            memory_bytes,
            numa_node: device.place.numa_node.map(i64::from),
            pci_address: device.place.pci.map(|address| address.to_string()),
            parent: device.parent.as_ref().map(ToString::to_string),
            holders,
            ..DeviceView::default()
        };
        self.measure(&device.id, &mut view);
        view
    }

    /// Adds the newest measurements.
    fn measure(&self, id: &DeviceId, view: &mut DeviceView) {
        let Some(sample) = self.sources.sample(id) else { return };
        view.memory_bytes = sample.memory_bytes.or(view.memory_bytes);
        view.memory_used_bytes = sample.memory_used_bytes;
        view.utilization = sample.compute_percent.map(|percent| f64::from(percent) / 100.0);
        view.temperature_celsius = sample.temperature_celsius;
        // Whole watts: tenths would make every look a change.
        let watts = sample.power_milliwatts.and_then(|it| u32::try_from(it / 1000).ok());
        view.power_watts = watts.map(f64::from);
    }

    /// Containers that have the device, and the claims with shares of it. Names of pods are for those to whom the
    /// configuration discloses them.
    fn holders(
        &self,
        device: &Device,
        holders: &Holders,
        shared: Option<&SharedGpu>,
    ) -> Vec<HolderView> {
        let shows_pods = self.sources.disclosed.contains(&Disclosed::Pods);
        let mut views: Vec<HolderView> = Vec::new();
        for holder in holders.by_device.get(&device.id).into_iter().flatten() {
            let pod = format!("{}/{}", holder.namespace, holder.pod);
            let container = Some(holder.container.clone());
            let is_known = |view: &HolderView| {
                (&view.pod, &view.container) == (&Some(pod.clone()), &container)
            };
            if !views.iter().any(is_known) {
                views.push(HolderView { pod: Some(pod), container, ..HolderView::default() });
            }
        }
        for limit in shared.iter().flat_map(|shared| &shared.limits) {
            add_limit(&mut views, limit);
        }
        for used in shared.iter().flat_map(|shared| &shared.containers) {
            let pod = format!("{}/{}", used.namespace, used.pod);
            let is_it = |view: &&mut HolderView| {
                view.pod.as_deref() == Some(&pod)
                    && view.container.as_deref().is_none_or(|it| it == used.container)
            };
            if let Some(view) = views.iter_mut().find(is_it) {
                let bytes = view.memory_used_bytes.unwrap_or_default() + used.bytes;
                view.memory_used_bytes = Some(bytes);
                view.over_limit = view.memory_bytes.is_some_and(|limit| bytes > limit);
            }
        }
        if !shows_pods {
            for view in &mut views {
                (view.pod, view.container, view.claim) = (None, None, None);
            }
        }
        views
    }
}

/// Notes a limit at the first container of its pod, or as a holder of its own.
fn add_limit(views: &mut Vec<HolderView>, limit: &HolderLimit) {
    let name = format!("{}/{}", limit.namespace, limit.name);
    let is_it = |view: &HolderView| !limit.is_claim && view.pod.as_ref() == Some(&name);
    let position = views.iter().position(is_it).unwrap_or(views.len());
    if position == views.len() {
        let (pod, claim) = if limit.is_claim { (None, Some(name)) } else { (Some(name), None) };
        views.push(HolderView { pod, claim, ..HolderView::default() });
    }
    let view = &mut views[position];
    view.memory_bytes = (limit.mib > 0).then_some(limit.mib << 20);
    let percent = limit.compute_percent;
    view.compute = (percent > 0).then(|| f64::from(percent) / 100.0);
}

/// The part of a device that nobody has: by memory, where all holders have amounts.
fn idle(memory_bytes: Option<u64>, holders: &[HolderView]) -> f64 {
    if holders.is_empty() {
        return 1.0;
    }
    let held: Option<u64> = holders.iter().map(|holder| holder.memory_bytes).sum();
    let mib = |bytes: u64| f64::from(u32::try_from(bytes >> 20).unwrap_or(u32::MAX));
    match (memory_bytes, held) {
        (Some(total), Some(held)) if total > 0 => 1.0 - (mib(held) / mib(total)).min(1.0),
        _ => 0.0,
    }
}

fn is_free(view: &DeviceView) -> bool {
    view.health == Health::Healthy && view.holders.is_empty()
}

/// Connections of whole GPUs and NICs.
fn links(devices: &[&Device]) -> Vec<LinkView> {
    let has_place =
        |device: &Device| device.place.path.is_some() || device.place.numa_node.is_some();
    let positions = (0..devices.len()).filter(|at| devices[*at].parent.is_none());
    let positions: Vec<_> = positions.filter(|at| has_place(devices[*at])).collect();
    let placed: Vec<_> = positions.iter().map(|at| devices[*at]).collect();
    let matrix = ConnectionMatrix::of(&placed);
    let pairs = (0..placed.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
    let link =
        |(a, b)| LinkView { a: positions[a], b: positions[b], kind: matrix.at(a, b).to_string() };
    pairs.map(link).collect()
}
