//! CDI documents of this node: built from the inventory and the driver's files, and written to disk.
//!
//! Each kind has its document: `gpu` with whole GPUs and MIG instances, `nic`, and one for each configured feature. A
//! document of devices has no device `all`: a container with that name would get the GPUs of others.

pub mod container_edits;
pub mod memory_limits;

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

use windlass_config::{Delivery, DeviceIdStrategy, HostPaths};
use windlass_core::{
    cdi::{ContainerEdits, Kind, Spec, SpecDevice},
    device::{Device, SourceName},
    inventory::Inventory,
};
use windlass_host::{Roots, files};

use self::{
    features::Features, installation::Installation, libraries::Libraries,
    memory_limits::ReplicaDevices, toolkit::Toolkit,
};
pub use self::{features::imex_node, nodes::NVIDIA_NODES};

/// The CDI documents in one directory.
#[derive(Clone, Debug)]
pub struct CdiFiles {
    dir: PathBuf,
    roots: Roots,
    delivery: Delivery,
    /// True once the configuration has named devices by index.
    names_by_index: bool,
    libraries: Libraries,
    /// Driver files that were found before the first device, and the time of their search.
    prefetched: Option<(Instant, Installation)>,
}

/// Documents for the current inventory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GeneratedDocuments {
    /// The documents by file name.
    pub documents: BTreeMap<String, Spec>,
    /// Configured files and nodes, and parts of the driver, that were not found.
    pub missing_parts: MissingParts,
    /// Qualified CDI names of features, for every container that gets a GPU.
    pub extra_names: Vec<String>,
    kinds: BTreeSet<Kind>,
}

/// Configured files and nodes, and parts of the driver, that were not found. Containers start without them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingParts {
    /// Descriptions for the operator.
    pub problems: Vec<String>,
    /// Configured IMEX channels that the host lacks.
    pub channels: Vec<u32>,
}

/// The outcome of writing all documents.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WriteOutcome {
    /// Paths of the documents on disk, by kind.
    pub documents: Documents,
    /// Qualified CDI names of features, for every container that gets a GPU.
    pub extra_names: Vec<String>,
    /// Configured files and nodes, and parts of the driver, that were not found.
    pub missing_parts: MissingParts,
    /// Documents that could not be written, by kind.
    pub document_errors: DocumentErrors,
}

/// A document that could not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot write CDI document {path}: {reason}")]
pub struct CdiError {
    path: PathBuf,
    reason: String,
}

/// Paths of the documents on disk, by kind.
pub type Documents = BTreeMap<Kind, PathBuf>;

/// Documents that are not up to date, by kind, each with the reason.
pub type DocumentErrors = BTreeMap<Kind, CdiError>;

/// Validity of prefetched driver files.
const PREFETCH_TTL: Duration = Duration::from_secs(1);

/// Kind of whole GPUs and MIG instances.
const GPU: Kind = Kind::new("gpu");

/// Variable that keeps NVIDIA's container runtime, if it is installed, from adding GPUs that were not allocated.
const NO_LEGACY_INJECTION: &str = "NVIDIA_VISIBLE_DEVICES=void";

/// CDI kind of a device. Its class is that of the device's family, or else the name of its source.
pub fn kind_of(device: &Device) -> Kind {
    kind_of_source(&device.source)
}

fn kind_of_source(source: &SourceName) -> Kind {
    source.family().cdi_class.map_or_else(|| Kind::of_source(source), Kind::new)
}

/// Name of a device in its document. Only devices that NVIDIA's container toolkit serves can be named by index.
pub(crate) fn device_name(device: &Device, ids: DeviceIdStrategy) -> String {
    match (ids, device.part) {
        _ if !device.family().has_toolkit => device.id.to_string(),
        (DeviceIdStrategy::Index, Some(part)) => format!("{}:{part}", device.index),
        (DeviceIdStrategy::Index, None) if !device.kind.is_mig_instance() => {
            device.index.to_string()
        }
        _ => device.id.to_string(),
    }
}

