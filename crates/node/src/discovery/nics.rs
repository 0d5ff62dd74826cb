//! Network interfaces: every PCI function that is one, and every RDMA device that sits on hardware.
//!
//! | file | what it tells |
//! | --- | --- |
//! | `function` | what sysfs shows of one function or subfunction |
//! | `interface`, `rdma`, `vfio`, `vdpa` | what its driver made of it |
//! | `uses` | what the host itself does with it |
//! | `nodes`, `link`, `describe` | what a container gets, whether it works, what it is |

mod attributes;
mod describe;
mod function;
mod interface;
mod link;
mod nodes;
mod rdma;
mod uses;
mod vdpa;
mod vfio;

use std::{collections::BTreeMap, time::Duration};

use windlass_core::{
    device::{Device, DeviceId, SourceName},
    health::{Observation, Reason},
    inventory::SourceState,
    pci::PciAddress,
};

pub(crate) use attributes::{
    AUXILIARY_DEVICE, DRIVER, PF_PCI_ADDRESS, RDMA_DEVICE, REPRESENTOR, VDPA_DEVICE, VDPA_TYPE,
};

use self::{
    function::{Found, Function},
    rdma::Networks,
    uses::Uses,
};
use super::family::{Family, Look};
use crate::{
    config::{HealthPolicy, NicPolicy, Policy},
    host::Host,
};

/// The family.
#[derive(Debug, Default)]
pub(super) struct Nics {
    policy: NicPolicy,
    health: HealthPolicy,
    had_rdma: HadRdma,
}

/// The driver under which each interface had an RDMA device when it was last seen with one.
#[derive(Debug, Default)]
struct HadRdma(BTreeMap<DeviceId, String>);

/// What is the same for all interfaces at one look.
struct View<'a> {
    host: &'a Host,
    policy: &'a NicPolicy,
    uses: Uses,
    networks: Networks,
    /// The functions that have virtual ones.
    physical: BTreeMap<PciAddress, &'a Function>,
}

// === impl Nics ===

impl Nics {
    pub(super) fn new(policy: &Policy) -> Self {
        let mut nics = Self::default();
        nics.adopt(policy);
        nics
    }
}

impl Family for Nics {
    fn names(&self) -> Vec<SourceName> {
        vec![SourceName::NICS]
    }

    fn look(&mut self, host: &Host) -> Look {
        let Found { mut functions, skipped } = function::find(host);
        functions.sort_by_cached_key(Function::order);
        let with_virtual = functions.iter().filter(|function| function.has_virtual_functions());
        let view = View {
            host,
            policy: &self.policy,
            uses: Uses::read(host),
            networks: Networks::read(host),
            physical: with_virtual.map(|function| (function.address, function)).collect(),
        };
        let state = state(&view, &functions, &skipped);
        let seen = (0..).zip(&functions);
        let seen = seen.filter_map(|(index, function)| view.device(index, function));
        let mut found: Vec<_> = seen.collect();
        if view.networks != Networks::Exclusive {
            for (device, observed) in &mut found {
                self.had_rdma.check(device, observed);
            }
        }
        Look { states: [(SourceName::NICS, state)].into(), found, ..Look::default() }
    }

    fn adopt(&mut self, policy: &Policy) {
        (self.policy, self.health) = (policy.nics.clone(), policy.health.clone());
    }

    fn quiet_period(&self, _: &Device) -> Option<Duration> {
        Some(self.policy.quiet_period(&self.health))
    }
}

/// What there is to say of all interfaces together.
fn state(view: &View<'_>, functions: &[Function], skipped: &[String]) -> SourceState {
    let with_rdma = functions.iter().filter(|function| !function.rdma.is_empty()).count();
    let mut parts = match functions.len() {
        0 => vec!["no network interfaces".to_owned()],
        several => vec![format!("{several} network interfaces, {with_rdma} with RDMA")],
    };
    if let Some(networks) = view.networks.name().filter(|_| with_rdma > 0) {
        parts.push(format!("RDMA network namespaces: {networks}"));
    }
    if !skipped.is_empty() {
        parts.push(format!("left out, as no hardware's: {}", skipped.join(" ")));
    }
    if !view.uses.is_known && !functions.is_empty() {
        parts.push("the host's routes cannot be read".to_owned());
    }
    let text = parts.join("; ");
    if functions.is_empty() { SourceState::Absent(text) } else { SourceState::Ready(text) }
}

// === impl HadRdma ===

impl HadRdma {
    /// An RDMA device that is gone while the driver stays was not given up: its module was unloaded, or
    /// is being loaded anew. In an exclusive network namespace it may be a container's.
    fn check(&mut self, device: &Device, observed: &mut Observation) {
        let driver = device.attributes.get(&DRIVER).map(ToString::to_string).unwrap_or_default();
        if device.attributes.contains_key(&RDMA_DEVICE) {
            self.0.insert(device.id.clone(), driver);
        } else if self.0.get(&device.id) == Some(&driver) {
            let why = format!("its RDMA device is gone, while its driver is still {driver}");
            *observed = Observation::Failed(Reason::NotReady, why);
        }
    }
}
