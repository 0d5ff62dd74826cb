//! The names that NVML gives to GPUs, MIG instances and their profiles.

use windlass_core::device::DeviceId;
use windlass_nvml::{Gpu, NvmlError};

/// The UUID of a GPU or a MIG instance. A text that can name no device is an answer that cannot be.
pub(crate) fn id_of(device: &Gpu) -> Result<DeviceId, NvmlError> {
    device.uuid()?.parse().map_err(|_| NvmlError::nonsense("nvmlDeviceGetUUID"))
}

/// NVML names an instance after its GPU and profile, `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
pub(crate) fn profile_in(name: &str) -> &str {
    name.rsplit_once(" MIG ").map_or(name, |(_, profile)| profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instances_profile_is_the_end_of_its_name() {
        assert_eq!(profile_in("NVIDIA A100-SXM4-40GB MIG 1g.5gb"), "1g.5gb");
        assert_eq!(profile_in("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me"), "1g.10gb+me");
        assert_eq!(profile_in("1g.5gb"), "1g.5gb");
    }
}