/// True if a document can name the device. A runtime refuses a document with a device that has no edits. The nodes of
/// a vanished part or network function may belong to another device now.
fn is_nameable(device: &Device) -> bool {
    let has_unstable_nodes = device.parent.is_some() || device.kind.is_network();
    let has_stale_nodes = has_unstable_nodes && device.health.has_vanished();
    has_edits(device) && !has_stale_nodes
}

/// True if the device has edits for a document. A network function that a CNI plugin moves into the container has no
/// node, for example.
pub(crate) fn has_edits(device: &Device) -> bool {
    !(device.nodes.is_empty() && device.extras.mounts.is_empty())
}

// === impl CdiFiles ===

impl CdiFiles {
    /// Creates a writer of documents for this configuration. Reads and writes no file.
    pub fn new(paths: &HostPaths, delivery: Delivery) -> Self {
        Self {
            dir: paths.cdi_dir.clone(),
            roots: paths.roots(),
            names_by_index: delivery.ids == DeviceIdStrategy::Index,
            delivery,
            libraries: Libraries::default(),
            prefetched: None,
        }
    }

    /// Writes the documents that changed, and returns all paths. Documents stay, and so do failed GPUs in them: a
    /// restarting container needs the names that it was created with. `replicas` are added to the documents as further
    /// devices. Blocks.
    pub fn write(&mut self, inventory: &Inventory, replicas: ReplicaDevices) -> WriteOutcome {
        let GeneratedDocuments { mut documents, missing_parts, extra_names, kinds } =
            self.generate(inventory);
        for (kind, devices) in replicas {
            if let Some(document) = documents.get_mut(&kind.file_name()) {
                document.devices.extend(devices);
            }
        }
        let mut outcome = WriteOutcome { extra_names, missing_parts, ..WriteOutcome::default() };
        for kind in kinds {
            let path = self.dir.join(kind.file_name());
            match write_document(&path, &documents[&kind.file_name()]) {
                Ok(()) => drop(outcome.documents.insert(kind, path)),
                Err(error) => {
                    let reason = error.to_string();
                    outcome.document_errors.insert(kind, CdiError { path, reason });
                }
            }
        }
        outcome
    }

    /// Devices in the documents on disk whose GPUs can have memory limits. An unreadable document is skipped. Blocks.
    pub fn gpus_on_disk(&self) -> ReplicaDevices {
        let devices_by_kind = SourceName::with_limited_memory().filter_map(|source| {
            let kind = kind_of_source(&source);
            let document = read_document(&self.dir.join(kind.file_name()))?;
            Some((kind, document.devices))
        });
        devices_by_kind.collect()
    }

    /// Applies a changed delivery configuration.
    pub fn set_delivery(&mut self, delivery: &Delivery) {
        if self.delivery != *delivery {
            self.names_by_index |= delivery.ids == DeviceIdStrategy::Index;
            self.delivery = delivery.clone();
        }
    }

    /// Kinds of documents that cannot be written because their file system is read-only. Writes nothing.
    pub fn read_only_errors(&self, inventory: &Inventory) -> DocumentErrors {
        let nearest_folder = self.dir.ancestors().find(|folder| folder.exists());
        let flags = nearest_folder.and_then(|folder| rustix::fs::statvfs(folder).ok());
        let read_only = rustix::fs::StatVfsMountFlags::RDONLY;
        if !flags.is_some_and(|flags| flags.f_flag.contains(read_only)) {
            return DocumentErrors::new();
        }
        let reason = "the file system is mounted read-only".to_owned();
        let error = CdiError { path: self.dir.clone(), reason };
        inventory.devices.iter().map(|device| (kind_of(device), error.clone())).collect()
    }

    /// Finds the driver's files ahead of the first documents, which then need no search.
    pub fn prefetch_driver_files(&mut self) {
        let installation = Installation::find(&self.roots.for_one_scan(), &mut self.libraries);
        self.prefetched = Some((Instant::now(), installation));
    }

