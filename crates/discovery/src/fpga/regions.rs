//! Boards in regions, under Linux' DFL driver or Intel's older OPAE driver.
//!
//! A region is a part of the board that can be programmed while the rest runs. Its management engine
//! (FME) programs it and says by which interface; its ports are how programs reach the function that it
//! was programmed with. A virtual function has a port, and its engine is with the physical function.
//!
//! Board and engine say what they are in files that may take for ever, as while they are programmed: each
//! region is asked by itself.

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
use windlass_host::{Host, external::Late};

use super::{Found, is_identifier, no_answer, not_ready};
use crate::{
    asking::Asking,
    crowds::Crowds,
    facts::{attributes, of_function, text},
};

pub(super) const DOMAIN: &str = "fpga.intel.com";
const INTERFACE_ID: &str = "interfaceId";
const FUNCTION_ID: &str = "afuId";

/// The interface of the region: which programs fit it.
pub(super) const INTERFACE: AttributeName = AttributeName::new(DOMAIN, INTERFACE_ID);

/// The function that the region is programmed with.
pub(super) const FUNCTION: AttributeName = AttributeName::new(DOMAIN, FUNCTION_ID);

/// How a driver spells what it shows.
struct Spelling {
    class: &'static str,
    region: &'static str,
    port: &'static str,
    engine: &'static str,
    /// The way from an engine to the file with the interface; each step is how a name begins.
    interface: &'static [&'static str],
}

const SPELLINGS: [Spelling; 2] = [
    Spelling {
        class: "fpga_region",
        region: "region",
        port: "dfl-port.",
        engine: "dfl-fme.",
        interface: &["dfl-fme-region.", "fpga_region", "region", "compat_id"],
    },
    Spelling {
        class: "fpga",
        region: "intel-fpga-dev.",
        port: "intel-fpga-port.",
        engine: "intel-fpga-fme.",
        interface: &["pr", "interface_id"],
    },
];

/// Entries of a class, and of a folder, that are looked at. A machine has some dozens.
const MOST: usize = 1_000;

/// The regions, which are asked.
#[derive(Debug, Default)]
pub(super) struct Regions {
    asking: Asking<PathBuf, Said>,
}

/// What a region says of itself.
#[derive(Debug, Default)]
struct Said {
    interface: Option<String>,
    bitstream: Option<String>,
    /// What each of its ports is programmed with, where that is asked for.
    functions: Vec<Option<String>>,
}

/// A region while it is looked at.
#[derive(Clone)]
struct Region {
    host: Host,
    /// What is different under the other driver.
    spelling: &'static Spelling,
    /// Its PCI function.
    address: PciAddress,
    /// Its position among the regions of that function.
    nth: usize,
    folder: PathBuf,
    engine: Option<PathBuf>,
    ports: Vec<PathBuf>,
}

// === impl Regions ===

impl Regions {
    /// The devices of all regions. Those of one that does not answer say nothing of what they are.
    pub(super) fn devices(
        &mut self,
        host: &Host,
        crowds: &mut Crowds,
        mode: FpgaMode,
    ) -> Vec<Found> {
        let regions = all(host, crowds);
        let found = regions.iter().flat_map(|region| {
            let asked = region.clone();
            let said = self.asking.ask(region.folder.clone(), move || asked.said(mode));
            region.devices(said.as_ref().map_err(|late| *late), mode)
        });
        let found = found.collect();
        self.asking.rest(|folder| regions.iter().any(|region| region.folder == *folder));
        found
    }
}

/// Asks the region of a device, and no other. May take for ever.
pub(super) fn asked(host: &Host, mode: FpgaMode, id: &DeviceId) -> Option<Found> {
    let regions = all(host, &mut Crowds::default());
    let is_it = |(device, _): &Found| device.id == *id;
    let region = regions.iter().find(|it| it.devices(Err(Late), mode).iter().any(is_it))?;
    region.devices(Ok(&region.said(mode)), mode).into_iter().find(is_it)
}

/// The regions of both drivers.
fn all(host: &Host, crowds: &mut Crowds) -> Vec<Region> {
    SPELLINGS.iter().flat_map(|spelling| regions(host, crowds, spelling)).collect()
}

