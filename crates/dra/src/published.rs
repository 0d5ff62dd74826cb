//! Published names of attributes and capacities. NVIDIA's are in the domain of NVIDIA's DRA driver, so that CEL
//! expressions for that driver work.

use windlass_core::attribute::AttributeName;

/// Domain of NVIDIA's DRA driver.
const NVIDIA_DRIVER_DOMAIN: &str = "gpu.nvidia.com";

/// Domain of the same names in the configuration.
const NVIDIA_CONFIG_DOMAIN: &str = "nvidia.com";

/// Converts a name to its published form.
pub(super) fn published_name(name: &AttributeName) -> AttributeName {
    if name.domain() == NVIDIA_CONFIG_DOMAIN {
        name.in_domain(NVIDIA_DRIVER_DOMAIN)
    } else {
        name.clone()
    }
}
