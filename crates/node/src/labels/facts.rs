//! What the host says beside its devices: the machine, and the driver's version as the driver spells it.

use std::path::Path;

use windlass_core::labels::HostFacts;
use windlass_host::Host;

use super::vgpu;

/// The DMI table's name of the machine.
const PRODUCT_NAME: &str = "/sys/class/dmi/id/product_name";

/// The version of the loaded driver.
const DRIVER_VERSION: &str = "/sys/module/nvidia/version";

/// Reads the facts. Firmware answers some of it: it may take long.
pub(super) fn read(host: &Host, machine_type_file: Option<&Path>) -> HostFacts {
    let said = |path: &Path| host.text(path).filter(|text| !text.is_empty());
    HostFacts {
        machine: said(machine_type_file.unwrap_or(Path::new(PRODUCT_NAME))),
        driver_version: said(Path::new(DRIVER_VERSION)),
        vgpu: vgpu::read(host),
    }
}
