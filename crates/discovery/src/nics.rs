//! Network interfaces: every PCI network function, and every RDMA device on hardware.
//!
//! | file | content |
//! | --- | --- |
//! | `function` | a function or subfunction by sysfs |
//! | `interface`, `rdma`, `ports`, `vfio`, `vdpa` | devices that the function's driver creates |
//! | `nodes`, `link`, `describe` | device nodes, link health and inventory device of a function |
//! | `counters` | telemetry of its RDMA ports |

mod attributes;
mod counters;
mod describe;
mod function;
mod interface;
mod link;
mod nodes;
mod ports;
mod rdma;
mod vdpa;
mod vfio;

use std::{collections::BTreeMap, time::Duration};

use windlass_config::{HealthPolicy, NicPolicy, Policy};
use windlass_core::{
    device::{Device, DeviceId, SourceName},
    health::{Observation, Reason},
    inventory::SourceState,
    pci::PciAddress,
};
use windlass_host::{
    Host, PCI_DEVICES,
    entry_limits::{EntryLimits, first_names},
    interface_use::{self, InterfaceUse},
};

pub use attributes::{
    AUXILIARY_DEVICE, DRIVER, PF_PCI_ADDRESS, RDMA_DEVICE, REPRESENTOR, VDPA_DEVICE, VDPA_TYPE,
};

pub(super) use counters::sample;

use self::{
    function::{Function, FunctionList},
    ports::PortReader,
    rdma::RdmaNetns,
};
use super::{
    facts::count_text,
    scanner::{Scan, Scanner},
};

/// Scanner of network interfaces.
#[derive(Debug, Default)]
pub(super) struct Nics {
    ports: PortReader,
    policy: NicPolicy,
    health: HealthPolicy,
    rdma_history: RdmaHistory,
}

/// Driver of each function when it last had an RDMA device.
#[derive(Debug, Default)]
struct RdmaHistory(BTreeMap<DeviceId, String>);

/// Common state of all interfaces during a scan.
struct NicScan<'a> {
    host: &'a Host,
    policy: &'a NicPolicy,
    host_use: InterfaceUse,
    rdma_netns: RdmaNetns,
    functions: &'a [Function],
    /// Functions with virtual functions.
    physical_functions: BTreeMap<PciAddress, &'a Function>,
    /// Number of subfunctions per function.
    subfunctions: BTreeMap<PciAddress, u32>,
}

// === impl Nics ===

impl Nics {
    pub(super) fn new(policy: &Policy) -> Self {
        let mut nics = Self::default();
        nics.apply_policy(policy);
        nics
    }
}

impl Scanner for Nics {
    fn names(&self) -> Vec<SourceName> {
        vec![SourceName::NICS]
    }

    fn folders(&self) -> &'static [&'static str] {
        &[PCI_DEVICES, function::AUXILIARY, function::INFINIBAND, interface_use::NET, vdpa::DEVICES]
    }

    fn scan(&mut self, host: &Host) -> Scan {
        let FunctionList { mut functions, skipped, limits } =
            function::find_functions(host, &mut self.ports);
        functions.sort_by_cached_key(Function::sort_key);
        let nic_scan = NicScan::new(host, &self.policy, &functions);
        let rdma_history = &mut self.rdma_history;
        let observed_devices = (0..).zip(&functions).filter_map(|(index, function)| {
            let (device, observation) = nic_scan.device(index, function)?;
            let has_lost_rdma =
                rdma_history.update(&device.id, function) && nic_scan.has_lost_rdma(function);
            let observation =
                if has_lost_rdma { lost_rdma_observation(function) } else { observation };
            Some((device, observation))
        });
        let devices = observed_devices.collect();
        let state = nic_scan.state(&skipped, &limits);
        Scan { states: [(SourceName::NICS, state)].into(), devices, ..Scan::default() }
    }

    fn apply_policy(&mut self, policy: &Policy) {
        (self.policy, self.health) = (policy.nics.clone(), policy.health.clone());
    }

    fn quiet_period(&self, _: &Device) -> Option<Duration> {
        Some(self.policy.quiet_period(&self.health))
    }
}

