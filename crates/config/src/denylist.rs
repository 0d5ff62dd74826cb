//! Denylist: nodes and files that would give a container control of the whole machine.

mod mounts;

use std::path::Path;

use windlass_host::glob::{is_pattern, path_matches};

pub use self::mounts::mount_danger;
pub(crate) use self::mounts::write_danger;

/// Device nodes that control the whole machine, each with an example and the danger.
///
/// A list of harmless nodes is impossible, since drivers choose the names of their nodes.
/// The names are those of the kernel (Documentation/admin-guide/devices.txt) and of drivers that servers have.
const DANGEROUS_NODES: &[(&str, &str, &str)] = &[
    ("/dev/mem", "/dev/mem", MEMORY),
    ("/dev/kmem", "/dev/kmem", MEMORY),
    ("/dev/oldmem", "/dev/oldmem", MEMORY),
    ("/dev/crash", "/dev/crash", MEMORY),
    ("/dev/core", "/dev/core", MEMORY),
    ("/dev/snapshot", "/dev/snapshot", MEMORY),
    ("/dev/port", "/dev/port", "it exposes every port of the machine"),
    ("/dev/kcore", "/dev/kcore", MEMORY),
    ("/proc/kcore", "/proc/kcore", MEMORY),
    ("/dev/kmsg", "/dev/kmsg", "it exposes the kernel's log, and lets a container write to it"),
    ("/dev/cpu/*/msr", "/dev/cpu/0/msr", "it exposes the registers of a core, and so the kernel"),
    ("/dev/xen/*", "/dev/xen/privcmd", "it exposes the hypervisor, and so every machine on it"),
    ("/dev/loop-control", "/dev/loop-control", MAKES_DISKS),
    ("/dev/ublk-control", "/dev/ublk-control", MAKES_DISKS),
    ("/dev/nvme-fabrics", "/dev/nvme-fabrics", MAKES_DISKS),
    ("/dev/rawctl", "/dev/rawctl", MAKES_DISKS),
    ("/dev/btrfs-control", "/dev/btrfs-control", FILE_SYSTEMS),
    ("/dev/zfs", "/dev/zfs", FILE_SYSTEMS),
    ("/dev/autofs", "/dev/autofs", FILE_SYSTEMS),
    ("/dev/watchdog*", "/dev/watchdog0", POWER),
    ("/dev/initctl", "/dev/initctl", POWER),
    ("/dev/ipmi[0-9]*", "/dev/ipmi0", MANAGEMENT),
    ("/dev/ipmi/*", "/dev/ipmi/0", MANAGEMENT),
    ("/dev/ipmidev/*", "/dev/ipmidev/0", MANAGEMENT),
    ("/dev/mei[0-9]*", "/dev/mei0", MANAGEMENT),
    ("/dev/efi_capsule_loader", "/dev/efi_capsule_loader", FIRMWARE),
    ("/dev/nvram", "/dev/nvram", FIRMWARE),
    ("/dev/mst/*", "/dev/mst/mt4119_pciconf0", FIRMWARE),
    ("/dev/cxl/*", "/dev/cxl/mem0", FIRMWARE),
    ("/dev/tpm[0-9]*", "/dev/tpm0", KEYS),
    ("/dev/tpmrm[0-9]*", "/dev/tpmrm0", KEYS),
    ("/dev/uinput", "/dev/uinput", TYPES),
    ("/dev/uhid", "/dev/uhid", TYPES),
    ("/dev/console", "/dev/console", TERMINAL),
];

/// Nodes that are refused by name alone, since patterns of harmless nodes match them too, such as `/dev/tty*` and
/// `/dev/vfio/*`. Discovery withholds the nodes of this list that such a pattern matches.
const DANGEROUS_NAMES: &[(&str, &str)] = &[
    ("/dev/tty[0-9]*", TERMINAL),
    ("/dev/hvc[0-9]*", TERMINAL),
    ("/dev/vcs*", TERMINAL),
    ("/dev/ptmx", TERMINAL),
    ("/dev/pts/*", TERMINAL),
    ("/dev/vfio/noiommu-*", "without an IOMMU it exposes the memory of the whole machine"),
];

