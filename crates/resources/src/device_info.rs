//! Files that tell CNI plugins of network devices: the Device Information Specification 1.1.0 of
//! Kubernetes' Network Plumbing Working Group.
//!
//! Multus reads the file of a device that a pod got, by the resource's name and the device's id. A file is
//! there before its device is given away, and goes when it is offered no more; a device whose file cannot
//! be written is kept back. Only files that this agent made are removed; which these are is written down
//! first.

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
    files::{self, Links, MOST_BYTES, read_regular_text},
};

use crate::offers::Offers;

/// The files by their devices.
pub type DeviceInfos = BTreeMap<DeviceId, DeviceInfoFile>;

/// A file, as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfoFile {
    name: String,
    document: String,
}

/// The files that are kept up to date.
#[derive(Debug)]
pub struct DeviceInfoFiles {
    host: Host,
    /// The folder, as the host names it.
    dir: PathBuf,
    /// Where is written down which files are the agent's own.
    record: PathBuf,
    /// Whether there may be files of this agent's.
    wrote: bool,
}

/// What CNI plugins are told wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Untold {
    /// The devices whose files are not as they should be.
    pub devices: BTreeMap<DeviceId, DeviceInfoError>,
    /// Files that should not be there.
    left: Vec<DeviceInfoError>,
}

/// A file that could not be made as it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceInfoError {
    /// A file that is wanted cannot be written.
    #[error("CNI plugins cannot be told of a device, since {path} cannot be written: {why}")]
    Unwritten {
        /// The path.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// A file that nobody wants cannot be removed.
    #[error("CNI plugins may be told of a device that is offered no more by {path}: {why}")]
    Left {
        /// The path.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The list of files cannot be written.
    #[error("{path} names files for CNI plugins that are gone, since it cannot be written: {why}")]
    Outdated {
        /// The path.
        path: PathBuf,
        /// The reason.
        why: String,
    },
}

const VERSION: &str = "1.1.0";

/// A document, with the fields in the order of the specification's client.
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
    around: Around,
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
    around: Around,
}

/// What belongs to a virtual function.
#[derive(Serialize)]
struct Around {
    #[serde(rename = "pf-pci-address", skip_serializing_if = "Option::is_none")]
    physical: Option<String>,
    #[serde(rename = "representor-device", skip_serializing_if = "Option::is_none")]
    representor: Option<String>,
}

/// What there is to tell of what is offered: of network devices that serve one container. Subfunctions,
/// for which the specification has no words, and shares, which no CNI plugin moves, are left out.
pub fn wanted(offers: &Offers, inventory: &Inventory) -> DeviceInfos {
    let offered = offers.iter().flat_map(|(name, offer)| {
        let whole = offer.devices.iter().filter(|(_, device)| device.is_exclusive());
        whole.map(move |(id, _)| (name, id))
    });
    let known = offered.filter_map(|(name, id)| {
        let device = inventory.get(id.as_str())?;
        let file = DeviceInfoFile { name: file_name(name, id), document: document(device)? };
        Some((id.clone(), file))
    });
    known.collect()
}

fn file_name(resource: &ResourceName, id: &DeviceId) -> String {
    format!("{}-{id}-device.json", resource.as_str().replace('/', "-"))
}

