//! The hooks of NVIDIA's container toolkit, where its program is on the host.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use windlass_config::Hooks;
use windlass_core::cdi;
use windlass_host::Host;

/// A toolkit that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Toolkit {
    /// Its program, as the container runtime finds it.
    program: PathBuf,
    disabled: BTreeSet<String>,
}

/// What a hook does; the names are the toolkit's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// Makes the names under which libraries are loaded.
    CreateSymlinks,
    /// Puts libraries into the loader's cache.
    UpdateLdcache,
    /// Prefers the image's newer CUDA library where the driver allows it.
    EnableCudaCompat,
    /// Keeps the driver's library from making device nodes for all GPUs.
    DisableDeviceNodeModification,
}

/// Where packages and NVIDIA's operator put the program. The one that has hooks only comes first.
const PROGRAMS: [&str; 4] = [
    "/usr/bin/nvidia-cdi-hook",
    "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
    "/usr/bin/nvidia-ctk",
    "/usr/local/nvidia/toolkit/nvidia-ctk",
];

/// The program that has hooks below a command of its own.
const CTK: &str = "nvidia-ctk";

/// Leaves out every hook.
const ALL: &str = "all";

// === impl Toolkit ===

impl Toolkit {
    /// The toolkit of the host. A program that the configuration names and that is not there is an
    /// error: a document that asks for it would let no container start.
    pub(super) fn find(host: &Host, hooks: &Hooks) -> Result<Option<Self>, String> {
        let found = match &hooks.program {
            Some(named) if !host.has(named) => {
                let named = named.display();
                return Err(format!("the hook program {named} is not on the host: going without"));
            }
            Some(named) => Some(named.as_path()),
            None => PROGRAMS.iter().map(Path::new).find(|path| host.has(path)),
        };
        let disabled = &hooks.disabled;
        let found = found.filter(|_| !disabled.contains(ALL));
        Ok(found.map(|program| Self {
            program: host.path_on_node(program),
            disabled: disabled.clone(),
        }))
    }

    /// Whether its hooks let programs find libraries in any folder.
    pub(super) fn places_libraries(&self) -> bool {
        [Task::CreateSymlinks, Task::UpdateLdcache].iter().all(|task| self.does(*task))
    }

    /// A hook, unless it is disabled.
    pub(super) fn hook(&self, task: Task, arguments: Vec<String>) -> Option<cdi::Hook> {
        if !self.does(task) {
            return None;
        }
        let name = self.program.file_name()?.to_string_lossy().into_owned();
        let subcommand = (name == CTK).then(|| "hook".to_owned());
        let fixed = [name].into_iter().chain(subcommand).chain([task.name().to_owned()]);
        Some(cdi::Hook {
            hook_name: "createContainer".to_owned(),
            path: self.program.clone(),
            args: fixed.chain(arguments).collect(),
            env: vec!["NVIDIA_CTK_DEBUG=false".to_owned()],
            timeout: None,
        })
    }

    /// A hook that makes links, each given as what it says and where it is.
    pub(super) fn links(&self, links: impl IntoIterator<Item = String>) -> Option<cdi::Hook> {
        let arguments: Vec<_> =
            links.into_iter().flat_map(|link| ["--link".to_owned(), link]).collect();
        if arguments.is_empty() { None } else { self.hook(Task::CreateSymlinks, arguments) }
    }

    fn does(&self, task: Task) -> bool {
        !self.disabled.contains(task.name())
    }
}

// === impl Task ===

impl Task {
    fn name(self) -> &'static str {
        match self {
            Self::CreateSymlinks => "create-symlinks",
            Self::UpdateLdcache => "update-ldcache",
            Self::EnableCudaCompat => "enable-cuda-compat",
            Self::DisableDeviceNodeModification => "disable-device-node-modification",
        }
    }
}