/// Character devices that reach a disk.
const RAW_DISKS: &[(&str, &str, &str)] = &[
    ("/dev/sg[0-9]*", "/dev/sg0", DISK),
    ("/dev/bsg/*", "/dev/bsg/0:0:0:0", DISK),
    ("/dev/nvme[0-9]*", "/dev/nvme0", DISK),
    ("/dev/ng[0-9]*", "/dev/ng0n1", DISK),
    ("/dev/mtd[0-9]*", "/dev/mtd0", FLASH),
    ("/dev/ubi*", "/dev/ubi0", FLASH),
    ("/dev/mmcblk*rpmb", "/dev/mmcblk0rpmb", FLASH),
    ("/dev/raw/*", "/dev/raw/raw1", DISK),
    ("/dev/ublkc[0-9]*", "/dev/ublkc0", DISK),
    ("/dev/st[0-9]*", "/dev/st0", TAPE),
    ("/dev/nst[0-9]*", "/dev/nst0", TAPE),
    ("/dev/megaraid*", "/dev/megaraid_sas_ioctl_node", DISK),
];

const MEMORY: &str = "it exposes the memory of the whole machine";

const MAKES_DISKS: &str = "it makes block devices from any file or server";

const FILE_SYSTEMS: &str = "it exposes the machine's file systems";

const POWER: &str = "it restarts the machine";

const MANAGEMENT: &str = "it exposes the machine's management, with its power and its firmware";

const FIRMWARE: &str = "it exposes firmware and its settings, which outlive the system";

const FLASH: &str = "it exposes flash memory, and with it the firmware";

const TAPE: &str = "it exposes a tape";

const KEYS: &str = "it exposes the keys of the machine";

const TYPES: &str = "it types and clicks at the machine's own screen";

const TERMINAL: &str = "it exposes a terminal of the machine";

const DISK: &str = "it exposes a disk below its file systems";

/// Danger of a block device.
pub const BLOCK_DEVICE_DANGER: &str = "a block device exposes the data of its file systems";

/// Prefixes of the names of disks, and examples to try a pattern with. Numbers and letters follow the prefix.
const DISKS: &[(&str, &[&str])] = &[
    ("sd", &["sda", "sda1", "sdb"]),
    ("hd", &["hda"]),
    ("vd", &["vda", "vda1"]),
    ("xvd", &["xvda"]),
    ("nvme0n", &["nvme0n1", "nvme0n1p1"]),
    ("mmcblk", &["mmcblk0", "mmcblk0p1"]),
    ("dm-", &["dm-0"]),
    ("md", &["md0"]),
    ("loop", &["loop0"]),
    ("nbd", &["nbd0"]),
    ("sr", &["sr0"]),
    ("zram", &["zram0"]),
    ("ram", &["ram0"]),
    ("pmem", &["pmem0"]),
    ("mtdblock", &["mtdblock0"]),
    ("rbd", &["rbd0", "rbd0p1"]),
    ("drbd", &["drbd0"]),
    ("bcache", &["bcache0"]),
    ("zd", &["zd0"]),
    ("dasd", &["dasda", "dasda1"]),
    ("fd", &["fd0"]),
    ("ublkb", &["ublkb0"]),
];

/// Prefixes of [`DISKS`] that letters follow.
const LETTERED: [&str; 5] = ["sd", "hd", "vd", "xvd", "dasd"];

const DISK_FOLDERS: [&str; 3] = ["/dev/disk", "/dev/mapper", "/dev/block"];

/// Error message for a pattern that is not a path below `/dev`.
pub fn node_path_error(pattern: &str) -> Option<String> {
    let path = Path::new(pattern);
    if !path.starts_with("/dev") || path == Path::new("/dev") {
        return Some(format!("{pattern} is not a device node: write a path below /dev"));
    }
    if pattern.ends_with('/') {
        return Some(format!("{pattern} is not a device node: write it without / at its end"));
    }
    plain_path_error(pattern)
}

