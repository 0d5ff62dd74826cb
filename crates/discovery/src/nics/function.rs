//! One network function as sysfs shows it: a PCI function, physical or virtual, or a subfunction.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use windlass_core::pci::PciAddress;
use windlass_host::{Host, PciFunction};

use super::{
    interface::{self, Interface},
    ports::PortReader,
    rdma::{self, RdmaDevice},
    vdpa::{self, Vdpa},
};
use crate::{crowds::Crowds, family::PCI};

/// What was found on the host.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) functions: Vec<Function>,
    /// RDMA devices that are no hardware's, which containers cannot be given.
    pub(super) skipped: Vec<String>,
    /// What there was too much of.
    pub(super) crowds: Crowds,
}

/// What all functions are read with.
struct Reader<'a> {
    host: &'a Host,
    /// The functions that are known.
    pci: &'a mut BTreeMap<PciAddress, PciFunction>,
    ports: &'a mut PortReader,
    vdpa: vdpa::Listed,
    crowds: &'a mut Crowds,
}

/// A network function.
#[derive(Debug)]
pub(super) struct Function {
    /// Its name on its bus, `0000:3b:02.0` or `mlx5_core.sf.2`.
    pub(super) name: String,
    /// Its PCI address; that of the function that it is a part of.
    pub(super) address: PciAddress,
    /// The function with that address.
    pub(super) pci: PciFunction,
    pub(super) folder: PathBuf,
    pub(super) driver: Option<String>,
    pub(super) interfaces: Vec<Interface>,
    pub(super) rdma: Vec<RdmaDevice>,
    pub(super) vdpa: Vec<Vdpa>,
    /// Whose virtual function it is.
    pub(super) physical: Option<Physical>,
    /// How many virtual functions it can have, and has.
    pub(super) virtual_functions: Option<(u32, u32)>,
    /// The number that an administrator gave to a subfunction.
    pub(super) subfunction_number: Option<u32>,
    /// The number that the machine's firmware gave to the slot, by which udev names `eno1`.
    pub(super) acpi_index: Option<String>,
}

/// The physical function of a virtual one.
#[derive(Clone, Debug)]
pub(super) struct Physical {
    pub(super) address: PciAddress,
    /// Its network interface, where the host sees it.
    pub(super) interface: Option<String>,
    /// Which of its virtual functions this one is.
    pub(super) index: Option<u32>,
    /// The interface on the host through which a switch in the adapter reaches this one.
    pub(super) representor: Option<String>,
}

pub(super) const AUXILIARY: &str = "/sys/bus/auxiliary/devices";
pub(super) const INFINIBAND: &str = "/sys/class/infiniband";

/// The class of network controllers (PCI Code and ID Assignment).
const NETWORK: &str = "0x02";

/// Entries of a list that are looked at. A big machine has two thousand functions.
pub(super) const MOST_LISTED: usize = 4_000;

/// In the name of a subfunction, `mlx5_core.sf.2`.
const SUBFUNCTION: &str = ".sf.";

/// Everything on the host that is a network function. One that cannot be read is left out, and costs
/// no other.
pub(super) fn find(host: &Host, ports: &mut PortReader) -> Found {
    let mut found = Found::default();
    // By name, so that what is found in two ways is found once.
    let mut folders = BTreeMap::new();
    let functions = host.pci_functions(|it| it.is_of_class(&[NETWORK])).into_iter();
    let mut pci: BTreeMap<_, _> = functions.map(|it| (it.address, it)).collect();
    folders.extend(pci.keys().map(|it| (it.to_string(), format!("{PCI}/{it}"))));
    let subfunctions = found
        .crowds
        .names(host, AUXILIARY, MOST_LISTED)
        .into_iter()
        .filter(|name| name.contains(SUBFUNCTION));
    folders.extend(subfunctions.map(|name| (name.clone(), format!("{AUXILIARY}/{name}"))));
    for rdma in found.crowds.names(host, INFINIBAND, MOST_LISTED) {
        // Older kernels put software below the function that it sends through.
        let is_hardware = |folder: &String| !rdma::is_software(host, &rdma::folder(folder, &rdma));
        let hardware = hardware_of(host, &rdma).map(|(name, bus)| (format!("{bus}/{name}"), name));
        // Some RDMA devices are of no network class, such as Alibaba's.
        match hardware.filter(|(folder, _)| is_hardware(folder)) {
            Some((folder, name)) => drop(folders.insert(name, folder)),
            None => found.skipped.push(rdma),
        }
    }
    let vdpa = vdpa::Listed::read(host, &mut found.crowds);
    let mut reader = Reader { host, pci: &mut pci, ports, vdpa, crowds: &mut found.crowds };
    let read = |(name, folder): (String, String)| reader.function(name, folder.into());
    found.functions = folders.into_iter().filter_map(read).collect();
    ports.rest();
    let physical = physical_functions(host, &found.functions);
    for function in &mut found.functions {
        function.physical = physical.get(&function.name).cloned();
    }
    found
}

