//! The container of a process, by the process's control group.
//!
//! The kubelet names a pod's control group after the pod, and the container runtime names the group below it after the
//! container. A process cannot leave its groups without rights on the host.

use std::{io, os::fd::OwnedFd};

use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal},
};

use crate::{Host, own_process::start_time};

/// A container of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContainerId {
    /// UID of the pod at the kubelet.
    pub pod: String,
    /// The container's id at the container runtime.
    pub id: String,
}

/// A container's process that holds memory of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuProcess {
    /// Process id on the host.
    pub pid: u32,
    /// Container of the process.
    pub container: ContainerId,
    /// GPU memory of the process in bytes, its contexts included.
    pub memory_bytes: u64,
    /// Share of recent time in which its kernels ran, in percent; `None` if the driver does not measure it.
    pub compute_percent: Option<u32>,
}

/// Bit of `CAP_SYS_PTRACE` in a set of capabilities (`capabilities(7)`).
const SYS_PTRACE: u64 = 1 << 19;

// === impl Host ===

impl Host {
    /// Container of a process; `None` for a process of the host itself.
    ///
    /// # Errors
    ///
    /// Fails if the process does not exist.
    pub fn container_of(&self, pid: u32) -> io::Result<Option<ContainerId>> {
        Ok(ContainerId::parse(&self.try_read_text(format!("/proc/{pid}/cgroup"))?))
    }

    /// True if the host's `/proc` shows this process under its own id. Then the agent is in the host's PID namespace,
    /// and process ids of the driver are those of `/proc`.
    pub fn shows_own_process(&self) -> bool {
        let own_stat = std::fs::read_to_string("/proc/self/stat").ok();
        let shown_stat = self.read_text(format!("/proc/{}/stat", std::process::id()));
        own_stat.as_deref().and_then(start_time).is_some_and(|own_start| {
            shown_stat
                .as_deref()
                .and_then(start_time)
                .is_some_and(|shown_start| own_start == shown_start)
        })
    }

    /// True if this process may read the open files of others: according to the host's `/proc`, it has
    /// the capability `SYS_PTRACE`.
    pub fn shows_open_files(&self) -> bool {
        let status = self.read_text(format!("/proc/{}/status", std::process::id()));
        let effective_set =
            |text: &str| text.lines().find_map(|line| line.strip_prefix("CapEff:").map(hex));
        let capabilities = status.as_deref().and_then(effective_set).flatten();
        self.shows_own_process()
            && capabilities.is_some_and(|capabilities| capabilities & SYS_PTRACE != 0)
    }

    /// Ends a process by SIGKILL if it still belongs to the container. Returns false if it has ended, or if its id
    /// belongs to another process now.
    ///
    /// # Errors
    ///
    /// Fails if the agent may not signal the process.
    pub fn kill_in(&self, pid: u32, container: &ContainerId) -> io::Result<bool> {
        // The handle refers to this process even if another one gets its id.
        let Some(process) = open(pid)? else { return Ok(false) };
        if self.container_of(pid).ok().flatten().as_ref() != Some(container) {
            return Ok(false);
        }
        match pidfd_send_signal(&process, Signal::KILL) {
            Err(Errno::SRCH) => Ok(false),
            result => Ok(result.map(|()| true)?),
        }
    }
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim(), 16).ok()
}

/// True for a process in the agent's PID namespace that has not ended.
pub fn is_alive(pid: u32) -> bool {
    open(pid).is_ok_and(|process| process.is_some())
}

/// A handle of the process with this id; `None` if there is none.
fn open(pid: u32) -> io::Result<Option<OwnedFd>> {
    let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { return Ok(None) };
    match pidfd_open(pid, PidfdFlags::empty()) {
        Err(Errno::SRCH) => Ok(None),
        result => Ok(Some(result?)),
    }
}

// === impl ContainerId ===

impl ContainerId {
    /// Container in the content of `/proc/PID/cgroup`; `None` for a process outside pods.
    ///
    /// The forms are those of the kubelet's drivers (`pkg/kubelet/cm`) and of the runtimes:
    ///
    /// ```text
    /// 0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-ID.scope
    /// 11:memory:/kubepods/burstable/podUID/ID
    /// ```
    pub fn parse(text: &str) -> Option<Self> {
        let mut paths = text.lines().filter_map(|line| line.splitn(3, ':').nth(2));
        paths.find_map(Self::in_group)
    }

    /// The container of a control group, by the group's path.
    pub fn in_group(path: &str) -> Option<Self> {
        let mut parts = path.split('/');
        // The first match counts, because a container may give any name to control groups that it creates.
        let pod = parts.find_map(pod_of)?;
        let scope = parts.next()?;
        let name = scope.strip_suffix(".scope").unwrap_or(scope);
        let id = name.rsplit('-').next().filter(|id| !id.is_empty())?;
        Some(Self { pod, id: id.to_owned() })
    }
}

