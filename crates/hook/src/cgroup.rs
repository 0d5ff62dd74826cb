//! Finds the cgroup v2 of a container through procfs.

use std::path::{Component, Path, PathBuf};

use windlass_host::files::{self, Symlinks};

use crate::HookError;

/// Mount points of procfs and of cgroup v2.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MountPoints<'a> {
    pub(crate) proc: &'a Path,
    pub(crate) root: &'a Path,
}

/// Reason why the cgroup in `/proc/PID/cgroup` cannot be limited.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum CgroupError {
    #[error("the node has no cgroup v2")]
    Version1,
    #[error("the node mixes cgroup v1 and v2, and the process is in no cgroup of v2")]
    Hybrid,
    #[error("it is in the root cgroup, so the container has no cgroup of its own")]
    Root,
    #[error("`{0}` is outside the hook's view of cgroups")]
    Outside(String),
    #[error("{0} contains the hook, so the container has no cgroup of its own")]
    Shared(String),
    #[error("{0} is not a directory of cgroup v2")]
    NotCgroup(PathBuf),
}

/// Maximum size of `/proc/PID/cgroup` in bytes. The file has a line with a path for each hierarchy.
const MAX_BYTES: u64 = 64 << 10;

/// File with the available controllers. Each directory of cgroup v2 has it, and no other (`cgroups(7)`).
pub(crate) const CONTROLLERS_FILE: &str = "cgroup.controllers";

// === impl MountPoints ===

impl MountPoints<'_> {
    /// Directory of the cgroup of a container. `pid` is the container's first process.
    pub(crate) fn of_container(self, pid: u32) -> Result<PathBuf, HookError> {
        let container_lines = self.lines(&pid.to_string())?;
        let hook_lines = self.lines("self")?;
        let no_own_cgroup =
            |reason: CgroupError| HookError::NoOwnCgroup { pid, reason: reason.to_string() };
        let path = own_path(&container_lines, &hook_lines).map_err(no_own_cgroup)?;
        let directory = self.root.join(path);
        if directory.join(CONTROLLERS_FILE).is_file() {
            Ok(directory)
        } else {
            Err(no_own_cgroup(CgroupError::NotCgroup(directory)))
        }
    }

    /// Text of `/proc/PID/cgroup`.
    fn lines(self, process: &str) -> Result<String, HookError> {
        let path = self.proc.join(process).join("cgroup");
        files::read_regular_text(&path, Symlinks::Refused, MAX_BYTES)
            .map_err(|source| HookError::Read { path, source })
    }
}

/// Path of the container's cgroup, relative to the root. `container` and `hook` are the texts of their
/// `/proc/PID/cgroup`. Fails if the hook is in the same cgroup or below it.
fn own_path<'a>(container: &'a str, hook: &str) -> Result<&'a Path, CgroupError> {
    let path = path_of_version_2(container)?;
    // A hook outside of cgroup v2 shares no cgroup with the container.
    let is_shared = path_of_version_2(hook).is_ok_and(|hook| hook.starts_with(path));
    if is_shared { Err(CgroupError::Shared(path.display().to_string())) } else { Ok(path) }
}

/// Path of the `0::` line, which is that of cgroup v2 (`cgroups(7)`), relative to the root.
fn path_of_version_2(lines: &str) -> Result<&Path, CgroupError> {
    let mut paths = lines.lines().filter_map(|line| line.strip_prefix("0::"));
    let path = paths.next().ok_or(CgroupError::Version1)?;
    let relative = path.strip_prefix('/').map(Path::new);
    let is_inside =
        |path: &&Path| path.components().all(|component| matches!(component, Component::Normal(_)));
    match relative.filter(is_inside) {
        None => Err(CgroupError::Outside(path.to_owned())),
        Some(path) if path.as_os_str().is_empty() && lines.lines().count() > 1 => {
            Err(CgroupError::Hybrid)
        }
        Some(path) if path.as_os_str().is_empty() => Err(CgroupError::Root),
        Some(path) => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_container_needs_a_cgroup_of_its_own() {
        let hook = "0::/system.slice/containerd.service\n";
        let outside = |path: &str| Err(CgroupError::Outside(path.to_owned()));
        let shared = |path: &str| Err(CgroupError::Shared(path.to_owned()));
        for (lines, expected) in [
            ("0::/kubepods/pod1/a\n", Ok("kubepods/pod1/a")),
            ("1:name=systemd:/x\n0::/kubepods/a\n", Ok("kubepods/a")),
            ("", Err(CgroupError::Version1)),
            ("4:memory:/kubepods/a\n1:name=systemd:/kubepods/a\n", Err(CgroupError::Version1)),
            ("4:memory:/kubepods/a\n0::/\n", Err(CgroupError::Hybrid)),
            ("0::/\n", Err(CgroupError::Root)),
            ("0::/../kubepods/a\n", outside("/../kubepods/a")),
            ("0::/a/..\n", outside("/a/..")),
            ("0::a\n", outside("a")),
            ("0::\n", outside("")),
            ("0::/system.slice/containerd.service\n", shared("system.slice/containerd.service")),
            ("0::/system.slice\n", shared("system.slice")),
        ] {
            assert_eq!(own_path(lines, hook), expected.map(Path::new), "{lines:?}");
        }
        assert_eq!(own_path("0::/a\n", "0::/\n"), Ok(Path::new("a")), "the hook is in the root");
    }
}
