//! Edits that give every GPU container the driver's files: a pure function of the installation.
//!
//! A program finds `libcuda.so.1` through the loader's cache, or in the few folders that every loader
//! searches.
//!
//! With NVIDIA's toolkit on the host, libraries keep their folder, and the toolkit's hooks make the links
//! and refresh the container's cache.
//!
//! Without the toolkit no hook makes links or refreshes the cache. So the libraries go into the loader's folders under
//! every name that programs load. Debian's loader searches its multiarch folder, those of Red Hat and SUSE
//! `/usr/lib64`; an image's loader is unknown, so both folders get the libraries. `LD_LIBRARY_PATH` is no alternative:
//! a document's variable would replace the image's. A document cannot have links, so each name is a mount of the same
//! file.

use std::{
    collections::BTreeSet,
    env::consts::ARCH,
    path::{Path, PathBuf},
};

use windlass_core::cdi::{ContainerEdits, SpecMount as Mount};
use windlass_host::Host;

use super::{
    installation::Installation,
    libraries::Library,
    toolkit::{HookTask, Toolkit},
};

/// Library folder of Red Hat's and SUSE's loaders.
const LIB64: &str = "/usr/lib64";

/// Suffix of Debian's multiarch folders.
const MULTIARCH: &str = "-linux-gnu";

/// Variable with the folder of CUDA's library, for the toolkit's hooks and for programs.
const LIBCUDA_FOLDER: &str = "NVIDIA_CTK_LIBCUDA_DIR";

pub(super) fn edits(
    driver: &Host,
    installation: &Installation,
    toolkit: Option<&Toolkit>,
) -> ContainerEdits {
    let libraries = &installation.libraries;
    let placing_toolkit = toolkit.filter(|toolkit| toolkit.updates_library_paths());
    let mut mounts = match placing_toolkit {
        Some(_) => mounts_in_own_folders(driver, libraries),
        None => mounts_in_loader_folders(driver, libraries),
    };
    mounts.extend(installation.files.iter().chain(&installation.sockets).cloned());
    let mut container_paths = BTreeSet::new();
    mounts.retain(|mount| container_paths.insert(mount.container_path.clone()));
    let libcuda_folders =
        libraries.iter().filter(|library| library.name.starts_with("libcuda.so."));
    let libcuda_folders = libcuda_folders.map(|library| match placing_toolkit {
        Some(_) => library.folder.display().to_string(),
        None => loader_folders(libraries).map(|folder| folder.display().to_string()).join(":"),
    });
    let env = libcuda_folders.take(1).map(|folders| format!("{LIBCUDA_FOLDER}={folders}"));
    let hooks = toolkit.map(|toolkit| hooks(installation, toolkit)).unwrap_or_default();
    ContainerEdits { env: env.collect(), mounts, hooks, ..ContainerEdits::default() }
}

fn mounts_in_own_folders(driver: &Host, libraries: &[Library]) -> Vec<Mount> {
    let mount = |library: &Library| {
        let path = library.folder.join(&library.name);
        Mount::read_only(driver.path_on_node(&library.file), path)
    };
    libraries.iter().map(mount).collect()
}

fn mounts_in_loader_folders(driver: &Host, libraries: &[Library]) -> Vec<Mount> {
    let mut mounts = Vec::new();
    for folder in loader_folders(libraries) {
        for library in libraries {
            let folder = folder.join(library.subfolder);
            let names = std::iter::once(&library.name).chain(&library.links);
            let source = driver.path_on_node(&library.file);
            mounts.extend(names.map(|name| Mount::read_only(&source, folder.join(name))));
        }
    }
    mounts
}

/// Library folders of all loaders. The name of the multiarch folder comes from the libraries' own folder, or else from
/// the agent's architecture.
fn loader_folders(libraries: &[Library]) -> [PathBuf; 2] {
    let folders = libraries.iter().flat_map(|library| library.folder.ancestors());
    let is_multiarch = |folder: &&Path| folder.to_string_lossy().ends_with(MULTIARCH);
    let name = folders.filter(is_multiarch).find_map(Path::file_name);
    let agent_folder = PathBuf::from(format!("{ARCH}{MULTIARCH}"));
    let name = name.map_or(agent_folder, PathBuf::from);
    [LIB64.into(), Path::new("/usr/lib").join(name)]
}

fn hooks(installation: &Installation, toolkit: &Toolkit) -> Vec<windlass_core::cdi::Hook> {
    let Installation { libraries, version, .. } = installation;
    if libraries.is_empty() {
        return Vec::new();
    }
    // If the toolkit does not place libraries, mounts have all names already.
    let placed_libraries = if toolkit.updates_library_paths() { libraries.as_slice() } else { &[] };
    let folders: BTreeSet<_> = placed_libraries.iter().map(|library| &library.folder).collect();
    let folders =
        folders.iter().flat_map(|folder| ["--folder".to_owned(), folder.display().to_string()]);
    let folders: Vec<_> = folders.collect();
    let version = version.iter().map(|version| format!("--host-driver-version={version}"));
    [
        toolkit.symlink_hook(placed_libraries.iter().flat_map(link_arguments)),
        toolkit.hook(HookTask::EnableCudaCompat, version.collect()),
        (!folders.is_empty()).then(|| toolkit.hook(HookTask::UpdateLdcache, folders)).flatten(),
        toolkit.hook(HookTask::DisableDeviceNodeModification, Vec::new()),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Links to a library, in the hook's form `target::link`.
fn link_arguments(library: &Library) -> impl Iterator<Item = String> {
    library.links.iter().map(|link| {
        let parents = "../".repeat(link.matches('/').count());
        format!("{parents}{}::{}", library.name, library.folder.join(link).display())
    })
}
