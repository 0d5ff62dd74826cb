//! Files of the driver, below the driver root, that containers need.

use std::path::{Path, PathBuf};

use windlass_core::cdi::SpecMount as Mount;
use windlass_host::{Host, Roots, driver_folders};

use super::libraries::{Libraries, Library, version_of_files};

/// The driver's files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Installation {
    /// The driver's version.
    pub(super) version: Option<String>,
    pub(super) libraries: Vec<Library>,
    /// Programs, firmware and graphics files, each at its own path.
    pub(super) files: Vec<Mount>,
    /// Sockets of the driver's daemons.
    pub(super) sockets: Vec<Mount>,
    /// A missing part of the driver, described for the operator.
    pub(super) problem: Option<String>,
}

/// Version of the loaded kernel module. Libraries must match it.
const MODULE_VERSION: &str = "/sys/module/nvidia/version";

/// The same version within a sentence, for an agent with a restricted `/sys`.
const MODULE_VERSION_TEXT: &str = "/proc/driver/nvidia/version";

/// Programs that containers use.
const PROGRAMS: &[&str] = &[
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
    "nvidia-imex",
    "nvidia-imex-ctl",
];

/// Folder in a container for programs whose own folder is in no `PATH`.
const PROGRAM_FOLDER: &str = "/usr/bin";

/// Files for graphics and `OpenCL`, below [`CONFIG_FOLDERS`].
const CONFIGS: &[&str] = &[
    "OpenCL/vendors/nvidia.icd",
    "X11/xorg.conf.d/10-nvidia.conf",
    "X11/xorg.conf.d/nvidia-drm-outputclass.conf",
    "egl/egl_external_platform.d/09_nvidia_wayland2.json",
    "egl/egl_external_platform.d/10_nvidia_wayland.json",
    "egl/egl_external_platform.d/15_nvidia_gbm.json",
    "glvnd/egl_vendor.d/10_nvidia.json",
    "nvidia/nvoptix.bin",
    "vulkan/icd.d/nvidia_icd.json",
    "vulkan/icd.d/nvidia_icd.aarch64.json",
    "vulkan/icd.d/nvidia_icd.x86_64.json",
    "vulkan/icd.d/nvidia_layers.json",
    "vulkan/implicit_layer.d/nvidia_layers.json",
];

/// Folders of these files, each with its path in a container. On GKE, `vulkan` is in the driver's own folder.
const CONFIG_FOLDERS: &[(&str, &str)] =
    &[("/etc", "/etc"), ("/usr/share", "/usr/share"), ("/", "/etc"), (driver_folders::GKE, "/etc")];

/// The X server's driver.
const XORG_DRIVERS: [&str; 3] = [
    "/usr/lib/xorg/modules/drivers/nvidia_drv.so",
    "/usr/lib64/xorg/modules/drivers/nvidia_drv.so",
    "/usr/lib/x86_64-linux-gnu/nvidia/xorg/nvidia_drv.so",
];

/// Sockets of the driver's daemons, below [`RUN_FOLDERS`].
const SOCKETS: [&str; 2] = ["nvidia-persistenced/socket", "nvidia-fabricmanager/socket"];

/// Folders of these sockets; one often is a link to the other.
const RUN_FOLDERS: [&str; 2] = ["/run", "/var/run"];

/// Default pipe folder of an MPS daemon that was not started by the agent.
const MPS_PIPES: &str = "/tmp/nvidia-mps";

// === impl Installation ===

impl Installation {
    /// Finds the driver's files.
    pub(super) fn find(roots: &Roots, cache: &mut Libraries) -> Self {
        let driver = &roots.driver;
        let version = loaded_version(&roots.host).or_else(|| version_of_files(driver));
        let libraries = version.as_deref().map(|version| cache.of_version(driver, version));
        let libraries = libraries.unwrap_or_default();
        let firmware = version.iter().flat_map(|version| firmware(roots, version));
        let files = programs(driver).chain(firmware).chain(configs(driver)).chain(xorg(driver));
        Self {
            files: files.collect(),
            sockets: sockets(roots),
            problem: problem(driver, version.as_deref(), &libraries),
            libraries,
            version,
        }
    }
}

/// Version of the loaded kernel module, `570.133.20`.
fn loaded_version(host: &Host) -> Option<String> {
    host.read_text(MODULE_VERSION).or_else(|| {
        let sentence = host.read_text(MODULE_VERSION_TEXT)?;
        let is_version = |word: &&str| {
            word.contains('.')
                && word.chars().all(|letter| letter.is_ascii_digit() || letter == '.')
        };
        sentence.split_whitespace().find(is_version).map(str::to_owned)
    })
}

