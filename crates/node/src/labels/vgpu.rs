//! Detection of virtual GPUs from PCI configuration space.
//!
//! NVIDIA's vendor-specific capability starts with `VF`, followed by records of id, length and data. Record 0
//! holds ten bytes of the host's driver version and ten of its branch.

use std::io::Read as _;

use windlass_core::{
    labels::{Vgpu, VgpuHost},
    pci::PciAddress,
};
use windlass_host::{
    Host, PciKind,
    files::{Symlinks, open_regular},
    pci_folder,
};

const NVIDIA_VENDOR: &str = "10de";
/// Prefix of display classes. Other functions are not read, so they stay asleep.
const DISPLAY_CLASS: &str = "0x03";

/// Size of PCI configuration space with all capabilities. The kernel shows less to unprivileged readers.
const CONFIG_SPACE_BYTES: usize = 256;
const STATUS_OFFSET: usize = 0x06;
/// Status bit: a capability list exists.
const STATUS_CAPABILITY_LIST: u8 = 0x10;
const CAPABILITY_LIST_OFFSET: usize = 0x34;
const CAPABILITY_ID_VENDOR_SPECIFIC: u8 = 0x09;
/// Offsets of length, signature and records in a vendor-specific capability.
const LENGTH_OFFSET: usize = 2;
const SIGNATURE_OFFSET: usize = 3;
const RECORDS_OFFSET: usize = 5;
/// Length of a version and of a branch.
const FIELD_BYTES: usize = 10;

/// Checks every GPU on the bus. All virtual GPUs have the same host, so the last one decides.
pub(super) fn read(host: &Host) -> Vgpu {
    let mut vgpu = Vgpu::Absent;
    let is_display = |function: &PciKind| {
        function.is_of_vendor(&[NVIDIA_VENDOR]) && function.is_of_class(&[DISPLAY_CLASS])
    };
    for address in host.pci_addresses(is_display) {
        let Some(space) = config_space(host, address) else { return Vgpu::Unknown };
        if let Some(capability) = capability(&space) {
            vgpu = Vgpu::Present(vgpu_host(capability));
        }
    }
    vgpu
}

/// The whole configuration space, if it is readable.
fn config_space(host: &Host, address: PciAddress) -> Option<[u8; CONFIG_SPACE_BYTES]> {
    let path = host.path(pci_folder(address).join("config"));
    let mut space = [0; CONFIG_SPACE_BYTES];
    open_regular(&path, Symlinks::Followed).ok()?.read_exact(&mut space).ok()?;
    Some(space)
}

/// NVIDIA's vGPU capability.
fn capability(space: &[u8; CONFIG_SPACE_BYTES]) -> Option<&[u8]> {
    if space[STATUS_OFFSET] & STATUS_CAPABILITY_LIST == 0 {
        return None;
    }
    let mut offset = usize::from(space[CAPABILITY_LIST_OFFSET]);
    // A broken list may be circular; the space has room for this many capabilities.
    for _ in 0..CONFIG_SPACE_BYTES / 4 {
        let (id, next) = (*space.get(offset)?, *space.get(offset + 1)?);
        if offset == 0 || id == u8::MAX {
            return None;
        }
        if id == CAPABILITY_ID_VENDOR_SPECIFIC {
            let capability = &space[offset..];
            let capability = capability.get(..usize::from(*capability.get(LENGTH_OFFSET)?))?;
            return (capability.get(SIGNATURE_OFFSET..RECORDS_OFFSET)? == b"VF")
                .then_some(capability);
        }
        offset = usize::from(next);
    }
    None
}

/// Driver version and branch of the vGPU's host.
fn vgpu_host(capability: &[u8]) -> VgpuHost {
    let mut records = capability.get(RECORDS_OFFSET..).unwrap_or_default();
    while let [id, length, data @ ..] = records {
        if *id == 0 {
            let field = |start: usize| data.get(start..start + FIELD_BYTES).and_then(text);
            return VgpuHost { driver_version: field(0), driver_branch: field(FIELD_BYTES) };
        }
        // The length counts the whole record; a shorter one would not advance.
        records = records.get(usize::from(*length).max(2)..).unwrap_or_default();
    }
    VgpuHost::default()
}

fn text(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?.trim_matches('\0');
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    const ADDRESS: &str = "0000:00:05.0";

    /// Configuration space of a virtual GPU: an MSI capability, then NVIDIA's.
    fn virtual_gpu(records: &[u8]) -> Vec<u8> {
        let mut space = vec![0; CONFIG_SPACE_BYTES];
        space[STATUS_OFFSET] = STATUS_CAPABILITY_LIST;
        space[CAPABILITY_LIST_OFFSET] = 0x68;
        space[0x68..0x6a].copy_from_slice(&[0x05, 0xd0]);
        let length = u8::try_from(RECORDS_OFFSET + records.len()).expect("short");
        space[0xd0..0xd5].copy_from_slice(&[CAPABILITY_ID_VENDOR_SPECIFIC, 0, length, b'V', b'F']);
        space[0xd5..0xd5 + records.len()].copy_from_slice(records);
        space
    }

    fn host(root: &Path, space: &[u8]) -> Host {
        let folder = root.join("sys/bus/pci/devices").join(ADDRESS);
        fs::create_dir_all(&folder).expect("a folder");
        for (name, content) in
            [("vendor", b"0x10de\n".as_slice()), ("class", b"0x030000\n"), ("config", space)]
        {
            fs::write(folder.join(name), content).expect("a file");
        }
        Host::new(root, root)
    }

    fn check(space: &[u8], expected: &Vgpu) {
        let root = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(read(&host(root.path(), space)), *expected);
    }

    fn present(version: Option<&str>, branch: Option<&str>) -> Vgpu {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Vgpu::Present(VgpuHost { driver_version: owned(version), driver_branch: owned(branch) })
    }

    #[test]
    fn a_virtual_gpu_reports_the_driver_of_its_host() {
        let driver = b"\x00\x16460.16\0\0\0\0r460_00\0\0\0";
        check(&virtual_gpu(driver), &present(Some("460.16"), Some("r460_00")));
        let after_another = [b"\x02\x04ab".as_slice(), driver].concat();
        check(&virtual_gpu(&after_another), &present(Some("460.16"), Some("r460_00")));
    }

    #[test]
    fn a_virtual_gpu_without_its_hosts_driver_is_still_detected() {
        for records in [b"".as_slice(), b"\x00\x16460", b"\x07\x00", b"\x07\xff"] {
            check(&virtual_gpu(records), &present(None, None));
        }
    }

    #[test]
    fn a_physical_gpu_is_not_detected_as_virtual() {
        check(&vec![0; CONFIG_SPACE_BYTES], &Vgpu::Absent);
        let mut other_capability = virtual_gpu(b"");
        other_capability[0xd3..0xd5].copy_from_slice(b"\x01\x00");
        check(&other_capability, &Vgpu::Absent);
        let mut circular_list = virtual_gpu(b"");
        circular_list[0x69] = 0x68;
        check(&circular_list, &Vgpu::Absent);
        check(&vec![0xff; CONFIG_SPACE_BYTES], &Vgpu::Absent);
    }

    #[test]
    fn an_unprivileged_read_of_the_space_is_unknown() {
        check(&[0; 64], &Vgpu::Unknown);
    }

    #[test]
    fn a_host_without_gpus_has_no_virtual_ones() {
        let root = tempfile::tempdir().expect("a temporary folder");
        assert_eq!(read(&Host::new(root.path(), root.path())), Vgpu::Absent);
    }
}
