//! The host as files below a root. Every host path passes through [`Host`], so that tests, containers and snapshots can
//! have another root.

pub mod abbreviate;
pub mod backoff;
pub mod clock;
pub mod container;
pub mod counters;
pub mod deadline;
pub mod directories;
pub mod directory;
pub mod dmem;
pub mod driver_folders;
pub mod driver_program;
pub mod drm_clients;
pub mod drm_nodes;
pub mod entry_limits;
pub mod external;
pub mod files;
pub mod glob;
pub mod hwmon;
pub mod interface_use;
pub mod keyed;
pub mod nvidia_smi;
pub mod own_process;
pub mod pending_call;
pub mod presence;
pub mod shared;
pub mod state_file;
pub mod state_folder;
pub mod template;
pub mod uevents;
pub mod usb;
pub mod watch;

mod access_log;
mod blocking;
mod causes;
mod entry;
mod nodes;
mod optional;
mod pci;
mod pci_index;
mod reading;
mod refusal;
mod roots;
mod scan_cache;
mod sysfs;
mod vfio;

use std::{
    borrow::Cow,
    fs,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Component, Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};

use self::{access_log::AccessRecorder, pci_index::PciIndex, scan_cache::ScanCache};
pub use access_log::{AccessKind, AccessLog};
pub use blocking::blocking;
pub use causes::causes;
pub use entry::Entry;
pub use nodes::FoundNode;
pub use optional::{or_pending, take_finished};
pub use pci::PciFunction;
pub use pci_index::{PCI_DEVICES, PciKind, pci_folder};
pub use roots::Roots;
pub use vfio::is_vfio;

/// Files of a host, below a root.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
    root_on_node: PathBuf,
    /// The opened root. Lookups start there, so that the kernel walks only the path below it.
    root_fd: Option<Arc<OwnedFd>>,
    /// PCI functions read so far, shared by all clones.
    pci: Arc<PciIndex>,
    /// Cache of the current scan.
    scan_cache: Option<Arc<ScanCache>>,
    recorder: Option<AccessRecorder>,
}

/// File that marks a simulated host, with its machine profile.
const SIMULATED: &str = "/run/windlass/simulated";

/// File that marks a recorded host, with its origin.
const RECORDED: &str = "/run/windlass/recorded";

/// Maximum number of links to follow, as in the kernel (`path_resolution(7)`).
const MAX_LINKS: usize = 40;

/// Reason why a task of the agent does not answer any more.
pub const AGENT_ENDS: &str = "the agent ends";

/// File name of NVML; also the dynamic linker's name for it.
pub const NVML: &str = "libnvidia-ml.so.1";

// === impl Host ===

