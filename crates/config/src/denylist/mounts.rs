//! Denylist of read-only mounts, and allowlist of writable mounts.

use std::path::Path;

use super::node_danger;

/// Sockets and folders of container runtimes below `/run`: with a socket a container can start privileged containers,
/// and the folders have secrets of containers.
const RUNTIMES: &[&str] = &[
    "containerd",
    "crio",
    "docker.sock",
    "docker",
    "k3s",
    "cri-dockerd.sock",
    "podman",
    "dockershim.sock",
    "containers",
    "crun",
    "runc",
    "buildkit",
];

/// Folders that are refused themselves, while many files below them are harmless.
const TOO_BROAD: &[&str] = &[
    "/", "/boot", "/dev", "/etc", "/home", "/proc", "/run", "/sys", "/tmp", "/usr", "/var",
    "/var/lib", "/var/tmp", "/var/log",
];

/// Dangerous files, and folders in which every file is dangerous, with the danger. A read-only mount still gives access
/// to a socket.
const DANGEROUS: &[(&str, &str)] = &[
    ("/etc/kubernetes", CLUSTER),
    ("/etc/cni", CLUSTER),
    ("/etc/rancher", CLUSTER),
    ("/etc/k0s", CLUSTER),
    ("/var/lib/cni", CLUSTER),
    ("/var/lib/etcd", CLUSTER),
    ("/var/lib/k0s", CLUSTER),
    ("/var/lib/rancher", CLUSTER),
    ("/var/snap/microk8s", CLUSTER),
    ("/etc/containerd", CONTAINERS),
    ("/etc/crio", CONTAINERS),
    ("/etc/docker", CONTAINERS),
    ("/var/lib/containerd", CONTAINERS),
    ("/var/lib/containers", CONTAINERS),
    ("/var/lib/docker", CONTAINERS),
    ("/var/log/containers", CONTAINERS),
    ("/var/log/pods", CONTAINERS),
    ("/var/lib/windlass", "has the agent's own state"),
    ("/etc/NetworkManager", SECRETS),
    ("/etc/gshadow", SECRETS),
    ("/etc/krb5.keytab", SECRETS),
    ("/etc/pam.d", SECRETS),
    ("/etc/security", SECRETS),
    ("/etc/shadow", SECRETS),
    ("/etc/ssh", SECRETS),
    ("/etc/ssl/private", SECRETS),
    ("/etc/sssd", SECRETS),
    ("/etc/sudoers", SECRETS),
    ("/root", SECRETS),
    ("/run/user", SECRETS),
    ("/var/lib/NetworkManager", SECRETS),
    ("/var/lib/cloud", SECRETS),
    ("/var/lib/sss", SECRETS),
    ("/var/lib/systemd", SECRETS),
    ("/proc/kcore", "has the memory of the whole machine"),
    ("/proc/sys", "steers the kernel of the whole machine"),
    ("/proc/sysrq-trigger", "steers the kernel of the whole machine"),
    ("/sys/fs", "steers the kernel of the whole machine"),
    ("/sys/kernel", "steers the kernel of the whole machine"),
    ("/etc/cron.d", PROGRAMS),
    ("/etc/crontab", PROGRAMS),
    ("/etc/ld.so.preload", PROGRAMS),
    ("/etc/systemd", PROGRAMS),
    ("/etc/udev", PROGRAMS),
    ("/run/dbus", PROGRAMS),
    ("/run/initctl", PROGRAMS),
    ("/run/systemd", PROGRAMS),
    ("/usr/lib/systemd", PROGRAMS),
    ("/var/spool/cron", PROGRAMS),
];

/// Socket by which root makes udev run programs; other files of its folder are harmless.
const UDEV: &str = "/run/udev/control";

/// Names of folders that contain keys, anywhere in a path.
const KEYS: [&str; 4] = [".ssh", ".kube", ".gnupg", ".aws"];

const CLUSTER: &str = "has the node's own rights in the cluster";

const CONTAINERS: &str = "has the files of every container";

const PROGRAMS: &str = "decides which programs the node runs as root";

const SECRETS: &str = "has the secrets of the node's own users";

/// Folders for data, by the Filesystem Hierarchy Standard and by convention. The node neither executes nor trusts files
/// below them.
const DATA_FOLDERS: [&str; 6] = ["/dev/shm", "/data", "/media", "/mnt", "/scratch", "/srv"];

/// Folders in which each program has a folder with its own name. The node's programs have such folders, too, so a
/// source may write only to folders with its own names.
const OWNER_FOLDERS: &[&str] =
    &["/opt", "/run", "/tmp", "/var/cache", "/var/lib", "/var/log", "/var/tmp"];

