//! What has to be looked at on disk, apart from devices: CDI documents, the driver's own nodes, channels.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use windlass_cdi::{
    CdiFiles, Documents, Lacks, NVIDIA_NODES, Unwritten, Written, container_edits::Surroundings,
    imex_node,
};
use windlass_config::{Delivery, MissingChannel, MpsSettings, Places, Policy, Sharing};
use windlass_core::{
    cdi::Kind,
    device::{Device, DeviceId},
    inventory::Inventory,
};
use windlass_host::{Roots, presence};
use windlass_lifecycle::mps::MpsPlaces;
use windlass_resources::{
    Absent, NodeState,
    obstacle::{Obstacle, ObstacleSort},
    offers::Plan,
};

/// What has to be looked at on disk, apart from devices.
pub(super) struct Look {
    roots: Roots,
    cdi: CdiFiles,
    daemons: MpsPlaces,
    /// Documents that were written once are kept up to date: containers were created with their names.
    wrote: bool,
}

/// What was found there.
#[derive(Debug, Default)]
pub(super) struct Looked {
    pub(super) surroundings: Surroundings,
    documents: Documents,
    pub(super) lacks: Lacks,
    unwritten: Unwritten,
    /// Devices of which there is a daemon, or what is left of one.
    daemons_left: BTreeSet<DeviceId>,
    /// Devices whose nodes are not where a container would look for them.
    absent: Absent,
}

// === impl Look ===

impl Look {
    pub(super) fn new(places: &Places, mps: &MpsSettings, delivery: Delivery) -> Self {
        Self {
            cdi: CdiFiles::new(places, delivery),
            roots: places.roots(),
            daemons: MpsPlaces::new(places, mps),
            wrote: false,
        }
    }

    pub(super) fn run(&mut self, inventory: &Inventory, policy: &Policy) -> Looked {
        let daemons_left = self.daemons.left().into_iter().collect();
        let absent = self.absent(inventory);
        Looked { daemons_left, absent, ..self.look(inventory, policy) }
    }

    fn absent(&self, inventory: &Inventory) -> Absent {
        let there = inventory.devices.iter().filter(|device| !device.health.has_vanished());
        let absent = there.filter_map(|device| {
            Some((device.id.clone(), presence::check(&self.roots, &device.nodes).err()?))
        });
        absent.collect()
    }

    fn look(&mut self, inventory: &Inventory, policy: &Policy) -> Looked {
        let surroundings = self.surroundings(policy);
        if !policy.needs_documents() && !self.wrote {
            let lacks = missing_channels(policy, &surroundings);
            return Looked { surroundings, lacks, ..Looked::default() };
        }
        self.wrote = true;
        self.cdi.deliver(&policy.delivery);
        let Written { documents, besides, lacks, unwritten } = self.cdi.write(inventory);
        let surroundings = Surroundings { cdi_extras: besides, ..surroundings };
        Looked { surroundings, documents, lacks, unwritten, ..Looked::default() }
    }

    /// Finds what does not depend on devices, so that the first documents need not wait for it.
    pub(super) fn warm_up(&mut self, policy: &Policy) {
        if policy.needs_documents() {
            self.cdi.find_files();
        }
    }

    /// For whoever only wants to know: a folder that cannot be written is told as far as it is known
    /// without the agent's rights.
    pub(super) fn without_writing(&mut self, inventory: &Inventory, policy: &Policy) -> Looked {
        let (surroundings, absent) = (self.surroundings(policy), self.absent(inventory));
        if !policy.needs_documents() {
            let lacks = missing_channels(policy, &surroundings);
            return Looked { surroundings, lacks, absent, ..Looked::default() };
        }
        let lacks = self.cdi.generate(inventory).lacks;
        let unwritten = self.cdi.unwritable(inventory);
        Looked { surroundings, lacks, unwritten, absent, ..Looked::default() }
    }

    fn surroundings(&self, policy: &Policy) -> Surroundings {
        let has = |node: &Path| self.roots.dev.has(node);
        let control = NVIDIA_NODES.iter().map(PathBuf::from).filter(|node| has(node));
        let channels = policy.delivery.imex.channels.iter().copied();
        Surroundings {
            control_nodes: control.collect(),
            imex_channels: channels.filter(|channel| has(&imex_node(*channel))).collect(),
            cdi_extras: Vec::new(),
        }
    }
}

// === impl Looked ===

impl Looked {
    /// That a document which a device is named by cannot be written.
    pub(super) fn undocumented(&self, device: &Device) -> Option<Obstacle> {
        let concerns = |kind: &Kind| self.surroundings.gets_names_of(device, kind);
        let (_, error) = self.unwritten.iter().find(|(kind, _)| concerns(kind))?;
        Some(Obstacle { sort: ObstacleSort::Document, why: error.to_string() })
    }

    /// That a node of the device is missing, or another device's.
    pub(super) fn lacks_node(&self, device: &Device) -> Option<Obstacle> {
        let why = self.absent.get(&device.id)?.to_string();
        Some(Obstacle { sort: ObstacleSort::DeviceNode, why })
    }

    /// That a channel is missing without which the device is not to be handed out.
    pub(super) fn lacks_channel(&self, policy: &Policy, device: &Device) -> Option<Obstacle> {
        let imex = &policy.delivery.imex;
        if !device.family().has_toolkit || imex.missing == MissingChannel::Tolerated {
            return None;
        }
        let missing = imex.channels.difference(&self.surroundings.imex_channels).next()?;
        let node = imex_node(*missing);
        let why = format!("IMEX channel {missing} is required, but {} is missing", node.display());
        Some(Obstacle { sort: ObstacleSort::ImexChannel, why })
    }

    /// That an MPS daemon is still there, which keeps all programs away that are no clients of it.
    pub(super) fn daemon_left(&self, device: &Device, sharing: Sharing) -> Option<String> {
        let mut ids = device.parent.iter().chain([&device.id]);
        let is_left = !sharing.is_by_mps() && ids.any(|id| self.daemons_left.contains(id));
        is_left.then(|| DAEMON_LEFT.to_owned())
    }

    /// As much of the node's state as the plan and the disk say.
    pub(super) fn state(&self, inventory: Inventory, policy: Arc<Policy>, plan: Plan) -> NodeState {
        NodeState {
            inventory,
            policy,
            offers: plan.offers,
            withheld: plan.withheld,
            empty: plan.empty,
            claimable: plan.claimable,
            unclaimable: plan.unclaimable,
            surroundings: self.surroundings.clone(),
            documents: self.documents.clone(),
            lacks: self.lacks.clone(),
            unwritten: self.unwritten.clone(),
            absent: self.absent.clone(),
            ..NodeState::default()
        }
    }
}

const DAEMON_LEFT: &str = "MPS daemon: the one that served others is not gone yet";

/// What containers go without, where no CDI document lacks it.
fn missing_channels(policy: &Policy, surroundings: &Surroundings) -> Lacks {
    let missing = policy.delivery.imex.channels.difference(&surroundings.imex_channels);
    let channels: Vec<_> = missing.copied().collect();
    let trouble = |channel: &u32| {
        format!("IMEX channel {channel}: {} is missing", imex_node(*channel).display())
    };
    Lacks { troubles: channels.iter().map(trouble).collect(), channels }
}
