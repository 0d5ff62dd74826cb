//! Command line definitions, free of side effects.

#![expect(clippy::doc_markdown, reason = "the text is help, which is read in a terminal")]

mod cdi;
#[cfg(feature = "cluster")]
mod cluster;
#[cfg(feature = "laboratory")]
mod completions;
mod config;
#[cfg(feature = "laboratory")]
mod conformance;
#[cfg(feature = "laboratory")]
mod demo;
mod devices;
mod doctor;
mod explain;
mod host;
mod labels;
#[cfg(feature = "laboratory")]
mod laboratory;
#[cfg(feature = "laboratory")]
mod man;
mod mps;
mod nvidia_plugin;
#[cfg(feature = "pipeline")]
mod pipeline;
mod probe;
mod scrub;
#[cfg(feature = "pipeline")]
mod stage;
mod top;
mod word;

use std::{
    ffi::OsString,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use clap::{
    Arg, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum,
    builder::{Resettable, TypedValueParser},
};
use tracing_subscriber::filter::{LevelFilter, Targets};
use windlass_config::{DeviceListStrategy, Disclosed, address};

#[cfg(feature = "cluster")]
pub(crate) use cluster::{
    ClusterArgs, ClusterCommand, ClusterDoctorArgs, ClusterNodeArgs, ExplainPodArgs, ExtendArgs,
    PageArgs, RecordClusterArgs, SimulateArgs, TopArgs, ViewArgs,
};
pub(crate) use config::{ConfigArgs, ConfigCommand};
pub(crate) use devices::{DeviceFilter, DevicesArgs, DevicesOutputArg, TopoArgs};
pub(crate) use doctor::DoctorArgs;
pub(crate) use explain::{ExplainArgs, PodName, RequestArgs};
pub(crate) use host::{HostCommand, HostCommandArgs, RecordHostArgs};
pub(crate) use labels::{LabelsArgs, LabelsOutputArg};
pub(crate) use mps::{MpsArgs, MpsCommand};
pub(crate) use nvidia_plugin::NvidiaPluginArgs;
#[cfg(feature = "pipeline")]
pub(crate) use pipeline::{
    BoardsArgs, FleetArgs, MeasureArgs, PipelineArgs, PipelineCommand, PipelineSchemaArgs,
    PlanArgs, RenderArgs,
};
pub(crate) use probe::{ProbeArgs, ProbeCheckArg};
pub(crate) use scrub::ScrubArgs;
#[cfg(feature = "pipeline")]
pub(crate) use stage::{
    Call, Darwin3Args, DataPorts, Edge, EdgeFile, LimitArgs, PictureSize, StageArgs, WorkArgs,
};
pub(crate) use top::NodeTopArgs;
#[cfg(feature = "laboratory")]
pub(crate) use {
    completions::CompletionsArgs,
    conformance::ConformanceArgs,
    demo::{DemoArgs, DemoOutputArg},
    laboratory::{BoardArgs, KubeletArgs, MachineArgs, MachineCommand},
    man::ManArgs,
};

pub(crate) use cdi::{CdiArgs, CdiCommand, CheckArgs, GenerateArgs, ListArgs, paths_or_default};

use crate::logging::LogFormat;

/// Accelerators for Kubernetes: discover, offer, watch, explain.
///
/// `windlass node` is the agent of a node. The other commands show what it sees.
#[cfg_attr(
    feature = "laboratory",
    doc = "Some commands need neither a GPU nor a cluster: begin with `windlass demo`."
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

/// Version with commit, target and features, which `build.rs` determines.
pub(crate) const LONG_VERSION: &str = concat!(
    env!("CARGO_PKG_VERSION"),
    "\ncommit:   ",
    env!("WINDLASS_BUILT_FROM"),
    "\ntarget:   ",
    env!("WINDLASS_BUILT_FOR"),
    "\nfeatures: ",
    env!("WINDLASS_BUILT_WITH"),
);

/// Examples of starting the agent.
const EXAMPLES: &str = "\
Examples:
  windlass node                                               as root, on a host with a kubelet
  windlass node --config windlass.yaml --listen 127.0.0.1:9400";

/// Example on a simulated machine, for builds with simulated machines (feature `laboratory`).
const SIMULATED_EXAMPLE: &str = if cfg!(feature = "laboratory") {
    "
  windlass node --host-root m/host --nvml-library m/libnvidia-ml.so.1 --host-root-on-node m/host \\
      --state-dir m/agent --kubelet-dir m/kubelet --cdi-dir m/cdi"
} else {
    ""
};

impl Cli {
    /// Parses flags and environment variables. An empty variable counts as unset: a template renders an absent value as
    /// an empty string.
    pub(crate) fn read() -> Result<Self, clap::Error> {
        let command = Self::command().mut_subcommands(without_empty_variables);
        Self::from_arg_matches(&command.try_get_matches_from(arguments())?)
    }
}

/// Arguments of the process. Under the name `kubectl-windlass` the program is a plugin of kubectl and runs commands of
/// `windlass cluster`: `kubectl windlass top` is `windlass cluster top`.
fn arguments() -> Vec<OsString> {
    let mut arguments: Vec<_> = std::env::args_os().collect();
    let program = arguments.first().and_then(|path| Path::new(path).file_name());
    if program.is_some_and(|name| name == "kubectl-windlass") {
        insert_cluster(&mut arguments);
    }
    arguments
}

/// Inserts `cluster` before a command of `windlass cluster`, and before a request for help. Keeps other arguments.
fn insert_cluster(arguments: &mut Vec<OsString>) {
    let command = Cli::command();
    let cluster = command.find_subcommand("cluster").into_iter();
    let mut names = cluster.flat_map(clap::Command::get_subcommands).map(clap::Command::get_name);
    let first = arguments.get(1).and_then(|word| word.to_str());
    let requests_help = matches!(first, None | Some("help" | "-h" | "--help"));
    if requests_help || names.any(|name| Some(name) == first) {
        arguments.insert(1, "cluster".into());
    }
}

/// Detaches empty environment variables from their arguments.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let is_empty = |arg: &Arg| {
        let value = arg.get_env().and_then(std::env::var_os);
        value.is_some_and(|value| value.is_empty())
    };
    command.mut_args(|arg| if is_empty(&arg) { arg.env(Resettable::Reset) } else { arg })
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the agent: serve this node's devices to its kubelet, until stopped.
    #[command(after_help = format!("{EXAMPLES}{SIMULATED_EXAMPLE}"))]
    Node(Box<NodeArgs>),
    /// Probe this node's agent, for a kubelet's liveness or readiness check.
    Probe(ProbeArgs),
    /// List the devices of this host with their attributes and health.
    Devices(DevicesArgs),
    /// Show the topology of this host's devices: distances, links and NUMA nodes.
    Topo(TopoArgs),
    /// Show this node's devices live, with their load and their holders.
    Top(NodeTopArgs),
    /// Check this node: host, driver, container runtime, kubelet, agent. Each finding has its remedy.
    Doctor(Box<DoctorArgs>),
    #[cfg_attr(
        feature = "laboratory",
        doc = "Explain which devices a request gets: now, earlier, or on another machine."
    )]
    #[cfg_attr(
        not(feature = "laboratory"),
        doc = "Explain which devices a request gets: now or earlier."
    )]
    Explain(Box<ExplainArgs>),
    /// Show the node labels that describe this node's GPUs to schedulers.
    Labels(LabelsArgs),
    /// List errors of NVIDIA's driver (XIDs) with their meaning and effect on health.
    Xids(XidsArgs),
    /// Stop the MPS daemons of this host, which outlive the agent.
    Mps(MpsArgs),
    /// Overwrite the free memory of a GPU, so that no data of earlier programs remains.
    Scrub(ScrubArgs),
    /// Generate, list and check CDI documents, which describe devices to container runtimes.
    Cdi(CdiArgs),
    /// Check configuration files, convert files of other device plugins, print the schema.
    Config(ConfigArgs),
    /// Show and place the devices of a whole cluster: kube-scheduler's extender, explanations, simulation.
    #[cfg(feature = "cluster")]
    Cluster(ClusterArgs),
    /// Plan pipelines: choose devices for their stages, predict throughput and latency, print manifests, measure.
    #[cfg(feature = "pipeline")]
    Pipeline(PipelineArgs),
    /// Run a stage of a pipeline: receive items, process each, and send the results to the next stages.
    #[cfg(feature = "pipeline")]
    Stage(Box<StageArgs>),
    /// Run a demonstration: the real agent on a simulated machine, with an embedded kubelet.
    #[cfg(feature = "laboratory")]
    Demo(DemoArgs),
    /// Run the embedded kubelet, which accepts any device plugin.
    #[cfg(feature = "laboratory")]
    Kubelet(KubeletArgs),
    /// Test any device plugin or DRA driver against the behaviour of Kubernetes.
    ///
    /// Each case starts the program once, against an embedded kubelet that restarts, refuses, breaks connections and
    /// sends invalid requests.
    ///
    /// The program's arguments may have placeholders. {kubelet} is the kubelet's folder. {scratch} is a folder that the
    /// program owns during a case. A DRA driver needs {kubeconfig}, the kubeconfig of an embedded API server, and
    /// {node}, the node's name in that API server. Without {kubelet}, the program runs in its own mount namespace and
    /// finds the kubelet at /var/lib/kubelet; this needs root or user namespaces.
    #[cfg(feature = "laboratory")]
    Conformance(ConformanceArgs),
    /// Record a host's devices to a folder: for a bug report, a test, or analysis on another machine.
    Host(HostCommandArgs),
    /// Create simulated machines and inject faults.
    #[cfg(feature = "laboratory")]
    Machine(MachineArgs),
    /// Print a completion script for a shell.
    #[cfg(feature = "laboratory")]
    Completions(CompletionsArgs),
    /// Write the manual pages of all commands.
    #[cfg(feature = "laboratory")]
    Man(ManArgs),
    /// Print version, commit, target and features.
    Version,
    /// Commands of the cluster half. The build for nodes lacks them, and reports where to find them.
    #[cfg(not(feature = "cluster"))]
    #[command(name = "cluster", hide = true, disable_help_flag = true)]
    ClusterHalf {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<std::ffi::OsString>,
    },
    /// Commands of pipelines. The build for nodes lacks them, and reports where to find them.
    #[cfg(not(feature = "pipeline"))]
    #[command(name = "pipeline", alias = "stage", hide = true, disable_help_flag = true)]
    Pipelines {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<std::ffi::OsString>,
    },
    /// Commands of the laboratory. The build for nodes lacks them, and reports where to find them.
    #[cfg(not(feature = "laboratory"))]
    #[command(name = "demo", aliases = ["kubelet", "machine", "conformance", "completions", "man"], hide = true,
              disable_help_flag = true)]
    Laboratory {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<std::ffi::OsString>,
    },
}