/// Danger of mounting a file or folder of the host, even read-only.
pub fn mount_danger(path: &Path, kubelet_dir: &Path) -> Option<String> {
    let path_text = path.display();
    let path = &*without_links(path);
    let overlaps = |other: &Path| path.starts_with(other) || other.starts_with(path);
    if overlaps(kubelet_dir) {
        return Some(format!("{path_text} has the kubelet's sockets and every pod's secrets"));
    }
    if TOO_BROAD.iter().any(|folder| path == Path::new(folder)) {
        return Some(format!("{path_text} exposes the whole machine: name what is needed in it"));
    }
    if let Some((_, danger)) = DANGEROUS.iter().find(|(folder, _)| path.starts_with(folder)) {
        return Some(format!("{path_text} {danger}"));
    }
    if overlaps(Path::new(UDEV)) {
        return Some(format!(
            "{path_text} {PROGRAMS}: name what is needed in it, such as /run/udev/data"
        ));
    }
    if path.iter().any(|component| KEYS.iter().any(|keys| component == *keys)) {
        return Some(format!("{path_text} {SECRETS}"));
    }
    if let Some(danger) = path.to_str().filter(|_| path.starts_with("/dev")).and_then(node_danger) {
        return Some(danger);
    }
    if is_of_process(path) {
        return Some(format!("{path_text} is a process of the node, with the files that it sees"));
    }
    let is_runtime = RUNTIMES.iter().any(|name| overlaps(&Path::new("/run").join(name)));
    is_runtime
        .then(|| format!("{path_text} exposes the container runtime, and with it the machine"))
}

/// Danger of a writable mount of the path. The node executes or trusts files in too many places to list them, so this
/// is an allowlist.
pub(crate) fn write_danger(path: &Path, owners: &[String]) -> Option<String> {
    let path_text = path.display();
    let path = &*without_links(path);
    let is_for_data = || {
        let is_below = |folder: &&str| path.starts_with(folder) && path != Path::new(folder);
        DATA_FOLDERS.iter().any(is_below) || path == Path::new("/dev/shm")
    };
    let is_owned = || {
        let relative = OWNER_FOLDERS.iter().find_map(|folder| path.strip_prefix(folder).ok());
        let name = relative.and_then(|relative| relative.iter().next()?.to_str());
        name.is_some_and(|name| owners.iter().any(|owner| owner.eq_ignore_ascii_case(name)))
    };
    (!is_for_data() && !is_owned()).then(|| {
        format!(
            "{path_text} would be writable, and the node may execute or trust files there: leave `writable` out, or mount \
             something below {}, or below {} in a folder that is called {}",
            DATA_FOLDERS.join(", "),
            OWNER_FOLDERS.join(", "),
            owners.join(" or ")
        )
    })
}

/// The path below `/run` if it is below `/var/run`: that is a link on every system on which Kubernetes runs.
fn without_links(path: &Path) -> std::borrow::Cow<'_, Path> {
    match path.strip_prefix("/var/run") {
        Ok(below) if below.as_os_str().is_empty() => Path::new("/run").into(),
        Ok(below) => Path::new("/run").join(below).into(),
        Err(_) => path.into(),
    }
}

/// True for a path through a process, such as `/proc/1/root`.
fn is_of_process(path: &Path) -> bool {
    let name = path.strip_prefix("/proc").ok().and_then(|name| name.iter().next()?.to_str());
    name.is_some_and(|name| {
        name.ends_with("self") || name.starts_with(|first: char| first.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BAD: &[&str] = &[
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
        "/run/systemd/private",
        "/var/run/dbus/system_bus_socket",
        "/run/udev",
        "/sys/fs/cgroup",
        "/run/user/1000/bus",
        "/run/runc",
        "/home/somebody/.ssh",
        "/var/lib/windlass",
        "/var/lib/cloud/instance/user-data.txt",
        "/var/log/pods",
        "/etc/rancher/k3s/k3s.yaml",
        "/tmp",
    ];

    #[test]
    fn mounts_of_the_machines_own_files_are_refused() {
        let kubelet = Path::new("/k/kubelet");
        for bad in BAD {
            assert!(mount_danger(Path::new(bad), kubelet).is_some(), "{bad}");
        }
        for good in [
            "/etc/darwin3/board0",
            "/opt/xilinx",
            "/proc/driver/x",
            "/run/board.sock",
            "/run/udev/data",
            "/dev/shm",
            "/sys/devices/virtual/dmi",
            "/usr/local/bin/npu-smi",
            "/usr/local/Ascend/driver",
            "/home/kubernetes/bin/nvidia",
            "/var/lib/boards",
        ] {
            assert_eq!(mount_danger(Path::new(good), kubelet), None, "{good}");
        }
    }

    #[test]
    fn writable_mounts_are_for_data_or_in_a_folder_of_the_source() {
        let owners = ["camera".to_owned(), "acme".to_owned(), "acme.com".to_owned()];
        for bad in [
            "/opt",
            "/opt/cni/bin",
            "/opt/camera-of-others",
            "/run/cdi",
            "/var/run/cdi",
            "/etc/cdi",
            "/run/netns",
            "/usr/bin",
            "/usr/sbin",
            "/usr/local/bin",
            "/lib/modules",
            "/lib/systemd/system",
            "/bin",
            "/etc/passwd",
            "/etc/profile.d",
            "/etc/acme",
            "/etc/cron.daily",
            "/sys/power",
            "/sys/devices",
            "/proc/driver",
            "/boot/grub",
            "/var/spool/anacron",
            "/var/lib/dpkg",
            "/srv",
            "/mnt",
            "/home/acme",
            "/var/lib/../acme",
        ] {
            assert!(write_danger(Path::new(bad), &owners).is_some(), "{bad}");
        }
        for good in [
            "/opt/acme/cache",
            "/run/Camera",
            "/var/run/acme/board.sock",
            "/var/lib/acme.com",
            "/tmp/camera",
            "/dev/shm",
            "/dev/shm/ring",
            "/mnt/models",
            "/data/models",
            "/srv/models",
        ] {
            assert_eq!(write_danger(Path::new(good), &owners), None, "{good}");
        }
    }
}
