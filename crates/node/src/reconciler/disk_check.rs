//! Disk checks of a round: CDI documents, device nodes, driver nodes and IMEX channels.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use windlass_cdi::{
    CdiFiles, DocumentErrors, Documents, MissingParts, NVIDIA_NODES, WriteOutcome,
    container_edits::NodeExtras,
    imex_node,
    memory_limits::{LimitRules, LimitSupport, ReplicaDevices, ReplicaLimits, WrittenLimits},
};
use windlass_config::{Delivery, HostPaths, MpsSettings, Policy, Sharing};
use windlass_core::{
    cdi::Kind,
    device::{Device, DeviceId},
    inventory::Inventory,
};
use windlass_discovery::live_driver::LiveDriver;
use windlass_host::{Roots, presence};
use windlass_lifecycle::mps::MpsFolders;
use windlass_resources::{
    Absences, NodeState,
    obstacle::{Obstacle, ObstacleKind},
    offers::Plan,
};

use super::disk::DesiredFiles;

pub(super) struct DiskCheck {
    roots: Roots,
    cdi: CdiFiles,
    daemons: MpsFolders,
    replicas: ReplicaLimits,
    /// NVIDIA's driver, which may limit the memory of shares.
    driver: Option<LiveDriver>,
    /// True after the first write. From then on documents are kept current, because containers refer to them.
    has_written: bool,
}

#[derive(Debug, Default)]
pub(super) struct DiskCheckResult {
    pub(super) node_extras: NodeExtras,
    documents: Documents,
    pub(super) missing_parts: MissingParts,
    document_errors: DocumentErrors,
    /// Devices with an MPS daemon or the remains of one.
    leftover_daemons: BTreeSet<DeviceId>,
    /// Devices whose nodes are missing.
    absences: Absences,
    limit_support: LimitSupport,
    /// GPUs whose replicas' limits are not on disk, with the reason.
    unwritten_limits: BTreeMap<DeviceId, String>,
}

// === impl DiskCheck ===

impl DiskCheck {
    pub(super) fn new(
        places: &HostPaths,
        mps: &MpsSettings,
        delivery: Delivery,
        driver: Option<LiveDriver>,
    ) -> Self {
        Self {
            cdi: CdiFiles::new(places, delivery),
            roots: places.roots(),
            daemons: MpsFolders::new(places, mps),
            replicas: ReplicaLimits::new(&places.state_dir),
            driver,
            has_written: false,
        }
    }

    pub(super) fn run(&mut self, desired: &DesiredFiles) -> DiskCheckResult {
        let DesiredFiles { inventory, policy, .. } = desired;
        let leftover_daemons = self.daemons.recorded_devices().into_iter().collect();
        let absences = self.missing_nodes(inventory);
        let limit_support = self.read_limit_support();
        let rules = LimitRules { policy, support: &limit_support };
        let gpus_on_disk = || self.cdi.gpus_on_disk();
        let WrittenLimits { devices, errors: failed } =
            self.replicas.reconcile(&desired.replica_sizes, gpus_on_disk, inventory, rules);
        let result = self.check(inventory, policy, devices);
        DiskCheckResult {
            leftover_daemons,
            absences,
            limit_support,
            unwritten_limits: failed,
            ..result
        }
    }

    fn read_limit_support(&self) -> LimitSupport {
        self.driver.as_ref().map(LimitSupport::read).unwrap_or_default()
    }

    fn missing_nodes(&self, inventory: &Inventory) -> Absences {
        let present = inventory.devices.iter().filter(|device| !device.health.has_vanished());
        let absences = present.filter_map(|device| {
            Some((device.id.clone(), presence::check(&self.roots, &device.nodes).err()?))
        });
        absences.collect()
    }

    fn check(
        &mut self,
        inventory: &Inventory,
        policy: &Policy,
        limits: ReplicaDevices,
    ) -> DiskCheckResult {
        let node_extras = self.node_extras(policy);
        if !policy.needs_documents() && !self.has_written {
            let missing_parts = missing_channels(policy, &node_extras);
            return DiskCheckResult { node_extras, missing_parts, ..DiskCheckResult::default() };
        }
        self.has_written = true;
        self.cdi.set_delivery(&policy.delivery);
        let WriteOutcome { documents, extra_names, missing_parts, document_errors } =
            self.cdi.write(inventory, limits);
        let node_extras = NodeExtras { cdi_extras: extra_names, ..node_extras };
        DiskCheckResult {
            node_extras,
            documents,
            missing_parts,
            document_errors,
            ..DiskCheckResult::default()
        }
    }

    /// Finds the driver's files ahead of the first documents.
    pub(super) fn find_driver_files(&mut self, policy: &Policy) {
        if policy.needs_documents() {
            self.cdi.prefetch_driver_files();
        }
    }