/// Headings of the help.
const HOST_HEADING: &str = "Host";
const KUBELET_HEADING: &str = "Kubelet and container runtime";
const API_SERVER_HEADING: &str = "API server";

/// Host and configuration. Flags override the file.
#[derive(Args, Clone, Debug)]
pub(crate) struct HostArgs {
    /// Configuration file: YAML or JSON, in the format of Windlass, of NVIDIA's plugin, or of another device plugin
    /// (docs/devices/migrating.md).
    #[arg(long, value_name = "FILE", env = "WINDLASS_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// Root of the host's /sys, /proc, /dev and driver [default: /]
    #[arg(long, value_name = "DIR", env = "WINDLASS_HOST_ROOT", help_heading = HOST_HEADING)]
    pub(crate) host_root: Option<PathBuf>,
    /// NVML library [default: the driver's usual path below the host root]
    #[arg(long, value_name = "FILE", env = "WINDLASS_NVML_LIBRARY", help_heading = HOST_HEADING)]
    pub(crate) nvml_library: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct NodeArgs {
    #[command(flatten)]
    pub(crate) host: HostArgs,
    /// Parent process; this process ends when the parent ends
    #[arg(long, value_name = "PID", hide = true)]
    pub(crate) ends_with: Option<i32>,
    /// Folder of configuration files, from which the node's label selects one; without the label, the file `default` or
    /// the only file
    #[arg(long, value_name = "DIR", env = "WINDLASS_CONFIG_DIR", conflicts_with = "config")]
    pub(crate) config_dir: Option<PathBuf>,
    /// Node label that selects a file in --config-dir.
    #[arg(
        long,
        value_name = "LABEL",
        env = "WINDLASS_CONFIG_LABEL",
        default_value = "nvidia.com/device-plugin.config"
    )]
    pub(crate) config_label: String,
    #[command(flatten)]
    pub(crate) paths: AgentPathArgs,
    #[command(flatten)]
    pub(crate) cluster: ApiServerArgs,
    /// Stand by while another agent serves this node, and take over when it ends: for a DaemonSet with maxSurge: 1. The
    /// agent reports ready meanwhile. Without this flag, a second agent is an error
    #[arg(long, env = "WINDLASS_TAKE_OVER")]
    pub(crate) take_over: bool,
    /// Device list strategies, separated by commas [default: cdi-cri]
    #[arg(long, value_name = "STRATEGIES", env = "WINDLASS_DEVICE_LIST", value_delimiter = ',',
          value_parser = device_list())]
    pub(crate) device_list: Option<Vec<DeviceListStrategy>>,
    /// Format of log lines.
    #[arg(
        long,
        value_name = "FORMAT",
        env = "WINDLASS_LOG_FORMAT",
        default_value = "text",
        help_heading = "Logging"
    )]
    pub(crate) log_format: LogFormat,
    /// Log level (info, debug), or levels by module (windlass_dra=debug,info).
    #[arg(long, value_name = "LEVELS", env = "WINDLASS_LOG", default_value = "info",
          value_parser = parse_log_levels, help_heading = "Logging")]
    pub(crate) log: Targets,
    #[command(flatten)]
    pub(crate) nvidia_plugin: NvidiaPluginArgs,
}

