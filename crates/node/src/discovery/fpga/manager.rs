//! The logic of a system on a chip: Zynq, Kria, Agilex. The processor programs it through a manager, and
//! what was programmed shows as devices below its region.
//!
//! Nothing in sysfs says reliably which program is loaded. That a manager is operating says that one is.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use windlass_core::{
    attribute::AttributeName,
    device::{Device, DeviceKind, DeviceNode, SourceName},
    health::Observation,
};

use super::{Found, not_ready};
use crate::{
    discovery::facts::{attributes, text},
    host::Host,
};

pub(super) const DOMAIN: &str = "windlass.dev";
const MANAGER_NAME: &str = "fpgaManager";

/// The manager's name, which says what family of chips it is.
pub(super) const MANAGER: AttributeName = AttributeName::new(DOMAIN, MANAGER_NAME);

const MANAGERS: &str = "/sys/class/fpga_manager";
const REGIONS: &str = "/sys/class/fpga_region";

/// The state of a manager whose logic works (`drivers/fpga/fpga-mgr.c`).
const OPERATING: &str = "operating";

/// XRT's driver for logic on the processor's chip.
const XRT: &str = "/sys/bus/platform/drivers/zocl-drm";

/// Entries of a class that are looked at.
const MOST: usize = 64;

/// The devices of all managers. Those of boards are the boards' own.
pub(super) fn devices(host: &Host) -> Vec<Found> {
    let managers: Vec<_> = on_chip(host, MANAGERS);
    let regions = match managers.as_slice() {
        // Which region is whose is told by numbers of the device tree that sysfs does not show.
        [_] => on_chip(host, REGIONS),
        _ => Vec::new(),
    };
    managers.iter().filter_map(|manager| device(host, manager, &regions)).collect()
}

/// The entries of a class that are below no PCI function.
fn on_chip(host: &Host, class: &str) -> Vec<PathBuf> {
    let names = host.names(class).into_iter().take(MOST);
    let folders = names.filter_map(|name| host.resolved(Path::new(class).join(name)));
    folders.filter(|folder| !folder.iter().any(is_pci)).collect()
}

fn is_pci(part: &std::ffi::OsStr) -> bool {
    part.to_str().is_some_and(|part| part.parse::<windlass_core::pci::PciAddress>().is_ok())
}

fn device(host: &Host, manager: &Path, regions: &[PathBuf]) -> Option<Found> {
    let name = manager.file_name()?.to_str()?;
    let id = format!("{}-{name}", SourceName::FPGA).parse().ok()?;
    let mut programs = [manager].into_iter().chain(regions.iter().map(PathBuf::as_path));
    let firmware = programs.find_map(|folder| firmware(host, folder));
    let own = attributes(
        DOMAIN,
        [
            ("type", text("fpga-manager")),
            (MANAGER_NAME, host.text(manager.join("name")).and_then(text)),
            ("firmware", firmware.and_then(text)),
            ("compatible", compatible(host, manager).and_then(text)),
        ],
    );
    let device = Device {
        attributes: own,
        nodes: nodes(host, manager, regions),
        ..Device::new(id, DeviceKind::Fpga, SourceName::FPGA, Timestamp::UNIX_EPOCH)
    };
    Some((device, observe(host, manager)))
}

/// The nodes of what the logic is: drivers bind to it as to any device below the region. XRT has one
/// device for all logic of the chip, wherever its device tree puts it.
fn nodes(host: &Host, manager: &Path, regions: &[PathBuf]) -> Vec<DeviceNode> {
    let parents = [manager].into_iter().chain(regions.iter().map(PathBuf::as_path));
    let folders = parents.filter_map(|folder| host.resolved(folder.join("device")));
    let xrt = host.names(XRT).into_iter().take(MOST).map(|name| Path::new(XRT).join(name));
    // Beside devices the folder of a driver has files and its module.
    let xrt = xrt.filter(|entry| host.has(entry.join("uevent")));
    let xrt = xrt.filter_map(|device| host.resolved(device)).filter(|_| !regions.is_empty());
    let found = folders.chain(xrt).flat_map(|folder| host.nodes_of(folder));
    let mut nodes: Vec<_> = found.map(|found| found.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

/// The program by the name that was loaded, where the manager or the device tree says it.
fn firmware(host: &Host, folder: &Path) -> Option<String> {
    let files = ["firmware", "device/of_node/firmware-name", "of_node/firmware-name"];
    let mut said = files.iter().filter_map(|file| host.text(folder.join(file)));
    said.find_map(|text| {
        Some(text.trim_matches('\0').trim().to_owned()).filter(|it| !it.is_empty())
    })
}

/// What the device tree calls it, the most exact name first; names end with a zero byte.
fn compatible(host: &Host, manager: &Path) -> Option<String> {
    let text = host.text(manager.join("device/of_node/compatible"))?;
    text.split('\0').next().map(str::to_owned)
}

fn observe(host: &Host, manager: &Path) -> Observation {
    match host.text(manager.join("state")) {
        Some(state) if state == OPERATING => Observation::Passed,
        Some(state) => not_ready(format!("its manager says {state:?}: it is not programmed")),
        None => not_ready("its manager tells no state"),
    }
}