fn document(device: &Device) -> Option<String> {
    let is_one = device.kind.is_network() && !device.health.has_vanished();
    if !is_one || device.attributes.contains_key(&AUXILIARY_DEVICE) {
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
    let around = Around { physical: text(&PF_PCI_ADDRESS), representor: text(&REPRESENTOR) };
    let version = VERSION;
    if let (Some(parent), Some(driver)) = (text(&VDPA_DEVICE), text(&VDPA_TYPE)) {
        let vdpa = Vdpa { parent, driver, path: path("/dev/vhost-vdpa-"), address, around };
        return Some(DeviceInfo { r#type: "vdpa", version, pci: None, vdpa: Some(vdpa) });
    }
    let (vhost_net, rdma) = (path("/dev/vhost-net"), text(&RDMA_DEVICE));
    let pci = Pci { address, vhost_net, rdma, around };
    Some(DeviceInfo { r#type: "pci", version, pci: Some(pci), vdpa: None })
}

// === impl DeviceInfoFiles ===

impl DeviceInfoFiles {
    /// The files in the folder that the configuration names.
    pub fn new(places: &Places) -> Self {
        Self {
            host: places.host(),
            dir: places.device_info_dir.clone(),
            record: places.state_dir.join("device-info"),
            // An earlier life may have left some.
            wrote: true,
        }
    }

    /// Whether there is nothing to write, and nothing to remove.
    pub fn is_idle(&self, wanted: &DeviceInfos) -> bool {
        wanted.is_empty() && !self.wrote
    }

    /// Makes the folder hold these files, and none besides that is the agent's. A file that cannot be
    /// written or removed costs no other. Blocks.
    pub fn keep(&mut self, wanted: &DeviceInfos) -> Untold {
        let known = self.recorded();
        if wanted.is_empty() && known.is_empty() {
            self.wrote = false;
            return Untold::default();
        }
        self.wrote = true;
        let now: BTreeSet<_> = wanted.values().map(|file| file.name.clone()).collect();
        let recorded = self.write_down(&known | &now);
        let folder = self.folder();
        let unwritten = |(id, file): (&DeviceId, &DeviceInfoFile)| match &recorded {
            // A file that is not written down would stay for ever.
            Err(error) if !known.contains(&file.name) => Some((id.clone(), error.clone())),
            _ => Some((id.clone(), file.write(&folder).err()?)),
        };
        let devices = wanted.iter().filter_map(unwritten).collect();
        let mut untold = Untold { devices, left: Vec::new() };
        let mut kept = now.clone();
        for name in known.difference(&now) {
            if let Err(error) = remove(&folder.join(name)) {
                untold.left.push(error);
                kept.insert(name.clone());
            }
        }
        if recorded.is_ok() {
            untold.left.extend(self.write_down(kept).err().map(DeviceInfoError::of_the_gone));
        }
        untold
    }

    /// Where the agent finds the folder. Every link on the way is followed as the host does: `/var/run`
    /// is one to `/run` nearly everywhere.
    fn folder(&self) -> PathBuf {
        let mut folder = PathBuf::new();
        for part in &self.dir {
            folder.push(part);
            folder = self.host.real(&folder).unwrap_or(folder);
        }
        self.host.path(folder)
    }

    /// The names of files that an agent made. One that is no name is no file of ours.
    fn recorded(&self) -> BTreeSet<String> {
        let text = read_regular_text(&self.record, Links::Refused, MOST_BYTES).unwrap_or_default();
        let is_name = |line: &&str| line.ends_with("-device.json") && !line.contains('/');
        text.lines().filter(is_name).map(str::to_owned).collect()
    }

    fn write_down(&self, names: BTreeSet<String>) -> Result<(), DeviceInfoError> {
        let lines: Vec<_> = names.into_iter().collect();
        write(&self.record, &lines.join("\n"))
    }
}

// === impl DeviceInfoFile ===

impl DeviceInfoFile {
    fn write(&self, folder: &Path) -> Result<(), DeviceInfoError> {
        write(&folder.join(&self.name), &self.document)
    }
}

fn write(path: &Path, text: &str) -> Result<(), DeviceInfoError> {
    let written = files::replace(path, text.as_bytes(), files::Readers::Everyone).map(drop);
    written.map_err(|error| DeviceInfoError::Unwritten {
        path: path.to_owned(),
        why: error.to_string(),
    })
}

fn remove(path: &Path) -> Result<(), DeviceInfoError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(DeviceInfoError::Left { path: path.to_owned(), why: error.to_string() })
        }
        _ => Ok(()),
    }
}

// === impl DeviceInfoError ===

impl DeviceInfoError {
    /// Of a record in which no file is missing, though some are gone.
    fn of_the_gone(self) -> Self {
        match self {
            Self::Unwritten { path, why } => Self::Outdated { path, why },
            other => other,
        }
    }
}

// === impl Untold ===

impl Untold {
    /// All of it in one line: a folder that cannot be written fails every file in the same way.
    pub fn trouble(&self) -> Option<String> {
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
        assert_eq!(files.keep(&wanted(&["a", "b"])), Untold::default());
        fs::create_dir(&in_the_way).expect("made");
        let untold = files.keep(&wanted(&["b", "c"]));
        let ids: Vec<_> = untold.devices.keys().map(DeviceId::as_str).collect();
        assert_eq!((ids, untold.left.len()), (vec!["c"], 0));
        assert!(!is_there("a") && is_there("b") && !is_there("c"));
        fs::remove_dir(&in_the_way).expect("removed");
        assert_eq!(files.keep(&wanted(&["b", "c"])), Untold::default());
        assert!(is_there("c"));
    }

    #[test]
    fn a_record_that_names_too_much_is_no_trouble_of_a_device() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let (mut files, in_the_way) = files(root.path());
        assert_eq!(files.keep(&wanted(&["a", "b"])), Untold::default());
        fs::create_dir(in_the_way).expect("made");
        let untold = files.keep(&wanted(&["b"]));
        assert_eq!(untold.devices, BTreeMap::new());
        let told = untold.trouble().expect("it names a file that is gone");
        assert!(told.contains("state/device-info names files"), "{told}");
    }
}
