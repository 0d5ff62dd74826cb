//! FPGA boards with regions, under Linux DFL or Intel's older OPAE driver.
//!
//! A region can be programmed while the rest of the board runs. Its management engine (FME) programs it and
//! reports its interface id. Its ports give programs access to the loaded function (AFU). A virtual function
//! has a port; its engine belongs to the physical function.
//!
//! Reads from board and engine may block forever, as during programming. So each region has a deadline.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use jiff::Timestamp;
use windlass_config::FpgaMode;
use windlass_core::{
    attribute::{AttributeName, Attributes},
    device::{Device, DeviceId, DeviceKind, DeviceNode, SourceName},
    health::{Observation, Reason},
    pci::PciAddress,
};
use windlass_host::{
    Host,
    entry_limits::EntryLimits,
    external::{DeadlineExceeded, ScanPool},
};

use super::{ObservedDevice, is_identifier, not_ready, unresponsive};
use crate::facts::{attributes, function_attributes, text_value};

pub(super) const DOMAIN: &str = "fpga.intel.com";
const INTERFACE_ID: &str = "interfaceId";
const FUNCTION_ID: &str = "afuId";

/// Interface id of the region, which programs must match.
pub(super) const INTERFACE: AttributeName = AttributeName::new(DOMAIN, INTERFACE_ID);

/// Id of the loaded function.
pub(super) const FUNCTION: AttributeName = AttributeName::new(DOMAIN, FUNCTION_ID);

/// Names in one driver's sysfs tree.
struct DriverNames {
    class: &'static str,
    region: &'static str,
    port: &'static str,
    engine: &'static str,
    /// Path from an engine to the interface file, as name prefixes.
    interface: &'static [&'static str],
}

const DRIVERS: [DriverNames; 2] = [
    DriverNames {
        class: "fpga_region",
        region: "region",
        port: "dfl-port.",
        engine: "dfl-fme.",
        interface: &["dfl-fme-region.", "fpga_region", "region", "compat_id"],
    },
    DriverNames {
        class: "fpga",
        region: "intel-fpga-dev.",
        port: "intel-fpga-port.",
        engine: "intel-fpga-fme.",
        interface: &["pr", "interface_id"],
    },
];

/// Maximum number of entries read per class or folder. Machines have a few dozen.
const MAX_ENTRIES: usize = 1_000;

/// Regions, read with a deadline each.
#[derive(Debug, Default)]
pub(super) struct Regions {
    pool: ScanPool<PathBuf, RegionReport>,
}

#[derive(Debug, Default)]
struct RegionReport {
    interface: Option<String>,
    bitstream: Option<String>,
    /// Function id of each port; empty if the mode does not use it.
    functions: Vec<Option<String>>,
}

/// A region during a scan.
#[derive(Clone)]
struct Region {
    host: Host,
    driver: &'static DriverNames,
    /// Address of the board's PCI function.
    address: PciAddress,
    /// Index among the regions of that function.
    index: usize,
    folder: PathBuf,
    engine: Option<PathBuf>,
    ports: Vec<PathBuf>,
}

// === impl Regions ===

impl Regions {
    /// Devices of all regions. Devices of a region that missed its deadline lack its attributes.
    pub(super) fn devices(
        &mut self,
        host: &Host,
        limits: &mut EntryLimits,
        mode: FpgaMode,
    ) -> Vec<ObservedDevice> {
        let regions = all_regions(host, limits);
        let devices = regions.iter().flat_map(|region| {
            let reader = region.clone();
            let report = self.pool.call(region.folder.clone(), move || reader.report(mode));
            region.devices(report.as_ref().map_err(|error| *error), mode)
        });
        let devices = devices.collect();
        self.pool.end_scan(|folder| regions.iter().any(|region| region.folder == *folder));
        devices
    }
}

/// Reads the region of one device. May block forever.
pub(super) fn find(host: &Host, mode: FpgaMode, id: &DeviceId) -> Option<ObservedDevice> {
    let regions = all_regions(host, &mut EntryLimits::default());
    // Devices have their ids without a report too.
    let has_id = |(device, _): &ObservedDevice| device.id == *id;
    let region = regions
        .iter()
        .find(|region| region.devices(Err(DeadlineExceeded), mode).iter().any(has_id))?;
    region.devices(Ok(&region.report(mode)), mode).into_iter().find(has_id)
}

/// Regions of both drivers.
fn all_regions(host: &Host, limits: &mut EntryLimits) -> Vec<Region> {
    DRIVERS.iter().flat_map(|driver| regions(host, limits, driver)).collect()
}

