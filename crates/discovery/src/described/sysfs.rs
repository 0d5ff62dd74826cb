//! Candidates of a sysfs bus or class, with their attributes.

use std::{collections::BTreeMap, path::Path};

use windlass_core::attribute::{AttributeValue, standard};
use windlass_host::{
    Host, PciFunction,
    usb::{self, Serials},
};

use super::find::{Candidate, FindResult, entries, natural_sort_key};
use crate::facts::virtualization_attributes;

/// Sysfs of a host, during a scan.
pub(super) struct Sysfs<'a> {
    host: &'a Host,
    serials: &'a Serials,
}

/// Devices of a bus. A USB interface is part of its device, and no candidate.
pub(super) fn bus(sysfs: &Sysfs<'_>, bus: &str) -> Result<FindResult, String> {
    let is_part = |name: &str| bus == "usb" && name.contains(':');
    let mut result = list_candidates(sysfs, &format!("/sys/bus/{bus}/devices"), &is_part)?;
    number_parts(&mut result.candidates);
    Ok(result)
}

/// Devices of a class. Several devices of a class may belong to one bus device.
pub(super) fn class(sysfs: &Sysfs<'_>, class: &str) -> Result<FindResult, String> {
    let mut result = list_candidates(sysfs, &format!("/sys/class/{class}"), &|_| false)?;
    number_parts(&mut result.candidates);
    Ok(result)
}

fn list_candidates(
    sysfs: &Sysfs<'_>,
    list: &str,
    is_skipped: &dyn Fn(&str) -> bool,
) -> Result<FindResult, String> {
    let (mut result, host) = (FindResult::default(), sysfs.host);
    host.folder_error(list).map_or(Ok(()), Err)?;
    let Some(names) = entries(host, Path::new(list))? else {
        result.notes.push(format!("this node has no {list}"));
        return Ok(result);
    };
    for name in names.iter().filter(|name| !is_skipped(name)) {
        let link = Path::new(list).join(name);
        match host.resolve_link(&link).filter(|folder| folder.starts_with("/sys")) {
            Some(folder) => result.candidates.push(sysfs.candidate(&folder, name)),
            None => result.notes.push(format!("{} leads nowhere", link.display())),
        }
    }
    Ok(result)
}

/// Sets the identity of each part of a device: identity of the device, name of the part without digits, and a counter.
/// The kernel's digits may depend on other devices of the bus, as the first digit of `dvb0.frontend0` does.
pub(super) fn number_parts(candidates: &mut [Candidate]) {
    candidates.sort_by_cached_key(|candidate| natural_sort_key(&candidate.origin));
    let mut counters = BTreeMap::<String, u32>::new();
    for candidate in candidates.iter_mut().filter(|candidate| candidate.is_part()) {
        let stem = candidate.stem();
        let prefix = format!("{}-{stem}", candidate.identity);
        let number = counters.entry(prefix.clone()).or_default();
        candidate.identity = format!("{prefix}{number}");
        *number += 1;
    }
}

// === impl Sysfs ===

impl<'a> Sysfs<'a> {
    pub(super) fn new(host: &'a Host, serials: &'a Serials) -> Self {
        Self { host, serials }
    }

    pub(super) fn candidate(&self, folder: &Path, name: &str) -> Candidate {
        let host = self.host;
        let device = host.device_of(folder);
        let identity = self.identity(device.as_deref(), name);
        let mut candidate = Candidate {
            device: device.is_some().then(|| identity.clone()),
            identity,
            origin: folder.display().to_string(),
            folder: Some(folder.to_owned()),
            location: host.location_of(folder),
            nodes: host.nodes_of(folder).into_iter().map(|found| found.node).collect(),
            ..Candidate::default()
        };
        candidate.add_text("name", Some(name));
        candidate.add_text("subsystem", host.link_name(folder.join("subsystem")));
        candidate.add_text("devName", host.uevent(folder, "DEVNAME"));
        candidate.add_text("ofCompatible", host.read_line(folder.join("of_node/compatible")));
        if let Some(device) = &device {
            self.add_device_attributes(&mut candidate, device);
        }
        candidate.add_location(host, folder);
        candidate
    }

    /// Adds attributes of the bus device. The candidate's own `ofCompatible` stays.
    fn add_device_attributes(&self, candidate: &mut Candidate, device: &Path) {
        let host = self.host;
        // Every USB device has the generic driver `usb`.
        candidate.add_text(
            "driver",
            host.link_name(device.join("driver")).filter(|driver| driver != "usb"),
        );
        candidate.add_text("iommuGroup", host.link_name(device.join("iommu_group")));
        candidate.add_text("ofCompatible", host.read_line(device.join("of_node/compatible")));
        if let Some(usb) = usb::device_of(host, device) {
            for (name, value) in usb::attributes(host, &usb) {
                candidate.add_text(name, value);
            }
        }
        if candidate.folder.as_deref() == Some(device) {
            candidate.nodes.extend(host.vfio_nodes(device));
        }
    }

    /// Stable identity: USB identity, else name of the bus device, else own name.
    fn identity(&self, device: Option<&Path>, name: &str) -> String {
        let Some(device) = device else { return name.to_owned() };
        if let Some(usb) = usb::device_of(self.host, device) {
            return usb::identity(self.host, &usb, self.serials);
        }
        let device_name = device.file_name().and_then(|name| name.to_str()).unwrap_or(name);
        device_name.to_owned()
    }
}

// === impl Candidate ===

impl Candidate {
    /// True for a part of a bus device: a candidate whose name differs from the device's identity. An entry of the
    /// USB bus is a device, although its identity is a serial number or port.
    fn is_part(&self) -> bool {
        let name = self.text("name").filter(|_| self.text("subsystem") != Some("usb"));
        name.is_some_and(|name| name != self.identity)
    }

    /// Kind of a part: its name without digits, or its subsystem if the name is a bus address, `0003:1050:0407.000A`.
    fn stem(&self) -> String {
        let name = self.text("name").unwrap_or_default();
        let subsystem = self.text("subsystem").filter(|_| name.contains(':'));
        subsystem.unwrap_or(name).chars().filter(|letter| !letter.is_ascii_digit()).collect()
    }

    /// Adds Kubernetes' standard attributes and PCI ids. A device below a PCI function gets only the PCIe root and the
    /// NUMA node.
    fn add_location(&mut self, host: &Host, folder: &Path) {
        if let Some(function) = host.function_above(folder) {
            if self.location.pci.is_some() {
                self.add_function(host, &function);
            } else {
                let root = function.path.as_ref().map(|path| AttributeValue::string(path.root()));
                self.attributes.extend(root.map(|root| (standard::PCIE_ROOT, root)));
            }
        }
        self.add_numa_node();
    }

    fn add_function(&mut self, host: &Host, function: &PciFunction) {
        self.attributes.extend(function.attributes());
        self.add_text("pciVendor", function.vendor.clone());
        self.add_text("pciDevice", function.device.clone());
        self.attributes.extend(virtualization_attributes(host, function));
        let folder = function.folder();
        let id = |file: &str| {
            let text = host.read_text(folder.join(file))?;
            Some(text.trim_start_matches("0x").to_owned())
        };
        self.add_text("pciSubsystemVendor", id("subsystem_vendor"));
        self.add_text("pciSubsystemDevice", id("subsystem_device"));
        self.add_text("acpiIndex", host.read_text(folder.join("acpi_index")));
    }

    pub(super) fn add_numa_node(&mut self) {
        let node = self.location.numa_node.map(|node| AttributeValue::Int(node.into()));
        self.attributes.extend(node.map(|node| (standard::NUMA_NODE, node)));
    }
}
