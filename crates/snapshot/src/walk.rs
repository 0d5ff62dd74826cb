//! Walk through the host. It enters allowed folders, follows no links, and stops at the limits.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Instant,
};

use rustix::fs::Mode;
use windlass_host::{Host, normalize};

use super::{
    Entry, ExtraFiles, Omission, Snapshot, SnapshotLimits,
    allowlist::{AllowedFolder, FILES, ROOTS, has_chosen_name},
    reader::{ReadOutcome, Reader},
};

/// Maximum number of hanging files, because each blocks a thread.
const MAX_HANGING: usize = 8;

/// Entries between progress reports.
const PROGRESS_INTERVAL: usize = 256;

/// Reads the allowed folders and files of the host, the extra folders and the mounts.
pub(super) fn walk(
    host: &Host,
    extra: &ExtraFiles,
    limits: SnapshotLimits,
    progress: &mut dyn FnMut(usize),
) -> Snapshot {
    let reader = Reader::new(limits.file_timeout, limits.max_file_bytes);
    let (snapshot, start) = (Snapshot::default(), Instant::now());
    let mut walk = Walk {
        host,
        extra,
        limits,
        reader,
        start,
        bytes: 0,
        snapshot,
        progress,
        is_stopped: false,
    };
    for root in ROOTS {
        walk.folder(root, Path::new(root.path), root.depth);
    }
    for path in FILES {
        walk.file(Path::new(path));
    }
    for folder in &extra.folders {
        walk.names(folder);
    }
    for path in &extra.mounts {
        walk.add_presence(path);
    }
    walk.snapshot
}

struct Walk<'a> {
    host: &'a Host,
    extra: &'a ExtraFiles,
    limits: SnapshotLimits,
    reader: Reader,
    start: Instant,
    bytes: usize,
    snapshot: Snapshot,
    progress: &'a mut dyn FnMut(usize),
    /// True after a limit was reached. The walk then adds nothing.
    is_stopped: bool,
}

// === impl Walk ===

