//! Device information files for CNI plugins, by the Device Information Specification 1.1.0 of Kubernetes'
//! Network Plumbing Working Group.
//!
//! Multus finds the file of a pod's device by resource name and device id. The agent writes the file before the device
//! is allocatable, and removes it when the device is no longer offered. A device whose file cannot be written is
//! withheld. The agent removes only its own files: it first writes their names to a list on disk.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use serde::Serialize;
use windlass_config::HostPaths;
use windlass_core::{
    attribute::AttributeName,
    device::{Device, DeviceId},
    inventory::Inventory,
    resource::ResourceName,
};
use windlass_discovery::{
    AUXILIARY_DEVICE, PF_PCI_ADDRESS, RDMA_DEVICE, REPRESENTOR, VDPA_DEVICE, VDPA_TYPE,
};
use windlass_host::{
    Host,
    files::{self, MAX_BYTES, Symlinks, read_regular_text},
};

use crate::offers::Offers;

/// Files by device.
pub type DeviceInfos = BTreeMap<DeviceId, DeviceInfoFile>;

/// A file with its required content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfoFile {
    name: String,
    document: String,
}

/// The directory of device information files.
#[derive(Debug)]
pub struct DeviceInfoFiles {
    host: Host,
    /// Path of the directory on the host.
    dir: PathBuf,
    /// List of the agent's own files.
    list: PathBuf,
    /// True if the directory may have files of this or an earlier agent.
    may_have_files: bool,
}

/// Result of an update: files that could not be written or removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutdatedFiles {
    /// Devices whose files could not be written.
    pub devices: BTreeMap<DeviceId, DeviceInfoError>,
    /// Files that could not be removed.
    remove_errors: Vec<DeviceInfoError>,
}

/// A file operation that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceInfoError {
    /// A file cannot be written.
    #[error("cannot write device information for CNI plugins to {0}: {1}")]
    WriteFailed(PathBuf, String),
    /// A stale file cannot be removed.
    #[error("cannot remove stale device information for CNI plugins {0}: {1}")]
    RemoveFailed(PathBuf, String),
    /// The list of own files could not be updated and still names removed files.
    #[error("cannot write {0}: it names device information files that are gone: {1}")]
    ListUpdateFailed(PathBuf, String),
}

const VERSION: &str = "1.1.0";

/// A document, with its fields in the order of the specification's client.
#[derive(Serialize)]
struct DeviceInfo {
    r#type: &'static str,
    version: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pci: Option<Pci>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vdpa: Option<Vdpa>,
}

#[derive(Serialize)]
struct Pci {
    #[serde(rename = "pci-address")]
    address: String,
    #[serde(rename = "vhost-net", skip_serializing_if = "Option::is_none")]
    vhost_net: Option<String>,
    #[serde(rename = "rdma-device", skip_serializing_if = "Option::is_none")]
    rdma: Option<String>,
    #[serde(flatten)]
    function: VirtualFunction,
}

#[derive(Serialize)]
struct Vdpa {
    #[serde(rename = "parent-device")]
    parent: String,
    driver: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<String>,
    #[serde(rename = "pci-address")]
    address: String,
    #[serde(flatten)]
    function: VirtualFunction,
}

#[derive(Serialize)]
struct VirtualFunction {
    #[serde(rename = "pf-pci-address", skip_serializing_if = "Option::is_none")]
    physical: Option<String>,
    #[serde(rename = "representor-device", skip_serializing_if = "Option::is_none")]
    representor: Option<String>,
}

/// Required files: one for each present PCI network device that is offered exclusively. Subfunctions have no file,
/// because the specification does not cover them; shared devices have none, because CNI plugins do not move them into
/// pods.
pub fn desired_files(offers: &Offers, inventory: &Inventory) -> DeviceInfos {
    let offered_ids = offers.iter().flat_map(|(name, offer)| {
        let exclusive_devices = offer.devices.iter().filter(|(_, device)| device.is_exclusive());
        exclusive_devices.map(move |(id, _)| (name, id))
    });
    let files = offered_ids.filter_map(|(name, id)| {
        let device = inventory.get(id.as_str())?;
        let file = DeviceInfoFile { name: file_name(name, id), document: document(device)? };
        Some((id.clone(), file))
    });
    files.collect()
}

