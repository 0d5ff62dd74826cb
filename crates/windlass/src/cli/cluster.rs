//! Command lines of `windlass cluster`.

use std::{net::SocketAddr, ops::RangeInclusive, path::PathBuf};

use clap::{Args, Subcommand, builder::TypedValueParser};
use tracing_subscriber::filter::Targets;
use windlass_sched::{policy::Policy, simulation::KnowledgeSource};

use super::{OutputArg, word::word};
use crate::logging::LogFormat;

#[derive(Args, Debug)]
pub(crate) struct ClusterHalfArgs {
    #[command(subcommand)]
    pub(crate) command: ClusterCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClusterCommand {
    /// Play a recorded cluster's pods against a placement policy, and compare it with others.
    ///
    /// The pods of the trace come one by one, in random order, and stay: the experiment by which fragmentation is
    /// measured in "Beware of Fragmentation" (Weng et al., 2023). With --departures they come and go.
    Simulate(SimulateArgs),
    /// Serve kube-scheduler as an extender: choose nodes and GPUs with the whole cluster in view.
    Extend(ExtendArgs),
    /// Explain the placement of a pod: each node's reason against it, and what would help.
    Explain(ExplainPodArgs),
    /// Show the GPUs of all nodes, and who holds them.
    Top(TopArgs),
    /// Show the cluster's devices as a page for browsers of this machine: health, holders, shares, pending pods, history.
    Page(PageArgs),
    /// Show the devices of one node as its agent sees them, live: load, memory, holders.
    Node(ClusterNodeArgs),
    /// Check a cluster: agents, slices, claims, the cluster half, pods that wait. Each finding has its remedy.
    Doctor(ClusterDoctorArgs),
    /// Write what placement reads of a cluster to a file: `top`, `explain`, `doctor` and `page` read it with `--from`.
    ///
    /// The recording has names, resources and placements; it has no environment, command, image or secret.
    Record(RecordClusterArgs),
}

/// The cluster to look at.
#[derive(Args, Debug)]
pub(crate) struct ViewArgs {
    /// Access to the API server [default: as kubectl finds it]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// A recording instead of a cluster, or what `kubectl get nodes,pods -A -o json` printed
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
The agent is asked through the API server, which takes the right to get pods/proxy.

Examples:
  windlass cluster node gpu-17
  windlass cluster node gpu-17 --once")]
pub(crate) struct ClusterNodeArgs {
    /// Name of the node.
    pub(crate) node: String,
    /// Namespace of the agents, as they were installed.
    #[arg(long, value_name = "NAME", default_value = "windlass-system")]
    pub(crate) agents: String,
    /// Access to the API server [default: as kubectl finds it]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Print once and exit, as to a pipe.
    #[arg(long)]
    pub(crate) once: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
It reads with kubectl's access, and changes nothing. `windlass doctor` checks one node, from the node or its agent's pod.

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
The page reads, and changes nothing. Other machines cannot open it; the cluster half serves them: docs/page.md.

Examples:
  windlass cluster page
      then open the address that it prints
  windlass cluster page --from cluster.json
      a recording, of `windlass cluster record`")]
pub(crate) struct PageArgs {
    #[command(flatten)]
    pub(crate) view: ViewArgs,
    /// Address to listen on, of the loopback; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9404")]
    pub(crate) listen: SocketAddr,
    /// Namespace of the agents, as they were installed.
    #[arg(long, value_name = "NAME", default_value = "windlass-system")]
    pub(crate) agents: String,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  windlass cluster explain train-0
  windlass cluster explain train-0 -n research -o json
  windlass cluster explain train-0 --from cluster.json

Exit codes: 0 a node can serve the pod, or it has one; 1 none can, or failed; 64 wrong command line or file.")]
pub(crate) struct ExplainPodArgs {
    /// Name of the pod, or NAMESPACE/NAME.
    pub(crate) pod: String,
    /// Its namespace [default: any, if the name is the only one]
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
kube-scheduler needs a profile of its own with this extender; docs/cluster.md has its configuration, the manifests and
the resources that pods may ask for.

Examples:
  windlass cluster extend
      plain HTTP on the loopback, beside a kube-scheduler in the same pod
  windlass cluster extend --listen 0.0.0.0:9402 --tls-cert tls.crt --tls-key tls.key --tls-client-ca ca.crt
      for a kube-scheduler elsewhere, which has to show a certificate

Exit codes: 0 asked to end, 1 failed, 64 wrong command line.")]
pub(crate) struct ExtendArgs {
    /// Address to listen on. Other addresses than the loopback need TLS with --tls-client-ca: any client of it can bind
    /// pods.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9402")]
    pub(crate) listen: SocketAddr,
    /// Address of `/healthz`, `/readyz` and `/metrics` alone, for probes and Prometheus
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics_listen: Option<SocketAddr>,
    /// Address of the page, for accounts that may list nodes and pods (docs/page.md). It has TLS as --tls-cert says
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) page_listen: Option<SocketAddr>,
    /// Ask readers of the page for no token
    #[arg(long, requires = "page_listen")]
    pub(crate) page_open: bool,
    /// Certificate of the server in PEM; it is read again when it has changed
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// Its private key
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Authorities whose certificates clients have to show
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub(crate) tls_client_ca: Option<PathBuf>,
    /// Access to the API server [default: as kubectl finds it, else the pod's own account]
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,
    /// Namespace of the Lease that replicas share [default: the account's]
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Name of that Lease
    #[arg(long, value_name = "NAME", default_value = "windlass-extender")]
    pub(crate) lease: String,
    /// Name of this replica, different from the others' [default: this machine's name]
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pub(crate) identity: Option<String>,
    /// Seconds in which all pods of a gang have to come to be bound, after which their places are free again
    ///
    /// More than kube-scheduler's longest back-off (podMaxBackoffSeconds, 10 s), and less than the extender's
    /// httpTimeout (60 s in the manifest that is shipped).
    #[arg(long, value_name = "SECONDS", default_value_t = windlass_control::Config::GANG_WAIT,
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
    #[arg(long, value_name = "LEVELS", env = "WINDLASS_LOG", default_value = "info", value_parser = super::levels,
          help_heading = "Logging")]
    pub(crate) log: Targets,
}

#[derive(Args, Debug)]
#[command(after_help = "\
A trace is a folder with a table of nodes (*node_list*.csv) and tables of pods (*pod_list_NAME*.csv), with the columns of
Alibaba's trace of 2023: cpu_milli, memory_mib, gpu, model, and cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec.
docs/fragmentation.md says where to get it and what the figures mean.

Examples:
  windlass cluster simulate --trace openb
      all policies on the trace's default pods, ten seeds
  windlass cluster simulate --trace openb --pods gpuspec33 --policy fgd,windlass --svg curves.svg
  windlass cluster simulate --trace openb --knowledge history --policy fgd,windlass
      policies that learn from the pods that came, as in a real cluster
  windlass cluster simulate --trace openb --departures 1.0
      pods come and go; those that fit nowhere are refused
  windlass cluster simulate --trace openb --departures 0.95 --queue
      they wait instead

Exit codes: 0 done, 1 failed, 64 wrong command line or trace.")]
pub(crate) struct SimulateArgs {
    /// Folder of the trace.
    #[arg(long, value_name = "DIR")]
    pub(crate) trace: PathBuf,
    /// Pods of the trace: NAME of *pod_list_NAME.csv [default: `default`, or the only ones]
    #[arg(long, value_name = "NAME")]
    pub(crate) pods: Option<String>,
    /// Policies to compare [default: all]
    #[arg(long, value_name = "POLICIES", value_delimiter = ',', value_parser = policy())]
    pub(crate) policy: Vec<Policy>,
    /// Seeds, each of which draws another order of pods and nodes: one, or a range A-B.
    #[arg(long, value_name = "SEEDS", default_value = "1-10", value_parser = seeds)]
    pub(crate) seeds: RangeInclusive<u64>,
    /// GPUs that all pods ask for together, as a multiple of the cluster's.
    #[arg(long, value_name = "TIMES", default_value = "1.3", value_parser = load,
          conflicts_with = "departures")]
    pub(crate) load: f64,
    /// Have pods come and go. GPUs that they would have on average, as a multiple of the cluster's
    #[arg(long, value_name = "TIMES", value_parser = load)]
    pub(crate) departures: Option<f64>,
    /// Have pods that fit nowhere wait, first come, first served; later ones that fit go ahead
    #[arg(long, requires = "departures")]
    pub(crate) queue: bool,
    /// Knowledge of the pods to come.
    #[arg(long, value_name = "OF", default_value = "trace", value_parser = knowledge())]
    pub(crate) knowledge: KnowledgeSource,
    /// Write the curves of allocated over requested GPUs to this file
    #[arg(long, value_name = "FILE", conflicts_with = "departures")]
    pub(crate) svg: Option<PathBuf>,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputArg,
}

