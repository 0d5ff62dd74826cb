//! The command line, as typed. Nothing here touches the machine.

#![expect(clippy::doc_markdown, reason = "the text is help, which is read in a terminal")]

mod cdi;
mod config;
#[cfg(feature = "laboratory")]
mod conformance;
#[cfg(feature = "laboratory")]
mod demo;
mod explain;
mod host;
#[cfg(feature = "laboratory")]
mod laboratory;
mod look;
mod peer;

use std::{net::SocketAddr, path::PathBuf};

use clap::{
    Arg, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum,
    builder::Resettable,
};
use tracing_subscriber::filter::{LevelFilter, Targets};
use windlass_config::{Disclosed, Strategy, address};

pub(crate) use config::{ConfigArgs, ConfigCommand};
pub(crate) use explain::{AskArgs, ExplainArgs, PodName};
pub(crate) use host::{HostAsked, HostCommand, RecordHostArgs};
pub(crate) use look::{DevicesArgs, DevicesOutputArg, TopoArgs, Which};
pub(crate) use peer::PeerArgs;
#[cfg(feature = "laboratory")]
pub(crate) use {
    conformance::ConformanceArgs,
    demo::{DemoArgs, DemoOutputArg},
    laboratory::{
        BoardArgs, CleanupArg, KubeletArgs, MachineArgs, MachineCommand, ReleaseArg, TopologyArg,
    },
};

pub(crate) use cdi::{CdiArgs, CdiCommand, CheckArgs, GenerateArgs, ListArgs, places};

use crate::{
    commands::{LabelsArgs, MpsArgs, ProbeArgs, ScrubArgs},
    logging::LogFormat,
};

/// Accelerators for Kubernetes: discover, offer, watch, explain.
///
/// `windlass node` is the agent of a node. The other commands show what it sees.
#[cfg_attr(
    feature = "laboratory",
    doc = "Some let you try it without a GPU or a cluster: begin with `windlass demo`."
)]
#[derive(Debug, Parser)]
#[command(
    version,
    long_version = LONG_VERSION,
    after_help = "Exit codes: 0 done, 1 failed, 64 wrong command line or configuration, 130 interrupted."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The version, and from what it was built, for whom and with what: see `build.rs`.
const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit:   ",
    env!("WINDLASS_BUILT_FROM"),
    "\ntarget:   ",
    env!("WINDLASS_BUILT_FOR"),
    "\nfeatures: ",
    env!("WINDLASS_BUILT_WITH"),
);

/// How the agent is started where.
const EXAMPLES: &str = "\
Examples:
  windlass node                                               as root: this host, and its kubelet
  windlass node --config windlass.yaml --listen 127.0.0.1:9400";

/// The same on a simulated machine, which only a build with the laboratory makes.
const SIMULATED: &str = if cfg!(feature = "laboratory") {
    "
  windlass node --host-root m/host --nvml-library m/libnvidia-ml.so.1 --host-root-on-node m/host \\
      --state-dir m/agent --kubelet-dir m/kubelet --cdi-dir m/cdi"
} else {
    ""
};

impl Cli {
    /// Reads the command line and the variables. A variable that is empty counts as not set: a
    /// template that has nothing to say renders to that.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let command = Self::command().mut_subcommands(without_empty_variables);
        Self::from_arg_matches(&command.try_get_matches()?)
    }
}

