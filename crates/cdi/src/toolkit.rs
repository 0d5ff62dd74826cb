//! Hooks of NVIDIA's container toolkit, if the toolkit is on the host.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use windlass_config::Hooks;
use windlass_core::cdi;
use windlass_host::Host;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Toolkit {
    /// Path of the toolkit's program, as the container runtime sees it.
    program: PathBuf,
    disabled: BTreeSet<String>,
}

/// Tasks of hooks, with the toolkit's names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HookTask {
    /// Links the names under which programs load libraries.
    CreateSymlinks,
    /// Adds libraries to the loader's cache.
    UpdateLdcache,
    /// Prefers the image's newer CUDA library if the driver allows it.
    EnableCudaCompat,
    /// Keeps the driver's library from creating device nodes for all GPUs.
    DisableDeviceNodeModification,
}

/// Paths of the toolkit's program in packages and in NVIDIA's operator. The program with hooks only comes first.
const PROGRAMS: [&str; 4] = [
    "/usr/bin/nvidia-cdi-hook",
    "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
    "/usr/bin/nvidia-ctk",
    "/usr/local/nvidia/toolkit/nvidia-ctk",
];

/// Program whose hooks are below a subcommand.
const CTK: &str = "nvidia-ctk";

/// Value that disables every hook.
const ALL: &str = "all";

// === impl Toolkit ===

impl Toolkit {
    /// Finds the host's toolkit. Fails if a configured program is missing: with its hooks in a document, no container
    /// would start.
    pub(super) fn find(host: &Host, hooks: &Hooks) -> Result<Option<Self>, String> {
        let program = match &hooks.program {
            Some(configured_program) if !host.exists(configured_program) => {
                return Err(format!(
                    "the hook program {} is not on the host: containers start without hooks",
                    configured_program.display()
                ));
            }
            Some(configured_program) => Some(configured_program.as_path()),
            None => PROGRAMS.iter().map(Path::new).find(|path| host.exists(path)),
        };
        let disabled = &hooks.disabled;
        let program = program.filter(|_| !disabled.contains(ALL));
        Ok(program.map(|program| Self {
            program: host.path_on_node(program),
            disabled: disabled.clone(),
        }))
    }

    /// True if, with its hooks, programs find libraries in any folder.
    pub(super) fn updates_library_paths(&self) -> bool {
        [HookTask::CreateSymlinks, HookTask::UpdateLdcache]
            .iter()
            .all(|task| self.is_enabled(*task))
    }

    /// A hook for the task, unless it is disabled.
    pub(super) fn hook(&self, task: HookTask, arguments: Vec<String>) -> Option<cdi::Hook> {
        if !self.is_enabled(task) {
            return None;
        }
        let name = self.program.file_name()?.to_string_lossy().into_owned();
        let subcommand = (name == CTK).then(|| "hook".to_owned());
        let fixed_arguments = [name].into_iter().chain(subcommand).chain([task.name().to_owned()]);
        Some(cdi::Hook {
            hook_name: "createContainer".to_owned(),
            path: self.program.clone(),
            args: fixed_arguments.chain(arguments).collect(),
            env: vec!["NVIDIA_CTK_DEBUG=false".to_owned()],
            timeout: None,
        })
    }

    /// A hook that makes links, each in the form `target::link`.
    pub(super) fn symlink_hook(
        &self,
        links: impl IntoIterator<Item = String>,
    ) -> Option<cdi::Hook> {
        let arguments: Vec<_> =
            links.into_iter().flat_map(|link| ["--link".to_owned(), link]).collect();
        if arguments.is_empty() { None } else { self.hook(HookTask::CreateSymlinks, arguments) }
    }

    fn is_enabled(&self, task: HookTask) -> bool {
        !self.disabled.contains(task.name())
    }
}

// === impl HookTask ===

impl HookTask {
    fn name(self) -> &'static str {
        match self {
            Self::CreateSymlinks => "create-symlinks",
            Self::UpdateLdcache => "update-ldcache",
            Self::EnableCudaCompat => "enable-cuda-compat",
            Self::DisableDeviceNodeModification => "disable-device-node-modification",
        }
    }
}
