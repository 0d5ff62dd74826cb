//! The driver's libraries: files with the driver's version in their names, and the links to them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use tokio::time::Instant;
use windlass_host::{Entry, Host, driver_folders};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Library {
    /// Folder in the driver's tree.
    pub(super) folder: PathBuf,
    /// Subfolder of the loader's folder in a container, such as `vdpau`; empty for the folder itself.
    pub(super) subfolder: &'static str,
    /// File name, with the version.
    pub(super) name: String,
    /// The resolved file in the driver's tree.
    pub(super) file: PathBuf,
    /// Names of links, relative to the folder.
    pub(super) links: BTreeSet<String>,
}

/// Cache of library folders, for one driver version.
#[derive(Clone, Debug, Default)]
pub(super) struct Libraries {
    version: String,
    folders: BTreeMap<PathBuf, CachedFolder>,
}

/// The libraries of one folder at its last search.
#[derive(Clone, Debug)]
struct CachedFolder {
    /// Modification time by the file system's clock.
    modified: SystemTime,
    /// Time at which the agent noticed this modification, by a monotonic clock.
    first_seen: Instant,
    /// True if the folder was searched when [`MTIME_GRANULARITY`] had passed, so that its content is final.
    is_final: bool,
    libraries: Vec<Library>,
}

/// Subfolders of library folders, each with its subfolder in a container.
const SUBFOLDERS: [(&str, &str); 3] =
    [("", ""), ("vdpau", "vdpau"), ("xorg/modules/extensions", "")];

/// Libraries of the driver that have another version than the driver.
const INDEPENDENTLY_VERSIONED: [&str; 4] = [
    "libnvidia-egl-gbm.so.",
    "libnvidia-egl-wayland.so.",
    "libnvidia-egl-wayland2.so.",
    "libnvidia-nvvm70.so.",
];

/// Link names that programs load, by library. Some installations lack these links.
const REQUIRED_LINKS: &[(&str, &str)] = &[
    ("libcuda.so.", "libcuda.so.1"),
    ("libcuda.so.", "libcuda.so"),
    ("libnvidia-ml.so.", "libnvidia-ml.so.1"),
    ("libGLX_nvidia.so.", "libGLX_indirect.so.0"),
    ("libglxserver_nvidia.so.", "libglxserver_nvidia.so"),
    ("libnvidia-allocator.so.", "gbm/nvidia-drm_gbm.so"),
    ("libnvidia-opticalflow.so.", "libnvidia-opticalflow.so"),
    ("libnvidia-vulkan-producer.so.", "libnvidia-vulkan-producer.so"),
];

/// Time in which a second change of a folder may leave its modification time unchanged, because the file system's clock
/// is coarse.
const MTIME_GRANULARITY: Duration = Duration::from_secs(2);

// === impl Libraries ===

impl Libraries {
    /// Libraries of that driver version. Unchanged folders are not read again.
    pub(super) fn of_version(&mut self, driver: &Host, version: &str) -> Vec<Library> {
        if self.version != version {
            *self = Self { version: version.to_owned(), ..Self::default() };
        }
        let now = Instant::now();
        let mut libraries = Vec::new();
        let mut searched_folders = BTreeSet::new();
        for parent in driver_folders::LIBRARIES {
            for (subfolder, container_subfolder) in SUBFOLDERS {
                let folder = match subfolder {
                    "" => PathBuf::from(parent),
                    subfolder => Path::new(parent).join(subfolder),
                };
                // `/lib64` often links to `/usr/lib64`.
                let Some(real_path) = driver.canonicalize(&folder) else { continue };
                if searched_folders.insert(real_path) {
                    libraries.extend_from_slice(self.in_folder(
                        driver,
                        &folder,
                        container_subfolder,
                        now,
                    ));
                }
            }
        }
        libraries
    }

    fn in_folder(
        &mut self,
        driver: &Host,
        folder: &Path,
        container_subfolder: &'static str,
        now: Instant,
    ) -> &[Library] {
        let modified = driver.modified(folder).unwrap_or(SystemTime::UNIX_EPOCH);
        let cached = self.folders.get(folder).filter(|cached| cached.modified == modified);
        if !cached.is_some_and(|cached| cached.is_final) {
            let first_seen = cached.map_or(now, |cached| cached.first_seen);
            let is_final = now.duration_since(first_seen) > MTIME_GRANULARITY;
            let libraries = search(driver, folder, container_subfolder, &self.version);
            let cached_folder = CachedFolder { modified, first_seen, is_final, libraries };
            self.folders.insert(folder.to_owned(), cached_folder);
        }
        self.folders.get(folder).map_or(&[], |cached| &cached.libraries)
    }
}

/// The driver's version by the name of a CUDA library, if the kernel module reports none.
pub(super) fn version_of_files(driver: &Host) -> Option<String> {
    let names = driver_folders::LIBRARIES.iter().flat_map(|folder| driver.entry_names(folder));
    let mut versions = names.filter_map(|name| name.strip_prefix("libcuda.so.").map(str::to_owned));
    versions.find(|version| version.contains('.'))
}

