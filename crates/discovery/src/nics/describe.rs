//! Inventory device of a network function.

use jiff::Timestamp;
use windlass_config::NicIds;
use windlass_core::{
    device::{Device, DeviceId, DeviceKind, SourceName},
    health::Observation,
};

use super::{NicScan, function::Function, rdma::RdmaNetns};

const NO_RDMA: &str = "no RDMA device that containers could share";

const NO_NODES: &str = "nics.rdmaNodes is empty: no RDMA node for containers to share";

const ONE_NETWORK: &str = "RDMA devices of this host belong to one network namespace each, so that \
    containers cannot share them: rdma system set netns shared";

impl NicScan<'_> {
    /// The device with its observation; `None` if its name is not a device id.
    pub(super) fn device(&self, index: u32, function: &Function) -> Option<(Device, Observation)> {
        let node_set = self.node_set(function);
        let observation = self.observe(function, &node_set);
        let device = Device {
            index,
            attributes: self.attributes(function),
            place: function.pci.location(),
            withheld: node_set.withheld,
            exclusive_use_refusal: self.exclusive_use_refusal(function),
            sharing_refusal: self.sharing_refusal(function),
            nodes: node_set.nodes,
            ..Device::new(
                self.id(function)?,
                DeviceKind::Nic,
                SourceName::NICS,
                Timestamp::UNIX_EPOCH,
            )
        };
        Some((device, observation))
    }

    fn id(&self, function: &Function) -> Option<DeviceId> {
        match self.policy.ids {
            NicIds::PciAddress => function.name.parse().ok(),
            NicIds::Name => stable_name(function).parse().ok(),
        }
    }

    /// Reason why a container cannot use the function exclusively: the host needs it. Sharing its RDMA device is still
    /// possible, because the host keeps the function.
    fn exclusive_use_refusal(&self, function: &Function) -> Option<String> {
        let interfaces = function.interfaces.iter();
        let mut uses = interfaces.filter_map(|interface| {
            self.host_use.exclusive_use_refusal(self.host, &interface.name)
        });
        let virtual_functions = function.virtual_functions.map_or(0, |(_, count)| count);
        let subfunctions = self.subfunctions.get(&function.address);
        let subfunctions = subfunctions.filter(|_| !function.is_subfunction()).copied();
        uses.next()
            .or_else(|| in_use_by_parts(virtual_functions, "virtual function"))
            .or_else(|| in_use_by_parts(subfunctions.unwrap_or(0), "subfunction"))
    }

    /// Reason why containers cannot share the function's RDMA device.
    fn sharing_refusal(&self, function: &Function) -> Option<String> {
        match self.rdma_netns {
            _ if function.rdma.is_empty() => Some(NO_RDMA.to_owned()),
            _ if self.policy.rdma_nodes.is_empty() => Some(NO_NODES.to_owned()),
            RdmaNetns::Exclusive => Some(ONE_NETWORK.to_owned()),
            RdmaNetns::Shared | RdmaNetns::Unknown => None,
        }
    }
}

/// Name that survives reboots. The bus numbers subfunctions in creation order; the administrator's number is
/// stable.
fn stable_name(function: &Function) -> String {
    let address = function.address.to_dashed();
    match function.subfunction_number {
        Some(number) => format!("nic-{address}-sf{number}"),
        None if function.is_subfunction() => format!("nic-{}", function.name),
        None => format!("nic-{address}"),
    }
}

fn in_use_by_parts(number: u32, kind: &str) -> Option<String> {
    match number {
        0 => None,
        1 => Some(format!("1 {kind} is made of it")),
        number => Some(format!("{number} {kind}s are made of it")),
    }
}
