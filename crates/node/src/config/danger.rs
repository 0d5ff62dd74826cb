//! What no container shall have by mistake: nodes and files that give away the whole machine.

use std::path::Path;

use crate::glob::{is_pattern, path_fits};

/// Nodes that are no device, an example of each, and what a container could do with them.
const NODES: [(&str, &str, &str); 8] = [
    ("/dev/mem", "/dev/mem", MEMORY),
    ("/dev/kmem", "/dev/kmem", MEMORY),
    ("/dev/port", "/dev/port", "it gives away every port of the machine"),
    ("/dev/kcore", "/dev/kcore", MEMORY),
    ("/proc/kcore", "/proc/kcore", MEMORY),
    ("/dev/kmsg", "/dev/kmsg", "it gives away the kernel's log, and lets a container write to it"),
    (
        "/dev/cpu/*/msr",
        "/dev/cpu/0/msr",
        "it gives away the registers of a core, and so the kernel",
    ),
    ("/dev/loop-control", "/dev/loop-control", "it makes block devices of any file"),
];

/// Ways to disks that are no block devices.
const PAST_FILES: [(&str, &str, &str); 5] = [
    ("/dev/sg[0-9]*", "/dev/sg0", DISK),
    ("/dev/bsg/*", "/dev/bsg/0:0:0:0", DISK),
    ("/dev/nvme[0-9]*", "/dev/nvme0", DISK),
    ("/dev/ng[0-9]*", "/dev/ng0n1", DISK),
    ("/dev/mtd[0-9]*", "/dev/mtd0", "it gives away flash memory, and with it the firmware"),
];

const MEMORY: &str = "it gives away the memory of the whole machine";

const DISK: &str = "it gives away a disk, past its file systems";

pub(crate) const BLOCK: &str = "a block device gives away the data of its file systems";

/// What disks are called, with a name of each sort that a pattern is tried with. The name is followed by
/// what numbers and letters a disk has.
const DISKS: [(&str, &[&str]); 15] = [
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
];

/// Folders of links to disks.
const DISK_FOLDERS: [&str; 3] = ["/dev/disk", "/dev/mapper", "/dev/block"];

/// Sockets by which a container could start others, with any rights.
const RUNTIMES: [&str; 8] = [
    "containerd",
    "crio",
    "docker.sock",
    "docker",
    "k3s",
    "cri-dockerd.sock",
    "podman",
    "dockershim.sock",
];

/// Folders that say how the whole machine is, below which much is harmless.
const WHOLE: [&str; 12] = [
    "/", "/boot", "/dev", "/etc", "/home", "/proc", "/run", "/sys", "/usr", "/var", "/var/lib",
    "/var/run",
];

/// Files, and folders of which nothing is harmless, with what they have.
const KEPT: [(&str, &str); 23] = [
    ("/etc/kubernetes", CLUSTER),
    ("/etc/cni", CLUSTER),
    ("/var/lib/etcd", CLUSTER),
    ("/var/lib/rancher", CLUSTER),
    ("/var/lib/containerd", CONTAINERS),
    ("/var/lib/containers", CONTAINERS),
    ("/var/lib/docker", CONTAINERS),
    ("/etc/gshadow", SECRETS),
    ("/etc/shadow", SECRETS),
    ("/etc/ssh", SECRETS),
    ("/etc/sudoers", SECRETS),
    ("/root", SECRETS),
    ("/proc/kcore", "has the memory of the whole machine"),
    ("/proc/sys", "steers the kernel of the whole machine"),
    ("/proc/sysrq-trigger", "steers the kernel of the whole machine"),
    ("/sys/kernel", "steers the kernel of the whole machine"),
    ("/etc/cron.d", PROGRAMS),
    ("/etc/crontab", PROGRAMS),
    ("/etc/ld.so.preload", PROGRAMS),
    ("/etc/systemd", PROGRAMS),
    ("/etc/udev", PROGRAMS),
    ("/usr/lib/systemd", PROGRAMS),
    ("/var/spool/cron", PROGRAMS),
];

