//! A network function in sysfs: physical, virtual, or a subfunction.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use windlass_core::pci::PciAddress;
use windlass_host::{Host, PCI_DEVICES, PciFunction, entry_limits::EntryLimits};

use super::{
    interface::{self, Interface},
    ports::PortReader,
    rdma::{self, RdmaDevice},
    vdpa::{self, Vdpa},
};

/// Network functions of the host.
#[derive(Debug, Default)]
pub(super) struct FunctionList {
    pub(super) functions: Vec<Function>,
    /// RDMA devices without hardware, which cannot be allocated.
    pub(super) skipped: Vec<String>,
    /// Folders with too many entries.
    pub(super) limits: EntryLimits,
}

struct Reader<'a> {
    host: &'a Host,
    /// PCI functions read so far.
    pci: &'a mut BTreeMap<PciAddress, PciFunction>,
    ports: &'a mut PortReader,
    vdpa: vdpa::VdpaList,
    limits: &'a mut EntryLimits,
}

/// A network function or subfunction.
#[derive(Debug)]
pub(super) struct Function {
    /// Name on its bus, `0000:3b:02.0` or `mlx5_core.sf.2`.
    pub(super) name: String,
    /// PCI address; of the parent for a subfunction.
    pub(super) address: PciAddress,
    pub(super) pci: PciFunction,
    pub(super) folder: PathBuf,
    pub(super) driver: Option<String>,
    pub(super) interfaces: Vec<Interface>,
    pub(super) rdma: Vec<RdmaDevice>,
    pub(super) vdpa: Vec<Vdpa>,
    /// Physical function of a virtual function.
    pub(super) pf: Option<PhysicalFunction>,
    /// Maximum and current number of virtual functions.
    pub(super) virtual_functions: Option<(u32, u32)>,
    /// Number of a subfunction, chosen by the administrator.
    pub(super) subfunction_number: Option<u32>,
    /// Slot number by firmware, which udev uses in `eno1`.
    pub(super) acpi_index: Option<String>,
}

/// Physical function of a virtual function, with the number and representor of the virtual function.
#[derive(Clone, Debug)]
pub(super) struct PhysicalFunction {
    pub(super) address: PciAddress,
    /// Network interface, if it is in the host's namespace.
    pub(super) interface: Option<String>,
    /// Number of the virtual function.
    pub(super) index: Option<u32>,
    /// Host interface through which the adapter's switch reaches the virtual function.
    pub(super) representor: Option<String>,
}

pub(super) const AUXILIARY: &str = "/sys/bus/auxiliary/devices";
pub(super) const INFINIBAND: &str = "/sys/class/infiniband";

/// PCI class of network controllers (PCI Code and ID Assignment).
const NETWORK: &str = "0x02";

/// Maximum number of entries read per list. Large machines have two thousand functions.
pub(super) const MAX_LISTED: usize = 4_000;

/// Infix in names of subfunctions, `mlx5_core.sf.2`.
const SUBFUNCTION: &str = ".sf.";

/// All network functions of the host. Unreadable functions are skipped.
pub(super) fn find_functions(host: &Host, ports: &mut PortReader) -> FunctionList {
    let mut list = FunctionList::default();
    // Several lists may contain the same function, so the map has one entry per name.
    let mut folders = BTreeMap::new();
    let functions = host.pci_functions(|kind| kind.is_of_class(&[NETWORK])).into_iter();
    let mut pci: BTreeMap<_, _> = functions.map(|function| (function.address, function)).collect();
    folders.extend(pci.keys().map(|it| (it.to_string(), format!("{PCI_DEVICES}/{it}"))));
    let subfunctions = list
        .limits
        .entry_names(host, AUXILIARY, MAX_LISTED)
        .into_iter()
        .filter(|name| name.contains(SUBFUNCTION));
    folders.extend(subfunctions.map(|name| (name.clone(), format!("{AUXILIARY}/{name}"))));
    for rdma in list.limits.entry_names(host, INFINIBAND, MAX_LISTED) {
        // Older kernels place a software device below the function through which it sends.
        let is_hardware = |folder: &String| !rdma::is_software(host, &rdma::folder(folder, &rdma));
        let hardware = hardware_of(host, &rdma).map(|(name, bus)| (format!("{bus}/{name}"), name));
        // Some RDMA devices have another PCI class, such as Alibaba's.
        match hardware.filter(|(folder, _)| is_hardware(folder)) {
            Some((folder, name)) => drop(folders.insert(name, folder)),
            None => list.skipped.push(rdma),
        }
    }
    let vdpa = vdpa::VdpaList::read(host, &mut list.limits);
    let mut reader = Reader { host, pci: &mut pci, ports, vdpa, limits: &mut list.limits };
    let read = |(name, folder): (String, String)| reader.function(name, folder.into());
    list.functions = folders.into_iter().filter_map(read).collect();
    ports.end_scan();
    let physical = physical_functions(host, &list.functions);
    for function in &mut list.functions {
        function.pf = physical.get(&function.name).cloned();
    }
    list
}

