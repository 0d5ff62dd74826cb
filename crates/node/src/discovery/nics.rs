//! RDMA-capable network interfaces, from `/sys/class/infiniband`.
//!
//! The source tells where they sit, so that a GPU's neighbours are known, and whether their link is
//! up. It reads a few files per interface at each look.

use jiff::Timestamp;
use windlass_core::{
    attribute::{AttributeName, AttributeValue, Attributes},
    device::{Device, DeviceKind, DeviceNode, SourceName},
    health::{Observation, Reason},
    inventory::SourceState,
    pci::{PciAddress, PciePath},
};

use super::family::{Family, Look};
use crate::host::Host;

/// The family.
#[derive(Debug, Default)]
pub(super) struct Nics;

const CLASS: &str = "/sys/class/infiniband";
const VERBS: &str = "/sys/class/infiniband_verbs";
const DOMAIN: &str = "windlass.dev";

/// What `ports/<n>/state` says of a port that carries traffic (`enum ib_port_state`, IBTA).
const ACTIVE: &str = "ACTIVE";

// === impl Nics ===

impl Family for Nics {
    fn names(&self) -> Vec<SourceName> {
        vec![SourceName::NICS]
    }

    fn look(&mut self, host: &Host) -> Look {
        let mut names = host.names(CLASS);
        // mlx5_10 comes after mlx5_9.
        names.sort_by_key(|name| (name.len(), name.clone()));
        let found = (0..).zip(&names).filter_map(|(index, name)| Seen { host }.nic(index, name));
        let state = match names.len() {
            0 => SourceState::Absent(format!("no RDMA interfaces in {CLASS}")),
            several => SourceState::Ready(format!("{several} RDMA interfaces")),
        };
        Look { states: [(SourceName::NICS, state)].into(), found: found.collect() }
    }
}

/// The host while it is looked at.
struct Seen<'a> {
    host: &'a Host,
}

// === impl Seen ===

impl Seen<'_> {
    /// An interface and the state of its link; `None` for one without a PCI function, such as
    /// software RDMA.
    fn nic(&self, index: u32, name: &str) -> Option<(Device, Observation)> {
        let folder = format!("{CLASS}/{name}");
        let address = self.address(&folder)?;
        let function = self.host.pci_function(address);
        let id = format!("nic-{}", address.to_string().replace([':', '.'], "-")).parse().ok()?;
        let attributes = self.attributes(name, &folder).into_iter().chain(function.attributes());
        let device = Device {
            index,
            attributes: attributes.collect(),
            place: function.place(),
            nodes: self.nodes(name),
            ..Device::new(id, DeviceKind::Nic, SourceName::NICS, Timestamp::UNIX_EPOCH)
        };
        Some((device, self.link(&folder)))
    }

    /// `device` points to the PCI function, the last component of its path.
    fn address(&self, folder: &str) -> Option<PciAddress> {
        let resolved = self.host.path(format!("{folder}/device")).canonicalize().ok()?;
        PciePath::from_sysfs(resolved.to_str()?)?;
        resolved.file_name()?.to_str()?.parse().ok()
    }

    fn attributes(&self, name: &str, folder: &str) -> Attributes {
        let layer = self.host.text(format!("{folder}/ports/1/link_layer"));
        let netdev = self.host.names(format!("{folder}/device/net")).into_iter().next();
        let all = [
            ("type", Some("nic".to_owned())),
            ("rdmaDevice", Some(name.to_owned())),
            ("linkLayer", layer),
            ("ifName", netdev),
            ("rate", self.host.text(format!("{folder}/ports/1/rate"))),
        ];
        all.into_iter()
            .filter_map(|(key, value)| {
                Some((AttributeName::new(DOMAIN, key), AttributeValue::string(value?)))
            })
            .collect()
    }

    fn link(&self, folder: &str) -> Observation {
        match self.host.text(format!("{folder}/ports/1/state")) {
            Some(state) if state.ends_with(ACTIVE) => Observation::Passed,
            Some(state) => Observation::Failed(Reason::LinkDown, format!("port 1 is {state}")),
            None => Observation::Failed(Reason::ProbeFailed, "port 1 has no state".to_owned()),
        }
    }

    /// The verbs device, and the connection manager that all share.
    fn nodes(&self, name: &str) -> Vec<DeviceNode> {
        let verbs = self.host.names(VERBS).into_iter().find(|verbs| {
            self.host.text(format!("{VERBS}/{verbs}/ibdev")).as_deref() == Some(name)
        });
        let verbs = verbs.map(|verbs| DeviceNode::new(format!("/dev/infiniband/{verbs}")));
        verbs.into_iter().collect()
    }
}