const CLUSTER: &str = "has the node's own rights in the cluster";

const CONTAINERS: &str = "has the files of every container";

const PROGRAMS: &str = "says what the node runs with all rights";

const SECRETS: &str = "has the secrets of the node's own users";

/// Why a pattern of nodes is no path below `/dev`.
pub(crate) fn no_node(pattern: &str) -> Option<String> {
    let path = Path::new(pattern);
    if !path.starts_with("/dev") || path == Path::new("/dev") {
        return Some(format!("{pattern} is no device node: write a path below /dev"));
    }
    if pattern.ends_with('/') {
        return Some(format!("{pattern} is no device node: write it without / at its end"));
    }
    no_plain_path(pattern)
}

/// Why a text is no path that can be judged: one that can has no other spelling, but for a `/` at its end.
pub(crate) fn no_plain_path(text: &str) -> Option<String> {
    let below = text.strip_prefix('/').map(|below| below.strip_suffix('/').unwrap_or(below));
    let mut parts = below.into_iter().flat_map(|below| below.split('/'));
    let is_plain = below.is_some() && parts.all(|part| !["", ".", ".."].contains(&part));
    (!is_plain && text != "/").then(|| {
        format!("{text} is no path from the root: write it from / on, without .., . and //")
    })
}

/// Why a node must not be handed out, or why a pattern may fit one that must not.
pub(crate) fn of_nodes(pattern: &str) -> Option<String> {
    // A folder that fits is given with all that is in it.
    let fits = |path: &str| {
        let above = Path::new(path).ancestors().filter_map(Path::to_str);
        above.into_iter().any(|path| path_fits(pattern, path))
    };
    let named = |(bad, example, why): &(&str, &str, &str)| {
        let is_one = !is_pattern(pattern) && path_fits(bad, pattern);
        let node = if is_one { pattern } else { example };
        (is_one || fits(example)).then(|| refused(pattern, node, why))
    };
    if let Some(why) = NODES.iter().find_map(named) {
        return Some(why);
    }
    let in_folder = DISK_FOLDERS.iter().any(|folder| Path::new(pattern).starts_with(folder));
    let disk = pattern.strip_prefix("/dev/").filter(|name| !is_pattern(name) && is_disk(name));
    let example = || {
        let disks = DISKS.iter().flat_map(|(_, examples)| examples.iter());
        disks.map(|name| format!("/dev/{name}")).find(|path| fits(path))
    };
    match disk.map(|_| pattern.to_owned()).or_else(example) {
        Some(path) => Some(refused(pattern, &path, BLOCK)),
        None if in_folder => Some(refused(pattern, pattern, BLOCK)),
        None => PAST_FILES.iter().find_map(named),
    }
}

fn refused(pattern: &str, node: &str, why: &str) -> String {
    if pattern == node { format!("{node}: {why}") } else { format!("{pattern} fits {node}: {why}") }
}

fn is_disk(name: &str) -> bool {
    let of_controller = name.strip_prefix("nvme").map(|rest| rest.trim_start_matches(numeral));
    let by_prefix = |(prefix, _): &(&str, _)| {
        let rest = name.strip_prefix(prefix)?;
        let lettered = prefix.ends_with('d') && *prefix != "md" && *prefix != "nbd";
        let plain = |letter: char| numeral(letter) || letter == 'p';
        let rest = if lettered {
            rest.trim_start_matches(|it: char| it.is_ascii_lowercase())
        } else {
            rest
        };
        Some(!name[prefix.len()..].is_empty() && rest.chars().all(plain))
    };
    of_controller.is_some_and(|rest| rest.starts_with('n'))
        || DISKS.iter().any(|disk| by_prefix(disk) == Some(true))
}

fn numeral(letter: char) -> bool {
    letter.is_ascii_digit()
}

