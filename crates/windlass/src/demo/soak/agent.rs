//! The agent as a process of its own: started, killed, frozen, starved, measured, asked.

use std::{
    ffi::OsString,
    fmt, fs, io,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use rustix::process::{Pid, Resource, Rlimit, Signal, prlimit};
use serde::Serialize;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};
use windlass_conformance::process::{Process, Usage};
use windlass_machine::Machine;

use super::cluster::Cluster;

/// The agent, of which one process lives at a time.
#[derive(Debug)]
pub(super) struct Agent {
    folder: PathBuf,
    words: Vec<OsString>,
    listens: SocketAddr,
    mounts: Mounts,
    process: Process,
}

/// The part of the kubelet's folder that the agent sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Mounts {
    /// All of it, as a service of the host does.
    Whole,
    /// The mounts of the shipped manifest, without the kubelet's record of claims.
    Shipped,
}

/// A write beyond `RLIMIT_FSIZE` shall fail, as on a full disk, and not kill; `exec` keeps that.
const SHELL: [&str; 3] = ["sh", "-c", r#"trap '' XFSZ; exec "$0" "$@" 2>>agent.log"#];

/// Lines of the agent's log that are shown with an error.
const LOG_TAIL: usize = 12;

/// How long the kernel may take with a process that is being killed.
const WAY_OUT: Duration = Duration::from_millis(200);

/// How long the agent waits for a call into the driver, by the configuration below.
pub(super) const CALL_DEADLINE: Duration = Duration::from_secs(1);

/// The file of the state folder that says what claims have.
pub(super) const CLAIMS: &str = "claims.json";

/// The folders of the kubelet that the shipped manifest mounts; docs/dra.md says why no more.
const MOUNTED: [&str; 4] =
    ["device-plugins", "pod-resources", "plugins/windlass.dev", "plugins_registry"];

const CONFIG_FILE: &str = "config.yaml";

/// Times that are seconds or minutes on a real node, and network adapters besides GPUs.
const CONFIG: &str = "\
health: {quietPeriod: 1s, probeInterval: 500ms, callDeadline: 1s}
resources: [{name: rdma/hca, devices: {kind: nic}, sharing: {method: shared, replicas: 4}}]
unmatched: default
";

/// Devices are offered through both of the kubelet's ways.
const OFFER: &str = "dra: {offer: beside}\n";

// === impl Agent ===

impl Agent {
    /// Starts it on a machine. All of its places are in the folder.
    pub(super) async fn start(
        (folder, mounts): (&Path, Mounts),
        machine: &Machine,
        cluster: Option<&Cluster>,
    ) -> Result<Self> {
        let kubelet_dir = mounts.kubelet_dir(folder)?;
        let config = folder.join(CONFIG_FILE);
        let text = cluster.map_or_else(|| CONFIG.to_owned(), |_| format!("{CONFIG}{OFFER}"));
        fs::write(&config, text).with_context(|| format!("cannot write {}", config.display()))?;
        let listens = free_port().await.context("no port of this machine's own is free")?;
        let program = std::env::current_exe().context("cannot find this program")?;
        let flag = |name: &str, path: &Path| {
            let mut word = OsString::from(format!("--{name}="));
            word.push(path);
            word
        };
        let mut words: Vec<OsString> = SHELL.iter().map(OsString::from).collect();
        words.extend([program.into(), "node".into(), format!("--listen={listens}").into()]);
        // A soak that is killed leaves no agent behind.
        words.push(format!("--ends-with={}", std::process::id()).into());
        words.push("--disclose=pods".into());
        words.extend([
            flag("config", &config),
            flag("host-root", &machine.host_root()),
            flag("host-root-on-node", &machine.host_root()),
            flag("nvml-library", &machine.nvml_library()),
            flag("kubelet-dir", &kubelet_dir),
            flag("cdi-dir", &cdi_dir(folder)),
            flag("state-dir", &state_dir(folder)),
        ]);
        if let Some(cluster) = cluster {
            words.extend(cluster.flags(folder)?);
        }
        let process = Process::start(&words, folder).context("cannot start the agent")?;
        Ok(Self { folder: folder.to_owned(), words, listens, mounts, process })
    }

    /// Kills it at once, and starts another.
    pub(super) async fn replace(&mut self) -> Result<()> {
        self.process.kill().await;
        self.process =
            Process::start(&self.words, &self.folder).context("cannot start the agent again")?;
        Ok(())
    }

    /// How another agent for the same kubelet ends, which is to be refused.
    pub(super) async fn rival_ends_within(&self, limit: Duration) -> Result<Option<String>> {
        // The address would be refused to it for another reason.
        let words =
            self.words.iter().filter(|word| !word.as_encoded_bytes().starts_with(b"--listen="));
        let words: Vec<_> = words.cloned().collect();
        let mut rival =
            Process::start(&words, &self.folder).context("cannot start another agent")?;
        Ok(rival.end_within(limit).await.map(|how| how.to_string()))
    }

    /// The part of the kubelet's folder that it sees.
    pub(super) fn mounts(&self) -> Mounts {
        self.mounts
    }

    /// The address that it listens on.
    pub(super) fn listens(&self) -> SocketAddr {
        self.listens
    }

    /// The file of its configuration.
    pub(super) fn config(&self) -> PathBuf {
        self.folder.join(CONFIG_FILE)
    }

    /// Kills it at once, without waiting for its end.
    pub(super) fn strike_dead(&self) {
        self.process.signal(Signal::KILL);
    }

    /// Kills it at once.
    pub(super) async fn kill(&mut self) {
        self.process.kill().await;
    }

    /// Lets it run no more until it is thawed.
    pub(super) fn freeze(&self) {
        self.process.signal(Signal::STOP);
    }

    pub(super) fn thaw(&self) {
        self.process.signal(Signal::CONT);
    }

    /// Lets none of its files grow, or lets them again.
    pub(super) fn let_files_grow_to(&self, bytes: Option<u64>) -> io::Result<()> {
        let limit = Rlimit { current: bytes, maximum: None };
        prlimit(Some(self.process.id()), Resource::Fsize, limit)?;
        Ok(())
    }

    /// Its process, which is another one after each restart.
    pub(super) fn id(&self) -> Pid {
        self.process.id()
    }

    pub(super) fn usage(&self) -> Usage {
        self.process.usage()
    }

    /// How it ended, which it should not.
    pub(super) fn ended(&mut self) -> Option<String> {
        Some(self.process.ended()?.to_string())
    }

    /// The same, of one whose sockets are closed and that is on its way out.
    pub(super) async fn ends_soon(&mut self) -> Option<String> {
        self.ends_within(WAY_OUT).await
    }

    pub(super) async fn ends_within(&mut self, limit: Duration) -> Option<String> {
        Some(self.process.end_within(limit).await?.to_string())
    }

    pub(super) fn last_words(&self) -> String {
        let log = fs::read_to_string(self.folder.join("agent.log")).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(LOG_TAIL)..].join("\n")
    }

    /// What it tells Prometheus.
    pub(super) async fn metrics(&self) -> io::Result<String> {
        self.get("/metrics").await
    }

    /// What it answers over HTTP.
    pub(super) async fn get(&self, path: &str) -> io::Result<String> {
        let mut stream = TcpStream::connect(self.listens).await?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: agent\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }
}

