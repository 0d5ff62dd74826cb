//! Ports of RDMA devices. Firmware reports their state, and may never answer: a hanging device keeps its last
//! values and delays no other device.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use windlass_host::{Host, external::ScanPool};

/// A port of an RDMA device.
#[derive(Clone, Debug)]
pub(super) struct Port {
    pub(super) number: String,
    /// `InfiniBand` or `Ethernet`
    pub(super) link_layer: Option<String>,
    /// `4: ACTIVE`
    pub(super) state: Option<String>,
    /// `5: LinkUp`
    pub(super) phys_state: Option<String>,
    /// `400 Gb/sec (4X NDR)`
    pub(super) rate: Option<String>,
    /// First partition key.
    pub(super) pkey: Option<String>,
}

/// Reported ports of an RDMA device.
#[derive(Clone, Debug)]
pub(super) struct PortReport {
    pub(super) ports: Vec<Port>,
    /// True if the device did not answer. The ports then have their last values, or none.
    pub(super) is_unresponsive: bool,
}

/// Reader of ports, by folder of the RDMA device.
#[derive(Debug, Default)]
pub(super) struct PortReader {
    pool: ScanPool<PathBuf, Vec<Port>>,
    last_ports: BTreeMap<PathBuf, Vec<Port>>,
    /// Devices of the current scan.
    scanned: BTreeSet<PathBuf>,
    /// Functions that did not answer in this scan. Their virtual functions share the firmware and are not read.
    unresponsive: BTreeSet<String>,
}

// === impl PortReader ===

impl PortReader {
    /// Ports of the RDMA device in this folder.
    pub(super) fn read(&mut self, host: &Host, rdma: PathBuf) -> PortReport {
        let folder = rdma.join("ports");
        let unread_ports: Vec<_> = host
            .entry_names(&folder)
            .into_iter()
            .map(|number| Port::new(host, &folder, number))
            .collect();
        let (host_clone, ports) = (host.clone(), unread_ports.clone());
        let read = move || {
            ports.into_iter().map(|port| port.with_attributes(&host_clone, &folder)).collect()
        };
        self.scanned.insert(rdma.clone());
        let function = rdma.ancestors().nth(2).map(Path::to_owned).unwrap_or_default();
        let is_unresponsive = self.is_unresponsive(host, &function);
        if !is_unresponsive && let Ok(ports) = self.pool.call(rdma.clone(), read) {
            self.last_ports.insert(rdma, ports.clone());
            return PortReport { ports, is_unresponsive: false };
        }
        self.unresponsive.extend(function.file_name().map(|name| name.display().to_string()));
        let last_ports = self.last_ports.get(&rdma).cloned();
        PortReport { ports: last_ports.unwrap_or(unread_ports), is_unresponsive: true }
    }

    fn is_unresponsive(&self, host: &Host, function: &Path) -> bool {
        let physical = host.link_name(function.join("physfn"));
        physical.is_some_and(|name| self.unresponsive.contains(&name))
    }

    /// Ends a scan. Drops devices that the scan did not find.
    pub(super) fn end_scan(&mut self) {
        let scanned = std::mem::take(&mut self.scanned);
        self.unresponsive.clear();
        self.pool.end_scan(|rdma| scanned.contains(rdma));
        self.last_ports.retain(|rdma, _| scanned.contains(rdma));
    }
}

// === impl Port ===

impl Port {
    /// A port with its link layer, which the kernel reports without asking the device.
    fn new(host: &Host, ports: &Path, number: String) -> Self {
        let link_layer = host.read_text(ports.join(&number).join("link_layer"));
        Self { number, link_layer, state: None, phys_state: None, rate: None, pkey: None }
    }

    /// Adds the attributes that the device itself reports. May block forever.
    fn with_attributes(self, host: &Host, ports: &Path) -> Self {
        let text = |file: &str| host.read_text(ports.join(&self.number).join(file));
        let (state, phys_state) = (text("state"), text("phys_state"));
        Self { state, phys_state, rate: text("rate"), pkey: text("pkeys/0"), ..self }
    }

    /// True if traffic flows (`enum ib_port_state`, IBTA).
    pub(super) fn is_active(&self) -> bool {
        self.state.as_deref().is_some_and(is_active)
    }
}

/// True for the state in which traffic flows, with or without its number.
pub(super) fn is_active(state: &str) -> bool {
    state.ends_with("ACTIVE")
}