/// Regions of a driver that have ports. Regions inside other regions are skipped.
fn regions(host: &Host, limits: &mut EntryLimits, driver: &'static DriverNames) -> Vec<Region> {
    let class = Path::new("/sys/class").join(driver.class);
    let names = limits.entry_names(host, &class, MAX_ENTRIES).into_iter();
    let names = names.filter(|name| name.starts_with(driver.region));
    let mut folders: Vec<_> =
        names.filter_map(|name| host.canonicalize(class.join(name))).collect();
    folders.sort_unstable();
    // Sorted paths place nested folders after their parents.
    folders.dedup_by(|folder, outer| folder.starts_with(outer));
    let mut counts: BTreeMap<PciAddress, usize> = BTreeMap::new();
    let region = |folder: PathBuf| {
        let address = pci_function_of(&folder)?;
        let count = counts.entry(address).or_default();
        let index = *count;
        *count += 1;
        let ports = entries_with_prefix(host, &folder, driver.port);
        let engine = engine(host, driver, &folder, address);
        let host = host.clone();
        Some(Region { host, driver, address, index, folder, engine, ports })
    };
    folders.into_iter().filter_map(region).filter(|region| !region.ports.is_empty()).collect()
}

/// Engine in the folder of the region, or else the engine of the physical function.
fn engine(
    host: &Host,
    driver: &DriverNames,
    region: &Path,
    address: PciAddress,
) -> Option<PathBuf> {
    let region_engine = || entries_with_prefix(host, region, driver.engine).into_iter().next();
    let physical_function_engine = || {
        let function = format!("/sys/bus/pci/devices/{address}/physfn/{}", driver.class);
        let regions = entries_with_prefix(host, Path::new(&function), driver.region);
        regions.iter().flat_map(|region| entries_with_prefix(host, region, driver.engine)).next()
    };
    region_engine().or_else(physical_function_engine)
}

// === impl Region ===

impl Region {
    fn devices(
        &self,
        report: Result<&RegionReport, DeadlineExceeded>,
        mode: FpgaMode,
    ) -> Vec<ObservedDevice> {
        match mode {
            FpgaMode::Af => self.port_devices(report),
            FpgaMode::Region => vec![self.region_device(report, None)],
            FpgaMode::RegionDevel => {
                let engine = self.own_engine().map(|folder| node(&self.host, folder));
                vec![self.region_device(report, engine)]
            }
        }
    }

    /// One device per port.
    fn port_devices(&self, report: Result<&RegionReport, DeadlineExceeded>) -> Vec<ObservedDevice> {
        let port_device = |(index, port): (usize, &PathBuf)| {
            let number = number(&self.host, port)?;
            let report = report.map(|report| (report, report.port_function(index)));
            let node = node(&self.host, port);
            let device = self.device(&format!("port-{}-{number}", self.index), report, vec![node]);
            Some(with_cleanup_folder(port, device))
        };
        self.ports.iter().enumerate().filter_map(port_device).collect()
    }

    /// One device per region, with the engine's node if given.
    fn region_device(
        &self,
        report: Result<&RegionReport, DeadlineExceeded>,
        engine: Option<DeviceNode>,
    ) -> ObservedDevice {
        let nodes = self.ports.iter().map(|port| node(&self.host, port)).chain(engine).collect();
        let report_without_function = report.map(|report| (report, None));
        let mut observed_device =
            self.device(&format!("region-{}", self.index), report_without_function, nodes);
        // Several ports have no common function. An invalid id is left out, and the region stays healthy.
        if let (Ok(report), [_]) = (report, self.ports.as_slice()) {
            let function =
                report.port_function(0).filter(|id| is_identifier(id)).and_then(text_value);
            observed_device.0.attributes.extend(function.map(|id| (FUNCTION, id)));
        }
        with_cleanup_folder(&self.folder, observed_device)
    }

    /// A device with the attributes of its region and the function id of its port.
    fn device(
        &self,
        name: &str,
        report: Result<(&RegionReport, Option<String>), DeadlineExceeded>,
        nodes: Vec<DeviceNode>,
    ) -> ObservedDevice {
        let pci = self.host.pci_function(self.address);
        let id = format!("{}-{}-{name}", SourceName::FPGA, pci.id());
        let id = id.parse().expect("made of letters, digits and '-'");
        let (observation, region_attributes) = match report {
            Ok((report, function)) => {
                let observation = self.observe(report, function.as_deref(), &nodes);
                (observation, report.attributes(function))
            }
            Err(DeadlineExceeded) => (unresponsive(), Attributes::new()),
        };
        let device = Device {
            attributes: region_attributes
                .into_iter()
                .chain(function_attributes(&self.host, &pci))
                .collect(),
            place: pci.location(),
            nodes,
            ..Device::new(id, DeviceKind::Fpga, SourceName::FPGA, Timestamp::UNIX_EPOCH)
        };
        (device, observation)
    }

