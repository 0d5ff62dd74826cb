//! Interference with the agent: unfinished HTTP requests, an empty configuration, a missing device node, a hanging
//! disk, cancelled calls, a kubelet that deletes files.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use serde::Serialize;
use tokio::{
    io::AsyncWriteExt as _,
    net::TcpStream,
    task::JoinSet,
    time::{Instant, sleep},
};
use windlass_kubelet_api::{checkpoint, deviceplugin::PreferredAllocationRequest};
use windlass_kubelet_sim::NodeStatus;

use super::{
    super::testbed::cdi_dir,
    inject::{RECOVERY_LIMIT, SHORT_FAULT, remove_if_exists},
    invariant::{Violation, check_deadline},
    rig::{GPU_RESOURCE, IndexedGpu, POLL_INTERVAL},
    run::SoakRun,
    schedule::GpuFailure,
    stopwatch::Stopwatch,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "camelCase")]
pub(super) enum Interference {
    /// HTTP clients that send half a request and wait.
    HalfOpenClients,
    /// A temporarily empty configuration file.
    EmptyConfiguration,
    /// A temporarily missing device node.
    MissingNode,
    /// A temporarily hanging write of the CDI document.
    HangingDisk,
    /// Calls that the kubelet cancels.
    CallsGivenUp,
    /// A restarting kubelet that empties the plugin folder, as up to 1.32.
    FolderCleaned,
}

/// Number of unfinished HTTP requests.
const CLIENTS: usize = 64;

/// Number of cancelled calls.
const CALLS: usize = 10_000;

/// Deadline of a probe; the kubelet's default is a second.
const PROBE_LIMIT: Duration = Duration::from_secs(1);

/// Time within which the agent reads a changed configuration.
const RELOAD_TIME: Duration = Duration::from_secs(3);

/// Deadline for an unblocked writer to rename its file.
const RENAME_LIMIT: Duration = Duration::from_secs(10);

/// Deadline for a second agent to exit.
const EXIT_LIMIT: Duration = Duration::from_secs(10);

/// CDI document of the GPUs, and its temporary file.
const DOCUMENT: [&str; 2] = ["windlass.dev-gpu.json", ".windlass.dev-gpu.json.draft"];

// === impl Interference ===

impl Interference {
    pub(super) fn kind(self) -> &'static str {
        match self {
            Self::HalfOpenClients => "HTTP clients half open",
            Self::EmptyConfiguration => "configuration emptied",
            Self::MissingNode => "device node missing",
            Self::HangingDisk => "disk hangs",
            Self::CallsGivenUp => "calls given up",
            Self::FolderCleaned => "plugin folder cleaned up",
        }
    }
}

// === impl SoakRun ===

impl SoakRun {
    /// Injects the interference; returns the time at which recovery starts.
    pub(super) async fn interfere(
        &mut self,
        interference: Interference,
        which: usize,
        gpus: usize,
    ) -> Result<Option<Instant>> {
        match interference {
            Interference::HalfOpenClients => self.fill_http_server(gpus).await?,
            Interference::EmptyConfiguration => self.empty_config(gpus).await?,
            Interference::MissingNode => return self.hide_node(which, gpus).await,
            Interference::HangingDisk => return self.hang_disk(which).await,
            Interference::CallsGivenUp => self.cancel_calls().await?,
            Interference::FolderCleaned => self.empty_plugin_folder().await?,
        }
        Ok(Some(Instant::now()))
    }

    /// Fills the HTTP server with unfinished requests; a probe and a pod have to be served.
    async fn fill_http_server(&mut self, gpus: usize) -> Result<()> {
        let mut clients = Vec::new();
        for _ in 0..CLIENTS {
            let mut client = TcpStream::connect(self.rig.agent.address).await;
            if let Ok(client) = &mut client {
                // The server may close the connection.
                let _ = client.write_all(b"GET /metrics HTTP/1.1\r\nHost: ").await;
            }
            clients.push(client);
        }
        let stopwatch = Stopwatch::start(self.rig.agent.process.id());
        self.rig.agent.get("/healthz").await.context("the agent answers no probe")?;
        check_deadline("the answer to a probe", stopwatch.elapsed(), PROBE_LIMIT)?;
        self.try_admit_and_record(gpus).await
    }

    /// Empties the configuration for a while; the last valid one has to stay in force.
    async fn empty_config(&mut self, gpus: usize) -> Result<()> {
        let file = self.rig.agent.config();
        let text = fs::read(&file).context("cannot read the configuration")?;
        fs::write(&file, "").context("cannot empty the configuration")?;
        sleep(RELOAD_TIME).await;
        let health_result = self.rig.wait_until_settled(SHORT_FAULT).await;
        let outcome = self.try_admit_and_record(gpus).await;
        fs::write(&file, text).context("cannot write the configuration")?;
        let fault = Interference::EmptyConfiguration.kind();
        health_result.map_err(Violation::not_recovered(fault, RELOAD_TIME + SHORT_FAULT))?;
        outcome
    }

