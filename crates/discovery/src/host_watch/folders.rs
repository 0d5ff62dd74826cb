//! Folders in which a device shows by a file that comes or goes: `/dev`, and what sources are looked for in.

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

/// Watches many folders with one queue, of which a user has few.
#[derive(Debug)]
pub(super) struct Folders {
    watches: Watches,
    notices: EventStream<[u8; BUFFER_BYTES]>,
    known: BTreeMap<PathBuf, (WatchMask, WatchDescriptor)>,
}

/// What is watched, and whether what is written to its files matters too.
pub(super) type Wanted = BTreeMap<PathBuf, WatchMask>;

const ENTRIES: WatchMask = WatchMask::CREATE
    .union(WatchMask::DELETE)
    .union(WatchMask::MOVE)
    .union(WatchMask::DELETE_SELF)
    .union(WatchMask::MOVE_SELF)
    .union(WatchMask::ONLYDIR);

/// Everyone writes to `/dev/null`: only folders of files are watched for that.
const CONTENTS: WatchMask = ENTRIES.union(WatchMask::CLOSE_WRITE);

/// Room for some dozens of notices per read.
const BUFFER_BYTES: usize = 4096;

/// Folders that are watched; the rest is left to the regular look.
const MOST_FOLDERS: usize = 512;

/// Where sysfs lists devices. The kernel gives no notice of these; on a simulated machine they are files
/// like any other.
const SIMULATED: [&str; 4] =
    ["/sys/bus/*/devices", "/sys/bus/*/drivers", "/sys/bus/*/drivers/*", "/sys/class/*"];

/// The folders that matter under a policy.
pub(super) fn watched(host: &Host, policy: &Policy) -> Wanted {
    let host = &host.for_one_look();
    let mut wanted = Wanted::from([(host.path("/dev"), ENTRIES)]);
    let mut add = |folder: &str, mask: WatchMask| {
        for folder in expanded(host, folder) {
            wanted.entry(host.path(folder)).or_insert(mask);
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
    // What a pattern fits may be a folder of nodes.
    for pattern in patterns {
        add(pattern, ENTRIES);
    }
    if host.simulated().is_some() {
        for folder in SIMULATED {
            add(folder, ENTRIES);
        }
    }
    wanted.into_iter().take(MOST_FOLDERS).collect()
}

/// The folders that a pattern means, and where one is missing, the one in which it would appear.
fn expanded(host: &Host, pattern: &str) -> BTreeSet<PathBuf> {
    let (mut folders, mut missing) = (vec![PathBuf::from("/")], BTreeSet::new());
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        let mut next = Vec::new();
        for folder in folders {
            let fitting = inside(host, &folder, part);
            if is_pattern(part) || fitting.is_empty() {
                missing.insert(folder);
            }
            next.extend(fitting);
        }
        folders = next;
    }
    // Nothing is watched above what the pattern names first.
    missing.remove(Path::new("/"));
    folders.into_iter().chain(missing).collect()
}

/// The folders in a folder that a part of a pattern names.
fn inside(host: &Host, folder: &Path, part: &str) -> Vec<PathBuf> {
    let names = if is_pattern(part) {
        let mut names = host.some_names(folder, MOST_FOLDERS).unwrap_or_default();
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
        let notices = queue.into_event_stream([0; BUFFER_BYTES])?;
        Ok(Self { watches, notices, known: BTreeMap::new() })
    }

    /// Watches these and no others. A folder that was replaced is another one under the same path, so all
    /// are watched again; that changes nothing for one that stayed.
    pub(super) fn follow(&mut self, wanted: Wanted) {
        let is_gone = |path: &&PathBuf| !wanted.contains_key(*path);
        let gone: Vec<_> = self.known.keys().filter(is_gone).cloned().collect();
        for (_, watch) in gone.iter().filter_map(|path| self.known.remove(path)) {
            // The kernel has dropped the watch of a folder that is gone.
            let _ = self.watches.remove(watch);
        }
        for (path, mask) in wanted {
            match self.watches.add(&path, mask) {
                Ok(watch) => drop(self.known.insert(path, (mask, watch))),
                Err(error) => {
                    // It appears, which is a notice, or the regular look finds what is in it.
                    tracing::debug!(%error, path = %path.display(), "a folder is not watched");
                    self.known.remove(&path);
                }
            }
        }
    }

    /// Waits for a notice; a queue that fails gives none, which leaves the regular look.
    pub(super) async fn changed(&mut self) {
        loop {
            match self.notices.next().await {
                // The kernel's word that a watch is over comes after the notice of why.
                Some(Ok(notice)) if notice.mask == inotify::EventMask::IGNORED => {}
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
    fn what_is_missing_is_waited_for_where_it_would_appear() {
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
        let wanted = watched(&host, &policy);
        let paths: Vec<_> =
            wanted.keys().filter_map(|it| it.strip_prefix(root.path()).ok()).collect();
        let expected =
            ["dev", "dev/dvb", "dev/dvb/adapter0", "dev/input", "dev/logic", "dev/snd", "etc"];
        assert_eq!(paths, expected.map(Path::new));
    }
}
