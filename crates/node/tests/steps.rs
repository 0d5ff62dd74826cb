//! The steps of an agent on disk, and the states that a kill between two of them leaves.
//!
//! A killed agent leaves the files that it wrote before. So a test runs an agent's work once, records each version of
//! each file in the order of the writes, and starts another agent from every prefix. On a busy machine a version may be
//! overwritten before it is recorded; then the work is repeated.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, Permissions},
    io,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    thread,
};

use inotify::{EventMask, Inotify, WatchDescriptor, WatchMask};
use windlass_config::HostPaths;

/// Content and mode of a file.
type Content = (Vec<u8>, u32);

type Files = BTreeMap<PathBuf, Content>;

/// The steps of an agent's work, as its files show them.
pub(crate) struct Steps {
    folders: Vec<PathBuf>,
    before: Files,
    /// Each file with its new content; `None` for a removal.
    changes: Vec<(PathBuf, Option<Content>)>,
}

/// Recorder of the versions that an agent writes of its files.
pub(crate) struct Recorder {
    folders: Vec<PathBuf>,
    before: Files,
    /// Links to each version of each file.
    versions: tempfile::TempDir,
    end: PathBuf,
    thread: thread::JoinHandle<Vec<(PathBuf, Option<PathBuf>)>>,
}

/// Maximum number of recordings of one piece of work.
pub(crate) const MAX_RECORDINGS: usize = 20;

// === impl Recorder ===

impl Recorder {
    /// Starts to record the work of an agent in these places.
    pub(crate) fn start(places: &HostPaths) -> Self {
        let limits = places.state_dir.join("memory-limits");
        let limit_folders = ["shares", "claims"].map(|kind| limits.join(kind));
        let folders: Vec<_> = [places.state_dir.clone(), places.cdi_dir.clone()]
            .into_iter()
            .chain(limit_folders)
            .collect();
        let mut inotify = Inotify::init().expect("inotify");
        let mut folders_by_watch: BTreeMap<WatchDescriptor, PathBuf> = BTreeMap::new();
        for folder in &folders {
            fs::create_dir_all(folder).expect("created");
            let mask = WatchMask::MOVED_TO | WatchMask::CLOSE_WRITE | WatchMask::DELETE;
            folders_by_watch
                .insert(inotify.watches().add(folder, mask).expect("watched"), folder.clone());
        }
        let before = files(&folders);
        // A link needs the same file system.
        let versions = tempfile::tempdir_in(places.state_dir.parent().expect("a folder"));
        let versions = versions.expect("a temporary folder");
        let (store, end) = (versions.path().to_owned(), places.cdi_dir.join("end-of-the-record"));
        let last = end.clone();
        let thread = thread::spawn(move || {
            let (mut steps, mut buffer) = (Vec::new(), [0; 4096]);
            loop {
                let events = inotify.read_events_blocking(&mut buffer).expect("events");
                for event in events {
                    let path = folders_by_watch[&event.wd].join(event.name.expect("a file"));
                    if path == last {
                        return steps;
                    }
                    if is_draft(&path) {
                        continue;
                    }
                    let version = store.join(steps.len().to_string());
                    let has_version = !event.mask.contains(EventMask::DELETE)
                        && fs::hard_link(&path, &version).is_ok();
                    steps.push((path, has_version.then_some(version)));
                }
            }
        });
        Self { folders, before, versions, end, thread }
    }

    /// The steps until now, or the file of which a version was overwritten before it was kept.
    pub(crate) fn stop(self) -> Result<Steps, String> {
        let Self { folders, before, versions, end, thread } = self;
        fs::write(&end, "").expect("written");
        let recorded = thread.join().expect("no panic");
        fs::remove_file(&end).expect("it was there");
        let mut inodes = BTreeSet::new();
        let steps = recorded.into_iter().map(|(path, version)| {
            let content = version.map(|version| (read(&version).expect("kept"), version));
            let inode = content.as_ref().map(|(_, at)| fs::metadata(at).expect("kept").ino());
            // Two events with one inode: the version of the first event is lost.
            let is_new = inode.is_none_or(|inode| inodes.insert(inode));
            let error = || format!("a version of {} is lost", path.display());
            if is_new { Ok((path, content.map(|(content, _)| content))) } else { Err(error()) }
        });
        let steps = steps.collect::<Result<Vec<_>, _>>()?;
        drop(versions);
        let steps = Steps { folders, before, changes: steps };
        // A version that was gone before it was kept is no removal.
        let (recorded, on_disk) = (steps.state(steps.len()), files(&steps.folders));
        let differs = on_disk
            .keys()
            .chain(recorded.keys())
            .find(|path| recorded.get(*path) != on_disk.get(*path));
        differs.map_or(Ok(()), |path| Err(format!("{} is lost", path.display())))?;
        Ok(steps)
    }
}

// === impl Steps ===

impl Steps {
    pub(crate) fn len(&self) -> usize {
        self.changes.len()
    }

    /// Names of the files in the order of their writes.
    pub(crate) fn names(&self) -> Vec<String> {
        let name = |(path, content): &(PathBuf, Option<Content>)| {
            let name = path.file_name().expect("a file").to_string_lossy().into_owned();
            if content.is_some() { name } else { format!("-{name}") }
        };
        self.changes.iter().map(name).collect()
    }

    /// Writes the files that an agent leaves if it is killed after this number of steps.
    pub(crate) fn restore(&self, done: usize) {
        for path in files(&self.folders).into_keys() {
            fs::remove_file(path).expect("it was there");
        }
        for (path, (content, mode)) in self.state(done) {
            fs::write(&path, content).expect("written");
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
        }
    }

    fn state(&self, done: usize) -> Files {
        let mut files = self.before.clone();
        for (path, content) in &self.changes[..done] {
            match content {
                Some(content) => drop(files.insert(path.clone(), content.clone())),
                None => drop(files.remove(path)),
            }
        }
        files
    }
}

fn files(folders: &[PathBuf]) -> Files {
    let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).expect("a folder"));
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let files = paths.filter(|path| path.is_file() && !is_draft(path));
    // A file may be removed after its folder is listed.
    files.filter_map(|path| Some((path.clone(), read(&path).ok()?))).collect()
}

fn read(path: &Path) -> io::Result<Content> {
    Ok((fs::read(path)?, fs::metadata(path)?.permissions().mode()))
}

fn is_draft(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
}