/// The command, deaf to variables that are empty.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |arg: &Arg| {
        let value = arg.get_env().and_then(std::env::var_os);
        value.is_some_and(|value| value.is_empty())
    };
    command.mut_args(|arg| if is_empty(&arg) { arg.env(Resettable::Reset) } else { arg })
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Serve this node's devices to its kubelet, until told to stop.
    #[command(after_help = format!("{EXAMPLES}{SIMULATED}"))]
    Node(Box<NodeArgs>),
    /// Ask this node's agent whether it is well, as a kubelet's probe.
    Probe(ProbeArgs),
    /// List the devices of this host with their attributes and health.
    Devices(DevicesArgs),
    /// Show how near the devices of this host are to each other.
    Topo(TopoArgs),
    #[cfg_attr(
        feature = "laboratory",
        doc = "Show which devices a request gets, and why: now, earlier, or on another machine."
    )]
    #[cfg_attr(
        not(feature = "laboratory"),
        doc = "Show which devices a request gets, and why: now, or earlier."
    )]
    Explain(Box<ExplainArgs>),
    /// Show the labels that tell a scheduler about this node's GPUs.
    Labels(LabelsArgs),
    /// Show which errors of NVIDIA's driver (XIDs) make a GPU unhealthy, and why.
    Xids(XidsArgs),
    /// Stop the MPS daemons of this host, which go on when the agent ends.
    Mps(MpsArgs),
    /// Overwrite what is free of a GPU's memory, so that the next program finds nothing of the last one's.
    Scrub(ScrubArgs),
    /// Make, list and check documents that tell container runtimes about devices (CDI).
    Cdi(CdiArgs),
    /// Check configuration files, convert those of other device plugins, print the schema.
    Config(ConfigArgs),
    /// See the whole thing work: a simulated machine, the real agent, an embedded kubelet.
    #[cfg(feature = "laboratory")]
    Demo(DemoArgs),
    /// Run the embedded kubelet alone, for anyone's device plugin.
    #[cfg(feature = "laboratory")]
    Kubelet(KubeletArgs),
    /// Hold a device plugin or a DRA driver against what Kubernetes expects: anyone's, in any language.
    ///
    /// The program is started once for each case, against an embedded kubelet that restarts, refuses, cuts and asks
    /// nonsense.
    ///
    /// In its arguments {kubelet} stands for the kubelet's folder and {scratch} for a folder of the case's own. A DRA
    /// driver needs {kubeconfig}, a file that leads to an embedded API server, and {node}, the node's name there. A
    /// program that is not told the folder finds it at /var/lib/kubelet, in a mount namespace of its own: that takes
    /// root or user namespaces.
    #[cfg(feature = "laboratory")]
    Conformance(ConformanceArgs),
    /// Take a host's picture along: for a bug report, a test, or a look at it from elsewhere.
    Host(HostAsked),
    /// Make simulated machines, and let faults happen to them.
    #[cfg(feature = "laboratory")]
    Machine(MachineArgs),
    /// The commands that a node's build does not have, to say where they are.
    #[cfg(not(feature = "laboratory"))]
    #[command(name = "demo", aliases = ["kubelet", "machine", "conformance"], hide = true,
              disable_help_flag = true)]
    Laboratory {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<std::ffi::OsString>,
    },
}

/// What flags are about, in the help.
const HOST: &str = "Host";
const KUBELET: &str = "Kubelet and container runtime";
const API_SERVER: &str = "API server";