/// Parses log levels. A single word must be a level: as a module name it would silence all other modules.
fn parse_log_levels(text: &str) -> Result<Targets, String> {
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
    match text.split(',').find(|part| !part.contains('=') && !is_level(part.trim())) {
        Some(word) => {
            Err(format!("{word:?} is not a level: write error, warn, info, debug or trace"))
        }
        None => text.parse().map_err(|_| {
            format!(
                "{text:?} has no valid levels: write one level (info), or levels by module, separated by \
                 commas (windlass_dra=debug,info)"
            )
        }),
    }
}

/// Paths and addresses of the agent.
#[derive(Args, Clone, Debug)]
pub(crate) struct AgentPathArgs {
    #[command(flatten)]
    pub(crate) state_paths: StatePathArgs,
    /// Folder for CDI documents [default: /var/run/cdi]
    #[arg(long, value_name = "DIR", env = "WINDLASS_CDI_DIR", help_heading = KUBELET_HEADING)]
    pub(crate) cdi_dir: Option<PathBuf>,
    /// Address for health and metrics, such as 0.0.0.0:9400 [default: none]
    #[arg(long, value_name = "ADDRESS", env = "WINDLASS_LISTEN", value_parser = address)]
    pub(crate) listen: Option<SocketAddr>,
    /// Unix socket for `windlass probe`, independent of --listen [default: none]
    #[arg(long, value_name = "PATH", env = "WINDLASS_PROBE_SOCKET")]
    pub(crate) probe_socket: Option<PathBuf>,
    /// Sensitive data to publish in /metrics and /devices [default: none]
    #[arg(long, value_name = "DATA,...", env = "WINDLASS_DISCLOSE", value_delimiter = ',',
          value_parser = disclosed())]
    pub(crate) disclose: Option<Vec<Disclosed>>,
    /// Host root as the container runtime sees it [default: /]
    #[arg(long, value_name = "DIR", env = "WINDLASS_HOST_ROOT_ON_NODE", help_heading = HOST_HEADING)]
    pub(crate) host_root_on_node: Option<PathBuf>,
}

