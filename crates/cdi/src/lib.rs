//! CDI documents of this node: built from the inventory and the driver's installation, kept on disk.
//!
//! There is a document for each kind: `gpu` with whole GPUs and MIG instances, `nic`, and one for each
//! feature that the configuration wants. None has a device `all` of every GPU: whoever could write that
//! one name would get what the kubelet gave to others.

pub mod container_edits;

mod driver;
mod features;
mod installation;
mod libraries;
mod nodes;
mod toolkit;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use windlass_config::{Delivery, DeviceIds, Places};
use windlass_core::{
    cdi::{ContainerEdits, Kind, Spec, SpecDevice},
    device::Device,
    inventory::Inventory,
};
use windlass_host::{Roots, files};

use self::{
    features::Features, installation::Installation, libraries::Libraries, toolkit::Toolkit,
};
pub use self::{features::imex_node, nodes::NVIDIA_NODES};

/// The documents of one CDI directory.
#[derive(Clone, Debug)]
pub struct CdiFiles {
    dir: PathBuf,
    roots: Roots,
    delivery: Delivery,
    /// Whether devices are, or were, named by position.
    by_position: bool,
    libraries: Libraries,
    /// The driver's files, found before there was a device to write a document of; and when.
    ahead: Option<(Instant, Installation)>,
}

/// Documents that say what the node has, and what they lack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Generated {
    /// The documents by file name.
    pub documents: BTreeMap<String, Spec>,
    /// What is wanted and was not found.
    pub lacks: Lacks,
    /// Qualified names that every container of a GPU gets besides.
    pub besides: Vec<String>,
    kinds: BTreeSet<Kind>,
}

/// What is wanted and was not found. Containers go without.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lacks {
    /// In words.
    pub troubles: Vec<String>,
    /// IMEX channels.
    pub channels: Vec<u32>,
}

/// What is on disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The documents by kind.
    pub documents: Documents,
    /// Qualified names that every container of a GPU gets besides.
    pub besides: Vec<String>,
    /// What is wanted and was not found.
    pub lacks: Lacks,
    /// The documents that could not be written, by kind; the others are.
    pub unwritten: Unwritten,
}

/// A document that could not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot write CDI document {path}: {why}")]
pub struct CdiError {
    path: PathBuf,
    why: String,
}

/// The documents that were written, by kind.
pub type Documents = BTreeMap<Kind, PathBuf>;

/// The documents that are not up to date, by kind, each with the reason.
pub type Unwritten = BTreeMap<Kind, CdiError>;

/// How long what was found ahead is as good as what would be found now.
const AHEAD: Duration = Duration::from_secs(1);

/// The kind of whole GPUs and their parts.
const GPU: Kind = Kind::new("gpu");

/// Keeps NVIDIA's container runtime from adding GPUs of its own choice, should it be installed too.
const NO_LEGACY_INJECTION: &str = "NVIDIA_VISIBLE_DEVICES=void";

/// The kind under which a device is named: that of its source, unless its family has another.
pub(crate) fn kind_of(device: &Device) -> Kind {
    device.family().cdi_class.map_or_else(|| Kind::of_source(&device.source), Kind::new)
}

/// What a device is called in its document. Only a toolkit that counts knows it by a position.
pub(crate) fn device_name(device: &Device, ids: DeviceIds) -> String {
    match (ids, device.part) {
        _ if !device.family().has_toolkit => device.id.to_string(),
        (DeviceIds::Index, Some(part)) => format!("{}:{part}", device.index),
        (DeviceIds::Index, None) if !device.kind.is_instance() => device.index.to_string(),
        _ => device.id.to_string(),
    }
}

/// Whether a device can stand in a document. One without edits makes a runtime refuse the whole
/// document; the nodes of a part that is gone may be another part's by now, and those of a network
/// function another function's.
fn is_nameable(device: &Device) -> bool {
    let renumbered = device.parent.is_some() || device.kind.is_network();
    let is_stale = renumbered && device.health.has_vanished();
    has_edits(device) && !is_stale
}

/// Whether a document can say anything of a device: a network function that a CNI plugin moves into the
/// container, say, has no node.
pub(crate) fn has_edits(device: &Device) -> bool {
    !(device.nodes.is_empty() && device.extras.mounts.is_empty())
}

// === impl CdiFiles ===

impl CdiFiles {
    /// The documents that the configuration asks for; nothing is read or written yet.
    pub fn new(places: &Places, delivery: Delivery) -> Self {
        Self {
            dir: places.cdi_dir.clone(),
            roots: places.roots(),
            by_position: delivery.ids == DeviceIds::Index,
            delivery,
            libraries: Libraries::default(),
            ahead: None,
        }
    }

    /// Brings the documents up to date, and gives their paths; those that are stay untouched. A
    /// document is never removed, and a GPU that failed stays in it: a container that restarts needs
    /// the names it was created with.
    pub fn write(&mut self, inventory: &Inventory) -> Written {
        let Generated { documents, lacks, besides, kinds } = self.generate(inventory);
        let mut written = Written { besides, lacks, ..Written::default() };
        for kind in kinds {
            let path = self.dir.join(kind.file_name());
            match write_one(&path, &documents[&kind.file_name()]) {
                Ok(()) => drop(written.documents.insert(kind, path)),
                Err(error) => {
                    let why = error.to_string();
                    written.unwritten.insert(kind, CdiError { path, why });
                }
            }
        }
        written
    }