/// Where the host is, and what the configuration says of it. Each flag wins over the file.
#[derive(Args, Clone, Debug)]
pub(crate) struct HostArgs {
    /// Configuration file: YAML or JSON, in Windlass's format, NVIDIA's plugin's, or that of another device
    /// plugin (docs/devices/migrating.md).
    #[arg(long, value_name = "FILE", env = "WINDLASS_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Where the host's /sys, /proc, /dev and driver are found [default: /]
    #[arg(long, value_name = "DIR", env = "WINDLASS_HOST_ROOT", help_heading = HOST)]
    pub(crate) host_root: Option<PathBuf>,
    /// NVML library [default: where drivers put it, below the host root]
    #[arg(long, value_name = "FILE", env = "WINDLASS_NVML_LIBRARY", help_heading = HOST)]
    pub(crate) nvml_library: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct NodeArgs {
    #[command(flatten)]
    pub(crate) host: HostArgs,
    /// The process that started this one and with which it ends, however that ends
    #[arg(long, value_name = "PID", hide = true)]
    pub(crate) ends_with: Option<i32>,
    /// Folder of configuration files, of which the node's label names one; without the label the file
    /// `default`, or the only one
    #[arg(long, value_name = "DIR", env = "WINDLASS_CONFIG_DIR", conflicts_with = "config")]
    pub(crate) config_dir: Option<PathBuf>,
    /// The node's label that names a file in --config-dir.
    #[arg(
        long,
        value_name = "LABEL",
        env = "WINDLASS_CONFIG_LABEL",
        default_value = "nvidia.com/device-plugin.config"
    )]
    pub(crate) config_label: String,
    #[command(flatten)]
    pub(crate) places: PlaceArgs,
    #[command(flatten)]
    pub(crate) cluster: ClusterArgs,
    /// Wait, ready, while another agent serves this node, and take over when it ends; for a DaemonSet with
    /// maxSurge: 1. Without it a second agent is an error
    #[arg(long, env = "WINDLASS_TAKE_OVER")]
    pub(crate) take_over: bool,
    /// How containers are told their devices; several with commas between [default: cdi-cri]
    #[arg(long, value_name = "HOW", env = "WINDLASS_DEVICE_LIST", value_delimiter = ',')]
    pub(crate) device_list: Option<Vec<DeviceListArg>>,
    /// How log lines look.
    #[arg(
        long,
        value_name = "FORMAT",
        env = "WINDLASS_LOG_FORMAT",
        default_value = "text",
        help_heading = "Logging"
    )]
    pub(crate) log_format: LogFormat,
    /// What is logged: a level (info, debug), or levels by module (windlass_dra=debug,info).
    #[arg(long, value_name = "LEVELS", env = "WINDLASS_LOG", default_value = "info",
          value_parser = levels, help_heading = "Logging")]
    pub(crate) log: Targets,
    #[command(flatten)]
    pub(crate) peer: PeerArgs,
}

/// A word alone is a level: as a module's name it would turn the rest of the log off.
fn levels(text: &str) -> Result<Targets, String> {
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
    match text.split(',').find(|part| !part.contains('=') && !is_level(part.trim())) {
        Some(word) => Err(format!("{word:?} is no level: write error, warn, info, debug or trace")),
        None => text.parse().map_err(|_| {
            format!(
                "{text:?} says no levels: write one (info), or levels by module with commas between \
                 (windlass_dra=debug,info)"
            )
        }),
    }
}

/// Where the agent reads, writes and listens.
#[derive(Args, Clone, Debug)]
pub(crate) struct PlaceArgs {
    #[command(flatten)]
    pub(crate) record: RecordArgs,
    /// Where CDI documents are written [default: /var/run/cdi]
    #[arg(long, value_name = "DIR", env = "WINDLASS_CDI_DIR", help_heading = KUBELET)]
    pub(crate) cdi_dir: Option<PathBuf>,
    /// Where health and metrics are served, such as 0.0.0.0:9400 [default: nowhere]
    #[arg(long, value_name = "ADDRESS", env = "WINDLASS_LISTEN", value_parser = address)]
    pub(crate) listen: Option<SocketAddr>,
    /// The unix socket on which `windlass probe` is answered, whoever fills the address above [default: none]
    #[arg(long, value_name = "PATH", env = "WINDLASS_PROBE_SOCKET")]
    pub(crate) probe_socket: Option<PathBuf>,
    /// What /metrics and /devices tell to whoever reaches them [default: neither]
    #[arg(long, value_name = "WHAT,...", env = "WINDLASS_DISCLOSE", value_delimiter = ',')]
    pub(crate) disclose: Option<Vec<DisclosedArg>>,
    /// What the container runtime calls the host root [default: /]
    #[arg(long, value_name = "DIR", env = "WINDLASS_HOST_ROOT_ON_NODE", help_heading = HOST)]
    pub(crate) host_root_on_node: Option<PathBuf>,
}