/// Error message for a path with `.`, `..` or `//`: the denylist compares text. A `/` at the end is allowed.
pub fn plain_path_error(text: &str) -> Option<String> {
    let relative =
        text.strip_prefix('/').map(|relative| relative.strip_suffix('/').unwrap_or(relative));
    let mut parts = relative.into_iter().flat_map(|relative| relative.split('/'));
    let is_plain = relative.is_some() && parts.all(|part| !["", ".", ".."].contains(&part));
    (!is_plain && text != "/").then(|| {
        format!("{text} is not a path from the root: write it from / on, without .., . and //")
    })
}

/// Danger of a device node, or of a node that a pattern may match.
pub fn node_danger(pattern: &str) -> Option<String> {
    // A pattern that matches a folder gives a container all files below the folder.
    let matches_path = |path: &str| {
        let ancestors = Path::new(path).ancestors().filter_map(Path::to_str);
        ancestors.into_iter().any(|path| path_matches(pattern, path))
    };
    let danger_in_list = |(dangerous, example, danger): &(&str, &str, &str)| {
        let is_the_node = !is_pattern(pattern) && path_matches(dangerous, pattern);
        let node = if is_the_node { pattern } else { example };
        (is_the_node || matches_path(example)).then(|| danger_message(pattern, node, danger))
    };
    let by_name = || {
        DANGEROUS_NAMES
            .iter()
            .find(|(dangerous, _)| !is_pattern(pattern) && path_matches(dangerous, pattern))
    };
    if let Some(danger) = DANGEROUS_NODES.iter().find_map(danger_in_list) {
        return Some(danger);
    }
    if let Some((_, danger)) = by_name() {
        return Some(danger_message(pattern, pattern, danger));
    }
    let in_folder = DISK_FOLDERS.iter().any(|folder| Path::new(pattern).starts_with(folder));
    let disk = pattern.strip_prefix("/dev/").filter(|name| !is_pattern(name) && is_disk(name));
    let example = || {
        let disks = DISKS.iter().flat_map(|(_, examples)| examples.iter());
        disks.map(|name| format!("/dev/{name}")).find(|path| matches_path(path))
    };
    match disk.map(|_| pattern.to_owned()).or_else(example) {
        Some(path) => Some(danger_message(pattern, &path, BLOCK_DEVICE_DANGER)),
        None if in_folder => Some(danger_message(pattern, pattern, BLOCK_DEVICE_DANGER)),
        None => RAW_DISKS.iter().find_map(danger_in_list),
    }
}

fn danger_message(pattern: &str, node: &str, danger: &str) -> String {
    if pattern == node {
        format!("{node}: {danger}")
    } else {
        format!("{pattern} fits {node}: {danger}")
    }
}

fn is_disk(name: &str) -> bool {
    let nvme_suffix = name.strip_prefix("nvme").map(|suffix| suffix.trim_start_matches(numeral));
    let matches_prefix = |(prefix, _): &(&str, _)| {
        let suffix = name.strip_prefix(prefix)?;
        let is_number_or_p = |letter: char| numeral(letter) || letter == 'p';
        let suffix = if LETTERED.contains(prefix) {
            suffix.trim_start_matches(|character: char| character.is_ascii_lowercase())
        } else {
            suffix
        };
        Some(!name[prefix.len()..].is_empty() && suffix.chars().all(is_number_or_p))
    };
    nvme_suffix.is_some_and(|suffix| suffix.starts_with('n'))
        || DISKS.iter().any(|disk| matches_prefix(disk) == Some(true))
}

