//! Whether an interface works: its driver, its nodes, its link.
//!
//! An interface that nobody has brought up has no link that could be judged, and neither has one that a
//! container was given: the host does not see it. Both pass. So a function waits for its container in
//! health, and does not fail when it has found one. Of a virtual function it is the cable of its physical
//! function that is looked at.

use windlass_core::health::{Observation, Reason};

use super::{View, function::Function, interface::Interface, nodes::NodeSet, rdma::RdmaDevice};
use crate::trouble::{self, Trouble};

impl View<'_> {
    pub(super) fn observe(&self, function: &Function, set: &NodeSet) -> Observation {
        if function.driver.is_none() {
            return Observation::Failed(Reason::DriverUnbound, "it has no driver".to_owned());
        }
        if let Some((reason, why)) = &set.missing {
            return Observation::Failed(*reason, why.clone());
        }
        let own = silence(function);
        trouble::observation(own.or_else(|| match &function.physical {
            None => link_down(function),
            Some(physical) => {
                let physical = self.physical.get(&physical.address)?;
                let (reason, why) = silence(physical).or_else(|| link_down(physical))?;
                Some((reason, format!("physical function: {why}")))
            }
        }))
    }
}

/// What it said last may be wrong by now.
fn silence(function: &Function) -> Option<Trouble> {
    function.rdma.iter().any(|rdma| rdma.said.is_late).then(trouble::no_answer)
}

fn link_down(function: &Function) -> Option<Trouble> {
    no_traffic(function).map(|why| (Reason::LinkDown, why))
}

/// Why no traffic flows, as far as it can be known.
fn no_traffic(function: &Function) -> Option<String> {
    let is_up = function.interfaces.iter().any(|interface| interface.is_up);
    match function.rdma.first() {
        Some(rdma) if rdma.is_infiniband() || is_up => inactive(rdma),
        Some(_) => None,
        None => function.interfaces.iter().find_map(unplugged),
    }
}

/// Of a device with several ports one is enough.
fn inactive(rdma: &RdmaDevice) -> Option<String> {
    let ports = &rdma.said.ports;
    let first = ports.first().filter(|_| ports.iter().all(|port| !port.is_active()))?;
    let state = first.state.as_deref().unwrap_or("in no known state");
    let phys = first.phys_state.as_deref().map(|state| format!(", {state}"));
    Some(format!("port {} of {} is {state}{}", first.number, rdma.name, phys.unwrap_or_default()))
}

fn unplugged(interface: &Interface) -> Option<String> {
    let is_unplugged = interface.is_up && interface.carrier == Some(false);
    is_unplugged.then(|| format!("{} is up and has no carrier", interface.name))
}
