//! The resources that devices are part of where nothing is configured: names that existing manifests use.

use windlass_config::{MigStrategy, Policy};
use windlass_core::{
    device::{Device, DeviceKind, SourceName},
    inventory::Inventory,
    resource::ResourceName,
};

use super::want::profile;

/// The name that the vendor's own plugin gives such a device.
pub fn usual_name(policy: &Policy, device: &Device) -> Option<ResourceName> {
    match &device.source {
        source if *source == SourceName::NVIDIA => nvidia(policy.mig, device),
        source if *source == SourceName::AMD => {
            windlass_discovery::amd_resource(policy.families.amd.naming, device)
        }
        source if *source == SourceName::INTEL => windlass_discovery::intel_resource(device),
        source if *source == SourceName::FPGA => windlass_discovery::fpga_resource(device),
        _ => None,
    }
}

/// Whether a device is by now something else than it was, as an FPGA that was programmed anew.
pub fn is_something_else(policy: &Policy, before: &Inventory, now: &Inventory) -> bool {
    let is_other = |device: &Device| {
        let known = before.get(device.id.as_str()).and_then(|known| usual_name(policy, known));
        known.is_some_and(|known| usual_name(policy, device).is_some_and(|name| name != known))
    };
    now.devices.iter().filter(|device| !device.is_nvidia()).any(is_other)
}

fn nvidia(strategy: MigStrategy, device: &Device) -> Option<ResourceName> {
    match (device.kind, profile(device)) {
        (DeviceKind::Gpu, _) => whole_gpus(),
        (DeviceKind::Mig, _) if strategy == MigStrategy::Single => whole_gpus(),
        // A `+` is no part of a resource name.
        (DeviceKind::Mig, Some(profile)) => {
            format!("nvidia.com/mig-{}", profile.replace('+', ".")).parse().ok()
        }
        _ => None,
    }
}

fn whole_gpus() -> Option<ResourceName> {
    "nvidia.com/gpu".parse().ok()
}