/// Why a file or folder of the host must not be handed out.
pub(crate) fn of_mount(path: &Path, kubelet_dir: &Path) -> Option<String> {
    let shown = path.display();
    let overlaps = |other: &Path| path.starts_with(other) || other.starts_with(path);
    if overlaps(kubelet_dir) {
        return Some(format!("{shown} has the kubelet's sockets and every pod's secrets"));
    }
    if WHOLE.iter().any(|whole| path == Path::new(whole)) {
        return Some(format!("{shown} gives away the whole machine: name what is needed in it"));
    }
    if let Some((_, why)) = KEPT.iter().find(|(folder, _)| path.starts_with(folder)) {
        return Some(format!("{shown} {why}"));
    }
    if let Some(why) = path.to_str().filter(|_| path.starts_with("/dev")).and_then(of_nodes) {
        return Some(why);
    }
    if is_of_process(path) {
        return Some(format!("{shown} is a process of the node, with the files that it sees"));
    }
    let runtime = ["/run", "/var/run"]
        .iter()
        .any(|run| RUNTIMES.iter().any(|name| overlaps(&Path::new(run).join(name))));
    runtime.then(|| format!("{shown} gives away the container runtime, and with it the machine"))
}

/// Whether a path leads through a process, such as `/proc/1/root`.
fn is_of_process(path: &Path) -> bool {
    let below = path.strip_prefix("/proc").ok().and_then(|below| below.iter().next()?.to_str());
    below.is_some_and(|name| {
        name.ends_with("self") || name.starts_with(|first: char| first.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_gives_away_the_machine_is_told_from_devices() {
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
        ] {
            assert!(of_nodes(bad).is_some(), "{bad}");
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
        ] {
            assert_eq!(of_nodes(good), None, "{good}");
        }
        assert_eq!(
            of_nodes("/dev/*").as_deref(),
            Some("/dev/* fits /dev/mem: it gives away the memory of the whole machine")
        );
    }

    #[test]
    fn mounts_leave_the_machine_to_itself() {
        let kubelet = Path::new("/k/kubelet");
        for bad in [
            "/",
            "/proc",
            "/sys",
            "/etc",
            "/k",
            "/k/kubelet/pods",
            "/run/containerd",
            "/var/run/docker.sock",
            "/run/k3s/containerd/containerd.sock",
            "/etc/kubernetes/pki",
            "/proc/1/root",
            "/proc/self/root",
            "/proc/sysrq-trigger",
            "/proc/sys/kernel/core_pattern",
            "/etc/shadow",
            "/etc/ssh/keys",
            "/root/.ssh",
            "/var/lib",
            "/var/lib/containerd",
            "/var/lib/docker/overlay2",
            "/var/lib/rancher",
            "/var/lib/etcd",
            "/dev/mem",
            "/dev/sda",
            "/sys/kernel/debug",
            "/etc/cron.d/job",
            "/etc/systemd/system",
        ] {
            assert!(of_mount(Path::new(bad), kubelet).is_some(), "{bad}");
        }
        for good in [
            "/etc/darwin3/board0",
            "/opt/xilinx",
            "/proc/driver/x",
            "/run/board.sock",
            "/dev/shm",
            "/sys/devices/virtual/dmi",
            "/usr/local/bin/npu-smi",
            "/var/lib/boards",
        ] {
            assert_eq!(of_mount(Path::new(good), kubelet), None, "{good}");
        }
    }

    #[test]
    fn a_node_is_below_dev_and_nowhere_else() {
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
            assert!(no_node(bad).is_some(), "{bad}");
        }
        assert_eq!(no_node("/dev/a/b*"), None);
        assert_eq!(no_node("/dev/.a/..b"), None);
    }

    #[test]
    fn a_path_that_can_be_judged_is_spelled_in_one_way() {
        for bad in ["", "x", "//", "/x//", "/x//y", "/./x", "/x/.", "/x/..", "/x/../y"] {
            assert!(no_plain_path(bad).is_some(), "{bad}");
        }
        for good in ["/", "/x", "/x/", "/x/y"] {
            assert_eq!(no_plain_path(good), None, "{good}");
        }
    }
}