    /// Dry run: checks documents without writing, as far as the caller's permissions allow.
    pub(super) fn dry_run(&mut self, inventory: &Inventory, policy: &Policy) -> DiskCheckResult {
        let (node_extras, absences) = (self.node_extras(policy), self.missing_nodes(inventory));
        let limit_support = self.read_limit_support();
        let base = DiskCheckResult { absences, limit_support, ..DiskCheckResult::default() };
        if !policy.needs_documents() {
            let missing_parts = missing_channels(policy, &node_extras);
            return DiskCheckResult { node_extras, missing_parts, ..base };
        }
        let missing_parts = self.cdi.generate(inventory).missing_parts;
        let document_errors = self.cdi.read_only_errors(inventory);
        DiskCheckResult { node_extras, missing_parts, document_errors, ..base }
    }

    fn node_extras(&self, policy: &Policy) -> NodeExtras {
        let exists = |node: &Path| self.roots.dev.exists(node);
        let control_nodes = NVIDIA_NODES.iter().map(PathBuf::from).filter(|node| exists(node));
        let channels = policy.delivery.imex.channels.iter().copied();
        NodeExtras {
            control_nodes: control_nodes.collect(),
            imex_channels: channels.filter(|channel| exists(&imex_node(*channel))).collect(),
            cdi_extras: Vec::new(),
        }
    }
}

// === impl DiskCheckResult ===

impl DiskCheckResult {
    /// Obstacle: a document that names the device, or the limits of its replicas, cannot be written.
    pub(super) fn document_obstacle(&self, device: &Device) -> Option<Obstacle> {
        let concerns = |kind: &Kind| self.node_extras.gets_names_of(device, kind);
        let document_error = self.document_errors.iter().find(|(kind, _)| concerns(kind));
        let reason = document_error.map(|(_, error)| error.to_string());
        let reason = reason.or_else(|| self.unwritten_limits.get(&device.id).cloned())?;
        Some(Obstacle { kind: ObstacleKind::Document, reason })
    }

    /// Obstacle: a node of the device is missing, or belongs to another device.
    pub(super) fn node_obstacle(&self, device: &Device) -> Option<Obstacle> {
        let reason = self.absences.get(&device.id)?.to_string();
        Some(Obstacle { kind: ObstacleKind::DeviceNode, reason })
    }

    /// Obstacle: a required IMEX channel is missing.
    pub(super) fn imex_obstacle(&self, policy: &Policy, device: &Device) -> Option<Obstacle> {
        let imex = &policy.delivery.imex;
        if !device.family().has_toolkit || !imex.required {
            return None;
        }
        let missing = imex.channels.difference(&self.node_extras.imex_channels).next()?;
        let node = imex_node(*missing);
        let reason =
            format!("IMEX channel {missing} is required, but {} is missing", node.display());
        Some(Obstacle { kind: ObstacleKind::ImexChannel, reason })
    }

    /// Obstacle: an MPS daemon still runs from an earlier sharing method, and blocks other programs.
    pub(super) fn daemon_obstacle(&self, device: &Device, sharing: Sharing) -> Option<String> {
        let mut ids = device.parent.iter().chain([&device.id]);
        let is_leftover = !sharing.is_mps() && ids.any(|id| self.leftover_daemons.contains(id));
        is_leftover.then(|| LEFTOVER_DAEMON.to_owned())
    }

    pub(super) fn state(&self, inventory: Inventory, policy: Arc<Policy>, plan: Plan) -> NodeState {
        NodeState {
            inventory,
            policy,
            offers: plan.offers,
            withheld: plan.withheld,
            empty_resources: plan.empty_resources,
            claimable: plan.claimable,
            unclaimable: plan.unclaimable,
            shareable: plan.shareable,
            node_extras: self.node_extras.clone(),
            documents: self.documents.clone(),
            missing_parts: self.missing_parts.clone(),
            document_errors: self.document_errors.clone(),
            absences: self.absences.clone(),
            limit_support: self.limit_support.clone(),
            ..NodeState::default()
        }
    }
}

const LEFTOVER_DAEMON: &str = "MPS daemon of the earlier sharing still runs";

/// Missing channels, if no CDI document reports them.
fn missing_channels(policy: &Policy, node_extras: &NodeExtras) -> MissingParts {
    let missing = policy.delivery.imex.channels.difference(&node_extras.imex_channels);
    let channels: Vec<_> = missing.copied().collect();
    let failure = |channel: &u32| {
        format!("IMEX channel {channel}: {} is missing", imex_node(*channel).display())
    };
    MissingParts { problems: channels.iter().map(failure).collect(), channels }
}