/// Folders with records of allocations: the kubelet's and the agent's.
#[derive(Args, Clone, Debug)]
pub(crate) struct StatePathArgs {
    /// The kubelet's folder [default: /var/lib/kubelet]
    #[arg(long, value_name = "DIR", env = "WINDLASS_KUBELET_DIR", help_heading = KUBELET_HEADING)]
    pub(crate) kubelet_dir: Option<PathBuf>,
    /// Folder for the agent's state [default: /var/lib/windlass]
    #[arg(long, value_name = "DIR", env = "WINDLASS_STATE_DIR")]
    pub(crate) state_dir: Option<PathBuf>,
}

/// Access to the API server.
#[derive(Args, Clone, Debug)]
pub(crate) struct ApiServerArgs {
    /// Kubeconfig [default: the pod's service account]
    #[arg(long, value_name = "FILE", env = "WINDLASS_KUBECONFIG", help_heading = API_SERVER_HEADING)]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Name of this node in the cluster [default: the host's name]
    #[arg(long, value_name = "NAME", env = "NODE_NAME", help_heading = API_SERVER_HEADING)]
    pub(crate) node_name: Option<String>,
    /// Namespace for the agent's NodeFeature and for leases of devices [default: the pod's namespace]
    #[arg(long, value_name = "NAME", env = "NAMESPACE", help_heading = API_SERVER_HEADING)]
    pub(crate) namespace: Option<String>,
    /// Name of the agent's pod, from the downward API. The pod owns the objects that the agent creates in its namespace
    #[arg(long, value_name = "NAME", env = "POD_NAME", hide = true)]
    pub(crate) pod_name: Option<String>,
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE", hide = true)]
    pub(crate) pod_namespace: Option<String>,
    #[arg(long, value_name = "UID", env = "POD_UID", hide = true)]
    pub(crate) pod_uid: Option<String>,
}

