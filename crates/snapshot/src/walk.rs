//! The way through the host: every folder that is worth it, no link followed, each step bounded.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Instant,
};

use rustix::fs::Mode;
use windlass_host::{Host, flat};

use super::{
    Also, Bounds, Entry, LeftOut, Recording,
    reader::{Answer, Reader},
    worth::{FILES, ROOTS, Root, is_named_by_people},
};

/// So many files may hang before no other is tried: each keeps a thread.
const MOST_HANGING: usize = 8;

/// How often whoever waits is told how far it is, in entries.
const TELL_EVERY: usize = 256;

/// Reads the host.
pub(super) fn walk(
    host: &Host,
    also: &Also,
    bounds: Bounds,
    seen: &mut dyn FnMut(usize),
) -> Recording {
    let reader = Reader::new(bounds.time_of_file, bounds.bytes_of_file);
    let (recording, begun) = (Recording::default(), Instant::now());
    let mut walk =
        Walk { host, also, bounds, reader, begun, bytes: 0, recording, seen, full: false };
    for root in &ROOTS {
        walk.folder(root, Path::new(root.path), root.depth);
    }
    for path in FILES {
        walk.file(Path::new(path));
    }
    for folder in &also.folders {
        walk.names(folder);
    }
    for path in &also.mounts {
        walk.presence(path);
    }
    walk.recording
}

/// A walk on its way.
struct Walk<'a> {
    host: &'a Host,
    also: &'a Also,
    bounds: Bounds,
    reader: Reader,
    begun: Instant,
    bytes: usize,
    recording: Recording,
    seen: &'a mut dyn FnMut(usize),
    /// Whether a bound was met, after which nothing is added.
    full: bool,
}

// === impl Walk ===

impl Walk<'_> {
    fn folder(&mut self, root: &Root, folder: &Path, depth: u32) {
        let left = self.bounds.entries.saturating_sub(self.recording.len());
        let Ok(entries) = fs::read_dir(self.host.path(folder)) else { return };
        // A folder may have more entries than there is room for, by a mistake or by malice.
        let mut entries: Vec<_> = entries.flatten().take(left + 1).collect();
        entries.sort_unstable_by_key(fs::DirEntry::file_name);
        if !root.nodes {
            self.add(folder, Entry::Folder);
        }
        let before = self.recording.len();
        self.entries(root, folder, entries, depth);
        // A folder of nothing but links that are left out has its name from what they lead to.
        if root.nodes && self.recording.len() > before {
            self.add(folder, Entry::Folder);
        }
    }

    fn entries(&mut self, root: &Root, folder: &Path, entries: Vec<fs::DirEntry>, depth: u32) {
        for entry in entries {
            let (Ok(name), Ok(kind)) = (entry.file_name().into_string(), entry.file_type()) else {
                continue;
            };
            if self.is_full() {
                return;
            }
            let path = folder.join(&name);
            if kind.is_symlink() {
                self.link(root, &path);
            } else if kind.is_dir() {
                self.enter(root, &path, depth);
            } else if root.nodes {
                self.add(&path, Entry::Node);
            } else if root.wants(folder, &name) || self.also.names.contains(&name) {
                self.file(&path);
            }
        }
    }

    fn enter(&mut self, root: &Root, folder: &Path, depth: u32) {
        let below = folder.strip_prefix(root.path).ok().and_then(Path::to_str);
        if depth > 0 && below.is_some_and(|below| !root.leaves(below)) {
            self.folder(root, folder, depth - 1);
        }
    }

    /// A link that stays in its part of the host; one that leads out of it would lead anywhere, and what
    /// people call their storage is nobody's business.
    fn link(&mut self, root: &Root, path: &Path) {
        let Some(target) = self.host.link(path).map(PathBuf::from) else { return };
        let part = Path::new(root.path).iter().next().expect("a root has a path");
        let folder = path.parent().expect("what is in a folder has a parent");
        if root.nodes && self.is_named_by_people(path) {
            return;
        }
        if target.is_relative() && flat(&folder.join(&target)).starts_with(part) {
            self.add(path, Entry::Link(target));
        }
    }

    /// That something is there, and nothing of it. What was recorded stays as it is, and below a link there
    /// is nothing of its own.
    fn presence(&mut self, path: &Path) {
        let Some(real) = self.host.followed(path) else { return };
        let Ok(found) = fs::metadata(self.host.path(&real)) else { return };
        for path in [path, &real] {
            let below = path.strip_prefix("/").unwrap_or(path);
            let is_known = |part: &Path| {
                matches!(self.recording.entries.get(part), Some(Entry::Link(_)))
                    || self.recording.entries.contains_key(below)
            };
            if below.ancestors().any(is_known) || self.is_full() {
                continue;
            }
            self.add(below, if found.is_dir() { Entry::Folder } else { Entry::Node });
        }
    }

    fn is_named_by_people(&self, link: &Path) -> bool {
        let absolute = Path::new("/").join(link);
        let node = self.host.followed(absolute).or_else(|| self.host.link(link).map(PathBuf::from));
        let name = node.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
        name.is_some_and(is_named_by_people)
    }

    fn file(&mut self, path: &Path) {
        if !self.is_readable(path) {
            return;
        }
        match self.reader.read(self.host.path(path)) {
            Answer::Text(text) => {
                self.bytes += text.len();
                self.add(path, Entry::Text(text));
            }
            Answer::Nothing => {}
            Answer::Unread(why) => self.leave_out(path, why),
        }
        if self.reader.hanging() >= MOST_HANGING {
            self.stop(path, format!("{MOST_HANGING} files do not answer"));
        }
    }

    /// Whether anyone may read a file: sysfs has some that are only written to.
    fn is_readable(&self, path: &Path) -> bool {
        let everyone = Mode::RUSR | Mode::RGRP | Mode::ROTH;
        let file = fs::symlink_metadata(self.host.path(path));
        file.is_ok_and(|file| Mode::from_raw_mode(file.mode()).intersects(everyone))
    }

    /// The names of the files in a folder.
    fn names(&mut self, folder: &Path) {
        let below: PathBuf = folder.components().skip(1).collect();
        for name in self.host.names(folder) {
            if !self.is_full() {
                self.add(&below.join(name), Entry::Node);
            }
        }
    }

    fn add(&mut self, path: &Path, entry: Entry) {
        self.recording.entries.insert(path.to_owned(), entry);
        if self.recording.len().is_multiple_of(TELL_EVERY) {
            (self.seen)(self.recording.len());
        }
    }

    fn leave_out(&mut self, path: &Path, why: String) {
        self.recording.left_out.push(LeftOut { path: Path::new("/").join(path), why });
    }

    /// Whether there is no room or no time for more, which is said once.
    fn is_full(&mut self) -> bool {
        let Bounds { entries, bytes, time, .. } = self.bounds;
        let met = if self.full {
            None
        } else if self.recording.len() >= entries {
            Some(format!("{entries} entries"))
        } else if self.bytes >= bytes {
            Some(format!("{bytes} bytes"))
        } else if self.begun.elapsed() >= time {
            Some(format!("{time:?}"))
        } else {
            None
        };
        if let Some(bound) = met {
            self.stop(Path::new(""), format!("what follows: no more than {bound} are taken"));
        }
        self.full
    }

    fn stop(&mut self, path: &Path, why: String) {
        if !self.full {
            self.leave_out(path, why);
        }
        self.full = true;
    }
}
