//! Command lines of `windlass cluster`.

use std::{net::SocketAddr, ops::RangeInclusive, path::PathBuf};

use clap::{Args, Subcommand, builder::TypedValueParser};
use tracing_subscriber::filter::Targets;
use windlass_sched::{policy::Policy, simulation::ForecastSource};

use super::{OutputArg, word::enum_parser};
use crate::logging::LogFormat;

#[derive(Args, Debug)]
pub(crate) struct ClusterArgs {
    #[command(subcommand)]
    pub(crate) command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Replay the pods of a recorded cluster under placement policies, and compare the policies.
    ///
    /// The pods of the trace arrive one by one, in random order, and stay: the experiment of "Beware of Fragmentation"
    /// (Weng et al., 2023). With --departures, pods end too.
    Simulate(SimulateArgs),
    /// Run the extender for kube-scheduler, which chooses nodes and GPUs by the state of the whole cluster.
    Extend(ExtendArgs),
    /// Explain the placement of a pod: the nodes that fit, the first reason against each other node, and remedies.
    Explain(ExplainPodArgs),
    /// Show the GPUs of all nodes and their holders.
    Top(TopArgs),
    /// Serve a page of the cluster's devices to browsers of this machine: health, holders, pending pods, history.
    Page(PageArgs),
    /// Show the devices of one node as its agent sees them, live: load, memory, holders.
    Node(ClusterNodeArgs),
    /// Check a cluster: agents, slices, claims, the cluster half, pending pods. Each finding has its remedy.
    Doctor(ClusterDoctorArgs),
    /// Record the objects that placement reads from a cluster, in a file for `--from`.
    ///
    /// `top`, `explain`, `doctor` and `page` accept the file. It has names, resources and placements, but no
    /// environment, command, image or secret.
    Record(RecordClusterArgs),
}