/// Describes a missing CUDA library: without it no program reaches the GPU.
fn problem(driver: &Host, version: Option<&str>, libraries: &[Library]) -> Option<String> {
    if libraries.iter().any(|library| library.name.starts_with("libcuda.so.")) {
        return None;
    }
    let root = driver.path_on_node("/").components().collect::<PathBuf>();
    let root = root.display();
    let other_version =
        version_of_files(driver).filter(|other| version.is_some_and(|version| version != other));
    let detail = match (version, other_version) {
        (Some(loaded), Some(other)) => {
            format!("the loaded driver is {loaded}, and the libraries under {root} are {other}")
        }
        (Some(loaded), None) => format!("no libcuda.so.{loaded} under {root}"),
        (None, _) => format!("no libcuda.so.* under {root}"),
    };
    Some(format!("{detail}: containers get device nodes only"))
}

/// A mount of a file in the driver's tree.
fn mount(driver: &Host, path: &Path, container_path: PathBuf) -> Option<Mount> {
    Some(Mount::read_only(driver.path_on_node(driver.resolve_link(path)?), container_path))
}

fn programs(driver: &Host) -> impl Iterator<Item = Mount> {
    let path_folders = driver_folders::PROGRAMS.iter().map(|folder| (folder, *folder));
    let unusual_folders =
        driver_folders::UNUSUAL_PROGRAMS.iter().map(|folder| (folder, PROGRAM_FOLDER));
    let folders: Vec<_> = path_folders.chain(unusual_folders).collect();
    PROGRAMS.iter().filter_map(move |program| {
        folders.iter().find_map(|(folder, container_folder)| {
            let path = Path::new(folder).join(program);
            mount(driver, &path, Path::new(container_folder).join(program))
        })
    })
}

/// Firmware of the GPU's system processor, from the first of the kernel's folders that has any.
fn firmware(roots: &Roots, version: &str) -> Vec<Mount> {
    let Roots { host, driver, .. } = roots;
    let release = host.read_text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let configured_folder = host.read_text("/sys/module/firmware_class/parameters/path");
    let folders = [
        configured_folder.filter(|path| !path.is_empty()),
        Some(format!("/lib/firmware/updates/{release}")),
        Some("/lib/firmware/updates".to_owned()),
        Some(format!("/lib/firmware/{release}")),
        Some("/lib/firmware".to_owned()),
    ];
    let folders = folders.into_iter().flatten();
    let folders = folders.map(|folder| Path::new(&folder).join("nvidia").join(version));
    let is_gsp_firmware =
        |name: &String| name.starts_with("gsp") && name.strip_suffix(".bin").is_some();
    let mounts_by_folder = folders.map(|folder| {
        let names = driver.entry_names(&folder).into_iter().filter(is_gsp_firmware);
        let paths = names.map(|name| folder.join(name));
        paths.filter_map(|path| mount(driver, &path, path.clone())).collect::<Vec<_>>()
    });
    mounts_by_folder.into_iter().find(|mounts| !mounts.is_empty()).unwrap_or_default()
}

fn configs(driver: &Host) -> impl Iterator<Item = Mount> {
    CONFIGS.iter().filter_map(|config| {
        CONFIG_FOLDERS.iter().find_map(|(folder, container_folder)| {
            let path = Path::new(folder).join(config);
            mount(driver, &path, Path::new(container_folder).join(config))
        })
    })
}

fn xorg(driver: &Host) -> impl Iterator<Item = Mount> {
    let paths = XORG_DRIVERS.iter().map(Path::new);
    paths.filter_map(|path| mount(driver, path, path.to_owned())).take(1)
}

/// Sockets of daemons, from the driver's tree or else the host: a driver in a container may have daemons on
/// the host.
fn sockets(roots: &Roots) -> Vec<Mount> {
    let socket = |paths: Vec<PathBuf>| {
        [&roots.driver, &roots.host].into_iter().find_map(|tree| {
            let path = paths.iter().find(|path| tree.exists(path))?;
            Some(Mount::socket(tree.path_on_node(tree.resolve_link(path)?), path))
        })
    };
    let daemon_paths =
        SOCKETS.map(|name| RUN_FOLDERS.map(|run| Path::new(run).join(name)).to_vec());
    daemon_paths.into_iter().chain([vec![MPS_PIPES.into()]]).filter_map(socket).collect()
}
