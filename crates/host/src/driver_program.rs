//! Programs of NVIDIA's driver: lookup and environment.
//!
//! If the driver root is a complete system, as for an agent in a container, programs run in a chroot with its
//! libraries. If the root contains only the driver, they run without chroot, with the root's folders in
//! their search paths.

use std::{
    ffi::OsString,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use tokio::process::Command;

use crate::{
    Host, NVML,
    driver_folders::{LIBRARIES, programs},
};

/// A program of the driver, ready to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverProgram {
    /// Path for the process that runs it.
    pub path: PathBuf,
    /// Root to `chroot` into, if the driver root is a complete system.
    pub chroot: Option<PathBuf>,
    search: Search,
}

/// Search paths of programs and libraries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Search {
    programs: Vec<PathBuf>,
    libraries: Option<PathBuf>,
}

/// The driver's installation lacks the program.
#[derive(Debug, thiserror::Error)]
#[error("there is no {name} in {searched}")]
pub struct MissingProgram {
    name: &'static str,
    searched: String,
}

/// Dynamic linkers, which only the root of a complete system has.
const LOADERS: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];

// === impl DriverProgram ===

impl DriverProgram {
    /// Finds a program. `chroot` is the root to run it in, if any.
    pub fn find(
        name: &'static str,
        driver: &Host,
        chroot: Option<PathBuf>,
    ) -> Result<Self, MissingProgram> {
        let mut candidates = programs().map(|folder| Path::new(folder).join(name));
        let Some(program) = candidates.find(|path| driver.exists(path)) else {
            let searched = programs().map(|folder| driver.path(folder).display().to_string());
            let searched = searched.collect::<Vec<_>>().join(", ");
            return Err(MissingProgram { name, searched });
        };
        if chroot.is_some() {
            // The system's dynamic linker does not search a separate tree of the driver.
            let has_nvml = |folder: &&&str| driver.exists(Path::new(folder).join(NVML));
            let libraries = LIBRARIES.iter().find(has_nvml).map(PathBuf::from);
            let search = Search { programs: Vec::new(), libraries };
            return Ok(Self { path: program, chroot, search });
        }
        let search = Search {
            programs: programs().map(|folder| driver.path(folder)).collect(),
            libraries: driver.nvml_library().and_then(|path| folder_of(&path)),
        };
        Ok(Self { path: driver.path(program), chroot, search })
    }

    /// Command with a clean environment, since the agent's CUDA variables are not meant for the program.
    pub fn command(&self) -> Command {
        let mut command = match &self.chroot {
            Some(root) => {
                let mut command = Command::new("chroot");
                command.arg(root).arg(&self.path);
                command
            }
            None => Command::new(&self.path),
        };
        command.env_clear().env("PATH", self.search.search_path());
        if let Some(libraries) = &self.search.libraries {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        command
    }
}

// === impl Search ===

impl Search {
    /// The driver's folders, then the agent's `PATH`, since the program may be a script that runs others.
    fn search_path(&self) -> OsString {
        let inherited = std::env::var_os("PATH").unwrap_or_default();
        let folders = self.programs.iter().cloned().chain(std::env::split_paths(&inherited));
        std::env::join_paths(folders).unwrap_or(inherited)
    }
}

/// The driver root, if it is a complete system other than the agent's own.
pub fn system_root(driver: &Host) -> Option<PathBuf> {
    let root = driver.path("/");
    let is_system = LOADERS.iter().any(|loader| driver.exists(loader));
    (is_system && !is_same_folder(&root, Path::new("/"))).then_some(root)
}

/// True if both paths are the same folder.
pub fn is_same_folder(one: &Path, other: &Path) -> bool {
    match (fs::metadata(one), fs::metadata(other)) {
        (Ok(one), Ok(other)) => (one.dev(), one.ino()) == (other.dev(), other.ino()),
        _ => false,
    }
}

fn folder_of(file: &Path) -> Option<PathBuf> {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).map(Path::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "nvidia-smi";

    /// A driver root with these files.
    fn tree(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("a temporary folder");
        for file in files {
            let path = dir.path().join(file.trim_start_matches('/'));
            fs::create_dir_all(path.parent().expect("a folder")).expect("created");
            fs::write(path, "").expect("written");
        }
        dir
    }

    #[test]
    fn a_root_with_only_a_driver_is_used_without_chroot() {
        let dir = tree(&["usr/bin/nvidia-smi", "usr/lib64/libnvidia-ml.so.1"]);
        let driver = Host::new(dir.path(), "/");
        assert_eq!(system_root(&driver), None);
        let program = DriverProgram::find(NAME, &driver, None).expect("found");
        assert_eq!(program.path, dir.path().join("usr/bin/nvidia-smi"));
        assert_eq!(program.search.libraries, Some(dir.path().join("usr/lib64")));
    }

    #[test]
    fn a_complete_system_is_entered_by_chroot() {
        let dir = tree(&["usr/bin/nvidia-smi", LOADERS[0]]);
        let chroot = system_root(&Host::new(dir.path(), "/"));
        assert_eq!(chroot.as_deref(), Some(dir.path()));
        let program = DriverProgram::find(NAME, &Host::new(dir.path(), "/"), chroot);
        let command = program.expect("found").command();
        assert_eq!(command.as_std().get_program(), "chroot");
        assert_eq!(system_root(&Host::new("/", "/")), None, "the agent runs in this root already");
    }

    #[test]
    fn a_program_in_a_chroot_finds_libraries_in_a_separate_tree() {
        let nvml = "usr/local/nvidia/lib64/libnvidia-ml.so.1";
        let dir = tree(&["usr/local/nvidia/bin/nvidia-smi", nvml, LOADERS[0]]);
        let chroot = Some(dir.path().to_owned());
        let program = DriverProgram::find(NAME, &Host::new(dir.path(), "/"), chroot);
        let search = program.expect("found").search;
        assert_eq!(search.libraries.as_deref(), Some(Path::new("/usr/local/nvidia/lib64")));
    }

    #[test]
    fn the_error_of_a_missing_program_names_the_folders() {
        let dir = tree(&[]);
        let missing = DriverProgram::find(NAME, &Host::new(dir.path(), "/"), None);
        let message = missing.expect_err("missing").to_string();
        assert!(
            message.starts_with("there is no nvidia-smi in /") && message.contains("usr/bin"),
            "{message}"
        );
    }
}