/// The function or subfunction that an RDMA device is of, and the bus that lists it.
fn hardware_of(host: &Host, rdma: &str) -> Option<(String, &'static str)> {
    let followed = host.followed(format!("{INFINIBAND}/{rdma}/device"))?;
    followed.ancestors().find_map(|folder| {
        let name = folder.file_name()?.to_str()?;
        let is_address = name.parse::<PciAddress>().is_ok();
        let bus = is_address.then_some(PCI);
        let bus = bus.or_else(|| name.contains(SUBFUNCTION).then_some(AUXILIARY))?;
        Some((name.to_owned(), bus))
    })
}

/// The physical function of each virtual one, by name. The numbers may have gaps: functions can be
/// taken away one by one.
fn physical_functions(host: &Host, functions: &[Function]) -> BTreeMap<String, Physical> {
    let mut found = BTreeMap::new();
    for function in functions.iter().filter(|function| function.has_virtual_functions()) {
        let representors = interface::representors(host, &function.folder);
        for link in host.names(&function.folder) {
            let Some(index) = link.strip_prefix("virtfn").and_then(|it| it.parse().ok()) else {
                continue;
            };
            let physical = Physical {
                address: function.address,
                interface: function.interfaces.first().map(|interface| interface.name.clone()),
                index: Some(index),
                representor: representors.get(&index).cloned(),
            };
            let target = host.link_name(function.folder.join(link));
            found.extend(target.map(|name| (name, physical)));
        }
    }
    found
}

// === impl Reader ===

impl Reader<'_> {
    fn function(&mut self, name: String, folder: PathBuf) -> Option<Function> {
        let host = self.host;
        let address = match name.parse() {
            Ok(address) => address,
            Err(_) => parent(host, &folder)?,
        };
        let number = |file: &str| host.text(folder.join(file))?.parse().ok();
        let virtual_functions = number("sriov_totalvfs").filter(|total| *total > 0);
        let own = |pci: &PciFunction| pci.driver.clone();
        let pci = self.pci.entry(address).or_insert_with(|| host.pci_function(address)).clone();
        let is_part = name.contains(SUBFUNCTION);
        Some(Function {
            address,
            driver: if is_part { host.link_name(folder.join("driver")) } else { own(&pci) },
            pci,
            interfaces: interface::of_device(host, self.crowds, &folder),
            rdma: rdma::of_device(host, self.ports, &folder),
            vdpa: self.vdpa.of_device(host, &folder),
            physical: None,
            virtual_functions: virtual_functions
                .map(|total| (total, number("sriov_numvfs").unwrap_or(0))),
            subfunction_number: number("sfnum"),
            acpi_index: host.text(folder.join("acpi_index")).filter(|text| !text.is_empty()),
            name,
            folder,
        })
    }
}

// === impl Function ===

impl Function {
    /// By RDMA device, `mlx5_10` after `mlx5_9`; then those without one, by their place.
    pub(super) fn order(&self) -> impl Ord + use<> {
        let rdma = self.rdma.first().map(|rdma| (rdma.name.len(), rdma.name.clone()));
        (rdma.is_none(), rdma, self.address, self.name.len(), self.name.clone())
    }

    pub(super) fn is_subfunction(&self) -> bool {
        self.name.contains(SUBFUNCTION)
    }

    pub(super) fn has_virtual_functions(&self) -> bool {
        self.virtual_functions.is_some_and(|(_, made)| made > 0)
    }
}

/// The PCI function that a subfunction is a part of.
fn parent(host: &Host, folder: &Path) -> Option<PciAddress> {
    let followed = host.followed(folder)?;
    followed.ancestors().find_map(|above| above.file_name()?.to_str()?.parse().ok())
}
