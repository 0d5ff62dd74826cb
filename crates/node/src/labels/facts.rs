//! Facts for labels beyond the devices: machine type, driver version, vGPU host.

use std::path::Path;

use windlass_core::labels::HostFacts;
use windlass_host::Host;

use super::vgpu;

/// Machine name in the DMI table.
const PRODUCT_NAME: &str = "/sys/class/dmi/id/product_name";

const DRIVER_VERSION: &str = "/sys/module/nvidia/version";

/// Reads the facts. Firmware may answer slowly.
pub(super) fn read(host: &Host, machine_type_file: Option<&Path>) -> HostFacts {
    let text = |path: &Path| host.read_text(path).filter(|text| !text.is_empty());
    HostFacts {
        machine: text(machine_type_file.unwrap_or(Path::new(PRODUCT_NAME))),
        driver_version: text(Path::new(DRIVER_VERSION)),
        vgpu: vgpu::read(host),
    }
}