/// The regions with ports. What is inside one is listed as a region too, and does not count; one whose
/// ports were all released does.
fn regions(host: &Host, crowds: &mut Crowds, spelling: &'static Spelling) -> Vec<Region> {
    let class = Path::new("/sys/class").join(spelling.class);
    let names = crowds.names(host, &class, MOST).into_iter();
    let names = names.filter(|name| name.starts_with(spelling.region));
    let mut folders: Vec<_> = names.filter_map(|name| host.followed(class.join(name))).collect();
    folders.sort_unstable();
    // Behind a folder come those that are inside of it.
    folders.dedup_by(|folder, outer| folder.starts_with(outer));
    let mut counts: BTreeMap<PciAddress, usize> = BTreeMap::new();
    let region = |folder: PathBuf| {
        let address = function_of(&folder)?;
        let count = counts.entry(address).or_default();
        let nth = std::mem::replace(count, *count + 1);
        let ports = below(host, &folder, spelling.port);
        let engine = engine(host, spelling, &folder, address);
        let host = host.clone();
        Some(Region { host, spelling, address, nth, folder, engine, ports })
    };
    folders.into_iter().filter_map(region).filter(|region| !region.ports.is_empty()).collect()
}

/// The engine beside the ports, or that of the physical function.
fn engine(host: &Host, spelling: &Spelling, region: &Path, address: PciAddress) -> Option<PathBuf> {
    let beside = || below(host, region, spelling.engine).into_iter().next();
    let elsewhere = || {
        let function = format!("/sys/bus/pci/devices/{address}/physfn/{}", spelling.class);
        let regions = below(host, Path::new(&function), spelling.region);
        regions.iter().flat_map(|region| below(host, region, spelling.engine)).next()
    };
    beside().or_else(elsewhere)
}

// === impl Region ===

impl Region {
    fn devices(&self, said: Result<&Said, Late>, mode: FpgaMode) -> Vec<Found> {
        match mode {
            FpgaMode::Af => self.functions(said),
            FpgaMode::Region => vec![self.whole(said, None)],
            FpgaMode::RegionDevel => {
                let engine = self.own_engine().map(|folder| node(&self.host, folder));
                vec![self.whole(said, engine)]
            }
        }
    }

    /// A device for each port.
    fn functions(&self, said: Result<&Said, Late>) -> Vec<Found> {
        let function = |(nth, port): (usize, &PathBuf)| {
            let number = number(&self.host, port)?;
            let function = said.map(|said| (said, said.function_of(nth)));
            let node = node(&self.host, port);
            let device = self.device(&format!("port-{}-{number}", self.nth), function, vec![node]);
            Some(in_folder(port, device))
        };
        self.ports.iter().enumerate().filter_map(function).collect()
    }

    /// One device, with the node that programs it or without.
    fn whole(&self, said: Result<&Said, Late>, engine: Option<DeviceNode>) -> Found {
        let nodes = self.ports.iter().map(|port| node(&self.host, port)).chain(engine).collect();
        let device = said.map(|said| (said, None));
        let mut found = self.device(&format!("region-{}", self.nth), device, nodes);
        // With several ports there is no function that the region has.
        if let (Ok(said), [_]) = (said, self.ports.as_slice()) {
            let function = said.function_of(0).filter(|id| is_identifier(id)).and_then(text);
            found.0.attributes.extend(function.map(|id| (FUNCTION, id)));
        }
        in_folder(&self.folder, found)
    }

    /// A device with what its region says, and the function that it is programmed with.
    fn device(
        &self,
        name: &str,
        said: Result<(&Said, Option<String>), Late>,
        nodes: Vec<DeviceNode>,
    ) -> Found {
        let pci = self.host.pci_function(self.address);
        let id = format!("{}-{}-{name}", SourceName::FPGA, pci.id());
        let id = id.parse().expect("made of letters, digits and '-'");
        let (observation, own) = match said {
            Ok((said, function)) => {
                let observation = self.observe(said, function.as_deref(), &nodes);
                (observation, said.attributes(function))
            }
            Err(Late) => (no_answer(), Attributes::new()),
        };
        let device = Device {
            attributes: own.into_iter().chain(of_function(&self.host, &pci)).collect(),
            place: pci.place(),
            nodes,
            ..Device::new(id, DeviceKind::Fpga, SourceName::FPGA, Timestamp::UNIX_EPOCH)
        };
        (device, observation)
    }

