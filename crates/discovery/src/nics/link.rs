//! Health of an interface: driver, device nodes, link.
//!
//! The link counts only for an interface that is up and in the host's namespace. An interface that is down, or
//! invisible in a container's namespace, passes. So a function stays healthy before and after its allocation. For a
//! virtual function, the physical function's link counts.

use windlass_core::health::{Observation, Reason};

use super::{NicScan, function::Function, interface::Interface, nodes::NodeSet, rdma::RdmaDevice};
use crate::failure::{self, Failure};

impl NicScan<'_> {
    pub(super) fn observe(&self, function: &Function, node_set: &NodeSet) -> Observation {
        if function.driver.is_none() {
            return Observation::Failed(Reason::DriverUnbound, "it has no driver".to_owned());
        }
        if let Some((reason, detail)) = &node_set.missing {
            return Observation::Failed(*reason, detail.clone());
        }
        let own_failure = unresponsive(function);
        failure::observation(own_failure.or_else(|| match &function.pf {
            None => link_down(function),
            Some(physical) => {
                let physical = self.physical_functions.get(&physical.address)?;
                let (reason, detail) = unresponsive(physical).or_else(|| link_down(physical))?;
                Some((reason, format!("physical function: {detail}")))
            }
        }))
    }
}

/// Failure of a function whose RDMA device did not answer: its last values may be stale.
fn unresponsive(function: &Function) -> Option<Failure> {
    function.rdma.iter().any(|rdma| rdma.port_report.is_unresponsive).then(failure::unresponsive)
}

fn link_down(function: &Function) -> Option<Failure> {
    traffic_obstacle(function).map(|detail| (Reason::LinkDown, detail))
}

/// Reason why no traffic can flow, if there is one.
fn traffic_obstacle(function: &Function) -> Option<String> {
    let is_up = function.interfaces.iter().any(|interface| interface.is_up);
    match function.rdma.first() {
        Some(rdma) if rdma.is_infiniband() || is_up => rdma_obstacle(rdma),
        Some(_) => None,
        None => function.interfaces.iter().find_map(carrier_obstacle),
    }
}

/// Reason why no traffic can flow through an RDMA device: none of its ports is active.
fn rdma_obstacle(rdma: &RdmaDevice) -> Option<String> {
    let ports = &rdma.port_report.ports;
    let first = ports.first().filter(|_| ports.iter().all(|port| !port.is_active()))?;
    let state = first.state.as_deref().unwrap_or("in no known state");
    let phys = first.phys_state.as_deref().map(|state| format!(", {state}"));
    Some(format!("port {} of {} is {state}{}", first.number, rdma.name, phys.unwrap_or_default()))
}

/// Reason why no traffic can flow through an interface: it is up and has no carrier.
fn carrier_obstacle(interface: &Interface) -> Option<String> {
    let is_unplugged = interface.is_up && interface.carrier == Some(false);
    is_unplugged.then(|| format!("{} is up and has no carrier", interface.name))
}
