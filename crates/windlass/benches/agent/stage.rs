//! Testbed: a simulated machine in a temporary folder, embedded kubelets, and agents as processes.

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

/// Resource of all benchmarks.
pub(crate) const RESOURCE: &str = "nvidia.com/gpu";

/// Timeout of a wait for an event.
pub(crate) const EVENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Folder in memory, so that the disk is not measured. Without it, the testbed is in the system's temporary folder.
const TMPFS_DIR: &str = "/dev/shm";

/// A simulated machine, with a folder for its kubelets and agents.
#[derive(Debug)]
pub(crate) struct Testbed {
    pub(crate) machine: Machine,
    folder: TempDir,
}

/// A child process. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct ChildProcess(Child);

/// An agent whose device list has reached the kubelet.
#[derive(Debug)]
pub(crate) struct ServingAgent {
    // Dropped in this order.
    pub(crate) agent: ChildProcess,
    pub(crate) kubelet: Kubelet,
    pub(crate) testbed: Testbed,
}

// === impl Testbed ===

impl Testbed {
    /// Creates a testbed with a machine of this profile.
    pub(crate) fn create(profile: &str) -> Result<Self> {
        let tmpfs = Path::new(TMPFS_DIR);
        let parent = if tmpfs.is_dir() { tmpfs.to_owned() } else { std::env::temp_dir() };
        let folder = tempfile::Builder::new()
            .prefix("windlass-bench-")
            .tempdir_in(parent)
            .context("cannot make a temporary folder")?;
        let machine = folder.path().join("machine");
        let machine = Machine::create(&machine, &MachineProfile::named(profile)?, &find_driver()?)
            .context("cannot make the simulated machine")?;
        Ok(Self { machine, folder })
    }

    /// Path of a file in the testbed's folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Starts a kubelet in an empty folder.
    pub(crate) fn kubelet(&self) -> Result<Kubelet> {
        let dir = self.path("kubelet");
        recreate_dir(&dir)?;
        start_kubelet(&dir)
    }

    /// Command of an agent on the simulated machine.
    pub(crate) fn agent(&self, flags: &[&OsStr]) -> Result<Command> {
        let mut command = self.agent_on_this_host()?;
        command.arg("--host-root").arg(self.machine.host_root());
        command.arg("--host-root-on-node").arg(self.machine.host_root());
        command.arg("--nvml-library").arg(self.machine.nvml_library());
        command.args(flags);
        Ok(command)
    }

    /// Command of an agent on the devices of this host. It finds no file of an earlier agent: flags name its folders.
    /// Its environment is that of the image.
    pub(crate) fn agent_on_this_host(&self) -> Result<Command> {
        let cdi = self.path("cdi");
        recreate_dir(&cdi)?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_windlass"));
        command.env_clear().env("MALLOC_ARENA_MAX", "1").arg("node");
        command.arg("--kubelet-dir").arg(self.path("kubelet"));
        command.arg("--cdi-dir").arg(cdi);
        command.arg("--state-dir").arg(self.path("state"));
        // A file costs as much as the log of a container runtime, without its reader.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(self.log())?);
        Ok(command)
    }

    /// Starts kubelet and agent, and waits for the device list.
    pub(crate) async fn serve(self, flags: &[&OsStr]) -> Result<ServingAgent> {
        let kubelet = self.kubelet()?;
        let agent = ChildProcess::start(&mut self.agent(flags)?)?;
        let serving_agent = ServingAgent { agent, kubelet, testbed: self };
        serving_agent.wait_for(is_listed).await?;
        Ok(serving_agent)
    }

    fn log(&self) -> PathBuf {
        self.path("agent.log")
    }
}

/// Starts an embedded kubelet in a folder.
pub(crate) fn start_kubelet(dir: &Path) -> Result<Kubelet> {
    let mut config = Config::new(dir);
    config.numa_nodes = (0..8).collect();
    Kubelet::start(config).context("cannot start the embedded kubelet")
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

    /// Process id.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // An error means that the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

// === impl ServingAgent ===

impl ServingAgent {
    /// Waits until the kubelet's status fulfils a condition. The error has the agent's log.
    pub(crate) async fn wait_for(
        &self,
        condition: impl FnMut(&NodeStatus) -> bool,
    ) -> Result<Arc<NodeStatus>> {
        let result = self.kubelet.wait_for(condition, EVENT_TIMEOUT).await;
        result.with_context(|| {
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
            .flat_map(|resource| resource.devices.keys().cloned())
            .collect()
    }

    /// The agent's socket.
    pub(crate) fn socket(&self) -> Result<SocketPath> {
        let dir = self.testbed.path("kubelet").join(PLUGIN_DIR);
        Ok(SocketPath::new(dir.join("windlass-nvidia.com_gpu.sock"))?)
    }
}