/// Where it is on record who holds what, and why.
#[derive(Args, Clone, Debug)]
pub(crate) struct RecordArgs {
    /// The kubelet's folder [default: /var/lib/kubelet]
    #[arg(long, value_name = "DIR", env = "WINDLASS_KUBELET_DIR", help_heading = KUBELET)]
    pub(crate) kubelet_dir: Option<PathBuf>,
    /// Where the agent keeps what must outlive it [default: /var/lib/windlass]
    #[arg(long, value_name = "DIR", env = "WINDLASS_STATE_DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

/// How the API server is reached, by the parts that need it.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClusterArgs {
    /// A kubeconfig [default: the pod's own account]
    #[arg(long, value_name = "FILE", env = "WINDLASS_KUBECONFIG", help_heading = API_SERVER)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// The name of this node's object [default: the host's name]
    #[arg(long, value_name = "NAME", env = "NODE_NAME", help_heading = API_SERVER)]
    pub(crate) node_name: Option<String>,
    /// Where the agent writes what belongs to a namespace: its NodeFeature, and leases of devices [default: the
    /// pod's own]
    #[arg(long, value_name = "NAME", env = "NAMESPACE", help_heading = API_SERVER)]
    pub(crate) namespace: Option<String>,
    /// The pod that the agent runs in, from the downward API; what it writes in its namespace goes
    /// with it
    #[arg(long, value_name = "NAME", env = "POD_NAME", hide = true)]
    pub(crate) pod_name: Option<String>,
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE", hide = true)]
    pub(crate) pod_namespace: Option<String>,
    #[arg(long, value_name = "UID", env = "POD_UID", hide = true)]
    pub(crate) pod_uid: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum DisclosedArg {
    /// Namespace, pod and container that hold a device.
    Pods,
    /// Serial numbers of devices.
    Serials,
}

impl From<DisclosedArg> for Disclosed {
    fn from(arg: DisclosedArg) -> Self {
        match arg {
            DisclosedArg::Pods => Self::Pods,
            DisclosedArg::Serials => Self::Serials,
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum DeviceListArg {
    /// Names in CDI documents, which CRI-O and containerd 2 resolve; containerd 1.7 needs
    /// enable_cdi = true.
    #[value(name = "cdi-cri", alias = "cdi")]
    CdiCri,
    /// The same names in annotations, for a kubelet that does not pass names on.
    CdiAnnotations,
    /// NVIDIA_VISIBLE_DEVICES, which NVIDIA's container runtime resolves.
    Envvar,
    /// Mounts with telling names, which NVIDIA's container runtime resolves.
    VolumeMounts,
}

impl From<DeviceListArg> for Strategy {
    fn from(arg: DeviceListArg) -> Self {
        match arg {
            DeviceListArg::CdiCri => Self::CdiCri,
            DeviceListArg::CdiAnnotations => Self::CdiAnnotations,
            DeviceListArg::Envvar => Self::Envvar,
            DeviceListArg::VolumeMounts => Self::VolumeMounts,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputArg {
    /// Columns for people.
    Table,
    /// Everything, as JSON.
    Json,
    /// Everything, as YAML.
    Yaml,
}

#[derive(Args, Debug)]
pub(crate) struct XidsArgs {
    /// How to write the answer.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputArg,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_speaks_of_simulated_machines_only_in_a_build_that_makes_them() {
        let (mut help, mut commands) = (String::new(), vec![Cli::command()]);
        while let Some(mut command) = commands.pop() {
            help.push_str(&command.render_long_help().to_string());
            commands.extend(command.get_subcommands().cloned());
        }
        for words in ["--machine ", " m/host", "simulated machine"] {
            assert_eq!(help.contains(words), cfg!(feature = "laboratory"), "{words}");
        }
    }
}