/// The cluster, live or recorded.
#[derive(Args, Debug)]
pub(crate) struct ViewArgs {
    /// Kubeconfig [default: the one that kubectl uses]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Recording to read instead of a cluster: from `windlass cluster record`, or the output of
    /// `kubectl get nodes,pods -A -o json`
    #[arg(long, value_name = "FILE", conflicts_with = "kubeconfig")]
    pub(crate) from: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass cluster top
  windlass cluster top --gpus -o json
  kubectl get nodes,pods -A -o json >cluster.json; windlass cluster top --from cluster.json")]
pub(crate) struct TopArgs {
    #[command(flatten)]
    pub(crate) view: ViewArgs,
    /// A row for each GPU instead of each node.
    #[arg(long)]
    pub(crate) gpus: bool,
    /// Repeat every two seconds, until Ctrl-C.
    #[arg(short, long, conflicts_with = "from")]
    pub(crate) watch: bool,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputArg,
}

#[derive(Args, Debug)]
#[command(after_help = "\
The command reads from the node's agent through the API server. It needs the right to get pods/proxy.

Examples:
  windlass cluster node gpu-17
  windlass cluster node gpu-17 --once")]
pub(crate) struct ClusterNodeArgs {
    /// Name of the node.
    pub(crate) node: String,
    /// Namespace of the agents.
    #[arg(long, value_name = "NAME", default_value = "windlass-system")]
    pub(crate) agents: String,
    /// Kubeconfig [default: the one that kubectl uses]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Print once and exit; the default if the output is not a terminal.
    #[arg(long)]
    pub(crate) once: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
The command is read-only and uses kubectl's access. `windlass doctor` checks one node: run it there or in the agent's
pod.

Examples:
  windlass cluster doctor
  windlass cluster doctor --all -o json

Exit codes: 0 no problem, 1 a problem was found, 64 wrong command line or file.")]
pub(crate) struct ClusterDoctorArgs {
    #[command(flatten)]
    pub(crate) view: ViewArgs,
    /// Show passed and skipped checks too; JSON always has them.
    #[arg(long)]
    pub(crate) all: bool,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputArg,
}

#[derive(Args, Debug)]
#[command(after_help = "\
The page is read-only. Other machines cannot open it; the cluster half serves a page for them (docs/page.md).

Examples:
  windlass cluster page
      then open the address that it prints
  windlass cluster page --from cluster.json
      a recording from `windlass cluster record`")]
pub(crate) struct PageArgs {
    #[command(flatten)]
    pub(crate) view: ViewArgs,
    /// Loopback address to listen on; port 0 selects a free port.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9404")]
    pub(crate) listen: SocketAddr,
    /// Namespace of the agents.
    #[arg(long, value_name = "NAME", default_value = "windlass-system")]
    pub(crate) agents: String,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass cluster explain train-0
  windlass cluster explain train-0 -n research -o json
  windlass cluster explain train-0 --from cluster.json

Exit codes: 0 a node can serve the pod, or it has one; 1 no node can, or the command failed; 64 wrong command line or
file.")]
pub(crate) struct ExplainPodArgs {
    /// Name of the pod, or NAMESPACE/NAME.
    pub(crate) pod: String,
    /// Namespace of the pod [default: any, if only one namespace has a pod of that name]
    #[arg(short, long, value_name = "NAME")]
    pub(crate) namespace: Option<String>,
    #[command(flatten)]
    pub(crate) view: ViewArgs,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputArg,
}

#[derive(Args, Debug)]
pub(crate) struct RecordClusterArgs {
    /// File to write.
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) view: ViewArgs,
}

#[derive(Args, Debug)]
#[command(after_help = "\
kube-scheduler needs a separate profile with this extender. docs/cluster.md has the configuration, the manifests and
the resources that pods may request.

Examples:
  windlass cluster extend
      plain HTTP on the loopback, beside a kube-scheduler in the same pod
  windlass cluster extend --listen 0.0.0.0:9402 --tls-cert tls.crt --tls-key tls.key --tls-client-ca ca.crt
      for a kube-scheduler on another machine, which must present a client certificate

Exit codes: 0 stopped by a signal, 1 failed, 64 wrong command line.")]
pub(crate) struct ExtendArgs {
    /// Address to listen on. Any client can bind pods, so an address other than the loopback needs TLS with
    /// --tls-client-ca.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9402")]
    pub(crate) listen: SocketAddr,
    /// Separate address for `/healthz`, `/readyz` and `/metrics` only, without TLS, for probes and Prometheus
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics_listen: Option<SocketAddr>,
    /// Address of the page, for accounts that may list nodes and pods (docs/page.md). TLS uses --tls-cert and --tls-key
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) page_listen: Option<SocketAddr>,
    /// Serve the page without asking for a token
    #[arg(long, requires = "page_listen")]
    pub(crate) page_open: bool,
    /// Server certificate in PEM; a changed file is reloaded
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Private key of the server certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Authorities (CA) that must have signed a client's certificate
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Kubeconfig [default: the one that kubectl uses, else the pod's service account]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Namespace of the Lease that replicas share [default: the namespace of the credentials]
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Name of the Lease that replicas share
    #[arg(long, value_name = "NAME", default_value = "windlass-extender")]
    pub(crate) lease: String,
    /// Name of this replica, unique among the replicas [default: this machine's name]
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pub(crate) identity: Option<String>,
    /// Time limit in seconds for all pods of a gang to reach their bind, after which their reservations are released
    ///
    /// Must exceed kube-scheduler's longest back-off (podMaxBackoffSeconds, 10 s), and be less than the extender's
    /// httpTimeout (60 s in the shipped manifest).
    #[arg(long, value_name = "SECONDS", default_value_t = windlass_control::Config::DEFAULT_GANG_WAIT_SECONDS,
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub(crate) gang_wait: u64,
    /// Log format.
    #[arg(
        long,
        value_name = "FORMAT",
        env = "WINDLASS_LOG_FORMAT",
        default_value = "text",
        help_heading = "Logging"
    )]
    pub(crate) log_format: LogFormat,
    /// Log level (info, debug), or levels by module (windlass_control=debug,info).
    #[arg(long, value_name = "LEVELS", env = "WINDLASS_LOG", default_value = "info", value_parser = super::parse_log_levels,
          help_heading = "Logging")]
    pub(crate) log: Targets,
}

