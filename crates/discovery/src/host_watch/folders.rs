//! Folders whose entries are devices: `/dev`, and folders of configured sources.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use windlass_config::{DiscoveryRule, Policy};
use windlass_host::{
    Host,
    directories::DirectoryChanges,
    glob::{is_pattern, name_matches},
};

/// Maximum number of watched folders. Changes in further folders are found by regular scans.
const MAX_FOLDERS: usize = 512;

/// Device lists of sysfs. Real sysfs sends no inotify events; a simulated one does.
const SYSFS_DEVICE_LISTS: [&str; 4] =
    ["/sys/bus/*/devices", "/sys/bus/*/drivers", "/sys/bus/*/drivers/*", "/sys/class/*"];

/// Folders in which the appearance of an entry may change the devices of a source.
pub(super) fn watched_folders(host: &Host, policy: &Policy) -> BTreeMap<PathBuf, DirectoryChanges> {
    let host = &host.for_one_scan();
    let mut watches = BTreeMap::from([(host.path("/dev"), DirectoryChanges::Entries)]);
    let mut add = |folder: &str, changes: DirectoryChanges| {
        for folder in expand_pattern(host, folder) {
            watches.entry(host.path(folder)).or_insert(changes);
        }
    };
    let mut patterns: Vec<&String> = policy.families.fpga.nodes.iter().collect();
    for rule in &policy.sources {
        let source_patterns: &[String] =
            if let DiscoveryRule::Nodes(patterns) = &rule.find { patterns } else { &[] };
        let node_paths = rule.give.nodes.iter().map(|node| &node.path);
        patterns.extend(source_patterns.iter().chain(node_paths));
        if let DiscoveryRule::Files(folder) = &rule.find {
            folder.to_str().into_iter().for_each(|folder| add(folder, DirectoryChanges::Contents));
        }
    }
    // A pattern may match a folder of nodes.
    for pattern in patterns {
        add(pattern, DirectoryChanges::Entries);
    }
    if host.simulated().is_some() {
        for folder in SYSFS_DEVICE_LISTS {
            add(folder, DirectoryChanges::Entries);
        }
    }
    watches.into_iter().take(MAX_FOLDERS).collect()
}

/// Folders that a pattern matches, or the folders in which matches would appear.
fn expand_pattern(host: &Host, pattern: &str) -> BTreeSet<PathBuf> {
    let (mut folders, mut missing) = (vec![PathBuf::from("/")], BTreeSet::new());
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        let mut next = Vec::new();
        for folder in folders {
            let matching = matching_folders(host, &folder, part);
            if is_pattern(part) || matching.is_empty() {
                missing.insert(folder);
            }
            next.extend(matching);
        }
        folders = next;
    }
    // Folders above the pattern's first component are not watched.
    missing.remove(Path::new("/"));
    folders.into_iter().chain(missing).collect()
}

/// Folders in a folder that match one component of a pattern.
fn matching_folders(host: &Host, folder: &Path, part: &str) -> Vec<PathBuf> {
    let names = if is_pattern(part) {
        let mut names = host.try_entry_names(folder, MAX_FOLDERS).unwrap_or_default();
        names.retain(|name| name_matches(part, name));
        names
    } else {
        vec![part.to_owned()]
    };
    let folders = names.iter().map(|name| folder.join(name));
    folders.filter(|folder| host.is_dir(folder)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use windlass_config::SourceRule;

    use super::*;

    fn rule(name: &str, find: DiscoveryRule) -> SourceRule {
        SourceRule::new(name.parse().expect("valid"), find)
    }

    #[test]
    fn a_missing_path_is_watched_at_its_nearest_existing_folder() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let folders =
            ["dev/snd", "dev/dvb/adapter0", "dev/input", "dev/logic", "etc", "sys/bus/usb/devices"];
        for folder in folders {
            fs::create_dir_all(root.path().join(folder)).expect("made");
        }
        let host = Host::new(root.path(), "/");
        let nodes = |pattern: &str| DiscoveryRule::Nodes(vec![pattern.to_owned()]);
        let sources = vec![
            rule("a", nodes("/dev/snd/*")),
            rule("b", nodes("/dev/dvb/adapter*/frontend0")),
            rule("c", nodes("/dev/serial/by-id/*")),
            rule("d", DiscoveryRule::Files("/etc/darwin3".into())),
            rule("e", nodes("/dev/input")),
        ];
        let mut policy = Policy { sources, ..Policy::default() };
        policy.families.fpga.nodes = vec!["/dev/logic/dma*".to_owned()];
        let watches = watched_folders(&host, &policy);
        let paths: Vec<_> =
            watches.keys().filter_map(|path| path.strip_prefix(root.path()).ok()).collect();
        let expected =
            ["dev", "dev/dvb", "dev/dvb/adapter0", "dev/input", "dev/logic", "dev/snd", "etc"];
        assert_eq!(paths, expected.map(Path::new));
    }
}
