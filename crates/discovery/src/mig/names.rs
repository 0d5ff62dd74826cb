//! NVML's names of GPUs, MIG instances and profiles.

use windlass_core::device::DeviceId;
use windlass_nvml::{Gpu, NvmlError};

/// UUID of a GPU or MIG instance. A UUID that is not a valid device id is a driver error.
pub(crate) fn id_of(device: &Gpu) -> Result<DeviceId, NvmlError> {
    device.uuid()?.parse().map_err(|_| NvmlError::invalid_answer("nvmlDeviceGetUUID"))
}

/// Profile in the name of an instance, `NVIDIA A100-SXM4-40GB MIG 1g.5gb`.
pub(crate) fn mig_profile_in(name: &str) -> &str {
    name.rsplit_once(" MIG ").map_or(name, |(_, profile)| profile)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instances_profile_is_the_end_of_its_name() {
        assert_eq!(mig_profile_in("NVIDIA A100-SXM4-40GB MIG 1g.5gb"), "1g.5gb");
        assert_eq!(mig_profile_in("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me"), "1g.10gb+me");
        assert_eq!(mig_profile_in("1g.5gb"), "1g.5gb");
    }
}
