//! Corrupt sysfs, procfs and `/dev` of a host: a tree in a temporary folder, read by every device source.
//!
//! A tree is a text with one line per entry: `sys/class/net/eth0/mtu=1500` for a file, and
//! `sys/class/net/eth0/device->../../../devices/x` for a link.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Component, Path, PathBuf},
};

use jiff::Timestamp;
use tempfile::TempDir;
use windlass_config::{Config, Places};
use windlass_core::device::Device;
use windlass_host::clock::Clock;
use windlass_machine::{Machine, MachineProfile};
use windlass_migrate::NvidiaPluginFlags;
use windlass_node::agent::survey as look;

use crate::Verdict;

/// Additional device sources, besides the built-in ones.
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

/// Folder in memory on Linux.
const MEMORY: &str = "/dev/shm";

/// Most lines of a tree; longer trees reach no further code.
const MAX_LINES: usize = 4000;

/// Machine profiles for seeds: machines with devices of every family.
const MACHINES: &[&str] = &["rdma", "dgx-h100", "mi300x", "alveo", "flex-170", "dfl", "kria"];

/// Surveys a tree. Every tree is accepted.
pub(crate) fn survey(bytes: &[u8]) -> Verdict {
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

/// Every device that the sources find in a tree.
fn devices(tree: &[u8]) -> Vec<Device> {
    let root = folder();
    for line in String::from_utf8_lossy(tree).lines().take(MAX_LINES) {
        plant(root.path(), line);
    }
    let loaded =
        windlass_migrate::parse(Path::new("w.yaml"), SOURCES, &NvidiaPluginFlags::default());
    let config = Config {
        places: Places {
            host_root: root.path().to_owned(),
            host_root_on_node: root.path().to_owned(),
            // Absent driver library: the survey runs no file of the tree.
            nvml_library: Some("/nowhere".into()),
            kubelet_dir: root.path().join("kubelet"),
            state_dir: root.path().join("state"),
            cdi_dir: root.path().join("cdi"),
            ..Places::default()
        },
        ..loaded.expect("valid").config
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime");
    let state = runtime.block_on(look(&config, Clock::starting_at(Timestamp::UNIX_EPOCH)));
    state.inventory.devices.clone()
}

/// Temporary folder, in memory if possible: a disk is slow with thousands of files.
fn folder() -> TempDir {
    let folder = tempfile::tempdir_in(MEMORY).or_else(|_| tempfile::tempdir());
    folder.expect("a temporary folder")
}

/// Adds an entry to the tree, if the entry stays inside.
fn plant(root: &Path, line: &str) {
    let as_link = line.split_once("->");
    let Some((name, said)) = as_link.or_else(|| line.split_once('=')) else { return };
    let path = Path::new(name);
    if name.is_empty() || !path.is_relative() || !is_plain(path) || line.contains('\0') {
        return;
    }
    let path = root.join(path);
    // Skip entries that a mutation made impossible, such as a file below a file.
    let Some(folder) = path.parent().filter(|folder| stays(root, folder)) else { return };
    if fs::create_dir_all(folder).is_err() || path.symlink_metadata().is_ok() {
        return;
    }
    let _ = match as_link {
        Some((_, target)) if leads_outside(name, Path::new(target)) => return,
        Some((_, target)) => symlink(target, &path),
        None => fs::write(&path, said.replace("\\n", "\n")),
    };
}

/// True if no ancestor is a link. An entry below a link would be elsewhere.
fn stays(root: &Path, folder: &Path) -> bool {
    let above = folder.ancestors().take_while(|above| *above != root);
    { above }.all(|above| !above.is_symlink())
}

/// True if a link leads outside of the tree. The kernel makes no such link, and the real machine must stay
/// unread.
fn leads_outside(name: &str, target: &Path) -> bool {
    let up = target.components().filter(|part| *part == Component::ParentDir).count();
    !target.is_relative() || up > Path::new(name).components().count().saturating_sub(1)
}

fn is_plain(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_) | Component::RootDir))
}

/// Trees of simulated machines.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    MACHINES.iter().map(|name| tree(name).into_bytes()).collect()
}

fn tree(profile: &str) -> String {
    let folder = folder();
    let profile = MachineProfile::named(profile).expect("a shipped profile");
    // Any file replaces the driver, because the survey never calls the driver.
    let no_driver = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
    let machine = Machine::create(&folder.path().join("m"), &profile, no_driver);
    let root = machine.expect("a machine").host_root();
    let (mut waiting, mut lines) = (vec![PathBuf::new()], Vec::new());
    while let Some(at) = waiting.pop() {
        let path = root.join(&at);
        if let Ok(target) = fs::read_link(&path) {
            lines.push(format!("{}->{}", at.display(), target.display()));
        } else if let Ok(text) = fs::read(&path) {
            let text = String::from_utf8_lossy(&text).replace('\n', "\\n");
            lines.push(format!("{}={text}", at.display()));
        } else {
            let names = fs::read_dir(&path).into_iter().flatten().flatten();
            waiting.extend(names.map(|entry| at.join(entry.file_name())));
        }
    }
    let is_asked = |line: &String| ["sys/", "proc/", "dev/"].iter().any(|it| line.starts_with(it));
    lines.retain(is_asked);
    lines.sort();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use windlass_core::device::SourceName;

    use super::*;

    #[test]
    fn the_seeds_have_devices_of_every_family_that_is_found_without_a_driver() {
        for (tree, machine) in seeds().iter().zip(MACHINES) {
            let lines = String::from_utf8_lossy(tree).lines().count();
            assert!(lines <= MAX_LINES, "{machine} has {lines} lines");
        }
        let found: Vec<_> = seeds().iter().flat_map(|tree| devices(tree)).collect();
        for source in SourceName::built_in().filter(|source| !source.family().has_toolkit) {
            assert!(found.iter().any(|device| device.source == source), "no device of {source}");
        }
    }
}