    /// Takes up another way to hand devices out.
    pub fn deliver(&mut self, delivery: &Delivery) {
        if self.delivery != *delivery {
            self.by_position |= delivery.ids == DeviceIds::Index;
            self.delivery = delivery.clone();
        }
    }

    /// What could not be written, as far as can be told without writing: everything, where the folder
    /// lies on a file system that is mounted read-only.
    pub fn unwritable(&self, inventory: &Inventory) -> Unwritten {
        let present = self.dir.ancestors().find(|folder| folder.exists());
        let flags = present.and_then(|folder| rustix::fs::statvfs(folder).ok());
        let read_only = rustix::fs::StatVfsMountFlags::RDONLY;
        if !flags.is_some_and(|flags| flags.f_flag.contains(read_only)) {
            return Unwritten::new();
        }
        let why = "the file system is mounted read-only".to_owned();
        let error = CdiError { path: self.dir.clone(), why };
        inventory.devices.iter().map(|device| (kind_of(device), error.clone())).collect()
    }

    /// Finds the driver's files for the first documents, should these be wanted soon.
    pub fn find_files(&mut self) {
        let found = Installation::find(&self.roots.for_one_look(), &mut self.libraries);
        self.ahead = Some((Instant::now(), found));
    }

    /// What the documents have to say.
    pub fn generate(&mut self, inventory: &Inventory) -> Generated {
        let (mut generated, roots) = (Generated::default(), self.roots.for_one_look());
        let toolkit = Toolkit::find(&roots.host, &self.delivery.hooks);
        let toolkit = toolkit.unwrap_or_else(|trouble| {
            generated.lacks.troubles.push(trouble);
            None
        });
        let kinds = self.by_kind(inventory);
        for (kind, devices) in &kinds {
            let common = self.common(&roots, kind, toolkit.as_ref(), &mut generated.lacks);
            let entry = |(name, device): &(String, &Device)| {
                SpecDevice::new(name, nodes::of_device(&roots, device, toolkit.as_ref()))
            };
            let document = Spec::new(kind, devices.iter().map(entry).collect(), common);
            generated.add(kind.clone(), document);
        }
        if kinds.contains_key(&GPU) {
            generated.features(Features::find(&roots, &self.delivery));
        }
        generated
    }

    /// The devices that can stand in documents, with their names. Of two with one name the one that
    /// is there has it: a position may have been taken over.
    fn by_kind<'a>(&self, inventory: &'a Inventory) -> BTreeMap<Kind, Vec<(String, &'a Device)>> {
        let mut kinds: BTreeMap<Kind, Vec<(String, &Device)>> = BTreeMap::new();
        for device in inventory.devices.iter().filter(|device| is_nameable(device)) {
            let devices = kinds.entry(kind_of(device)).or_default();
            for name in self.names(device) {
                match devices.iter_mut().find(|(taken, _)| *taken == name) {
                    None => devices.push((name, device)),
                    Some((_, other)) if other.health.has_vanished() => *other = device,
                    Some(_) => {}
                }
            }
        }
        kinds
    }

    /// What a device is called: by its id always, and by its position once that was asked for, since
    /// containers that run were created with the one or the other.
    fn names(&self, device: &Device) -> BTreeSet<String> {
        let mut names = BTreeSet::from([device_name(device, DeviceIds::Uuid)]);
        if self.by_position {
            names.insert(device_name(device, DeviceIds::Index));
        }
        names
    }

    /// What all devices of a kind need.
    fn common(
        &mut self,
        roots: &Roots,
        kind: &Kind,
        toolkit: Option<&Toolkit>,
        lacks: &mut Lacks,
    ) -> ContainerEdits {
        let device_nodes = nodes::shared(roots, kind);
        if *kind != GPU {
            return ContainerEdits { device_nodes, ..ContainerEdits::default() };
        }
        let is_fresh =
            |(found, it): &(Instant, Installation)| found.elapsed() < AHEAD && it.trouble.is_none();
        let ahead = self.ahead.take().filter(is_fresh).map(|(_, installation)| installation);
        let installation = ahead.unwrap_or_else(|| Installation::find(roots, &mut self.libraries));
        lacks.troubles.extend(installation.trouble.clone());
        let driver = driver::edits(&roots.driver, &installation, toolkit);
        let env = [NO_LEGACY_INJECTION.to_owned()].into_iter().chain(driver.env).collect();
        ContainerEdits { env, device_nodes, ..driver }
    }
}

// === impl Written ===

impl Written {
    /// Where the documents are.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.documents.values().map(PathBuf::as_path)
    }
}

// === impl Generated ===

impl Generated {
    fn add(&mut self, kind: Kind, document: Spec) {
        self.documents.insert(kind.file_name(), document);
        self.kinds.insert(kind);
    }

    fn features(&mut self, features: Features) {
        for (kind, document) in features.documents {
            self.add(kind, document);
        }
        self.besides = features.names;
        self.lacks.troubles.extend(features.troubles);
        self.lacks.channels = features.missing_channels;
    }
}

/// The text of a document as it is on disk.
pub fn text(document: &Spec) -> String {
    let text = serde_json::to_string_pretty(document).expect("strings, numbers and lists");
    format!("{text}\n")
}

fn write_one(path: &Path, document: &Spec) -> io::Result<()> {
    if files::replace(path, text(document).as_bytes(), files::Readers::Everyone)? {
        tracing::info!(path = %path.display(), devices = document.devices.len(), "CDI written");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