    /// The engine, if it is beside the ports. Who has that of the physical function has every other
    /// container's region too.
    fn own_engine(&self) -> Option<&Path> {
        self.engine.as_deref().filter(|engine| engine.starts_with(&self.folder))
    }

    /// Asks for everything that board and engine fill in. May take for ever.
    fn said(&self, mode: FpgaMode) -> Said {
        // Of several ports together nobody asks.
        let ports = self.ports.iter().filter(|_| mode == FpgaMode::Af || self.ports.len() == 1);
        let engine = self.engine.as_ref();
        Said {
            interface: self.interface(),
            bitstream: engine.and_then(|engine| self.host.text(engine.join("bitstream_id"))),
            functions: ports.map(|port| self.host.text(port.join("afu_id"))).collect(),
        }
    }

    fn interface(&self) -> Option<String> {
        let way = self.spelling.interface.iter();
        let mut places = vec![self.engine.clone()?];
        for step in way {
            places = places.iter().flat_map(|place| below(&self.host, place, step)).collect();
        }
        places.iter().find_map(|file| self.host.text(file))
    }

    fn observe(&self, said: &Said, function: Option<&str>, nodes: &[DeviceNode]) -> Observation {
        let Some(interface) = said.interface.as_deref() else {
            return not_ready("no management engine says its interface");
        };
        if [Some(interface), function].iter().flatten().any(|id| !is_identifier(id)) {
            return not_ready("its identifiers are nothing but f: its firmware crashed");
        }
        match nodes.iter().find(|node| !self.host.has(&node.path)) {
            None => Observation::Passed,
            Some(node) => {
                let detail = format!("{} is not there", node.path.display());
                Observation::Failed(Reason::NodeMissing, detail)
            }
        }
    }
}

/// The device with the folder in which steps may write.
fn in_folder(folder: &Path, (device, observation): Found) -> Found {
    (Device { folder: Some(folder.to_owned()), ..device }, observation)
}

// === impl Said ===

impl Said {
    /// What the port of that position is programmed with.
    fn function_of(&self, nth: usize) -> Option<String> {
        self.functions.get(nth).cloned().flatten()
    }

    fn attributes(&self, function: Option<String>) -> Attributes {
        let known = |id: Option<String>| id.filter(|id| is_identifier(id)).and_then(text);
        attributes(
            DOMAIN,
            [
                ("type", text("region")),
                (INTERFACE_ID, known(self.interface.clone())),
                (FUNCTION_ID, known(function)),
                ("bitstreamId", self.bitstream.as_ref().and_then(text)),
            ],
        )
    }
}

/// The node that a folder tells of, or else the one that drivers make for a folder of that name.
fn node(host: &Host, folder: &Path) -> DeviceNode {
    let name = folder.file_name().unwrap_or_default();
    let usual = || DeviceNode::new(Path::new("/dev").join(name));
    host.node_at(folder).map_or_else(usual, |found| found.node)
}

/// The number that a port has on its board; where the driver does not tell it, that of its folder.
fn number(host: &Host, port: &Path) -> Option<u32> {
    let counted = || port.file_name()?.to_str()?.rsplit('.').next().map(str::to_owned);
    host.text(port.join("id")).or_else(counted)?.parse().ok()
}

/// The PCI function that a folder of sysfs is below.
fn function_of(folder: &Path) -> Option<PciAddress> {
    let mut names = folder.iter().rev().filter_map(|name| name.to_str());
    names.find_map(|name| name.parse().ok())
}

/// What lies in a folder and begins so, in the order of its names.
fn below(host: &Host, folder: &Path, begin: &str) -> Vec<PathBuf> {
    let names = host.some_names(folder, MOST).unwrap_or_default().into_iter();
    names.filter(|name| name.starts_with(begin)).map(|name| folder.join(name)).collect()
}