impl Host {
    /// A host whose `/` is `root` for the agent and `root_on_node` for the container runtime.
    pub fn new(root: impl Into<PathBuf>, root_on_node: impl Into<PathBuf>) -> Self {
        let (root, root_on_node) = (root.into(), root_on_node.into());
        let opened = rustix::fs::open(&root, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
        let (root_fd, pci) = (opened.map(Arc::new), Arc::default());
        Self { root, root_on_node, root_fd, pci, scan_cache: None, recorder: None }
    }

    /// Converts a path that the agent sees to the path that the container runtime sees; `None` for a path outside this
    /// host's root.
    pub fn agent_to_runtime_path(&self, path: &Path) -> Option<PathBuf> {
        Some(self.path_on_node(Path::new("/").join(path.strip_prefix(&self.root).ok()?)))
    }

    /// Converts a path that the container runtime sees to a path of this host. A path outside `root_on_node` stays
    /// unchanged.
    pub fn runtime_to_host_path<'a>(&self, path: &'a Path) -> Cow<'a, Path> {
        match path.strip_prefix(&self.root_on_node) {
            Ok(relative) => Path::new("/").join(relative).into(),
            Err(_) => path.into(),
        }
    }

    /// Path of a host file for the agent.
    pub fn path(&self, absolute: impl AsRef<Path>) -> PathBuf {
        join_root(&self.root, absolute.as_ref())
    }

    /// Path of a host file for the container runtime.
    pub fn path_on_node(&self, absolute: impl AsRef<Path>) -> PathBuf {
        join_root(&self.root_on_node, absolute.as_ref())
    }

    /// This host with a cache for one scan: each file is read once, so that its content stays the same for the scan.
    #[must_use]
    pub fn for_one_scan(&self) -> Self {
        Self { scan_cache: Some(Arc::default()), ..self.clone() }
    }

    /// This host with a log of its file accesses.
    pub fn with_access_log(self) -> (Self, AccessLog) {
        let (recorder, log) = AccessLog::new();
        (Self { recorder: Some(recorder), ..self }, log)
    }

    /// Machine profile; `None` on hardware.
    pub fn simulated(&self) -> Option<String> {
        self.read_text(SIMULATED)
    }

    /// Origin of a recorded host: recording program and time.
    pub fn recorded(&self) -> Option<String> {
        self.read_text(RECORDED)
    }

    /// True for a host that is neither simulated nor recorded: its device nodes have real device numbers.
    pub fn is_real(&self) -> bool {
        self.simulated().is_none() && self.recorded().is_none()
    }

    /// Path of NVML in the host's folders of libraries. If no folder has it: the bare file name, for the dynamic
    /// linker, if the host is the agent's own machine.
    pub fn nvml_library(&self) -> Option<PathBuf> {
        let candidates =
            driver_folders::LIBRARIES.iter().map(|folder| Path::new(folder).join(NVML));
        let library = candidates
            .filter_map(|path| self.resolve_link(path))
            .map(|path| self.path(path))
            .next();
        let is_this_machine = self.root == Path::new("/");
        library.or_else(|| is_this_machine.then(|| NVML.into()))
    }

    /// Searched folders of NVML, for messages.
    pub fn nvml_folders(&self) -> String {
        let folders = driver_folders::LIBRARIES;
        format!("{} or {} other places", self.path(folders[0]).display(), folders.len() - 1)
    }

    /// Target of a path after resolving links in its last component only. Absolute links start at the host's root.
    pub fn resolve_link(&self, absolute: impl AsRef<Path>) -> Option<PathBuf> {
        let mut path = absolute.as_ref().to_owned();
        for _ in 0..MAX_LINKS {
            match self.try_read_link(&path) {
                Ok(target) => path = normalize(&path.parent()?.join(&*target)),
                Err(Errno::INVAL) => return Some(path),
                Err(_) => return None,
            }
        }
        None
    }

    /// Target of a path after resolving links in every component.
    pub fn canonicalize(&self, absolute: impl AsRef<Path>) -> Option<PathBuf> {
        let (mut path, mut remaining) = (PathBuf::from("/"), absolute.as_ref().to_owned());
        for _ in 0..MAX_LINKS {
            let mut components = remaining.components();
            let target = components.by_ref().find_map(|component| {
                path = normalize(&path.join(component));
                let link = (path != Path::new("/")).then(|| self.try_read_link(&path));
                link.filter(|link| *link != Err(Errno::INVAL))
            });
            let Some(target) = target.transpose().ok()? else { return Some(path) };
            remaining = Path::new(&*target).join(components.as_path());
            path.pop();
        }
        None
    }

    /// Modification time of a folder: the last change to its entries.
    pub fn modified(&self, folder: impl AsRef<Path>) -> Option<SystemTime> {
        fs::metadata(self.path(folder)).ok()?.modified().ok()
    }

    /// Group of a file that its group may read and write, but others may not. `None` for group 0.
    pub fn needed_group(&self, absolute: impl AsRef<Path>) -> Option<u32> {
        let file = fs::metadata(self.path(absolute)).ok()?;
        let mode = Mode::from_raw_mode(file.mode());
        let group_has_access = mode.contains(Mode::RGRP | Mode::WGRP);
        let others_have_access = mode.contains(Mode::ROTH | Mode::WOTH);
        (group_has_access && !others_have_access && file.gid() != 0).then(|| file.gid())
    }
}

/// A path without `..` components.
pub fn normalize(path: &Path) -> PathBuf {
    let mut normalized = PathBuf::new();
    for component in path.components() {
        match component {
            // The root has no parent.
            Component::ParentDir => drop(normalized.pop()),
            other => normalized.push(other),
        }
    }
    normalized
}

fn join_root(root: &Path, absolute: &Path) -> PathBuf {
    root.join(
        absolute
            .components()
            .filter(|component| *component != Component::RootDir)
            .collect::<PathBuf>(),
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn links_are_followed_below_the_hosts_root() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(root.path(), "/");
        fs::create_dir_all(root.path().join("etc/alternatives")).expect("made");
        fs::write(root.path().join("etc/file"), "").expect("written");
        symlink("/etc/alternatives/a", root.path().join("etc/a")).expect("linked");
        symlink("../file", root.path().join("etc/alternatives/a")).expect("linked");
        symlink("/etc/loop", root.path().join("etc/loop")).expect("linked");
        symlink("/etc/nothing", root.path().join("etc/dangling")).expect("linked");
        assert_eq!(host.resolve_link("/etc/a"), Some("/etc/file".into()));
        assert_eq!(host.resolve_link("/etc/file"), Some("/etc/file".into()));
        assert_eq!(host.resolve_link("/etc/loop"), None);
        assert_eq!(host.resolve_link("/etc/dangling"), None);
        symlink("/", root.path().join("top")).expect("linked");
        symlink("etc/../top/etc", root.path().join("up")).expect("linked");
        assert!(host.exists("/"));
        assert_eq!(host.canonicalize("/top"), Some("/".into()));
        assert_eq!(host.canonicalize("/up/a"), Some("/etc/file".into()));
        assert_eq!(host.canonicalize("/up/loop/x"), None);
    }

    #[test]
    fn a_group_is_needed_only_for_files_that_others_may_not_use() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(root.path(), "/");
        let node = root.path().join("node");
        fs::write(&node, "").expect("written");
        let group = fs::metadata(&node).expect("the file exists").gid();
        let needed_group = |mode| {
            fs::set_permissions(&node, fs::Permissions::from_mode(mode)).expect("changed");
            host.needed_group("/node")
        };
        assert_eq!(needed_group(0o666), None);
        assert_eq!(needed_group(0o600), None);
        assert_eq!(needed_group(0o660), (group != 0).then_some(group), "group 0 is never needed");
    }
}