fn disclosed() -> impl TypedValueParser<Value = Disclosed> {
    word::enum_parser([
        ("pods", Disclosed::Pods, "Namespace, pod and container of a device's holder"),
        ("serials", Disclosed::Serials, "Serial numbers of devices"),
    ])
}

/// Strategies: how the agent names devices to the container runtime.
fn device_list() -> impl TypedValueParser<Value = DeviceListStrategy> {
    word::enum_parser([
        (
            "cdi-cri",
            DeviceListStrategy::CdiCri,
            "CDI names, resolved by CRI-O and containerd 2; containerd 1.7 needs enable_cdi = true",
        ),
        ("cdi", DeviceListStrategy::CdiCri, ""),
        (
            "cdi-annotations",
            DeviceListStrategy::CdiAnnotations,
            "CDI names in annotations, for kubelets that do not pass CDI names on",
        ),
        (
            "envvar",
            DeviceListStrategy::Envvar,
            "NVIDIA_VISIBLE_DEVICES, resolved by NVIDIA's container runtime",
        ),
        (
            "volume-mounts",
            DeviceListStrategy::VolumeMounts,
            "Mounts whose paths name the devices, resolved by NVIDIA's container runtime",
        ),
    ])
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputArg {
    /// Table for a terminal.
    Table,
    /// Everything, as JSON.
    Json,
    /// Everything, as YAML.
    Yaml,
}

#[derive(Args, Debug)]
pub(crate) struct XidsArgs {
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputArg,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_simulated_machines_only_in_a_build_with_the_laboratory() {
        let (mut help, mut commands) = (String::new(), vec![Cli::command()]);
        while let Some(mut command) = commands.pop() {
            help.push_str(&command.render_long_help().to_string());
            commands.extend(command.get_subcommands().cloned());
        }
        for phrase in ["--machine ", " m/host", "simulated machine"] {
            assert_eq!(help.contains(phrase), cfg!(feature = "laboratory"), "{phrase}");
        }
    }
}