    /// Engine in the folder of the region. The physical function's engine would give access to the regions of other
    /// containers.
    fn own_engine(&self) -> Option<&Path> {
        self.engine.as_deref().filter(|engine| engine.starts_with(&self.folder))
    }

    /// Reads the report of board and engine. May block forever.
    fn report(&self, mode: FpgaMode) -> RegionReport {
        // A region with several ports as one device has no common function id.
        let ports = self.ports.iter().filter(|_| mode == FpgaMode::Af || self.ports.len() == 1);
        let engine = self.engine.as_ref();
        RegionReport {
            interface: self.interface(),
            bitstream: engine.and_then(|engine| self.host.read_text(engine.join("bitstream_id"))),
            functions: ports.map(|port| self.host.read_text(port.join("afu_id"))).collect(),
        }
    }

    fn interface(&self) -> Option<String> {
        let mut paths = vec![self.engine.clone()?];
        for prefix in self.driver.interface {
            paths = paths
                .iter()
                .flat_map(|folder| entries_with_prefix(&self.host, folder, prefix))
                .collect();
        }
        paths.iter().find_map(|file| self.host.read_text(file))
    }

    fn observe(
        &self,
        report: &RegionReport,
        function: Option<&str>,
        nodes: &[DeviceNode],
    ) -> Observation {
        let Some(interface) = report.interface.as_deref() else {
            return not_ready("no management engine reports its interface");
        };
        if [Some(interface), function].iter().flatten().any(|id| !is_identifier(id)) {
            return not_ready("its identifiers are all ones (ffff...): its firmware crashed");
        }
        match nodes.iter().find(|node| !self.host.exists(&node.path)) {
            None => Observation::Passed,
            Some(node) => {
                let detail = format!("{} is not there", node.path.display());
                Observation::Failed(Reason::NodeMissing, detail)
            }
        }
    }
}

/// Sets the folder in which cleanup steps may write.
fn with_cleanup_folder(folder: &Path, (device, observation): ObservedDevice) -> ObservedDevice {
    (Device { folder: Some(folder.to_owned()), ..device }, observation)
}

// === impl RegionReport ===

impl RegionReport {
    /// Function id of the n-th port.
    fn port_function(&self, index: usize) -> Option<String> {
        self.functions.get(index).cloned().flatten()
    }

    fn attributes(&self, function: Option<String>) -> Attributes {
        let valid = |id: Option<String>| id.filter(|id| is_identifier(id)).and_then(text_value);
        attributes(
            DOMAIN,
            [
                ("type", text_value("region")),
                (INTERFACE_ID, valid(self.interface.clone())),
                (FUNCTION_ID, valid(function)),
                ("bitstreamId", self.bitstream.as_ref().and_then(text_value)),
            ],
        )
    }
}

/// Device node of a sysfs folder, or by default the node in `/dev` with the folder's name.
fn node(host: &Host, folder: &Path) -> DeviceNode {
    let name = folder.file_name().unwrap_or_default();
    host.node_or(folder, Path::new("/dev").join(name))
}

/// Port number on the board, else the number in the folder's name.
fn number(host: &Host, port: &Path) -> Option<u32> {
    let number_in_name = || port.file_name()?.to_str()?.rsplit('.').next().map(str::to_owned);
    host.read_text(port.join("id")).or_else(number_in_name)?.parse().ok()
}

/// PCI function above a sysfs folder.
fn pci_function_of(folder: &Path) -> Option<PciAddress> {
    let mut names = folder.iter().rev().filter_map(|name| name.to_str());
    names.find_map(|name| name.parse().ok())
}

/// Paths of a folder's entries with a name prefix, sorted by name.
fn entries_with_prefix(host: &Host, folder: &Path, prefix: &str) -> Vec<PathBuf> {
    let names = host.try_entry_names(folder, MAX_ENTRIES).unwrap_or_default().into_iter();
    names.filter(|name| name.starts_with(prefix)).map(|name| folder.join(name)).collect()
}