fn search(
    driver: &Host,
    folder: &Path,
    container_subfolder: &'static str,
    version: &str,
) -> Vec<Library> {
    let Ok(entries) = driver.read_dir(folder) else { return Vec::new() };
    let file = |entry: &Entry| {
        let path = folder.join(&entry.name);
        if entry.is_link() { driver.resolve_link(path) } else { Some(path) }
    };
    let library = |entry: &Entry| {
        let (name, stem) = (&entry.name, stem(&entry.name));
        let resolved_file = file(entry)?;
        let is_link_to_file = |other: &&Entry| {
            let has_stem = other
                .name
                .strip_prefix(stem)
                .is_some_and(|suffix| suffix.is_empty() || suffix.starts_with('.'));
            has_stem && other.name != *name && file(other).as_ref() == Some(&resolved_file)
        };
        let existing_links = entries.iter().filter(is_link_to_file).map(|other| other.name.clone());
        let required_links = REQUIRED_LINKS.iter().filter(|(prefix, _)| name.starts_with(prefix));
        let required_links = required_links.map(|(_, link)| (*link).to_owned());
        let links = existing_links.chain(required_links).collect();
        Some(Library {
            folder: folder.to_owned(),
            subfolder: container_subfolder,
            name: name.clone(),
            file: resolved_file,
            links,
        })
    };
    let files = entries.iter().filter(|entry| is_of_driver(&entry.name, version));
    files.filter_map(library).collect()
}

fn is_of_driver(name: &str, version: &str) -> bool {
    let has_version = name.strip_suffix(version).is_some_and(|name| name.ends_with(".so."));
    let has_other = INDEPENDENTLY_VERSIONED.iter().any(|prefix| {
        // A name with a single number is a link, except for NVVM.
        let number = name.strip_prefix(prefix);
        number.is_some_and(|number| number.contains('.') || prefix.contains("nvvm"))
    });
    name.starts_with("lib") && (has_version || has_other)
}

/// `libcuda.so` of `libcuda.so.570.133.20`.
fn stem(name: &str) -> &str {
    name.find(".so").map_or(name, |position| &name[..position + ".so".len()])
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    const VERSION: &str = "570.133.20";

    /// A driver root with one library folder, whose modification time is fixed.
    struct Tree(tempfile::TempDir, SystemTime);

    impl Tree {
        fn new(modified: SystemTime) -> Self {
            let tree = Self(tempfile::tempdir().expect("a temporary folder"), modified);
            fs::create_dir_all(tree.folder()).expect("made");
            tree
        }

        fn folder(&self) -> PathBuf {
            self.0.path().join("usr/lib64")
        }

        fn host(&self) -> Host {
            Host::new(self.0.path(), self.0.path())
        }

        fn replace_libraries(&self, libraries: &[&str]) {
            for entry in fs::read_dir(self.folder()).expect("there").flatten() {
                fs::remove_file(entry.path()).expect("removed");
            }
            for library in libraries {
                fs::write(self.folder().join(format!("{library}.so.{VERSION}")), "").expect("made");
            }
            File::open(self.folder()).expect("there").set_modified(self.1).expect("set");
        }

        fn find(&self, cached: &mut Libraries, now: Instant) -> Vec<String> {
            cached.version = VERSION.to_owned();
            let libraries = cached.in_folder(&self.host(), Path::new("/usr/lib64"), "", now);
            libraries.iter().map(|library| stem(&library.name).to_owned()).collect()
        }
    }

    #[test]
    fn a_folder_is_read_again_until_its_modification_time_is_certain() {
        const HOUR: Duration = Duration::from_secs(3600);
        let clock = SystemTime::now();
        for modified in [clock - HOUR, clock, clock + HOUR] {
            let (tree, mut cached, start) =
                (Tree::new(modified), Libraries::default(), Instant::now());
            tree.replace_libraries(&["libcuda"]);
            assert_eq!(tree.find(&mut cached, start), ["libcuda.so"]);
            // Within the tick of the file system's clock: the time of the change is the same.
            tree.replace_libraries(&["libcuda", "libnvcuvid"]);
            let second_search = tree.find(&mut cached, start + MTIME_GRANULARITY / 2);
            assert_eq!(second_search.len(), 2, "it may have changed: {modified:?}");
            assert_eq!(tree.find(&mut cached, start + 2 * MTIME_GRANULARITY).len(), 2);
            // A late change with the same time would be missed: this shows that the folder is not read.
            tree.replace_libraries(&[]);
            let late_search = tree.find(&mut cached, start + 3 * MTIME_GRANULARITY);
            assert_eq!(late_search.len(), 2, "it cannot have changed: {modified:?}");
        }
    }

    #[test]
    fn the_drivers_files_are_recognised_by_their_version() {
        for (name, expected) in [
            ("libcuda.so.570.133.20", true),
            ("libnvidia-egl-gbm.so.1.1.2", true),
            ("libnvidia-nvvm70.so.4", true),
            ("libcuda.so.1", false),
            ("libcuda.so.535.1.2", false),
            ("libnvidia-egl-gbm.so.1", false),
            ("libnvidia-container.so.1.17.8", false),
            ("libc.so.6", false),
        ] {
            assert_eq!(is_of_driver(name, "570.133.20"), expected, "{name}");
        }
        assert_eq!(stem("libcuda.so.570.133.20"), "libcuda.so");
    }
}