    /// Builds the documents without writing them.
    pub fn generate(&mut self, inventory: &Inventory) -> GeneratedDocuments {
        let mut generated = GeneratedDocuments::default();
        let roots = self.roots.for_one_scan();
        let toolkit = Toolkit::find(&roots.host, &self.delivery.hooks).unwrap_or_else(|problem| {
            generated.missing_parts.problems.push(problem);
            None
        });
        let kinds = self.by_kind(inventory);
        for (kind, devices) in &kinds {
            let common_edits =
                self.common_edits(&roots, kind, toolkit.as_ref(), &mut generated.missing_parts);
            let devices = devices.iter().map(|(name, device)| {
                SpecDevice::new(name, nodes::device_edits(&roots, device, toolkit.as_ref()))
            });
            generated.add_document(kind.clone(), Spec::new(kind, devices.collect(), common_edits));
        }
        if kinds.contains_key(&GPU) {
            generated.add_features(Features::find(&roots, &self.delivery));
        }
        generated
    }

    /// Devices and their names, by kind. If a present and a vanished device have the same name, such as an index, the
    /// present one gets it.
    fn by_kind<'a>(&self, inventory: &'a Inventory) -> BTreeMap<Kind, Vec<(String, &'a Device)>> {
        let mut kinds: BTreeMap<Kind, Vec<(String, &Device)>> = BTreeMap::new();
        for device in inventory.devices.iter().filter(|device| is_nameable(device)) {
            let devices = kinds.entry(kind_of(device)).or_default();
            for name in self.names(device) {
                match devices.iter_mut().find(|(other_name, _)| *other_name == name) {
                    None => devices.push((name, device)),
                    Some((_, other)) if other.health.has_vanished() => *other = device,
                    Some(_) => {}
                }
            }
        }
        kinds
    }

    /// Names of a device: its id, and also its index once the configuration has named devices by index. Running
    /// containers may have either.
    fn names(&self, device: &Device) -> BTreeSet<String> {
        let mut names = BTreeSet::from([device_name(device, DeviceIdStrategy::Uuid)]);
        if self.names_by_index {
            names.insert(device_name(device, DeviceIdStrategy::Index));
        }
        names
    }

    /// Edits that all devices of a kind share.
    fn common_edits(
        &mut self,
        roots: &Roots,
        kind: &Kind,
        toolkit: Option<&Toolkit>,
        missing_parts: &mut MissingParts,
    ) -> ContainerEdits {
        if *kind != GPU {
            return ContainerEdits::default();
        }
        let prefetched = self.prefetched.take().filter(|(searched_at, installation)| {
            searched_at.elapsed() < PREFETCH_TTL && installation.problem.is_none()
        });
        let installation = match prefetched {
            Some((_, installation)) => installation,
            None => Installation::find(roots, &mut self.libraries),
        };
        missing_parts.problems.extend(installation.problem.clone());
        let driver = driver::edits(&roots.driver, &installation, toolkit);
        let env = [NO_LEGACY_INJECTION.to_owned()].into_iter().chain(driver.env).collect();
        ContainerEdits { env, device_nodes: nodes::nvidia_driver_nodes(roots), ..driver }
    }
}

// === impl WriteOutcome ===

impl WriteOutcome {
    /// Paths of the documents.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.documents.values().map(PathBuf::as_path)
    }
}

// === impl GeneratedDocuments ===

impl GeneratedDocuments {
    fn add_document(&mut self, kind: Kind, document: Spec) {
        self.documents.insert(kind.file_name(), document);
        self.kinds.insert(kind);
    }

    fn add_features(&mut self, features: Features) {
        for (kind, document) in features.documents {
            self.add_document(kind, document);
        }
        self.extra_names = features.names;
        self.missing_parts.problems.extend(features.problems);
        self.missing_parts.channels = features.missing_channels;
    }
}

/// A document on disk; `None` if it cannot be read. Blocks.
pub fn read_document(path: &Path) -> Option<Spec> {
    let text = files::read_regular_text(path, files::Symlinks::Refused, files::MAX_BYTES).ok()?;
    serde_json::from_str(&text).ok()
}

/// The document as it is written to disk.
pub fn to_json(document: &Spec) -> String {
    let text = serde_json::to_string_pretty(document).expect("a CDI document serialises");
    format!("{text}\n")
}

fn write_document(path: &Path, document: &Spec) -> io::Result<()> {
    if files::replace(path, to_json(document).as_bytes(), files::FileAccess::Everyone)? {
        tracing::info!(path = %path.display(), devices = document.devices.len(), "CDI document written");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
