//! FPGA logic of systems on a chip (Zynq, Kria, Cyclone V), programmed through an FPGA manager.
//!
//! sysfs does not name the loaded program. A manager in state *operating* has a loaded program. The manager of Stratix
//! 10 and Agilex reports only programs that Linux loaded (`drivers/fpga/stratix10-soc.c`).
//!
//! Devices of a program appear where its device tree overlay puts them: below the target region, or beside
//! other devices, `/sys/devices/platform/axi/a0000000.dma`. Only the configuration can assign the latter to a manager.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use windlass_core::{
    attribute::{AttributeName, Attributes},
    device::{Device, DeviceId, DeviceKind, DeviceNode, SourceName},
    health::Observation,
};
use windlass_host::{
    Host,
    entry_limits::EntryLimits,
    external::{DeadlineExceeded, ScanPool},
};

use super::{ObservedDevice, not_ready, unresponsive};
use crate::{
    described::matching_nodes,
    facts::{attributes, text_value},
};

pub(super) const DOMAIN: &str = "windlass.dev";
const MANAGER_NAME: &str = "fpgaManager";

/// Name of the manager, which identifies the chip family.
pub(super) const MANAGER: AttributeName = AttributeName::new(DOMAIN, MANAGER_NAME);

pub(super) const MANAGERS: &str = "/sys/class/fpga_manager";
pub(super) const REGIONS: &str = "/sys/class/fpga_region";

/// State of a working manager (`drivers/fpga/fpga-mgr.c`).
const OPERATING: &str = "operating";

/// State of a manager that cannot query its chip, and of most unprogrammed chips.
const UNKNOWN_STATE: &str = "unknown";

const NO_NODE: &str = "it is programmed, but no driver made a node that is known to be its own: write \
                       `fpga: {nodes: [...]}` if there is one";

/// XRT's driver for logic on a system on a chip.
const XRT: &str = "/sys/bus/platform/drivers/zocl-drm";

/// Maximum number of entries read per class. Machines have a few dozen.
const MAX_ENTRIES: usize = 1_000;

/// FPGA managers, read with a deadline each.
#[derive(Debug, Default)]
pub(super) struct Managers {
    pool: ScanPool<PathBuf, ManagerReport>,
}

/// State that the driver of a manager reports. The driver may have to query the chip.
#[derive(Debug)]
struct ManagerReport {
    name: Option<String>,
    state: Option<String>,
    firmware: Option<String>,
    compatible: Option<String>,
}

// === impl Managers ===

impl Managers {
    /// Devices of all managers. Managers of PCI boards belong to their board.
    pub(super) fn devices(
        &mut self,
        host: &Host,
        limits: &mut EntryLimits,
        patterns: &[String],
    ) -> Vec<ObservedDevice> {
        let (managers, regions, patterns) = find_managers(host, limits, patterns);
        let devices = managers.iter().filter_map(|manager| {
            let read = ManagerReport::reader(host, manager, &regions);
            let report = self.pool.call(manager.clone(), read);
            device(host, manager, report, &regions, patterns)
        });
        let devices = devices.collect();
        self.pool.end_scan(|manager| managers.contains(manager));
        devices
    }
}

/// Reads the manager of one device. May block forever.
pub(super) fn find(host: &Host, patterns: &[String], id: &DeviceId) -> Option<ObservedDevice> {
    let (managers, regions, patterns) = find_managers(host, &mut EntryLimits::default(), patterns);
    let observe = |manager: &PathBuf, report| device(host, manager, report, &regions, patterns);
    let has_id = |(device, _): &ObservedDevice| device.id == *id;
    let manager = managers
        .iter()
        .find(|manager| observe(manager, Err(DeadlineExceeded)).as_ref().is_some_and(has_id))?;
    observe(manager, Ok(ManagerReport::reader(host, manager, &regions)()))
}

/// Managers, and the regions and patterns if there is a single manager. With several managers, only numbers in the
/// device tree assign regions to managers, and sysfs does not show these numbers.
fn find_managers<'a>(
    host: &Host,
    limits: &mut EntryLimits,
    patterns: &'a [String],
) -> (Vec<PathBuf>, Vec<PathBuf>, &'a [String]) {
    let managers = chip_entries(host, limits, MANAGERS);
    match managers.as_slice() {
        [_] => (managers, chip_entries(host, limits, REGIONS), patterns),
        _ => (managers, Vec::new(), &[]),
    }
}

/// Entries of a class that belong to the chip rather than to a PCI function.
fn chip_entries(host: &Host, limits: &mut EntryLimits, class: &str) -> Vec<PathBuf> {
    let names = limits.entry_names(host, class, MAX_ENTRIES).into_iter();
    let folders = names.filter_map(|name| host.canonicalize(Path::new(class).join(name)));
    folders.filter(|folder| !folder.iter().any(is_pci)).collect()
}