// === impl NicScan ===

impl<'a> NicScan<'a> {
    fn new(host: &'a Host, policy: &'a NicPolicy, functions: &'a [Function]) -> Self {
        let physical_functions =
            functions.iter().filter(|function| function.has_virtual_functions());
        let mut subfunctions = BTreeMap::new();
        for subfunction in functions.iter().filter(|function| function.is_subfunction()) {
            *subfunctions.entry(subfunction.address).or_default() += 1;
        }
        Self {
            host,
            policy,
            host_use: InterfaceUse::read(host),
            rdma_netns: RdmaNetns::read(host),
            functions,
            physical_functions: physical_functions
                .map(|function| (function.address, function))
                .collect(),
            subfunctions,
        }
    }

    /// Summary of all interfaces.
    fn state(&self, skipped: &[String], limits: &EntryLimits) -> SourceState {
        let functions = self.functions;
        let with_rdma = functions.iter().filter(|function| !function.rdma.is_empty()).count();
        let mut parts = match functions.len() {
            0 => vec!["no network interfaces".to_owned()],
            count => {
                vec![format!("{}, {with_rdma} with RDMA", count_text(count, "network interface"))]
            }
        };
        if let Some(netns_mode) = self.rdma_netns.name().filter(|_| with_rdma > 0) {
            parts.push(format!("RDMA network namespaces: {netns_mode}"));
        }
        if !skipped.is_empty() {
            let names = first_names(skipped.iter().cloned(), " ");
            parts.push(format!("software RDMA devices skipped: {names}"));
        }
        parts.extend(Some(limits.to_string()).filter(|text| !text.is_empty()));
        if self.host_use.unknown.is_some() && !functions.is_empty() {
            parts.push("the host's routes cannot be read".to_owned());
        }
        let text = parts.join("; ");
        if functions.is_empty() { SourceState::Absent(text) } else { SourceState::Ready(text) }
    }

    /// True if a function lost its allocatable RDMA device because the driver's RDMA module was unloaded or is
    /// reloading. With the module loaded, an administrator removed the device on purpose: by devlink, or by a bond,
    /// which has one RDMA device for all members. With exclusive network namespaces the device may have moved into
    /// a container.
    fn has_lost_rdma(&self, function: &Function) -> bool {
        let has_rdma = |other: &&Function| !other.rdma.is_empty();
        let mut others = self.functions.iter().filter(has_rdma);
        let has_module = others.any(|other| other.driver == function.driver)
            || rdma::has_rdma_driver(self.host, &function.folder);
        let mut interfaces = function.interfaces.iter();
        let is_in_bond =
            interfaces.any(|interface| interface_use::is_in_bond(self.host, &interface.name));
        let is_allocatable = !self.policy.rdma_nodes.is_empty();
        is_allocatable && !has_module && !is_in_bond && self.rdma_netns != RdmaNetns::Exclusive
    }
}

fn lost_rdma_observation(function: &Function) -> Observation {
    let driver = function.driver.as_deref().unwrap_or_default();
    let detail = format!("its RDMA device is gone, while its driver is still {driver}");
    Observation::Failed(Reason::NotReady, detail)
}

// === impl RdmaHistory ===

impl RdmaHistory {
    /// Records the driver of a function with an RDMA device. Returns true for a function without an RDMA device that
    /// had one under the same driver.
    fn update(&mut self, id: &DeviceId, function: &Function) -> bool {
        let driver = function.driver.clone().unwrap_or_default();
        if function.rdma.is_empty() {
            return self.0.get(id) == Some(&driver);
        }
        self.0.insert(id.clone(), driver);
        false
    }
}
