//! What others do to the agent's door, files and nodes: clients that never finish a request, a configuration that is
//! emptied, a node that is missing, a disk that does not answer, calls that are given up, a kubelet that cleans up.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result};
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
    agent::cdi_dir,
    invariant::{Broken, in_time},
    rig::{Found, GLANCE, RESOURCE},
    run::Run,
    schedule::Break,
    stopwatch::Stopwatch,
    strike::{ABSENCE, RECOVERY_LIMIT, remove_if_there},
};

/// What they do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Strain {
    /// So many clients of its HTTP server send half a request each, and wait.
    HalfOpenClients,
    /// The configuration's file is empty for a while.
    EmptyConfiguration,
    /// A GPU's node is missing below `/dev` for a while.
    MissingNode,
    /// Writing the document of GPUs hangs for a while.
    HangingDisk,
    /// The kubelet gives up so many calls at once.
    CallsGivenUp,
    /// The kubelet restarts, and empties the plugin folder as those up to 1.32 do.
    FolderCleaned,
}

/// How many clients.
const CLIENTS: usize = 64;

/// How many calls.
const CALLS: usize = 10_000;

/// How soon a probe is answered, whoever else asks. The kubelet's own limit is a second by default.
const PROBE_LIMIT: Duration = Duration::from_secs(1);

/// Longer than it takes until a changed configuration is read.
const READ_AGAIN: Duration = Duration::from_secs(3);

/// How long whoever writes to the pipe may take until it is renamed.
const WRITTEN: Duration = Duration::from_secs(10);

/// How soon an agent ends that finds another one serving.
const REFUSED_WITHIN: Duration = Duration::from_secs(10);

/// The document of GPUs, and what is written of it before it is renamed.
const DOCUMENT: [&str; 2] = ["windlass.dev-gpu.json", ".windlass.dev-gpu.json.draft"];

// === impl Strain ===

impl Strain {
    /// All there are.
    pub(super) const ALL: [Self; 6] = [
        Self::HalfOpenClients,
        Self::EmptyConfiguration,
        Self::MissingNode,
        Self::HangingDisk,
        Self::CallsGivenUp,
        Self::FolderCleaned,
    ];

    /// What the table calls it.
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

// === impl Run ===

impl Run {
    /// Does it, and gives the moment from which things can only become better.
    pub(super) async fn strain(
        &mut self,
        what: Strain,
        (which, gpus): (usize, usize),
    ) -> Result<Option<Instant>> {
        match what {
            Strain::HalfOpenClients => self.fill_door(gpus).await?,
            Strain::EmptyConfiguration => self.empty_config(gpus).await?,
            Strain::MissingNode => return self.hide_node(which, gpus).await,
            Strain::HangingDisk => return self.hang_disk(which).await,
            Strain::CallsGivenUp => self.give_up_calls().await?,
            Strain::FolderCleaned => self.clean_up().await?,
        }
        Ok(Some(Instant::now()))
    }

    /// Clients fill the agent's HTTP server with requests that they never finish: a probe is answered, and a pod.
    async fn fill_door(&mut self, gpus: usize) -> Result<()> {
        let mut silent = Vec::new();
        for _ in 0..CLIENTS {
            let mut client = TcpStream::connect(self.rig.agent.listens()).await;
            if let Ok(client) = &mut client {
                // One that is shown the door has said enough.
                let _ = client.write_all(b"GET /metrics HTTP/1.1\r\nHost: ").await;
            }
            silent.push(client);
        }
        let watch = Stopwatch::start(self.rig.agent.id());
        self.rig.agent.get("/healthz").await.context("the agent answers no probe")?;
        in_time("the answer to a probe", watch.elapsed(), PROBE_LIMIT)?;
        self.try_one(gpus).await
    }

    /// The file of the configuration is empty for a while: the last good one holds.
    async fn empty_config(&mut self, gpus: usize) -> Result<()> {
        let file = self.rig.agent.config();
        let text = fs::read(&file).context("cannot read the configuration")?;
        fs::write(&file, "").context("cannot empty the configuration")?;
        sleep(READ_AGAIN).await;
        let held = self.rig.settled(ABSENCE).await;
        let tried = self.try_one(gpus).await;
        fs::write(&file, text).context("cannot write the configuration")?;
        let (blow, after) = (Strain::EmptyConfiguration.kind(), READ_AGAIN + ABSENCE);
        held.map_err(|left| Broken::NotBack { blow, after, left })?;
        tried
    }

