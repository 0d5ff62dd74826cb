//! Control group of a daemon. Container runtime and systemd end every process of the agent's group with the agent. A
//! daemon in a separate group outlives the agent, and its memory does not count as the agent's.

use std::{
    fs, io,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    thread,
};

use rustix::{
    process::Pid,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use windlass_core::{device::DeviceId, memory_limit::CGROUP_ROOT};
use windlass_host::Host;

/// Group of all daemons, below the root.
const CGROUP_NAME: &str = "windlass-mps";

/// File that cgroup v2 has in each group, its root included (`cgroups(7)`). Version 1 has none.
const CONTROLLERS_FILE: &str = "cgroup.controllers";

/// File to which the id of a process is written to move it into the group.
const PROCS_FILE: &str = "cgroup.procs";

/// File that enables controllers for the groups below, and the text that enables the memory controller.
const SUBTREE_CONTROL: &str = "cgroup.subtree_control";
const ENABLE_MEMORY: &str = "+memory";

/// File that ends all processes of a group (Linux 5.14).
const KILL: &str = "cgroup.kill";

/// Namespace of control groups of the first process, which is the host's for an agent in the host's PID namespace.
const NAMESPACE: &str = "/proc/1/ns/cgroup";

/// Moves a daemon into a separate group. Does nothing on a host without cgroup v2, where daemons end with the agent's
/// container.
pub(super) fn move_to_own_group(host: &Host, device: &DeviceId, daemon: Pid) -> io::Result<()> {
    let root = host.path(CGROUP_ROOT);
    if !root.join(CONTROLLERS_FILE).exists() {
        return Ok(());
    }
    let group = group(host, device);
    fs::create_dir_all(&group)?;
    // Without the controller the daemon works too, but its memory is counted together with that of the others.
    let _ = fs::write(root.join(CGROUP_NAME).join(SUBTREE_CONTROL), ENABLE_MEMORY);
    // The move changes the cgroup namespace of its thread, so it runs on a separate thread, which ends with the move.
    thread::scope(|scope| {
        scope.spawn(|| move_into(&group, daemon)).join().map_err(|_| io::ErrorKind::Other)?
    })
}

/// Ends the processes that a daemon left in its group, and removes the group. If the kernel still has a process in it,
/// the next call removes the group.
pub(super) fn remove(host: &Host, device: &DeviceId) {
    let group = group(host, device);
    if fs::exists(group.join(KILL)).unwrap_or(false) {
        // An error means that the group has no process.
        let _ = fs::write(group.join(KILL), "1");
    }
    let _ = fs::remove_dir(group);
}

fn group(host: &Host, device: &DeviceId) -> PathBuf {
    host.path(CGROUP_ROOT).join(CGROUP_NAME).join(device.as_str())
}

/// Moves a process into a group. Enters the host's cgroup namespace first, because the kernel refuses a move across
/// namespaces (`nsdelegate`).
fn move_into(group: &Path, process: Pid) -> io::Result<()> {
    if let Ok(namespace) = fs::File::open(NAMESPACE) {
        // Without the right to change the namespace, the move may still succeed.
        let _ = move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::ControlGroup));
    }
    fs::write(group.join(PROCS_FILE), process.as_raw_nonzero().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_gets_a_separate_group_on_cgroup_version_2() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(dir.path(), "/");
        let (device, daemon) = ("GPU-1".parse().expect("an id"), Pid::from_raw(71).expect("a pid"));
        let root = dir.path().join("sys/fs/cgroup");
        fs::create_dir_all(root.join("memory")).expect("made");
        move_to_own_group(&host, &device, daemon).expect("version 1 has nothing to do");
        assert!(!root.join(CGROUP_NAME).exists());
        fs::write(root.join(CONTROLLERS_FILE), "memory").expect("written");
        move_to_own_group(&host, &device, daemon).expect("moved");
        let processes = root.join(CGROUP_NAME).join("GPU-1").join(PROCS_FILE);
        assert_eq!(fs::read_to_string(&processes).expect("written"), "71");
        let subtree_control = fs::read_to_string(root.join(CGROUP_NAME).join(SUBTREE_CONTROL));
        assert_eq!(
            subtree_control.expect("written"),
            ENABLE_MEMORY,
            "memory is counted per daemon"
        );
        fs::remove_file(processes).expect("removed, as the kernel does with the group");
        remove(&host, &device);
        assert!(!root.join(CGROUP_NAME).join("GPU-1").exists());
        remove(&host, &device);
    }
}