fn policy() -> impl TypedValueParser<Value = Policy> {
    word(Policy::ALL.map(|policy| (policy.name(), policy, policy.meaning())))
}

fn knowledge() -> impl TypedValueParser<Value = KnowledgeSource> {
    word([
        (
            "trace",
            KnowledgeSource::Trace,
            "Frequencies of the whole trace, as in the published experiment",
        ),
        ("history", KnowledgeSource::History, "Pods that came so far, as in a real cluster"),
    ])
}

/// Most seeds of one command: a mistyped range would run for days.
const MOST_SEEDS: u64 = 10_000;

fn seeds(text: &str) -> Result<RangeInclusive<u64>, String> {
    let number = |text: &str| text.parse::<u64>().map_err(|_| format!("{text:?} is not a seed"));
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (number(first)?, number(last)?);
    match last.checked_sub(first) {
        None => Err(format!("{last} is before {first}")),
        Some(others) if others >= MOST_SEEDS => Err(format!("more than {MOST_SEEDS} seeds")),
        Some(_) => Ok(first..=last),
    }
}

/// Times that a cluster may be asked for.
const LOADS: RangeInclusive<f64> = 0.01..=10.0;

fn load(text: &str) -> Result<f64, String> {
    let load = text.parse().map_err(|_| format!("{text:?} is not a number"))?;
    if LOADS.contains(&load) {
        return Ok(load);
    }
    Err(format!("{text} is not from {} to {}", LOADS.start(), LOADS.end()))
}
