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
};

const PCI: &str = "/sys/bus/pci/devices";
const NVIDIA: &str = "10de";
/// Prefix of display classes. Other functions are not read, so they stay asleep.
const DISPLAY: &str = "0x03";

/// Size of PCI configuration space with all capabilities. The kernel shows less to unprivileged readers.
const SPACE: usize = 256;
const STATUS: usize = 0x06;
/// Status bit: a capability list exists.
const HAS_LIST: u8 = 0x10;
const LIST: usize = 0x34;
const VENDOR_SPECIFIC: u8 = 0x09;
/// Offsets of length, signature and records in a vendor-specific capability.
const LENGTH: usize = 2;
const SIGNATURE: usize = 3;
const RECORDS: usize = 5;
/// Length of a version and of a branch.
const FIELD: usize = 10;

/// Checks every GPU on the bus. All virtual GPUs have the same host, so the last one decides.
pub(super) fn read(host: &Host) -> Vgpu {
    let mut found = Vgpu::Absent;
    let is_display = |it: &PciKind| it.is_of_vendor(&[NVIDIA]) && it.is_of_class(&[DISPLAY]);
    for address in host.pci_addresses(is_display) {
        let Some(space) = space(host, address) else { return Vgpu::Unknown };
        if let Some(capability) = capability(&space) {
            found = Vgpu::Present(vgpu_host(capability));
        }
    }
    found
}

/// The whole configuration space, if it is readable.
fn space(host: &Host, address: PciAddress) -> Option<[u8; SPACE]> {
    let path = host.path(format!("{PCI}/{address}/config"));
    let mut space = [0; SPACE];
    open_regular(&path, Symlinks::Followed).ok()?.read_exact(&mut space).ok()?;
    Some(space)
}

/// NVIDIA's vGPU capability.
fn capability(space: &[u8; SPACE]) -> Option<&[u8]> {
    if space[STATUS] & HAS_LIST == 0 {
        return None;
    }
    let mut at = usize::from(space[LIST]);
    // A broken list may be circular; the space has room for this many capabilities.
    for _ in 0..SPACE / 4 {
        let (id, next) = (*space.get(at)?, *space.get(at + 1)?);
        if at == 0 || id == u8::MAX {
            return None;
        }
        if id == VENDOR_SPECIFIC {
            let capability = &space[at..];
            let capability = capability.get(..usize::from(*capability.get(LENGTH)?))?;
            return (capability.get(SIGNATURE..RECORDS)? == b"VF").then_some(capability);
        }
        at = usize::from(next);
    }
    None
}

/// Driver version and branch of the vGPU's host.
fn vgpu_host(capability: &[u8]) -> VgpuHost {
    let mut records = capability.get(RECORDS..).unwrap_or_default();
    while let [id, length, data @ ..] = records {
        if *id == 0 {
            let field = |from: usize| data.get(from..from + FIELD).and_then(text);
            return VgpuHost { driver_version: field(0), driver_branch: field(FIELD) };
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
        let mut space = vec![0; SPACE];
        space[STATUS] = HAS_LIST;
        space[LIST] = 0x68;
        space[0x68..0x6a].copy_from_slice(&[0x05, 0xd0]);
        let length = u8::try_from(RECORDS + records.len()).expect("short");
        space[0xd0..0xd5].copy_from_slice(&[VENDOR_SPECIFIC, 0, length, b'V', b'F']);
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
        check(&vec![0; SPACE], &Vgpu::Absent);
        let mut other = virtual_gpu(b"");
        other[0xd3..0xd5].copy_from_slice(b"\x01\x00");
        check(&other, &Vgpu::Absent);
        let mut circle = virtual_gpu(b"");
        circle[0x69] = 0x68;
        check(&circle, &Vgpu::Absent);
        check(&vec![0xff; SPACE], &Vgpu::Absent);
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
