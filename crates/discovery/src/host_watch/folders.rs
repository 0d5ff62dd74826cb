//! Folders whose entries are devices: `/dev`, and folders of configured sources.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
};

use inotify::{EventStream, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio_stream::StreamExt as _;
use windlass_config::{Find, Policy};
use windlass_host::{
    Host,
    glob::{fits, is_pattern},
};

/// Watches of many folders in one inotify instance, because the kernel limits the instances of a user.
#[derive(Debug)]
pub(super) struct Folders {
    watches: Watches,
    events: EventStream<[u8; BUFFER_BYTES]>,
    watched: BTreeMap<PathBuf, (WatchMask, WatchDescriptor)>,
}

/// Folders to watch, with their event masks.
pub(super) type WatchedFolders = BTreeMap<PathBuf, WatchMask>;

const ENTRIES: WatchMask = WatchMask::CREATE
    .union(WatchMask::DELETE)
    .union(WatchMask::MOVE)
    .union(WatchMask::DELETE_SELF)
    .union(WatchMask::MOVE_SELF)
    .union(WatchMask::ONLYDIR);

/// Events of folders with description files. Only these include writes: every program writes to `/dev/null`.
const CONTENTS: WatchMask = ENTRIES.union(WatchMask::CLOSE_WRITE);

/// Size of the read buffer, for some dozens of events.
const BUFFER_BYTES: usize = 4096;

/// Maximum number of watched folders. Changes in further folders are found by regular scans.
const MAX_FOLDERS: usize = 512;

/// Device lists of sysfs. Real sysfs sends no inotify events; a simulated one does.
const SIMULATED: [&str; 4] =
    ["/sys/bus/*/devices", "/sys/bus/*/drivers", "/sys/bus/*/drivers/*", "/sys/class/*"];

/// Folders in which the appearance of an entry may change the devices of a source.
pub(super) fn watched(host: &Host, policy: &Policy) -> WatchedFolders {
    let host = &host.for_one_scan();
    let mut requested = WatchedFolders::from([(host.path("/dev"), ENTRIES)]);
    let mut add = |folder: &str, mask: WatchMask| {
        for folder in expanded(host, folder) {
            requested.entry(host.path(folder)).or_insert(mask);
        }
    };
    let mut patterns: Vec<&String> = policy.families.fpga.nodes.iter().collect();
    for rule in &policy.sources {
        let found: &[String] = if let Find::Nodes(patterns) = &rule.find { patterns } else { &[] };
        let given = rule.give.nodes.iter().map(|node| &node.path);
        patterns.extend(found.iter().chain(given));
        if let Find::Files(folder) = &rule.find {
            folder.to_str().into_iter().for_each(|folder| add(folder, CONTENTS));
        }
    }
    // A pattern may match a folder of nodes.
    for pattern in patterns {
        add(pattern, ENTRIES);
    }
    if host.simulated().is_some() {
        for folder in SIMULATED {
            add(folder, ENTRIES);
        }
    }
    requested.into_iter().take(MAX_FOLDERS).collect()
}

/// Folders that a pattern matches, or the folders in which matches would appear.
fn expanded(host: &Host, pattern: &str) -> BTreeSet<PathBuf> {
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
        let mut names = host.some_names(folder, MAX_FOLDERS).unwrap_or_default();
        names.retain(|name| fits(part, name));
        names
    } else {
        vec![part.to_owned()]
    };
    let folders = names.iter().map(|name| folder.join(name));
    folders.filter(|folder| host.has_folder(folder)).collect()
}

// === impl Folders ===

impl Folders {
    pub(super) fn new() -> io::Result<Self> {
        let queue = Inotify::init()?;
        let watches = queue.watches();
        let events = queue.into_event_stream([0; BUFFER_BYTES])?;
        Ok(Self { watches, events, watched: BTreeMap::new() })
    }

    /// Watches exactly the requested folders. Adding a watched folder again renews the watch if the folder was
    /// replaced, and has no effect otherwise.
    pub(super) fn follow(&mut self, requested: WatchedFolders) {
        let is_gone = |path: &&PathBuf| !requested.contains_key(*path);
        let gone: Vec<_> = self.watched.keys().filter(is_gone).cloned().collect();
        for (_, watch) in gone.iter().filter_map(|path| self.watched.remove(path)) {
            // The kernel removes the watch of a deleted folder itself.
            let _ = self.watches.remove(watch);
        }
        for (path, mask) in requested {
            match self.watches.add(&path, mask) {
                Ok(watch) => drop(self.watched.insert(path, (mask, watch))),
                Err(error) => {
                    // The later appearance of the folder is an event, or regular scans find its content.
                    tracing::debug!(%error, path = %path.display(), "folder not watched");
                    self.watched.remove(&path);
                }
            }
        }
    }

    /// Waits for an event. Waits forever if inotify failed.
    pub(super) async fn changed(&mut self) {
        loop {
            match self.events.next().await {
                // The kernel reports the end of a watch after its cause.
                Some(Ok(event)) if event.mask == inotify::EventMask::IGNORED => {}
                Some(Ok(_)) => return,
                Some(Err(_)) | None => std::future::pending().await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use windlass_config::SourceRule;

    use super::*;

    fn rule(name: &str, find: Find) -> SourceRule {
        SourceRule::new(name.parse().expect("valid"), find)
    }

    #[test]
    fn a_missing_path_is_watched_at_its_nearest_existing_folder() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let made =
            ["dev/snd", "dev/dvb/adapter0", "dev/input", "dev/logic", "etc", "sys/bus/usb/devices"];
        for folder in made {
            fs::create_dir_all(root.path().join(folder)).expect("made");
        }
        let host = Host::new(root.path(), "/");
        let nodes = |pattern: &str| Find::Nodes(vec![pattern.to_owned()]);
        let sources = vec![
            rule("a", nodes("/dev/snd/*")),
            rule("b", nodes("/dev/dvb/adapter*/frontend0")),
            rule("c", nodes("/dev/serial/by-id/*")),
            rule("d", Find::Files("/etc/darwin3".into())),
            rule("e", nodes("/dev/input")),
        ];
        let mut policy = Policy { sources, ..Policy::default() };
        policy.families.fpga.nodes = vec!["/dev/logic/dma*".to_owned()];
        let requested = watched(&host, &policy);
        let paths: Vec<_> =
            requested.keys().filter_map(|it| it.strip_prefix(root.path()).ok()).collect();
        let expected =
            ["dev", "dev/dvb", "dev/dvb/adapter0", "dev/input", "dev/logic", "dev/snd", "etc"];
        assert_eq!(paths, expected.map(Path::new));
    }
}