// === impl Mounts ===

impl Mounts {
    /// Every second seed has the shipped manifest's, so that runs of some seeds try both.
    pub(super) fn of(seed: u64) -> Self {
        if seed.is_multiple_of(2) { Self::Shipped } else { Self::Whole }
    }

    /// The kubelet's folder as the agent sees it.
    fn kubelet_dir(self, folder: &Path) -> Result<PathBuf> {
        let whole = folder.join("kubelet");
        if self == Self::Whole {
            return Ok(whole);
        }
        let pod = folder.join("pod");
        for name in MOUNTED {
            let (link, target) = (pod.join(name), whole.join(name));
            let above = link.parent().unwrap_or(&pod);
            // A folder that is mounted is there, made by the kubelet if by nobody else.
            let made = fs::create_dir_all(above).and_then(|()| fs::create_dir_all(&target));
            made.and_then(|()| symlink(&target, &link))
                .with_context(|| format!("cannot show {} to the agent", target.display()))?;
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

pub(super) fn cdi_dir(folder: &Path) -> PathBuf {
    folder.join("cdi")
}

pub(super) fn state_dir(folder: &Path) -> PathBuf {
    folder.join("state")
}

/// A port that nobody listens on now: the agent keeps it over restarts, so it has to be known before.
async fn free_port() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?.local_addr()
}