fn numeral(character: char) -> bool {
    character.is_ascii_digit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dangerous_nodes_are_distinguished_from_devices() {
        for bad in [
            "/dev/mem",
            "/dev/*",
            "/dev/m*",
            "/dev/k?sg",
            "/dev/sda",
            "/dev/sdc5",
            "/dev/sd*",
            "/dev/nvme1n1",
            "/dev/nvme*",
            "/dev/vd[a-z]",
            "/dev/dm-3",
            "/dev/disk/by-id/*",
            "/dev/loop7",
            "/dev/sg2",
            "/dev/mapper/root",
            "/dev/md127",
            "/dev/xvdba",
            "/dev/ng0n1",
            "/dev/nvme0",
            "/dev/nvme[0-9]",
            "/dev/bsg/1:0:0:0",
            "/dev/cpu/3/msr",
            "/dev/cpu/*/*",
            "/dev/cpu",
            "/dev/bsg",
            "/dev/loop-control",
            "/dev/mtd1ro",
            "/dev/mtdblock2",
            "/dev/snapshot",
            "/dev/watchdog",
            "/dev/watchdog0",
            "/dev/ipmi0",
            "/dev/uinput",
            "/dev/console",
            "/dev/tty1",
            "/dev/vcs1",
            "/dev/ptmx",
            "/dev/tpmrm0",
            "/dev/btrfs-control",
            "/dev/rbd0",
            "/dev/drbd0",
            "/dev/bcache0",
            "/dev/zd0",
            "/dev/dasda",
            "/dev/st0",
            "/dev/fd0",
            "/dev/nvram",
            "/dev/mst/mt4119_pciconf0",
            "/dev/nvme-fabrics",
            "/dev/nbd0",
            "/dev/ublkb0",
            "/dev/ublk-control",
            "/dev/raw/raw1",
            "/dev/megaraid_sas_ioctl_node",
            "/dev/initctl",
            "/dev/core",
            "/dev/oldmem",
            "/dev/efi_capsule_loader",
            "/dev/cxl/mem0",
            "/dev/vfio/noiommu-0",
            "/dev/mmcblk0rpmb",
        ] {
            assert!(node_danger(bad).is_some(), "{bad}");
        }
        for good in [
            "/dev/kvm",
            "/dev/video*",
            "/dev/ttyUSB*",
            "/dev/serial/by-id/*",
            "/dev/dri/renderD*",
            "/dev/vfio/*",
            "/dev/net/tun",
            "/dev/snd/*",
            "/dev/media0",
            "/dev/apex_*",
            "/dev/nvmap",
            "/dev/rtc0",
            "/dev/rambutan",
            "/dev/dma_proxy_tx*",
            "/dev/sdk-board",
            "/dev/cpu/0/cpuid",
            "/dev/ngpu",
            "/dev/tty*",
            "/dev/ttyS0",
            "/dev/input/event*",
            "/dev/fdx",
            "/dev/uio0",
            "/dev/stm0",
            "/dev/davinci0",
            "/dev/vfio/vfio",
        ] {
            assert_eq!(node_danger(good), None, "{good}");
        }
        assert_eq!(
            node_danger("/dev/*").as_deref(),
            Some("/dev/* fits /dev/mem: it exposes the memory of the whole machine")
        );
    }

    #[test]
    fn a_node_is_a_path_below_dev() {
        for bad in [
            "/dev",
            "/dev/",
            "dev/x",
            "/dev/../etc/shadow",
            "/sys/x",
            "/devices",
            "/dev/./mem",
            "/dev/mem/.",
            "/dev//mem",
            "//dev/mem",
            "/dev/mem/",
        ] {
            assert!(node_path_error(bad).is_some(), "{bad}");
        }
        assert_eq!(node_path_error("/dev/a/b*"), None);
        assert_eq!(node_path_error("/dev/.a/..b"), None);
    }

    #[test]
    fn a_path_with_dots_or_double_slashes_is_refused() {
        for bad in ["", "x", "//", "/x//", "/x//y", "/./x", "/x/.", "/x/..", "/x/../y"] {
            assert!(plain_path_error(bad).is_some(), "{bad}");
        }
        for good in ["/", "/x", "/x/", "/x/y"] {
            assert_eq!(plain_path_error(good), None, "{good}");
        }
    }
}
