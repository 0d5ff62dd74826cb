//! Discovery on a host with a corrupt sysfs, procfs and `/dev`, by all device sources.
//!
//! The input is a text with one line per entry of the host's file tree: `sys/class/net/eth0/mtu=1500` for a file, and
//! `sys/class/net/eth0/device->../../../devices/x` for a link. The tree is created in a temporary folder.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Component, Path, PathBuf},
};

use jiff::Timestamp;
use tempfile::TempDir;
use windlass_config::{Config, HostPaths};
use windlass_core::device::Device;
use windlass_host::clock::Clock;
use windlass_machine::{Machine, MachineProfile};
use windlass_migrate::NvidiaPluginFlags;
use windlass_node::agent;

use crate::Verdict;

/// Device sources in addition to the built-in ones.
const SOURCES: &str = "sources:
- {profile: kvm}
- {profile: hailo}
- {profile: coral-usb}
- {profile: tpu-vfio}
- {profile: video}
- {profile: serial}
- {name: scope, resource: a.com/scope, find: {bus: usb}, match: 'true'}
- {name: chip, resource: a.com/chip, find: {bus: platform}, match: 'true'}
";

/// Folder of a file system in memory.
const TMPFS: &str = "/dev/shm";

/// Maximum number of lines of a tree. Longer trees reach no other code.
const MAX_LINES: usize = 4000;

/// Machine profiles for seeds. Together they have devices of every family that needs no driver.
const MACHINES: &[&str] = &["rdma", "dgx-h100", "mi300x", "alveo", "flex-170", "dfl", "kria"];

/// Discovers the devices of a tree, and checks their ids and the paths of their nodes. Accepts every tree.
pub(crate) fn discovery(bytes: &[u8]) -> Verdict {
    for device in &devices(bytes) {
        assert_eq!(device.id.as_str().parse().as_ref(), Ok(&device.id));
        let nodes = device.nodes.iter().map(|node| &node.path);
        for path in nodes {
            assert!(path.starts_with("/dev"), "{}: {}", device.id, path.display());
            assert!(is_plain(path), "{}: {}", device.id, path.display());
        }
    }
    Verdict::Accepted
}

/// Discovers the devices of a tree.
fn devices(tree: &[u8]) -> Vec<Device> {
    let root = folder();
    for line in String::from_utf8_lossy(tree).lines().take(MAX_LINES) {
        add_entry(root.path(), line);
    }
    let loaded =
        windlass_migrate::parse(Path::new("w.yaml"), SOURCES, &NvidiaPluginFlags::default());
    let config = Config {
        places: HostPaths {
            host_root: root.path().to_owned(),
            host_root_on_node: root.path().to_owned(),
            // The library must not exist: discovery would load a library of the tree.
            nvml_library: Some("/nowhere".into()),
            kubelet_dir: root.path().join("kubelet"),
            state_dir: root.path().join("state"),
            cdi_dir: root.path().join("cdi"),
            ..HostPaths::default()
        },
        ..loaded.expect("valid").config
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let clock = Clock::starting_at(Timestamp::UNIX_EPOCH);
    let state = runtime.block_on(agent::scan_host(&config, clock));
    state.inventory.devices.clone()
}

/// Creates a temporary folder, in memory if possible, because a disk is slow with thousands of files.
fn folder() -> TempDir {
    let folder = tempfile::tempdir_in(TMPFS).or_else(|_| tempfile::tempdir());
    folder.expect("a temporary folder")
}

/// Adds an entry to the tree. Skips an invalid line, and an entry outside of the tree.
fn add_entry(root: &Path, line: &str) {
    let link = line.split_once("->");
    let Some((name, content)) = link.or_else(|| line.split_once('=')) else { return };
    let path = Path::new(name);
    if name.is_empty() || !path.is_relative() || !is_plain(path) || line.contains('\0') {
        return;
    }
    let path = root.join(path);
    let Some(folder) = path.parent().filter(|folder| has_no_link(root, folder)) else { return };
    // Skip entries that a mutation made impossible, such as a file below a file.
    if fs::create_dir_all(folder).is_err() || path.symlink_metadata().is_ok() {
        return;
    }
    let _ = match link {
        Some((_, target)) if is_outside(name, Path::new(target)) => return,
        Some((_, target)) => symlink(target, &path),
        None => fs::write(&path, content.replace("\\n", "\n")),
    };
}

/// True if neither the folder nor one of its ancestors below the root is a link.
fn has_no_link(root: &Path, folder: &Path) -> bool {
    let ancestors = folder.ancestors().take_while(|ancestor| *ancestor != root);
    { ancestors }.all(|ancestor| !ancestor.is_symlink())
}

/// True if a link's target is outside of the tree. The kernel creates no such link, and a test must not read the real
/// machine's files.
fn is_outside(name: &str, target: &Path) -> bool {
    let parent_count = target.components().filter(|part| *part == Component::ParentDir).count();
    !target.is_relative() || parent_count > Path::new(name).components().count().saturating_sub(1)
}

/// True if a path has no `..`, and does not begin with `.`.
fn is_plain(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_) | Component::RootDir))
}

/// File trees of simulated machines.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    MACHINES.iter().map(|name| tree(name).into_bytes()).collect()
}

/// File tree of a simulated machine, as text.
fn tree(profile: &str) -> String {
    let folder = folder();
    let profile = MachineProfile::named(profile).expect("a shipped profile");
    // Any file can be the driver library, because discovery does not load it.
    let no_driver = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    let machine = Machine::create(&folder.path().join("m"), &profile, no_driver);
    let root = machine.expect("a machine").host_root();
    let (mut pending, mut lines) = (vec![PathBuf::new()], Vec::new());
    while let Some(relative) = pending.pop() {
        let path = root.join(&relative);
        if let Ok(target) = fs::read_link(&path) {
            lines.push(format!("{}->{}", relative.display(), target.display()));
        } else if let Ok(text) = fs::read(&path) {
            let text = String::from_utf8_lossy(&text).replace('\n', "\\n");
            lines.push(format!("{}={text}", relative.display()));
        } else {
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            pending.extend(entries.map(|entry| relative.join(entry.file_name())));
        }
    }
    let is_read = |line: &String| ["sys/", "proc/", "dev/"].iter().any(|it| line.starts_with(it));
    lines.retain(is_read);
    lines.sort();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use windlass_core::device::SourceName;

    use super::*;

    #[test]
    fn seeds_have_devices_of_every_family_that_needs_no_driver() {
        for (tree, machine) in seeds().iter().zip(MACHINES) {
            let lines = String::from_utf8_lossy(tree).lines().count();
            assert!(lines <= MAX_LINES, "{machine} has {lines} lines");
        }
        let devices: Vec<_> = seeds().iter().flat_map(|tree| devices(tree)).collect();
        for source in SourceName::built_in().filter(|source| !source.family().has_toolkit) {
            assert!(devices.iter().any(|device| device.source == source), "no device of {source}");
        }
    }
}
