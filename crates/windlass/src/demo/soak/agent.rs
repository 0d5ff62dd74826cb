//! Agent process of a soak: start, signals, limits, resource usage and HTTP requests.

use std::{
    ffi::OsString,
    fmt, fs, io,
    net::SocketAddr,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use rustix::process::{Resource, Rlimit, Signal, prlimit};
use serde::Serialize;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use windlass_conformance::process::{Process, free_address};
use windlass_machine::Machine;

use super::cluster::SoakCluster;
use crate::demo::testbed::{cdi_dir, last_lines, log};

/// Agent of the soak. One process runs at a time.
#[derive(Debug)]
pub(super) struct Agent {
    folder: PathBuf,
    command: Vec<OsString>,
    pub(super) address: SocketAddr,
    pub(super) mounts: Mounts,
    pub(super) process: Process,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Mounts {
    /// The kubelet's whole folder, as for an agent that runs as a service of the host.
    Whole,
    /// Mounts of the shipped manifest. They do not include the kubelet's checkpoint of claims.
    Shipped,
}

/// Ignores SIGXFSZ across `exec`, so that a write beyond `RLIMIT_FSIZE` fails as on a full disk.
const SHELL: [&str; 3] = ["sh", "-c", r#"trap '' XFSZ; exec "$0" "$@" 2>>agent.log"#];

/// Number of log lines that accompany an error.
const LOG_TAIL: usize = 12;

/// Deadline of driver calls in the configuration below.
pub(super) const CALL_DEADLINE: Duration = Duration::from_secs(1);

/// State file of prepared claims, in the agent's state folder.
pub(super) const CLAIMS_FILE: &str = "claims.json";

/// Copy of that file in the CDI folder.
const CLAIMS_COPY_FILE: &str = "windlass.dev-claims.copy";

/// Kubelet folders in the shipped manifest; docs/dra.md has the reasons.
const MOUNTED_DIRS: [&str; 4] =
    ["device-plugins", "pod-resources", "plugins/windlass.dev", "plugins_registry"];

const CONFIG_FILE: &str = "config.yaml";

/// Shortens intervals, and offers NICs beside GPUs.
const CONFIG: &str = "\
health: {quietPeriod: 1s, probeInterval: 500ms, callDeadline: 1s}
resources: [{name: rdma/hca, devices: {kind: nic}, sharing: {method: shared, replicas: 4}}]
unmatched: default
";

/// Offers devices through both APIs.
const DRA_CONFIG: &str = "dra: {offer: beside}\n";

// === impl Agent ===

impl Agent {
    /// Starts the agent on a machine, with all paths below the folder.
    pub(super) fn start(
        folder: &Path,
        mounts: Mounts,
        machine: &Machine,
        cluster: Option<&SoakCluster>,
    ) -> Result<Self> {
        let kubelet_dir = mounts.kubelet_dir(folder)?;
        let config = folder.join(CONFIG_FILE);
        let text = cluster.map_or_else(|| CONFIG.to_owned(), |_| format!("{CONFIG}{DRA_CONFIG}"));
        fs::write(&config, text).with_context(|| format!("cannot write {}", config.display()))?;
        let address = free_address().context("no loopback port is free")?;
        let program = std::env::current_exe().context("cannot find this program")?;
        let flag = |name: &str, path: &Path| {
            let mut flag = OsString::from(format!("--{name}="));
            flag.push(path);
            flag
        };
        let mut command: Vec<OsString> = SHELL.iter().map(OsString::from).collect();
        command.extend([program.into(), "node".into(), format!("--listen={address}").into()]);
        // The agent exits with the soak, even if the soak is killed.
        command.push(format!("--ends-with={}", std::process::id()).into());
        command.push("--disclose=pods".into());
        command.extend([
            flag("config", &config),
            flag("host-root", &machine.host_root()),
            flag("host-root-on-node", &machine.host_root()),
            flag("nvml-library", &machine.nvml_library()),
            flag("kubelet-dir", &kubelet_dir),
            flag("cdi-dir", &cdi_dir(folder)),
            flag("state-dir", &state_dir(folder)),
        ]);
        if let Some(cluster) = cluster {
            command.extend(cluster.flags(folder)?);
        }
        let process = Process::start(&command, folder).context("cannot start the agent")?;
        Ok(Self { folder: folder.to_owned(), command, address, mounts, process })
    }

    /// Kills the process and starts another.
    pub(super) async fn replace(&mut self) -> Result<()> {
        self.process.kill().await;
        self.process =
            Process::start(&self.command, &self.folder).context("cannot start the agent again")?;
        Ok(())
    }

    /// Starts a second agent for the same kubelet, which has to exit. Returns its exit status; `None` if it still runs
    /// after `limit`.
    pub(super) async fn second_agent_exit(&self, limit: Duration) -> Result<Option<String>> {
        // Without the flag, the second agent cannot fail because the address is in use.
        let command =
            self.command.iter().filter(|word| !word.as_encoded_bytes().starts_with(b"--listen="));
        let command: Vec<_> = command.cloned().collect();
        let mut second =
            Process::start(&command, &self.folder).context("cannot start another agent")?;
        Ok(second.wait_for_exit(limit).await.map(|status| status.to_string()))
    }

    pub(super) fn config(&self) -> PathBuf {
        self.folder.join(CONFIG_FILE)
    }

    /// Stops the process until [`Agent::thaw`].
    pub(super) fn freeze(&self) {
        self.process.signal(Signal::STOP);
    }

    pub(super) fn thaw(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Limits the size of files that the agent writes, in bytes. `None` removes the limit.
    pub(super) fn limit_file_size(&self, bytes: Option<u64>) -> io::Result<()> {
        let limit = Rlimit { current: bytes, maximum: None };
        prlimit(Some(self.process.id()), Resource::Fsize, limit)?;
        Ok(())
    }

    pub(super) fn log_tail(&self) -> String {
        last_lines(&log(&self.folder), LOG_TAIL)
    }

    pub(super) async fn get(&self, path: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(self.address).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }
}

// === impl Mounts ===

impl Mounts {
    /// Uses the shipped mounts for even seeds, so that a few seeds cover both.
    pub(super) fn from_seed(seed: u64) -> Self {
        if seed.is_multiple_of(2) { Self::Shipped } else { Self::Whole }
    }

    fn kubelet_dir(self, folder: &Path) -> Result<PathBuf> {
        let kubelet_dir = folder.join("kubelet");
        if self == Self::Whole {
            return Ok(kubelet_dir);
        }
        let pod = folder.join("pod");
        for name in MOUNTED_DIRS {
            let (link, target) = (pod.join(name), kubelet_dir.join(name));
            let parent = link.parent().unwrap_or(&pod);
            // Mount sources exist in a pod, so missing ones are created.
            let result = fs::create_dir_all(parent).and_then(|()| fs::create_dir_all(&target));
            result
                .and_then(|()| symlink(&target, &link))
                .with_context(|| format!("cannot link {} for the agent", target.display()))?;
        }
        Ok(pod)
    }
}

impl fmt::Display for Mounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Whole => "the kubelet's folder",
            Self::Shipped => "the shipped pod's mounts",
        })
    }
}

pub(super) fn state_dir(folder: &Path) -> PathBuf {
    folder.join("state")
}

/// True if the record of claims is absent or equals its copy.
pub(super) fn is_copy_current(folder: &Path) -> bool {
    let read = |path: PathBuf| fs::read(path).ok();
    let record = read(state_dir(folder).join(CLAIMS_FILE));
    record.is_none() || record == read(cdi_dir(folder).join(CLAIMS_COPY_FILE))
}
