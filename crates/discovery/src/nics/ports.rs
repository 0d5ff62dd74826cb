//! The ports of RDMA devices. The firmware of a device answers what state they are in, and may take for ever:
//! one that does not answer keeps what it said last, and costs no other anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use windlass_host::Host;

use crate::asking::Asking;

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
    /// The first partition key.
    pub(super) pkey: Option<String>,
}

/// What an RDMA device says of its ports.
#[derive(Clone, Debug)]
pub(super) struct Said {
    pub(super) ports: Vec<Port>,
    /// Whether it does not answer, so that this is what it said last.
    pub(super) is_late: bool,
}

/// Asks RDMA devices for their ports; each goes by its folder.
#[derive(Debug, Default)]
pub(super) struct PortReader {
    asking: Asking<PathBuf, Vec<Port>>,
    known: BTreeMap<PathBuf, Vec<Port>>,
    /// Who was asked at this look.
    asked: BTreeSet<PathBuf>,
    /// The functions that did not answer at this look: virtual ones have the firmware of their physical one.
    silent: BTreeSet<String>,
}

// === impl PortReader ===

impl PortReader {
    /// What the RDMA device with this folder says.
    pub(super) fn read(&mut self, host: &Host, rdma: PathBuf) -> Said {
        let folder = rdma.join("ports");
        let bare: Vec<_> =
            host.names(&folder).into_iter().map(|it| Port::new(host, &folder, it)).collect();
        let (its_host, ports) = (host.clone(), bare.clone());
        let question =
            move || ports.into_iter().map(|port| port.told(&its_host, &folder)).collect();
        self.asked.insert(rdma.clone());
        let function = rdma.ancestors().nth(2).map(Path::to_owned).unwrap_or_default();
        let is_in_vain = self.is_of_a_silent_one(host, &function);
        if !is_in_vain && let Ok(ports) = self.asking.ask(rdma.clone(), question) {
            self.known.insert(rdma, ports.clone());
            return Said { ports, is_late: false };
        }
        self.silent.extend(function.file_name().map(|name| name.display().to_string()));
        let last = self.known.get(&rdma).cloned();
        Said { ports: last.unwrap_or(bare), is_late: true }
    }

    fn is_of_a_silent_one(&self, host: &Host, function: &Path) -> bool {
        let physical = host.link_name(function.join("physfn"));
        physical.is_some_and(|name| self.silent.contains(&name))
    }

    /// Ends a look: who was not asked is forgotten.
    pub(super) fn rest(&mut self) {
        let asked = std::mem::take(&mut self.asked);
        self.silent.clear();
        self.asking.rest(|rdma| asked.contains(rdma));
        self.known.retain(|rdma, _| asked.contains(rdma));
    }
}

// === impl Port ===

impl Port {
    /// A port with what the kernel knows without its device.
    fn new(host: &Host, ports: &Path, number: String) -> Self {
        let link_layer = host.text(ports.join(&number).join("link_layer"));
        let (state, phys_state, rate, pkey) = Default::default();
        Self { number, link_layer, state, phys_state, rate, pkey }
    }

    /// As its device tells it. May take for ever.
    fn told(self, host: &Host, ports: &Path) -> Self {
        let text = |file: &str| host.text(ports.join(&self.number).join(file));
        let (state, phys_state) = (text("state"), text("phys_state"));
        Self { state, phys_state, rate: text("rate"), pkey: text("pkeys/0"), ..self }
    }

    /// Whether traffic flows (`enum ib_port_state`, IBTA).
    pub(super) fn is_active(&self) -> bool {
        self.state.as_deref().is_some_and(|state| state.ends_with("ACTIVE"))
    }
}