#[derive(Args, Debug)]
#[command(after_help = "\
A trace is a folder with a table of nodes (*node_list*.csv) and tables of pods (*pod_list_NAME*.csv), with the columns of
Alibaba's trace of 2023: cpu_milli, memory_mib, gpu, model, and cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec.
docs/fragmentation.md has the source of the trace, and explains the figures.

Examples:
  windlass cluster simulate --trace openb
      all policies on the trace's default pods, ten seeds
  windlass cluster simulate --trace openb --pods gpuspec33 --policy fgd,windlass --svg curves.svg
  windlass cluster simulate --trace openb --knowledge history --policy fgd,windlass
      policies that learn from the pods that have arrived, as in a real cluster
  windlass cluster simulate --trace openb --departures 1.0
      pods arrive and end; a pod that fits nowhere is refused
  windlass cluster simulate --trace openb --departures 0.95 --queue
      a pod that fits nowhere waits

Exit codes: 0 done, 1 failed, 64 wrong command line or trace.")]
pub(crate) struct SimulateArgs {
    /// Folder of the trace.
    #[arg(long, value_name = "DIR")]
    pub(crate) trace: PathBuf,
    /// Table of pods in the trace: NAME of *pod_list_NAME.csv [default: `default`, or the only table]
    #[arg(long, value_name = "NAME")]
    pub(crate) pods: Option<String>,
    /// Policies to compare [default: all]
    #[arg(long, value_name = "POLICIES", value_delimiter = ',', value_parser = policy())]
    pub(crate) policy: Vec<Policy>,
    /// Seeds of the random order of pods and nodes: one, or a range A-B. Each policy runs once per seed.
    #[arg(long, value_name = "SEEDS", default_value = "1-10", value_parser = seeds)]
    pub(crate) seeds: RangeInclusive<u64>,
    /// Total GPUs that the pods request, as a multiple of the cluster's GPUs.
    #[arg(long, value_name = "TIMES", default_value = "1.3", value_parser = load,
          conflicts_with = "departures")]
    pub(crate) load: f64,
    /// Let pods end too. The value is the load: GPUs that running pods would hold if none were refused, as a multiple
    /// of the cluster's GPUs
    #[arg(long, value_name = "TIMES", value_parser = load)]
    pub(crate) departures: Option<f64>,
    /// Let pods that fit nowhere wait, first come, first served. Later pods that fit are placed meanwhile
    #[arg(long, requires = "departures")]
    pub(crate) queue: bool,
    /// Source of the policies' forecast of future pods.
    #[arg(long, value_name = "SOURCE", default_value = "trace", value_parser = knowledge())]
    pub(crate) knowledge: ForecastSource,
    /// Write the curves of allocated over requested GPUs to this SVG file
    #[arg(long, value_name = "FILE", conflicts_with = "departures")]
    pub(crate) svg: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputArg,
}

fn policy() -> impl TypedValueParser<Value = Policy> {
    enum_parser(Policy::ALL.map(|policy| (policy.name(), policy, policy.description())))
}

fn knowledge() -> impl TypedValueParser<Value = ForecastSource> {
    enum_parser([
        (
            "trace",
            ForecastSource::Trace,
            "Frequencies of the whole trace, as in the published experiment",
        ),
        ("history", ForecastSource::History, "Pods that have arrived so far, as in a real cluster"),
    ])
}

/// Maximum number of seeds of one command: a mistyped range would run for days.
const MAX_SEEDS: u64 = 10_000;

fn seeds(text: &str) -> Result<RangeInclusive<u64>, String> {
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is not a seed"));
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (number(first)?, number(last)?);
    match last.checked_sub(first) {
        None => Err(format!("{last} is less than {first}")),
        Some(span) if span >= MAX_SEEDS => Err(format!("more than {MAX_SEEDS} seeds")),
        Some(_) => Ok(first..=last),
    }
}

/// Accepted loads, as multiples of the cluster's GPUs.
const LOADS: RangeInclusive<f64> = 0.01..=10.0;

fn load(text: &str) -> Result<f64, String> {
    let load = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if LOADS.contains(&load) {
        return Ok(load);
    }
    Err(format!("{text} is not from {} to {}", LOADS.start(), LOADS.end()))
}
