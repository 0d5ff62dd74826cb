//! CDI documents of this node: built from the inventory, kept on disk.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use windlass_core::{
    cdi::{ContainerEdits, DeviceNode, Kind, Spec, SpecDevice},
    device::{Device, DeviceKind},
    health::Reason,
    inventory::Inventory,
};

use crate::{config::DeviceIds, files, host::Host};

/// Writes the documents of one CDI directory.
#[derive(Clone, Debug)]
pub(crate) struct CdiFiles {
    dir: PathBuf,
    host: Host,
}

/// A document that could not be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot write CDI document {path}: {why}")]
pub(crate) struct CdiError {
    path: PathBuf,
    why: String,
}

/// The documents that were written, by kind.
pub(crate) type Documents = BTreeMap<Kind, PathBuf>;

/// A container reads and writes a device, and makes no device nodes of its own.
pub(crate) const READ_WRITE: &str = "rw";

/// Nodes of NVIDIA's driver that belong to no GPU. A program needs the first; CUDA needs the second,
/// profilers the third, display the last.
const NVIDIA_NODES: [&str; 4] =
    ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"];

/// The node through which RDMA connections are made.
const RDMA_NODES: [&str; 1] = ["/dev/infiniband/rdma_cm"];

/// Keeps NVIDIA's container runtime from adding GPUs of its own choice, should it be installed too.
const NO_LEGACY_INJECTION: &str = "NVIDIA_VISIBLE_DEVICES=void";

/// The kind under which devices of a kind are named; parts share the kind of their whole.
pub(crate) fn kind_of(kind: DeviceKind) -> Kind {
    match kind {
        DeviceKind::Gpu | DeviceKind::Mig => Kind::new("gpu"),
        DeviceKind::Nic => Kind::new("nic"),
    }
}

/// What a device is called in its document, and by NVIDIA's runtime: its UUID, or its position, `0`
/// and `0:1` for the second instance on the first GPU.
pub(crate) fn device_name(device: &Device, ids: DeviceIds) -> String {
    match (ids, device.part) {
        (DeviceIds::Uuid, _) => device.id.to_string(),
        (DeviceIds::Index, None) => device.index.to_string(),
        (DeviceIds::Index, Some(part)) => format!("{}:{part}", device.index),
    }
}

/// Whether a device can stand in a document. One without edits makes a runtime refuse the whole
/// document; the nodes of a MIG instance that is gone may be another instance's by now.
fn is_nameable(device: &Device) -> bool {
    let is_gone = device.health.trouble().is_some_and(|trouble| trouble.reason == Reason::Vanished);
    let is_stale = device.kind == DeviceKind::Mig && is_gone;
    !(device.nodes.is_empty() || is_stale)
}

// === impl CdiFiles ===

impl CdiFiles {
    pub(crate) fn new(dir: &Path, host: Host) -> Self {
        Self { dir: dir.to_owned(), host }
    }

    /// Brings the documents up to date, and gives their paths; those that are stay untouched. A
    /// document is never removed, and a GPU that failed stays in it: a container that restarts needs
    /// the names it was created with.
    pub(crate) fn write(&self, inventory: &Inventory) -> Result<Documents, CdiError> {
        let mut kinds: BTreeMap<Kind, Vec<&Device>> = BTreeMap::new();
        for device in inventory.devices.iter().filter(|device| is_nameable(device)) {
            kinds.entry(kind_of(device.kind)).or_default().push(device);
        }
        let mut documents = Documents::new();
        for (kind, devices) in kinds {
            let path = self.dir.join(kind.file_name());
            let written = write_one(&path, &self.spec(kind, &devices));
            written.map_err(|error| CdiError { path: path.clone(), why: error.to_string() })?;
            documents.insert(kind, path);
        }
        Ok(documents)
    }

    /// The folder lies on a file system that is mounted read-only.
    pub(crate) fn read_only(&self) -> Option<CdiError> {
        let present = self.dir.ancestors().find(|folder| folder.exists())?;
        let flags = rustix::fs::statvfs(present).ok()?.f_flag;
        let why = "the file system is mounted read-only".to_owned();
        let error = CdiError { path: self.dir.clone(), why };
        flags.contains(rustix::fs::StatVfsMountFlags::RDONLY).then_some(error)
    }

    fn spec(&self, kind: Kind, devices: &[&Device]) -> Spec {
        let edits = |device: &Device| ContainerEdits {
            device_nodes: device.nodes.iter().map(|node| self.node(node)).collect(),
            ..ContainerEdits::default()
        };
        let entry = |device: &&Device| SpecDevice {
            name: device.id.to_string(),
            container_edits: edits(device),
        };
        Spec::new(kind, devices.iter().map(entry).collect(), self.common(kind))
    }

    fn common(&self, kind: Kind) -> ContainerEdits {
        let (nodes, env): (&[_], Vec<_>) = if kind == kind_of(DeviceKind::Gpu) {
            (&NVIDIA_NODES, vec![NO_LEGACY_INJECTION.to_owned()])
        } else {
            (&RDMA_NODES, Vec::new())
        };
        let present = nodes.iter().filter(|node| self.host.has(node));
        ContainerEdits {
            env,
            device_nodes: present.map(|node| self.node(Path::new(node))).collect(),
        }
    }

    fn node(&self, path: &Path) -> DeviceNode {
        let on_node = self.host.path_on_node(path);
        DeviceNode {
            host_path: (on_node != path).then_some(on_node),
            path: path.to_owned(),
            permissions: READ_WRITE,
        }
    }
}

fn write_one(path: &Path, spec: &Spec) -> io::Result<()> {
    path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
    let mut document = serde_json::to_vec_pretty(spec)?;
    document.push(b'\n');
    if files::replace(path, &document)? {
        tracing::info!(path = %path.display(), devices = spec.devices.len(), "CDI written");
    }
    Ok(())
}