    /// Removes the device node of a GPU, which has to become unhealthy; pods get other GPUs.
    async fn hide_node(&mut self, which: usize, gpus: usize) -> Result<Option<Instant>> {
        let Some(IndexedGpu { gpu, .. }) = self.usable_gpu(which)? else { return Ok(None) };
        let node = self.rig.machine.host_root().join(format!("dev/nvidia{}", gpu.minor));
        let moved_path = self.rig.move_away(&node)?;
        self.rig.mark_broken(&gpu.uuid);
        self.wait_for_unhealthy(&gpu.uuid).await?;
        self.admit(gpus).await?;
        self.rig.add_maybe_unhealthy(&gpu.uuid);
        self.rig.mark_repaired(&gpu.uuid);
        fs::rename(moved_path, &node)
            .with_context(|| format!("cannot put {} back", node.display()))?;
        Ok(Some(Instant::now()))
    }

    /// Makes the write of a CDI document hang on a pipe without a reader. A GPU that breaks meanwhile has to become
    /// unhealthy.
    async fn hang_disk(&mut self, which: usize) -> Result<Option<Instant>> {
        let Some(IndexedGpu { gpu, .. }) = self.usable_gpu(which)? else { return Ok(None) };
        let [document, draft] = DOCUMENT.map(|name| cdi_dir(self.rig.dir()).join(name));
        mknodat(CWD, &draft, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .with_context(|| format!("cannot make the pipe {}", draft.display()))?;
        let result = fs::remove_file(&document);
        result.with_context(|| format!("cannot remove {}", document.display()))?;
        sleep(SHORT_FAULT).await;
        let failure = self.break_gpu(which, GpuFailure::Error)?;
        let report = match failure {
            Some(_) => self.wait_for_unhealthy(&gpu.uuid).await,
            None => Ok(()),
        };
        drain_pipe(&draft).await?;
        report?;
        Ok(Some(Instant::now()))
    }

    /// Cancels calls that the stopped agent has not read. The connection has to survive.
    async fn cancel_calls(&mut self) -> Result<()> {
        let plugin = self
            .rig
            .kubelet
            .plugin_client(GPU_RESOURCE)
            .await
            .context("no plugin is registered")?;
        self.rig.mark_agent_stopped();
        self.rig.agent.freeze();
        let mut calls = JoinSet::new();
        for _ in 0..CALLS {
            let mut plugin = plugin.clone();
            let request = PreferredAllocationRequest::default();
            calls.spawn(async move { plugin.get_preferred_allocation(request).await.is_ok() });
        }
        sleep(SHORT_FAULT).await;
        calls.shutdown().await;
        self.rig.agent.thaw();
        self.rig.mark_agent_started();
        Ok(())
    }

    /// Empties the plugin folder except for the checkpoint, as a kubelet up to 1.32 does, which removes the agent's
    /// lock file. A second agent still has to be refused.
    async fn empty_plugin_folder(&mut self) -> Result<()> {
        for entry in fs::read_dir(self.rig.plugin_dir())?.flatten() {
            if entry.file_name() != checkpoint::FILE_NAME && !entry.path().is_dir() {
                // A socket may have been removed already.
                let _ = fs::remove_file(entry.path());
            }
        }
        self.rig.kubelet.restart().await?;
        let exit = self.rig.agent.second_agent_exit(EXIT_LIMIT).await?;
        exit.context("a second agent serves beside the first")?;
        Ok(())
    }

    /// Waits until a GPU is reported unhealthy.
    pub(super) async fn wait_for_unhealthy(&self, uuid: &str) -> Result<()> {
        let is_unhealthy = |node: &NodeStatus| {
            let device =
                node.resources.get(GPU_RESOURCE).and_then(|resource| resource.devices.get(uuid));
            device.is_some_and(|device| !device.is_healthy())
        };
        let start = Instant::now();
        let result = self.rig.kubelet.wait_for(is_unhealthy, RECOVERY_LIMIT).await;
        let (device, after) = (uuid.to_owned(), start.elapsed());
        result.map_err(|_| Violation::UnreportedFailure { device, after })?;
        Ok(())
    }
}

/// Unblocks the agent's write into the pipe, after which the agent renames the pipe. Removes an unused pipe.
async fn drain_pipe(pipe: &Path) -> Result<()> {
    // Open without waiting for a writer, which may have finished.
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).context("a flag of open(2)")?;
    let mut reader = match OpenOptions::new().read(true).custom_flags(nonblocking).open(pipe) {
        // The agent has replaced the pipe.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        result => result.with_context(|| format!("cannot open {}", pipe.display()))?,
    };
    let start = Instant::now();
    while pipe.exists() && start.elapsed() < RENAME_LIMIT {
        // A pipe is smaller than a document. Its content is discarded.
        let _ = io::copy(&mut reader, &mut io::sink());
        sleep(POLL_INTERVAL).await;
    }
    remove_if_exists(pipe)
}
