//! Names of attributes and capacities in claims: NVIDIA's are those of NVIDIA's driver, so that expressions for it work.

use windlass_core::attribute::AttributeName;

/// Domain of NVIDIA's driver.
const NVIDIA: &str = "gpu.nvidia.com";

/// Domain of the same names in the configuration.
const NVIDIA_IN_CONFIG: &str = "nvidia.com";

/// The name in claims.
pub(super) fn published(name: &AttributeName) -> AttributeName {
    if name.domain() == NVIDIA_IN_CONFIG { name.in_domain(NVIDIA) } else { name.clone() }
}
