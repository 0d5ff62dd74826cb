//! A function as the inventory has it.

use jiff::Timestamp;
use windlass_config::NicIds;
use windlass_core::{
    device::{Device, DeviceId, DeviceKind, SourceName},
    health::Observation,
};

use super::{View, function::Function, rdma::Networks};

const NO_RDMA: &str = "no RDMA device, which is what containers could share";

const NO_NODES: &str = "nics.rdmaNodes names none, so that containers get nothing to share";

const ONE_NETWORK: &str = "RDMA devices of this host belong to one network namespace each, so that \
    containers cannot share them: rdma system set netns shared";

impl View<'_> {
    /// The device, and how it does; `None` for a name that can be no device's.
    pub(super) fn device(&self, index: u32, function: &Function) -> Option<(Device, Observation)> {
        let set = self.node_set(function);
        let observed = self.observe(function, &set);
        let device = Device {
            index,
            attributes: self.attributes(function),
            place: function.pci.place(),
            withheld: set.withheld,
            not_alone: self.not_alone(function),
            not_shared: self.not_shared(function),
            nodes: set.nodes,
            ..Device::new(
                self.id(function)?,
                DeviceKind::Nic,
                SourceName::NICS,
                Timestamp::UNIX_EPOCH,
            )
        };
        Some((device, observed))
    }

    fn id(&self, function: &Function) -> Option<DeviceId> {
        match self.policy.ids {
            NicIds::PciAddress => function.name.parse().ok(),
            NicIds::Name => lasting_name(function).parse().ok(),
        }
    }

    /// Why the host, or a part of it, needs the function. One who only shares its RDMA device takes
    /// nothing away.
    fn not_alone(&self, function: &Function) -> Option<String> {
        let interfaces = function.interfaces.iter();
        let mut uses = interfaces.filter_map(|it| self.uses.of(self.host, &it.name));
        let virtual_functions = function.virtual_functions.map_or(0, |(_, made)| made);
        let parts = self.subfunctions.get(&function.address);
        let parts = parts.filter(|_| !function.is_subfunction()).copied();
        uses.next()
            .or_else(|| made_of_it(virtual_functions, "virtual function"))
            .or_else(|| made_of_it(parts.unwrap_or(0), "subfunction"))
    }

    fn not_shared(&self, function: &Function) -> Option<String> {
        match self.networks {
            _ if function.rdma.is_empty() => Some(NO_RDMA.to_owned()),
            _ if self.policy.rdma_nodes.is_empty() => Some(NO_NODES.to_owned()),
            Networks::Exclusive => Some(ONE_NETWORK.to_owned()),
            Networks::Shared | Networks::Unknown => None,
        }
    }
}

/// A name by which the function goes after the next boot too. The numbers of subfunctions on their bus are
/// given in the order in which they are made; the one that an administrator chose stays.
fn lasting_name(function: &Function) -> String {
    let address = function.address.to_string().replace([':', '.'], "-");
    match function.subfunction_number {
        Some(number) => format!("nic-{address}-sf{number}"),
        None if function.is_subfunction() => format!("nic-{}", function.name),
        None => format!("nic-{address}"),
    }
}

fn made_of_it(number: u32, what: &str) -> Option<String> {
    match number {
        0 => None,
        1 => Some(format!("1 {what} is made of it")),
        several => Some(format!("{several} {what}s are made of it")),
    }
}
