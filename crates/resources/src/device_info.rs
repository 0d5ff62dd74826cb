//! Device information files for CNI plugins, by the Device Information Specification 1.1.0 of Kubernetes'
//! Network Plumbing Working Group.
//!
//! Multus reads the file of a pod's device, by resource name and device id. The file exists before its
//! device is allocatable, and goes when the device is offered no more. A device whose file cannot be
//! written is withheld. Only the agent's own files are removed; their names are written to disk first.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
};

use serde::Serialize;
use windlass_config::Places;
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
    files::{self, Links, MAX_BYTES, read_regular_text},
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
    record: PathBuf,
    /// True if the directory may have files of the agent.
    wrote: bool,
}

/// Files that differ from what they should be.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OutdatedFiles {
    /// Devices whose files could not be written.
    pub devices: BTreeMap<DeviceId, DeviceInfoError>,
    /// Files that could not be removed.
    left: Vec<DeviceInfoError>,
}

/// A file operation that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceInfoError {
    /// A file cannot be written.
    #[error("cannot write device information for CNI plugins to {0}: {1}")]
    Unwritten(PathBuf, String),
    /// A stale file cannot be removed.
    #[error("cannot remove stale device information for CNI plugins {0}: {1}")]
    Left(PathBuf, String),
    /// The list of own files names some that are gone.
    #[error("cannot write {0}: it names device information files that are gone: {1}")]
    Outdated(PathBuf, String),
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

/// Files for the exclusive network devices of all offers. The specification has no form for subfunctions,
/// and CNI plugins move no shared devices.
pub fn wanted(offers: &Offers, inventory: &Inventory) -> DeviceInfos {
    let offered = offers.iter().flat_map(|(name, offer)| {
        let whole = offer.devices.iter().filter(|(_, device)| device.is_exclusive());
        whole.map(move |(id, _)| (name, id))
    });
    let files = offered.filter_map(|(name, id)| {
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
    Some(serde_json::to_string(&info).expect("strings by strings"))
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
    /// The directory by the configuration.
    pub fn new(places: &Places) -> Self {
        Self {
            host: places.host(),
            dir: places.device_info_dir.clone(),
            record: places.state_dir.join("device-info"),
            // An earlier agent may have left files.
            wrote: true,
        }
    }

    /// True if there is nothing to write or remove.
    pub fn is_idle(&self, wanted: &DeviceInfos) -> bool {
        wanted.is_empty() && !self.wrote
    }

    /// Writes these files and removes the agent's others. A failure affects one file only. Blocks.
    pub fn keep(&mut self, wanted: &DeviceInfos) -> OutdatedFiles {
        let known = self.recorded();
        if wanted.is_empty() && known.is_empty() {
            self.wrote = false;
            return OutdatedFiles::default();
        }
        self.wrote = true;
        let now: BTreeSet<_> = wanted.values().map(|file| file.name.clone()).collect();
        let recorded = self.record_names(&known | &now);
        let folder = self.folder();
        let mut outdated = OutdatedFiles::default();
        for (id, file) in wanted {
            let written = match &recorded {
                // A file that is not on the list would stay for ever.
                Err(error) if !known.contains(&file.name) => Err(error.clone()),
                _ => write(&folder.join(&file.name), &file.document),
            };
            outdated.devices.extend(written.err().map(|error| (id.clone(), error)));
        }
        let mut kept = now.clone();
        for name in known.difference(&now) {
            if let Err(error) = remove(&folder.join(name)) {
                outdated.left.push(error);
                kept.insert(name.clone());
            }
        }
        if recorded.is_ok() {
            outdated.left.extend(self.record_names(kept).err().map(DeviceInfoError::of_the_gone));
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
    fn recorded(&self) -> BTreeSet<String> {
        let text = read_regular_text(&self.record, Links::Refused, MAX_BYTES).unwrap_or_default();
        let is_name = |line: &&str| line.ends_with("-device.json") && !line.contains('/');
        text.lines().filter(is_name).map(str::to_owned).collect()
    }

    fn record_names(&self, names: BTreeSet<String>) -> Result<(), DeviceInfoError> {
        let lines: Vec<_> = names.into_iter().collect();
        write(&self.record, &lines.join("\n"))
    }
}

fn write(path: &Path, text: &str) -> Result<(), DeviceInfoError> {
    let written = files::replace(path, text.as_bytes(), files::Readers::Everyone).map(drop);
    written.map_err(|error| DeviceInfoError::Unwritten(path.to_owned(), error.to_string()))
}

fn remove(path: &Path) -> Result<(), DeviceInfoError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(DeviceInfoError::Left(path.to_owned(), error.to_string()))
        }
        _ => Ok(()),
    }
}

// === impl DeviceInfoError ===

impl DeviceInfoError {
    /// The error of a list that names too much.
    fn of_the_gone(self) -> Self {
        match self {
            Self::Unwritten(path, why) => Self::Outdated(path, why),
            other => other,
        }
    }
}

// === impl OutdatedFiles ===

impl OutdatedFiles {
    /// All errors in one line: an unwritable directory fails every file in the same way.
    pub fn summary(&self) -> Option<String> {
        let mut all = self.devices.values().chain(&self.left);
        let first = all.next()?;
        Some(match all.count() {
            0 => first.to_string(),
            more => format!("{first}; and {more} more"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files in a folder, and where a folder keeps their record from being written.
    fn files(root: &Path) -> (DeviceInfoFiles, PathBuf) {
        let places = Places {
            host_root: root.to_owned(),
            host_root_on_node: root.to_owned(),
            device_info_dir: "/devinfo".into(),
            state_dir: root.join("state"),
            ..Places::default()
        };
        (DeviceInfoFiles::new(&places), root.join("state/.device-info.draft"))
    }

    fn wanted(ids: &[&str]) -> DeviceInfos {
        let file = |id: &&str| DeviceInfoFile {
            name: format!("{id}-device.json"),
            document: "{}".to_owned(),
        };
        ids.iter().map(|id| (id.parse().expect("an id"), file(id))).collect()
    }

    #[test]
    fn a_record_that_cannot_be_written_costs_what_it_does_not_name_yet_and_no_more() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (mut files, in_the_way) = files(root.path());
        let is_there = |id: &str| root.path().join(format!("devinfo/{id}-device.json")).exists();
        assert_eq!(files.keep(&wanted(&["a", "b"])), OutdatedFiles::default());
        fs::create_dir(&in_the_way).expect("made");
        let outdated = files.keep(&wanted(&["b", "c"]));
        let ids: Vec<_> = outdated.devices.keys().map(DeviceId::as_str).collect();
        assert_eq!((ids, outdated.left.len()), (vec!["c"], 0));
        assert!(!is_there("a") && is_there("b") && !is_there("c"));
        fs::remove_dir(&in_the_way).expect("removed");
        assert_eq!(files.keep(&wanted(&["b", "c"])), OutdatedFiles::default());
        assert!(is_there("c"));
    }

    #[test]
    fn a_record_that_names_too_much_is_no_trouble_of_a_device() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (mut files, in_the_way) = files(root.path());
        assert_eq!(files.keep(&wanted(&["a", "b"])), OutdatedFiles::default());
        fs::create_dir(in_the_way).expect("made");
        let outdated = files.keep(&wanted(&["b"]));
        assert_eq!(outdated.devices, BTreeMap::new());
        let told = outdated.summary().expect("it names a file that is gone");
        assert!(told.contains("state/device-info: it names device information files"), "{told}");
    }
}