/// Function or subfunction of an RDMA device, and the bus folder that lists it.
fn hardware_of(host: &Host, rdma: &str) -> Option<(String, &'static str)> {
    let resolved = host.canonicalize(format!("{INFINIBAND}/{rdma}/device"))?;
    resolved.ancestors().find_map(|folder| {
        let name = folder.file_name()?.to_str()?;
        let is_address = name.parse::<PciAddress>().is_ok();
        let bus = is_address.then_some(PCI_DEVICES);
        let bus = bus.or_else(|| name.contains(SUBFUNCTION).then_some(AUXILIARY))?;
        Some((name.to_owned(), bus))
    })
}

/// Physical function of each virtual function, by name of the virtual function. Numbers may have gaps, because virtual
/// functions can be removed one by one.
fn physical_functions(host: &Host, functions: &[Function]) -> BTreeMap<String, PhysicalFunction> {
    let mut by_name = BTreeMap::new();
    for function in functions.iter().filter(|function| function.has_virtual_functions()) {
        let representors = interface::representors(host, &function.folder);
        for link in host.entry_names(&function.folder) {
            let Some(index) = link.strip_prefix("virtfn").and_then(|number| number.parse().ok())
            else {
                continue;
            };
            let physical = PhysicalFunction {
                address: function.address,
                interface: function.interfaces.first().map(|interface| interface.name.clone()),
                index: Some(index),
                representor: representors.get(&index).cloned(),
            };
            let target = host.link_name(function.folder.join(link));
            by_name.extend(target.map(|name| (name, physical)));
        }
    }
    by_name
}

// === impl Reader ===

impl Reader<'_> {
    fn function(&mut self, name: String, folder: PathBuf) -> Option<Function> {
        let host = self.host;
        let address = match name.parse() {
            Ok(address) => address,
            Err(_) => parent(host, &folder)?,
        };
        let number = |file: &str| host.read_text(folder.join(file))?.parse().ok();
        let virtual_functions = number("sriov_totalvfs").filter(|total| *total > 0);
        let driver_of = |pci: &PciFunction| pci.driver.clone();
        let pci = self.pci.entry(address).or_insert_with(|| host.pci_function(address)).clone();
        let is_subfunction = name.contains(SUBFUNCTION);
        Some(Function {
            address,
            driver: if is_subfunction {
                host.link_name(folder.join("driver"))
            } else {
                driver_of(&pci)
            },
            pci,
            interfaces: interface::read_interfaces(host, self.limits, &folder),
            rdma: rdma::read_rdma_devices(host, self.ports, &folder),
            vdpa: self.vdpa.of_device(host, &folder),
            pf: None,
            virtual_functions: virtual_functions
                .map(|total| (total, number("sriov_numvfs").unwrap_or(0))),
            subfunction_number: number("sfnum"),
            acpi_index: host.read_text(folder.join("acpi_index")).filter(|text| !text.is_empty()),
            name,
            folder,
        })
    }
}

// === impl Function ===

impl Function {
    /// Sort key: functions with RDMA devices by name of the first one, `mlx5_10` after `mlx5_9`; then the others by
    /// address.
    pub(super) fn sort_key(&self) -> impl Ord + use<> {
        let rdma = self.rdma.first().map(|rdma| (rdma.name.len(), rdma.name.clone()));
        (rdma.is_none(), rdma, self.address, self.name.len(), self.name.clone())
    }

    pub(super) fn is_subfunction(&self) -> bool {
        self.name.contains(SUBFUNCTION)
    }

    pub(super) fn has_virtual_functions(&self) -> bool {
        self.virtual_functions.is_some_and(|(_, count)| count > 0)
    }
}

/// PCI function of a subfunction.
fn parent(host: &Host, folder: &Path) -> Option<PciAddress> {
    let resolved = host.canonicalize(folder)?;
    resolved.ancestors().find_map(|ancestor| ancestor.file_name()?.to_str()?.parse().ok())
}