impl Walk<'_> {
    fn folder(&mut self, root: &AllowedFolder, folder: &Path, depth: u32) {
        let remaining = self.limits.max_entries.saturating_sub(self.snapshot.len());
        let Ok(entries) = fs::read_dir(self.host.path(folder)) else { return };
        // A folder may have too many entries, by mistake or by an attack.
        let mut entries: Vec<_> = entries.flatten().take(remaining + 1).collect();
        entries.sort_unstable_by_key(fs::DirEntry::file_name);
        if !root.has_device_nodes {
            self.add(folder, Entry::Folder);
        }
        let before = self.snapshot.len();
        self.entries(root, folder, entries, depth);
        // Drop a folder without recorded entries: its name may identify the machine, as the names of its entries did.
        if root.has_device_nodes && self.snapshot.len() > before {
            self.add(folder, Entry::Folder);
        }
    }

    fn entries(
        &mut self,
        root: &AllowedFolder,
        folder: &Path,
        entries: Vec<fs::DirEntry>,
        depth: u32,
    ) {
        for entry in entries {
            let (Ok(name), Ok(kind)) = (entry.file_name().into_string(), entry.file_type()) else {
                continue;
            };
            if self.check_limits() {
                return;
            }
            let path = folder.join(&name);
            if kind.is_symlink() {
                self.link(root, &path);
            } else if kind.is_dir() {
                self.enter(root, &path, depth);
            } else if root.has_device_nodes {
                self.add(&path, Entry::Node);
            } else if root.allows(folder, &name) || self.extra.names.contains(&name) {
                self.file(&path);
            }
        }
    }

    fn enter(&mut self, root: &AllowedFolder, folder: &Path, depth: u32) {
        let below = folder.strip_prefix(root.path).ok().and_then(Path::to_str);
        if depth > 0 && below.is_some_and(|below| !root.excludes(below)) {
            self.folder(root, folder, depth - 1);
        }
    }

    /// Adds a link whose target is below the same root. Drops a link to storage whose name an administrator chose.
    fn link(&mut self, root: &AllowedFolder, path: &Path) {
        let Some(target) = self.host.read_link(path).map(PathBuf::from) else { return };
        let top_folder = Path::new(root.path).iter().next().expect("a root has a path");
        let folder = path.parent().expect("an entry of a folder has a parent");
        if root.has_device_nodes && self.has_chosen_name(path) {
            return;
        }
        if target.is_relative() && normalize(&folder.join(&target)).starts_with(top_folder) {
            self.add(path, Entry::Link(target));
        }
    }

    /// Adds a path without content, and keeps existing entries. Skips a path below a recorded link, since the link's
    /// target is added instead.
    fn add_presence(&mut self, path: &Path) {
        let Some(real) = self.host.canonicalize(path) else { return };
        let Ok(metadata) = fs::metadata(self.host.path(&real)) else { return };
        for path in [path, &real] {
            let below = path.strip_prefix("/").unwrap_or(path);
            let is_known = |part: &Path| {
                matches!(self.snapshot.entries.get(part), Some(Entry::Link(_)))
                    || self.snapshot.entries.contains_key(below)
            };
            if below.ancestors().any(is_known) || self.check_limits() {
                continue;
            }
            self.add(below, if metadata.is_dir() { Entry::Folder } else { Entry::Node });
        }
    }

    fn has_chosen_name(&self, link: &Path) -> bool {
        let absolute = Path::new("/").join(link);
        let node = self
            .host
            .canonicalize(absolute)
            .or_else(|| self.host.read_link(link).map(PathBuf::from));
        let name = node.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
        name.is_some_and(has_chosen_name)
    }

    fn file(&mut self, path: &Path) {
        if !self.is_readable(path) {
            return;
        }
        match self.reader.read(self.host.path(path)) {
            ReadOutcome::Text(text) => {
                self.bytes += text.len();
                self.add(path, Entry::Text(text));
            }
            ReadOutcome::Missing => {}
            ReadOutcome::Unreadable(reason) => self.omit(path, reason),
        }
        if self.reader.hanging() >= MAX_HANGING {
            self.stop(path, format!("{MAX_HANGING} files do not answer"));
        }
    }

    /// True if any account may read the file. Sysfs has write-only files.
    fn is_readable(&self, path: &Path) -> bool {
        let everyone = Mode::RUSR | Mode::RGRP | Mode::ROTH;
        let file = fs::symlink_metadata(self.host.path(path));
        file.is_ok_and(|file| Mode::from_raw_mode(file.mode()).intersects(everyone))
    }

    /// Adds the names of a folder's files.
    fn names(&mut self, folder: &Path) {
        let below: PathBuf = folder.components().skip(1).collect();
        for name in self.host.entry_names(folder) {
            if !self.check_limits() {
                self.add(&below.join(name), Entry::Node);
            }
        }
    }

    fn add(&mut self, path: &Path, entry: Entry) {
        self.snapshot.entries.insert(path.to_owned(), entry);
        if self.snapshot.len().is_multiple_of(PROGRESS_INTERVAL) {
            (self.progress)(self.snapshot.len());
        }
    }

    fn omit(&mut self, path: &Path, reason: String) {
        self.snapshot.omissions.push(Omission { path: Path::new("/").join(path), why: reason });
    }

    /// True after a limit was reached. Records the limit as an omission, once.
    fn check_limits(&mut self) -> bool {
        let SnapshotLimits { max_entries, max_bytes, walk_timeout, .. } = self.limits;
        let reached = if self.is_stopped {
            None
        } else if self.snapshot.len() >= max_entries {
            Some(format!("{max_entries} entries"))
        } else if self.bytes >= max_bytes {
            Some(format!("{max_bytes} bytes"))
        } else if self.start.elapsed() >= walk_timeout {
            Some(format!("{walk_timeout:?}"))
        } else {
            None
        };
        if let Some(limit) = reached {
            self.stop(Path::new(""), format!("incomplete: no more than {limit} are recorded"));
        }
        self.is_stopped
    }

    /// Stops the walk, and records the reason.
    fn stop(&mut self, path: &Path, reason: String) {
        if !self.is_stopped {
            self.omit(path, reason);
        }
        self.is_stopped = true;
    }
}
