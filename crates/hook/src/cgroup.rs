//! Cgroup v2 of a container, found through procfs.

use std::path::{Component, Path, PathBuf};

use windlass_host::files::{self, Links};

use crate::HookError;

/// Mount points of procfs and of cgroup v2.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cgroups<'a> {
    pub(crate) proc: &'a Path,
    pub(crate) root: &'a Path,
}

/// Reason why the cgroup in `/proc/PID/cgroup` cannot be limited.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum Unfit {
    #[error("the node has no cgroup v2")]
    Version1,
    #[error("the node mixes cgroup v1 and v2, and the process has no place in v2")]
    Hybrid,
    #[error("it is in the root of all cgroups, so the container has none of its own")]
    Root,
    #[error("`{0}` leads out of the hook's view of cgroups")]
    Outside(String),
    #[error("{0} contains the hook, so the container has none of its own")]
    Shared(String),
    #[error("{0} is no directory of cgroup v2")]
    NoDirectory(PathBuf),
}

/// Limit on the bytes of `/proc/PID/cgroup`, which has a path per hierarchy.
const MAX_BYTES: u64 = 64 << 10;

/// File that each cgroup v2 has, and no other folder (`cgroups(7)`).
const MARKER: &str = "cgroup.controllers";

// === impl Cgroups ===

impl Cgroups<'_> {
    /// Directory of the cgroup of a container's first process.
    pub(crate) fn of_container(self, pid: u32) -> Result<PathBuf, HookError> {
        let container = self.line(&pid.to_string())?;
        let own = self.line("self")?;
        let refused = |reason: Unfit| HookError::Cgroup { pid, reason: reason.to_string() };
        let path = own_path(&container, &own).map_err(refused)?;
        let directory = self.root.join(path);
        if directory.join(MARKER).is_file() {
            Ok(directory)
        } else {
            Err(refused(Unfit::NoDirectory(directory)))
        }
    }

    fn line(self, process: &str) -> Result<String, HookError> {
        let path = self.proc.join(process).join("cgroup");
        files::read_regular_text(&path, Links::Refused, MAX_BYTES)
            .map_err(|source| HookError::Read { path, source })
    }
}

/// Path, below the root, of a cgroup that belongs to the container alone, from the lines of container and hook.
fn own_path<'a>(container: &'a str, hook: &str) -> Result<&'a Path, Unfit> {
    let path = path_of_version_2(container)?;
    // A hook without a cgroup v2 shares none with the container.
    let is_shared = path_of_version_2(hook).is_ok_and(|hook| hook.starts_with(path));
    if is_shared { Err(Unfit::Shared(path.display().to_string())) } else { Ok(path) }
}

/// Relative path of the `0::` line (`cgroups(7)`).
fn path_of_version_2(lines: &str) -> Result<&Path, Unfit> {
    let mut found = lines.lines().filter_map(|line| line.strip_prefix("0::"));
    let path = found.next().ok_or(Unfit::Version1)?;
    let relative = path.strip_prefix('/').map(Path::new);
    let is_inside = |path: &&Path| path.components().all(|it| matches!(it, Component::Normal(_)));
    match relative.filter(is_inside) {
        None => Err(Unfit::Outside(path.to_owned())),
        Some(root) if root.as_os_str().is_empty() && lines.lines().count() > 1 => {
            Err(Unfit::Hybrid)
        }
        Some(root) if root.as_os_str().is_empty() => Err(Unfit::Root),
        Some(path) => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_has_its_own_cgroup_or_a_reason() {
        let hook = "0::/system.slice/containerd.service\n";
        let outside = |path: &str| Err(Unfit::Outside(path.to_owned()));
        let shared = |path: &str| Err(Unfit::Shared(path.to_owned()));
        for (lines, expected) in [
            ("0::/kubepods/pod1/a\n", Ok("kubepods/pod1/a")),
            ("1:name=systemd:/x\n0::/kubepods/a\n", Ok("kubepods/a")),
            ("", Err(Unfit::Version1)),
            ("4:memory:/kubepods/a\n1:name=systemd:/kubepods/a\n", Err(Unfit::Version1)),
            ("4:memory:/kubepods/a\n0::/\n", Err(Unfit::Hybrid)),
            ("0::/\n", Err(Unfit::Root)),
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
