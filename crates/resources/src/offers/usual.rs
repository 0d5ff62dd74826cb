//! The resources that devices are part of where nothing is configured: names that existing manifests use.

use windlass_config::Policy;
use windlass_core::{
    device::{Cuts, Device},
    inventory::Inventory,
};

pub use windlass_discovery::usual_name;

/// Whether a device is by now something else than it was, as an FPGA that was programmed anew.
pub fn is_something_else(policy: &Policy, before: &Inventory, now: &Inventory) -> bool {
    let is_other = |device: &Device| {
        let known = before.get(device.id.as_str()).and_then(|known| usual_name(policy, known));
        known.is_some_and(|known| usual_name(policy, device).is_some_and(|name| name != known))
    };
    now.devices.iter().filter(|device| device.family().cuts != Cuts::Mig).any(is_other)
}
