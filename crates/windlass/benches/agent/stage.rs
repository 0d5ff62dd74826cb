//! The stage: a simulated machine in a throw-away folder, embedded kubelets, agents as processes.

use std::{
    ffi::OsStr,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result};
use tempfile::TempDir;
use windlass_kubelet_api::{deviceplugin::PLUGIN_DIR, socket::SocketPath};
use windlass_kubelet_sim::{Config, Kubelet, NodeStatus, PluginStatus};
use windlass_machine::{Machine, MachineProfile, find_driver};

/// The resource that every part asks for.
pub(crate) const RESOURCE: &str = "nvidia.com/gpu";

/// Deadline of any event.
pub(crate) const EVENT_TIMEOUT: Duration = Duration::from_secs(10);

/// In memory where there is such a file system: sockets and state files, not the disk, are measured.
const TMPFS_DIR: &str = "/dev/shm";

/// A machine, and room for what uses it.
#[derive(Debug)]
pub(crate) struct Testbed {
    pub(crate) machine: Machine,
    folder: TempDir,
}

/// A process that ends with its handle.
#[derive(Debug)]
pub(crate) struct ChildProcess(Child);

/// An agent whose devices the kubelet knows.
#[derive(Debug)]
pub(crate) struct ServingAgent {
    // Ended in this order.
    pub(crate) agent: ChildProcess,
    pub(crate) kubelet: Kubelet,
    pub(crate) testbed: Testbed,
}

// === impl Testbed ===

impl Testbed {
    /// Makes a machine of a known profile.
    pub(crate) fn create(profile: &str) -> Result<Self> {
        let memory = Path::new(TMPFS_DIR);
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let folder = tempfile::Builder::new()
            .prefix("windlass-bench-")
            .tempdir_in(parent)
            .context("cannot make a temporary folder")?;
        let machine = folder.path().join("machine");
        let machine = Machine::create(&machine, &MachineProfile::named(profile)?, &find_driver()?)
            .context("cannot make the simulated machine")?;
        Ok(Self { machine, folder })
    }

    /// A path for something of the stage's.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A kubelet that has forgotten what was before.
    pub(crate) fn kubelet(&self) -> Result<Kubelet> {
        let dir = self.path("kubelet");
        recreate_dir(&dir)?;
        start_kubelet(&dir)
    }

    /// The agent, which finds none of its own files; told where everything is, and by the environment what the image
    /// says.
    pub(crate) fn agent(&self, more: &[&OsStr]) -> Result<Command> {
        let cdi = self.path("cdi");
        recreate_dir(&cdi)?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
        command.env_clear().env("MALLOC_ARENA_MAX", "1").arg("node");
        command.arg("--host-root").arg(self.machine.host_root());
        command.arg("--host-root-on-node").arg(self.machine.host_root());
        command.arg("--nvml-library").arg(self.machine.nvml_library());
        command.arg("--kubelet-dir").arg(self.path("kubelet"));
        command.arg("--cdi-dir").arg(cdi);
        command.arg("--state-dir").arg(self.path("state"));
        command.args(more);
        // A file is what a container runtime's log costs, less its reader.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(self.log())?);
        Ok(command)
    }

    /// Starts kubelet and agent, and waits for the device list.
    pub(crate) async fn serve(self, more: &[&OsStr]) -> Result<ServingAgent> {
        let kubelet = self.kubelet()?;
        let agent = ChildProcess::start(&mut self.agent(more)?)?;
        let served = ServingAgent { agent, kubelet, testbed: self };
        served.wait_for(is_listed).await?;
        Ok(served)
    }

    fn log(&self) -> PathBuf {
        self.path("agent.log")
    }
}

/// Starts an embedded kubelet in a folder.
pub(crate) fn start_kubelet(dir: &Path) -> Result<Kubelet> {
    let mut settings = Config::new(dir);
    settings.numa_nodes = (0..8).collect();
    Kubelet::start(settings).context("cannot start the embedded kubelet")
}

/// True if the plugin is registered; the kubelet's checkpoint of an earlier plugin does not count.
pub(crate) fn is_registered(node: &NodeStatus) -> bool {
    matches!(node.plugins.get(RESOURCE), Some(PluginStatus::Connected { .. }))
}

/// True if the plugin's device list has arrived.
pub(crate) fn is_listed(node: &NodeStatus) -> bool {
    node.counts(RESOURCE).is_some_and(|(capacity, _)| capacity > 0)
}

fn recreate_dir(dir: &Path) -> Result<()> {
    if dir.exists() {
        fs::remove_dir_all(dir).with_context(|| format!("cannot remove {}", dir.display()))?;
    }
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))
}

// === impl ChildProcess ===

impl ChildProcess {
    /// Starts a process.
    pub(crate) fn start(command: &mut Command) -> Result<Self> {
        let program = command.get_program().to_owned();
        command.spawn().map(Self).with_context(|| format!("cannot start {}", program.display()))
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // One that has ended already needs no ending.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// === impl ServingAgent ===

impl ServingAgent {
    /// Waits for the node to get there; says the agent's last words if it does not.
    pub(crate) async fn wait_for(
        &self,
        condition: impl FnMut(&NodeStatus) -> bool,
    ) -> Result<Arc<NodeStatus>> {
        let waited = self.kubelet.wait_for(condition, EVENT_TIMEOUT).await;
        waited.with_context(|| {
            let log = fs::read_to_string(self.testbed.log()).unwrap_or_default();
            format!("the agent's log:\n{log}")
        })
    }

    /// The ids of the device list.
    pub(crate) fn ids(&self) -> Vec<String> {
        let node = self.kubelet.status();
        node.resources
            .get(RESOURCE)
            .into_iter()
            .flat_map(|known| known.devices.keys().cloned())
            .collect()
    }

    /// The agent's socket.
    pub(crate) fn socket(&self) -> Result<SocketPath> {
        let dir = self.testbed.path("kubelet").join(PLUGIN_DIR);
        Ok(SocketPath::new(dir.join("windlass-nvidia.com_gpu.sock"))?)
    }
}
