//! PCI configuration space of a function: the header, and the power management and PCI Express capabilities.
//!
//! The layout is that of the PCI Local Bus Specification, chapter 6.

use super::pci::Function;

const CONFIG_SPACE_BYTES: usize = 256;
/// Status bit: the function has a capability list.
const STATUS_CAP_LIST: u8 = 0x10;
/// Offset of the first capability.
const POWER_MANAGEMENT_OFFSET: u8 = 0x60;
/// Offset of the second and last capability.
const EXPRESS_OFFSET: u8 = 0x78;

/// Content of `config` in sysfs. Base addresses and all fields set by system software are zero.
pub(super) fn config_space(function: &Function<'_>) -> Vec<u8> {
    let mut space = vec![0; CONFIG_SPACE_BYTES];
    let mut put =
        |offset: usize, bytes: &[u8]| space[offset..offset + bytes.len()].copy_from_slice(bytes);
    put(0x00, &function.pci.vendor.to_le_bytes());
    put(0x02, &function.pci.device.to_le_bytes());
    put(0x06, &[STATUS_CAP_LIST]);
    put(0x09, &function.class.to_le_bytes()[..3]);
    put(0x2c, &function.subsystem.vendor.to_le_bytes());
    put(0x2e, &function.subsystem.device.to_le_bytes());
    put(0x34, &[POWER_MANAGEMENT_OFFSET]);
    put(POWER_MANAGEMENT_OFFSET.into(), &[0x01, EXPRESS_OFFSET]);
    put(EXPRESS_OFFSET.into(), &[0x10, 0x00]);
    space
}
