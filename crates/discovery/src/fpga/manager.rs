//! The logic of a system on a chip: Zynq, Kria, Cyclone V. The processor programs it through a manager.
//!
//! Nothing in sysfs says reliably which program is loaded. That a manager is operating says that one is; the
//! manager of Stratix 10 and Agilex knows it only of what Linux has loaded (`drivers/fpga/stratix10-soc.c`).
//! What was programmed shows as devices wherever its device tree overlay puts them: below the region if that
//! is its target, and anywhere else beside other devices, `/sys/devices/platform/axi/a0000000.dma`. Which
//! those are only the configuration can say.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use windlass_core::{
    attribute::{AttributeName, Attributes},
    device::{Device, DeviceId, DeviceKind, DeviceNode, SourceName},
    health::Observation,
};
use windlass_host::{Host, external::Late};

use super::{Found, no_answer, not_ready};
use crate::{
    asking::Asking,
    crowds::Crowds,
    described::fitting,
    facts::{attributes, text},
};

pub(super) const DOMAIN: &str = "windlass.dev";
const MANAGER_NAME: &str = "fpgaManager";

/// The manager's name, which says what family of chips it is.
pub(super) const MANAGER: AttributeName = AttributeName::new(DOMAIN, MANAGER_NAME);

pub(super) const MANAGERS: &str = "/sys/class/fpga_manager";
pub(super) const REGIONS: &str = "/sys/class/fpga_region";

/// The state of a manager whose logic works (`drivers/fpga/fpga-mgr.c`).
const OPERATING: &str = "operating";

/// The state of one that cannot ask its chip, and of most chips that are not programmed.
const UNKNOWN: &str = "unknown";

const NO_NODE: &str = "it is programmed, but no driver made a node that is known to be its own: write \
                       `fpga: {nodes: [...]}` if there is one";

/// XRT's driver for logic on the processor's chip.
const XRT: &str = "/sys/bus/platform/drivers/zocl-drm";

/// Entries of a class that are looked at. A machine has some dozens.
const MOST: usize = 1_000;

/// The managers, which are asked.
#[derive(Debug, Default)]
pub(super) struct Managers {
    asking: Asking<PathBuf, Said>,
}

/// What a manager says of itself and of what it has programmed. Its driver may have to ask the chip.
#[derive(Debug)]
struct Said {
    name: Option<String>,
    state: Option<String>,
    firmware: Option<String>,
    compatible: Option<String>,
}

// === impl Managers ===

impl Managers {
    /// The devices of all managers, each asked by itself. Those of boards are the boards' own.
    pub(super) fn devices(
        &mut self,
        host: &Host,
        crowds: &mut Crowds,
        patterns: &[String],
    ) -> Vec<Found> {
        let (managers, regions, patterns) = on_node(host, crowds, patterns);
        let found = managers.iter().filter_map(|manager| {
            let question = Said::asked(host, manager, &regions);
            let said = self.asking.ask(manager.clone(), question);
            device(host, manager, said, (&regions, patterns))
        });
        let found = found.collect();
        self.asking.rest(|manager| managers.contains(manager));
        found
    }
}

/// Asks the manager of a device, and no other. May take for ever.
pub(super) fn asked(host: &Host, patterns: &[String], id: &DeviceId) -> Option<Found> {
    let (managers, regions, patterns) = on_node(host, &mut Crowds::default(), patterns);
    let asked = |manager: &PathBuf, said| device(host, manager, said, (&regions, patterns));
    let is_it = |(device, _): &Found| device.id == *id;
    let manager = managers.iter().find(|it| asked(it, Err(Late)).as_ref().is_some_and(is_it))?;
    asked(manager, Ok(Said::asked(host, manager, &regions)()))
}

/// The managers, with the regions and the patterns that are theirs: which region is whose is told by numbers
/// of the device tree that sysfs does not show.
fn on_node<'a>(
    host: &Host,
    crowds: &mut Crowds,
    patterns: &'a [String],
) -> (Vec<PathBuf>, Vec<PathBuf>, &'a [String]) {
    let managers = on_chip(host, crowds, MANAGERS);
    match managers.as_slice() {
        [_] => (managers, on_chip(host, crowds, REGIONS), patterns),
        _ => (managers, Vec::new(), &[]),
    }
}