/// UID of the pod in a component of a control group's path.
fn pod_of(part: &str) -> Option<String> {
    let uid = match part.strip_suffix(".slice") {
        // systemd's driver writes `_` for `-`, which separates levels.
        Some(slice) => slice.rsplit('-').next()?.strip_prefix("pod")?.replace('_', "-"),
        None => part.strip_prefix("pod")?.to_owned(),
    };
    let is_uid = uid.len() >= 32 && uid.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    is_uid.then_some(uid)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        process::{Command, Stdio},
    };

    use super::*;

    const UID: &str = "8ab2c0de-1234-4f6a-9c1d-0123456789ab";
    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn every_form_of_control_group_gives_pod_and_container() {
        let escaped_uid = UID.replace('-', "_");
        let pod = |prefix: &str| format!("{prefix}kubepods-burstable-pod{escaped_uid}.slice");
        for path in [
            format!(
                "0::/kubepods.slice/{}/cri-containerd-{ID}.scope",
                pod("kubepods-burstable.slice/")
            ),
            format!("0::/kubepods.slice/{}/crio-{ID}.scope/container", pod("")),
            // Seen from a control group namespace of its own.
            format!("0::/../../{}/cri-containerd-{ID}.scope", pod("")),
            // A node in a container.
            format!(
                "0::/kubelet.slice/kubelet-kubepods.slice/{}/cri-containerd-{ID}.scope",
                pod("kubelet-")
            ),
            format!(
                "12:cpuset:/kubepods/besteffort/pod{UID}/{ID}\n0::/kubepods/besteffort/pod{UID}/{ID}"
            ),
            format!("1:name=systemd:/kubepods/pod{UID}/{ID}/own/pod{}", "f".repeat(32)),
            format!("0::/system.slice/k3s.service/kubepods/pod{UID}/{ID}"),
        ] {
            let expected = ContainerId { pod: UID.to_owned(), id: ID.to_owned() };
            assert_eq!(ContainerId::parse(&path), Some(expected), "{path}");
        }
        // The kubelet's own UIDs of static pods have no dashes.
        let hash = "d0a1".repeat(8);
        let container = ContainerId::parse(&format!("0::/kubepods/burstable/pod{hash}/{ID}"));
        assert_eq!(container.map(|container| container.pod), Some(hash));
        for path in
            ["0::/", "", "0::/system.slice/podman.service", "0::/kubepods/pod..", "0::/podcast-x"]
        {
            assert_eq!(ContainerId::parse(path), None, "{path}");
        }
    }

    #[test]
    fn only_a_process_of_the_given_container_is_killed() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(root.path(), "/");
        let sleeper = Command::new("sleep").arg("600").stdout(Stdio::null()).spawn();
        let mut sleeper = sleeper.expect("a program");
        let pid = sleeper.id();
        let container = |id: &str| ContainerId { pod: UID.to_owned(), id: id.to_owned() };
        assert!(host.container_of(pid).is_err());
        assert_eq!(
            host.kill_in(pid, &container(ID)).ok(),
            Some(false),
            "the container of the process is unknown"
        );
        let folder = root.path().join(format!("proc/{pid}"));
        fs::create_dir_all(&folder).expect("a folder");
        fs::write(folder.join("cgroup"), format!("0::/kubepods/pod{UID}/{ID}")).expect("written");
        assert_eq!(
            host.kill_in(pid, &container("other")).ok(),
            Some(false),
            "the process belongs to another container"
        );
        assert!(matches!(sleeper.try_wait(), Ok(None)));
        assert_eq!(host.kill_in(pid, &container(ID)).ok(), Some(true));
        assert!(!sleeper.wait().expect("a child process").success());
        assert_eq!(host.kill_in(pid, &container(ID)).ok(), Some(false), "the process has ended");
    }

    #[test]
    fn the_hosts_pid_namespace_is_recognised_by_the_own_process() {
        assert!(Host::new("/", "/").shows_own_process());
        let root = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(root.path(), "/");
        assert!(!host.shows_own_process());
        let folder = root.path().join(format!("proc/{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let other = fs::read_to_string("/proc/1/stat").expect("readable");
        fs::write(folder.join("stat"), other).expect("written");
        assert!(!host.shows_own_process(), "another process has the id");
    }

    #[test]
    fn open_files_are_shown_to_a_process_with_the_capability() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(root.path(), "/");
        let folder = root.path().join(format!("proc/{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let status = |text: &str| fs::write(folder.join("status"), text).expect("written");
        status("Name:\tx\nCapEff:\t0000000000080000\nCapBnd:\t0\n");
        assert!(!host.shows_open_files(), "the host's processes are hidden");
        let own = fs::read_to_string("/proc/self/stat").expect("readable");
        fs::write(folder.join("stat"), own).expect("written");
        assert!(host.shows_open_files());
        for without in ["CapEff:\t0000000000000020", "CapEff:\tall", "CapBnd:\t80000", ""] {
            status(without);
            assert!(!host.shows_open_files(), "{without}");
        }
    }
}