    /// The node of a GPU is gone from `/dev`: the GPU is told to be unhealthy, and pods get the others.
    async fn hide_node(&mut self, which: usize, gpus: usize) -> Result<Option<Instant>> {
        let Some(Found { gpu, .. }) = self.usable_gpu(which)? else { return Ok(None) };
        let node = self.rig.machine.host_root().join(format!("dev/nvidia{}", gpu.minor));
        let away = self.rig.move_away(&node)?;
        self.rig.breaks(&gpu.uuid);
        self.is_told(&gpu.uuid).await?;
        self.admit(gpus).await?;
        self.rig.doubt(&gpu.uuid);
        self.rig.is_mended(&gpu.uuid);
        fs::rename(away, &node).with_context(|| format!("cannot put {} back", node.display()))?;
        Ok(Some(Instant::now()))
    }

    /// The disk does not answer, for which a pipe stands that nobody reads, where the draft of a document goes: a GPU
    /// that breaks is told to be unhealthy all the same.
    async fn hang_disk(&mut self, which: usize) -> Result<Option<Instant>> {
        let Some(Found { gpu, .. }) = self.usable_gpu(which)? else { return Ok(None) };
        let [document, draft] = DOCUMENT.map(|name| cdi_dir(self.rig.dir()).join(name));
        mknodat(CWD, &draft, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .with_context(|| format!("cannot make the pipe {}", draft.display()))?;
        let removed = fs::remove_file(&document);
        removed.with_context(|| format!("cannot remove {}", document.display()))?;
        sleep(ABSENCE).await;
        let broken = self.break_gpu(which, Break::Error)?;
        let told = match broken {
            Some(_) => self.is_told(&gpu.uuid).await,
            None => Ok(()),
        };
        release(&draft).await?;
        told?;
        Ok(Some(Instant::now()))
    }

    /// The kubelet gives up calls that the agent, which is frozen, has not looked at: its connection stays.
    async fn give_up_calls(&mut self) -> Result<()> {
        let plugin = self.rig.kubelet.plugin(RESOURCE).await.context("nobody is registered")?;
        self.rig.agent_is_away();
        self.rig.agent.freeze();
        let mut all = JoinSet::new();
        for _ in 0..CALLS {
            let mut plugin = plugin.clone();
            let question = PreferredAllocationRequest::default();
            all.spawn(async move { plugin.get_preferred_allocation(question).await.is_ok() });
        }
        sleep(ABSENCE).await;
        all.shutdown().await;
        self.rig.agent.thaw();
        self.rig.agent_runs();
        Ok(())
    }

    /// A kubelet up to 1.32 empties its plugin folder when it starts, of everything but its record: the agent's lock
    /// goes with the sockets. Another agent is refused all the same.
    async fn clean_up(&mut self) -> Result<()> {
        for entry in fs::read_dir(self.rig.plugin_dir())?.flatten() {
            if entry.file_name() != checkpoint::FILE && !entry.path().is_dir() {
                // A socket may have gone by itself.
                let _ = fs::remove_file(entry.path());
            }
        }
        self.rig.kubelet.restart().await?;
        let refused = self.rig.agent.rival_ends_within(REFUSED_WITHIN).await?;
        refused.context("a second agent serves beside the first")?;
        Ok(())
    }

    /// Waits until a GPU is told to be unhealthy.
    async fn is_told(&self, uuid: &str) -> Result<()> {
        let is_told = |node: &NodeStatus| {
            let device = node.resources.get(RESOURCE).and_then(|it| it.devices.get(uuid));
            device.is_some_and(|device| !device.is_healthy())
        };
        let begun = Instant::now();
        let seen = self.rig.kubelet.wait_for(is_told, RECOVERY_LIMIT).await;
        let (device, after) = (uuid.to_owned(), begun.elapsed());
        seen.map_err(|_| Broken::Unnoticed { device, after })?;
        Ok(())
    }
}

/// Lets go who writes to a pipe, who then renames it. Where nobody wrote, it is removed.
async fn release(pipe: &Path) -> Result<()> {
    // Without waiting for somebody who writes, who may have been quicker.
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).context("a flag of open(2)")?;
    let mut reader = match OpenOptions::new().read(true).custom_flags(nonblocking).open(pipe) {
        // The agent replaced it.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        opened => opened.with_context(|| format!("cannot open {}", pipe.display()))?,
    };
    let begun = Instant::now();
    while pipe.exists() && begun.elapsed() < WRITTEN {
        // A pipe holds less than a document. What is read is nobody's.
        let _ = io::copy(&mut reader, &mut io::sink());
        sleep(GLANCE).await;
    }
    remove_if_there(pipe)
}