/// The entries of a class that are below no PCI function.
fn on_chip(host: &Host, crowds: &mut Crowds, class: &str) -> Vec<PathBuf> {
    let names = crowds.names(host, class, MOST).into_iter();
    let folders = names.filter_map(|name| host.followed(Path::new(class).join(name)));
    folders.filter(|folder| !folder.iter().any(is_pci)).collect()
}

fn is_pci(part: &std::ffi::OsStr) -> bool {
    part.to_str().is_some_and(|part| part.parse::<windlass_core::pci::PciAddress>().is_ok())
}

/// The device of a manager, with the nodes in these regions and of these patterns.
fn device(
    host: &Host,
    manager: &Path,
    said: Result<Said, Late>,
    (regions, patterns): (&[PathBuf], &[String]),
) -> Option<Found> {
    let name = manager.file_name()?.to_str()?;
    let id = format!("{}-{name}", SourceName::FPGA).parse().ok()?;
    let named = fitting(host, patterns);
    let mut nodes = nodes(host, manager, regions);
    nodes.extend(named.iter().flatten().cloned());
    nodes.sort_unstable();
    nodes.dedup_by(|a, b| a.path == b.path);
    let (attributes, observation) = match (said, named) {
        (Err(Late), _) => (Attributes::new(), no_answer()),
        (Ok(said), Err(why)) => (said.attributes(), not_ready(why)),
        (Ok(said), Ok(_)) => (said.attributes(), said.observe(&nodes)),
    };
    let new = Device::new(id, DeviceKind::Fpga, SourceName::FPGA, Timestamp::UNIX_EPOCH);
    let folder = Some(manager.to_owned());
    Some((Device { attributes, nodes, folder, ..new }, observation))
}

/// The nodes of what is below the manager's own device and the regions. XRT has one
/// device for all logic of the chip, wherever its device tree puts it.
fn nodes(host: &Host, manager: &Path, regions: &[PathBuf]) -> Vec<DeviceNode> {
    let parents = [manager].into_iter().chain(regions.iter().map(PathBuf::as_path));
    let folders = parents.filter_map(|folder| host.followed(folder.join("device")));
    let xrt = host.names(XRT).into_iter().take(MOST).map(|name| Path::new(XRT).join(name));
    // Beside devices the folder of a driver has files and its module.
    let xrt = xrt.filter(|entry| host.has(entry.join("uevent")));
    let xrt = xrt.filter_map(|device| host.followed(device)).filter(|_| !regions.is_empty());
    let found = folders.chain(xrt).flat_map(|folder| host.nodes_of(folder));
    found.map(|found| found.node).collect()
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

// === impl Said ===

impl Said {
    /// The question, which may take for ever.
    fn asked(host: &Host, manager: &Path, regions: &[PathBuf]) -> impl FnOnce() -> Self + use<> {
        let (host, manager, regions) = (host.clone(), manager.to_owned(), regions.to_owned());
        move || {
            let mut programs = [&manager].into_iter().chain(&regions);
            Self {
                name: host.text(manager.join("name")),
                state: host.text(manager.join("state")),
                firmware: programs.find_map(|folder| firmware(&host, folder)),
                compatible: compatible(&host, &manager),
            }
        }
    }

    fn attributes(&self) -> Attributes {
        let said = |said: &Option<String>| said.as_ref().and_then(text);
        attributes(
            DOMAIN,
            [
                ("type", text("fpga-manager")),
                (MANAGER_NAME, said(&self.name)),
                ("firmware", said(&self.firmware)),
                ("compatible", said(&self.compatible)),
            ],
        )
    }

    fn observe(&self, nodes: &[DeviceNode]) -> Observation {
        match self.state.as_deref() {
            Some(OPERATING) if nodes.is_empty() => not_ready(NO_NODE),
            Some(OPERATING) => Observation::Passed,
            Some(UNKNOWN) => not_ready("its manager does not know whether it is programmed"),
            Some(state) => not_ready(format!("its manager says {state:?}: it is not programmed")),
            None => not_ready("its manager tells no state"),
        }
    }
}