fn file_name(resource: &ResourceName, id: &DeviceId) -> String {
    format!("{}-{id}-device.json", resource.as_str().replace('/', "-"))
}

fn document(device: &Device) -> Option<String> {
    let is_present_nic = device.kind.is_network() && !device.health.has_vanished();
    if !is_present_nic || device.attributes.contains_key(&AUXILIARY_DEVICE) {
        return None;
    }
    let info = device_info(device)?;
    Some(serde_json::to_string(&info).expect("a document of strings serialises"))
}

fn device_info(device: &Device) -> Option<DeviceInfo> {
    let address = device.place.pci?.to_string();
    let text = |name: &AttributeName| device.attributes.get(name).map(ToString::to_string);
    let mut paths = device.nodes.iter().filter_map(|node| node.path.to_str());
    let mut path = |start| paths.find(|path: &&str| path.starts_with(start)).map(str::to_owned);
    let function =
        VirtualFunction { physical: text(&PF_PCI_ADDRESS), representor: text(&REPRESENTOR) };
    if let (Some(parent), Some(driver)) = (text(&VDPA_DEVICE), text(&VDPA_TYPE)) {
        let vdpa = Vdpa { parent, driver, path: path("/dev/vhost-vdpa-"), address, function };
        return Some(DeviceInfo { r#type: "vdpa", version: VERSION, pci: None, vdpa: Some(vdpa) });
    }
    let vhost_net = path("/dev/vhost-net");
    let pci = Pci { address, vhost_net, rdma: text(&RDMA_DEVICE), function };
    Some(DeviceInfo { r#type: "pci", version: VERSION, pci: Some(pci), vdpa: None })
}

// === impl DeviceInfoFiles ===

impl DeviceInfoFiles {
    /// The configured directory.
    pub fn new(paths: &HostPaths) -> Self {
        Self {
            host: paths.host(),
            dir: paths.device_info_dir.clone(),
            list: paths.state_dir.join("device-info"),
            // An earlier agent may have left files.
            may_have_files: true,
        }
    }

    /// True if there is nothing to write or remove.
    pub fn has_no_work(&self, desired: &DeviceInfos) -> bool {
        desired.is_empty() && !self.may_have_files
    }

    /// Writes these files and removes other files of the agent. One file's failure does not affect other files; without
    /// the list, no new file is written. Blocks.
    pub fn reconcile(&mut self, desired: &DeviceInfos) -> OutdatedFiles {
        let recorded_names = self.recorded_names();
        if desired.is_empty() && recorded_names.is_empty() {
            self.may_have_files = false;
            return OutdatedFiles::default();
        }
        self.may_have_files = true;
        let desired_names: BTreeSet<_> = desired.values().map(|file| file.name.clone()).collect();
        let list_result = self.record_names(&recorded_names | &desired_names);
        let folder = self.folder();
        let mut outdated = OutdatedFiles::default();
        for (id, file) in desired {
            let result = match &list_result {
                // A file that is not on the list would never be removed, so it is not written.
                Err(error) if !recorded_names.contains(&file.name) => Err(error.clone()),
                _ => write(&folder.join(&file.name), &file.document),
            };
            outdated.devices.extend(result.err().map(|error| (id.clone(), error)));
        }
        let mut remaining = desired_names.clone();
        for name in recorded_names.difference(&desired_names) {
            if let Err(error) = remove(&folder.join(name)) {
                outdated.remove_errors.push(error);
                remaining.insert(name.clone());
            }
        }
        if list_result.is_ok() {
            outdated
                .remove_errors
                .extend(self.record_names(remaining).err().map(DeviceInfoError::into_list_error));
        }
        outdated
    }

    /// Path of the directory for the agent. Resolves every link as the host does: `/var/run` usually links
    /// to `/run`.
    fn folder(&self) -> PathBuf {
        let mut folder = PathBuf::new();
        for part in &self.dir {
            folder.push(part);
            folder = self.host.resolve_link(&folder).unwrap_or(folder);
        }
        self.host.path(folder)
    }

    /// Names of the agent's own files.
    fn recorded_names(&self) -> BTreeSet<String> {
        let text = read_regular_text(&self.list, Symlinks::Refused, MAX_BYTES).unwrap_or_default();
        let is_name = |line: &&str| line.ends_with("-device.json") && !line.contains('/');
        text.lines().filter(is_name).map(str::to_owned).collect()
    }

    fn record_names(&self, names: BTreeSet<String>) -> Result<(), DeviceInfoError> {
        let lines: Vec<_> = names.into_iter().collect();
        write(&self.list, &lines.join("\n"))
    }
}

fn write(path: &Path, text: &str) -> Result<(), DeviceInfoError> {
    let result = files::replace(path, text.as_bytes(), files::FileAccess::Everyone).map(drop);
    result.map_err(|error| DeviceInfoError::WriteFailed(path.to_owned(), error.to_string()))
}

fn remove(path: &Path) -> Result<(), DeviceInfoError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(DeviceInfoError::RemoveFailed(path.to_owned(), error.to_string()))
        }
        _ => Ok(()),
    }
}

// === impl DeviceInfoError ===

impl DeviceInfoError {
    /// The error of a list that still names removed files.
    fn into_list_error(self) -> Self {
        match self {
            Self::WriteFailed(path, error) => Self::ListUpdateFailed(path, error),
            other => other,
        }
    }
}

// === impl OutdatedFiles ===

impl OutdatedFiles {
    /// All errors in one line: an unwritable directory fails every file in the same way.
    pub fn summary(&self) -> Option<String> {
        let mut errors = self.devices.values().chain(&self.remove_errors);
        let first = errors.next()?;
        Some(match errors.count() {
            0 => first.to_string(),
            count => format!("{first}; and {count} more"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The directory below a root, and a path where a folder makes writing the list fail.
    fn files(root: &Path) -> (DeviceInfoFiles, PathBuf) {
        let paths = HostPaths {
            host_root: root.to_owned(),
            host_root_on_node: root.to_owned(),
            device_info_dir: "/devinfo".into(),
            state_dir: root.join("state"),
            ..HostPaths::default()
        };
        (DeviceInfoFiles::new(&paths), root.join("state/.device-info.draft"))
    }

    fn device_infos(ids: &[&str]) -> DeviceInfos {
        let file = |id: &&str| DeviceInfoFile {
            name: format!("{id}-device.json"),
            document: "{}".to_owned(),
        };
        ids.iter().map(|id| (id.parse().expect("an id"), file(id))).collect()
    }

    #[test]
    fn an_unwritable_list_fails_only_files_that_it_does_not_name() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (mut files, draft) = files(root.path());
        let exists = |id: &str| root.path().join(format!("devinfo/{id}-device.json")).exists();
        assert_eq!(files.reconcile(&device_infos(&["a", "b"])), OutdatedFiles::default());
        fs::create_dir(&draft).expect("made");
        let outdated = files.reconcile(&device_infos(&["b", "c"]));
        let ids: Vec<_> = outdated.devices.keys().map(DeviceId::as_str).collect();
        assert_eq!((ids, outdated.remove_errors.len()), (vec!["c"], 0));
        assert!(!exists("a") && exists("b") && !exists("c"));
        fs::remove_dir(&draft).expect("removed");
        assert_eq!(files.reconcile(&device_infos(&["b", "c"])), OutdatedFiles::default());
        assert!(exists("c"));
    }

    #[test]
    fn a_list_with_removed_files_withholds_no_device() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (mut files, draft) = files(root.path());
        assert_eq!(files.reconcile(&device_infos(&["a", "b"])), OutdatedFiles::default());
        fs::create_dir(draft).expect("made");
        let outdated = files.reconcile(&device_infos(&["b"]));
        assert_eq!(outdated.devices, BTreeMap::new());
        let summary = outdated.summary().expect("the list names a removed file");
        assert!(
            summary.contains("state/device-info: it names device information files"),
            "{summary}"
        );
    }
}