fn is_pci(name: &std::ffi::OsStr) -> bool {
    name.to_str().is_some_and(|name| name.parse::<windlass_core::pci::PciAddress>().is_ok())
}

/// The device of a manager, with nodes of these regions and patterns.
fn device(
    host: &Host,
    manager: &Path,
    report: Result<ManagerReport, DeadlineExceeded>,
    regions: &[PathBuf],
    patterns: &[String],
) -> Option<ObservedDevice> {
    let name = manager.file_name()?.to_str()?;
    let id = format!("{}-{name}", SourceName::FPGA).parse().ok()?;
    let configured_nodes = matching_nodes(host, patterns);
    let mut nodes = nodes(host, manager, regions);
    nodes.extend(configured_nodes.iter().flatten().cloned());
    nodes.sort_unstable();
    nodes.dedup_by(|a, b| a.path == b.path);
    let (attributes, observation) = match (report, configured_nodes) {
        (Err(DeadlineExceeded), _) => (Attributes::new(), unresponsive()),
        (Ok(report), Err(reason)) => (report.attributes(), not_ready(reason)),
        (Ok(report), Ok(_)) => (report.attributes(), report.observe(&nodes)),
    };
    let device = Device::new(id, DeviceKind::Fpga, SourceName::FPGA, Timestamp::UNIX_EPOCH);
    let folder = Some(manager.to_owned());
    Some((Device { attributes, nodes, folder, ..device }, observation))
}

/// Nodes below the manager's device and the regions. XRT has a single device for all logic of the chip.
fn nodes(host: &Host, manager: &Path, regions: &[PathBuf]) -> Vec<DeviceNode> {
    let parents = [manager].into_iter().chain(regions.iter().map(PathBuf::as_path));
    let folders = parents.filter_map(|folder| host.canonicalize(folder.join("device")));
    let xrt =
        host.entry_names(XRT).into_iter().take(MAX_ENTRIES).map(|name| Path::new(XRT).join(name));
    // A driver's folder also contains files and its module.
    let xrt = xrt.filter(|entry| host.exists(entry.join("uevent")));
    let xrt = xrt.filter_map(|device| host.canonicalize(device)).filter(|_| !regions.is_empty());
    let found_nodes = folders.chain(xrt).flat_map(|folder| host.nodes_of(folder));
    found_nodes.map(|found| found.node).collect()
}

/// Name of the loaded firmware, by manager or device tree.
fn firmware(host: &Host, folder: &Path) -> Option<String> {
    let files = ["firmware", "device/of_node/firmware-name", "of_node/firmware-name"];
    let mut texts = files.iter().filter_map(|file| host.read_text(folder.join(file)));
    texts.find_map(|text| {
        Some(text.trim_matches('\0').trim().to_owned()).filter(|text| !text.is_empty())
    })
}

/// Most specific device tree name; names are separated by NUL.
fn compatible(host: &Host, manager: &Path) -> Option<String> {
    let text = host.read_text(manager.join("device/of_node/compatible"))?;
    text.split('\0').next().map(str::to_owned)
}

// === impl ManagerReport ===

impl ManagerReport {
    /// Function that reads a manager. It may block forever.
    fn reader(host: &Host, manager: &Path, regions: &[PathBuf]) -> impl FnOnce() -> Self + use<> {
        let (host, manager, regions) = (host.clone(), manager.to_owned(), regions.to_owned());
        move || {
            let mut folders = [&manager].into_iter().chain(&regions);
            Self {
                name: host.read_text(manager.join("name")),
                state: host.read_text(manager.join("state")),
                firmware: folders.find_map(|folder| firmware(&host, folder)),
                compatible: compatible(&host, &manager),
            }
        }
    }

    fn attributes(&self) -> Attributes {
        let attribute = |value: &Option<String>| value.as_ref().and_then(text_value);
        attributes(
            DOMAIN,
            [
                ("type", text_value("fpga-manager")),
                (MANAGER_NAME, attribute(&self.name)),
                ("firmware", attribute(&self.firmware)),
                ("compatible", attribute(&self.compatible)),
            ],
        )
    }

    fn observe(&self, nodes: &[DeviceNode]) -> Observation {
        match self.state.as_deref() {
            Some(OPERATING) if nodes.is_empty() => not_ready(NO_NODE),
            Some(OPERATING) => Observation::Passed,
            Some(UNKNOWN_STATE) => not_ready("its manager does not know whether it is programmed"),
            Some(state) => {
                not_ready(format!("its manager reports {state:?}: it is not programmed"))
            }
            None => not_ready("its manager reports no state"),
        }
    }
}
