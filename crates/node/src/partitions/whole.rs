//! A GPU as a whole, whether MIG is on or not, where the agent may turn it on and off.

use windlass_core::{
    attribute::{AttributeName, AttributeValue},
    device::Device,
};

/// The compute capability of Hopper. From it on a change of MIG's mode takes no reset of the GPU (NVIDIA's MIG
/// user guide, "Enable MIG Mode"); before, the mode that is asked for waits for one.
const HOPPER: (u32, u32) = (9, 0);

const MIG_ENABLED: AttributeName = AttributeName::new("nvidia.com", "migEnabled");

/// Whether MIG can be turned on and off at once on a GPU of this compute capability.
pub(crate) fn switches_at_once(compute_capability: Option<(u32, u32)>) -> bool {
    compute_capability.is_some_and(|capability| capability >= HOPPER)
}

/// The device that a GPU is with MIG off, whatever the mode is now.
pub(crate) fn whole(gpu: &Device) -> Device {
    let mut whole = Device { partitioned: false, ..gpu.clone() };
    if let Some(enabled) = whole.attributes.get_mut(&MIG_ENABLED) {
        *enabled = AttributeValue::Bool(false);
    }
    whole
}
