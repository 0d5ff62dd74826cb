//! Command line of `windlass explain`.

use clap::{
    ArgMatches, Args, Command, FromArgMatches, builder::TypedValueParser, error::ErrorKind,
    parser::ValueSource,
};
use windlass_core::{placement::Policy, resource::ResourceName, topology::PcieLevel};

use super::{HostArgs, OutputArg, StatePathArgs, word::enum_parser};

#[derive(Args, Debug)]
#[command(override_usage = "\
windlass explain --size <N> [OPTIONS]
       windlass explain --pod <[NAMESPACE/]NAME> [OPTIONS]
       windlass explain --past [OPTIONS]
       windlass explain --source <NAME> [OPTIONS]")]
#[command(after_help = format!("{EXAMPLES}{SIMULATED_EXAMPLES}{NAMES}"))]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) host_flags_check: HostFlagsCheck,
    #[command(flatten)]
    pub(crate) request_args: RequestArgs,
    #[command(flatten)]
    pub(crate) lookup: LookupArgs,
    #[command(flatten)]
    pub(crate) host: HostArgs,
    #[command(flatten)]
    pub(crate) state_paths: StatePathArgs,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputArg,
}

/// Examples on this host.
const EXAMPLES: &str = "\
Examples:
  windlass explain --size 2
      devices that a container with two GPUs would get now
  windlass explain --pod default/trainer
      reason for a running pod's devices, and the devices it would get now; its shares and memory in use
  windlass explain --config windlass.yaml --source scope
      each candidate of a configured source: its device, or the first reason for its rejection";

/// Examples on another machine, for builds with simulated machines (feature `laboratory`).
const SIMULATED_EXAMPLES: &str = if cfg!(feature = "laboratory") {
    "
  windlass explain --machine dgx-a100 --free 0,1,2,5 --size 2
      devices that a container would get on another machine, on which these devices are free
  windlass explain --machine dgx-h100 --size 2 --nics 2 --within pix
      two GPUs with two NICs, each pair below one PCIe switch"
} else {
    ""
};

/// Syntax of device names.
const NAMES: &str = "

Devices are named as in `windlass devices`, GPU0, GPU0:1 (a MIG instance), mlx5_0, or by id; --free
and --require also accept numbers: 0, 0-3, 0/1 (GPU0:1). 0::2 is one replica of a shared device.
With --nics, --free and --require accept NICs too, by name: 0-3,mlx5_0.

Exit codes: 0 an answer exists, 1 no answer, 64 wrong command line or configuration.";

/// Refuses flags of this host, such as `--host-root`, together with `--machine`, which would ignore them. The
/// environment variables of these flags are allowed and ignored.
#[derive(Debug)]
pub(crate) struct HostFlagsCheck;

/// A request for devices: on this host now, or hypothetical.
#[derive(Args, Debug)]
pub(crate) struct RequestArgs {
    /// Number of devices that the container requests
    #[arg(long, value_name = "N", required_unless_present = "LookupArgs",
          allow_negative_numbers = true, value_parser = size)]
    pub(crate) size: Option<usize>,
    /// Requested resource [default: the only one, or nvidia.com/gpu]
    #[arg(long, value_name = "NAME")]
    pub(crate) resource: Option<ResourceName>,
    /// Simulated machine instead of this host: a name from `windlass machine list`, or a YAML file; excludes
    /// --host-root, --nvml-library, --kubelet-dir and --state-dir
    #[arg(long, value_name = "NAME|FILE", hide = cfg!(not(feature = "laboratory")))]
    pub(crate) machine: Option<String>,
    /// Devices that count as free [default: the devices without a container]
    #[arg(long, value_name = "DEVICES", value_delimiter = ',')]
    pub(crate) free: Option<Vec<String>>,
    /// Devices that the answer must contain
    #[arg(long, value_name = "DEVICES", value_delimiter = ',')]
    pub(crate) require: Vec<String>,
    /// Other devices of the container, such as a NIC: the answer is near them
    #[arg(long, value_name = "DEVICES", value_delimiter = ',')]
    pub(crate) near: Vec<String>,
    /// Placement policy [default: from the configuration]
    #[arg(long, value_name = "POLICY", value_parser = policy())]
    pub(crate) policy: Option<Policy>,
    /// Number of NICs, chosen together with the GPUs: each GPU is paired with a near NIC
    ///
    /// The choice follows the section "GPUs and NICs together" of docs/placement.md, and not the resource's policy. No
    /// alternative is shown.
    #[arg(long, value_name = "N", requires = "size", conflicts_with_all = ["near", "policy"],
          allow_negative_numbers = true, value_parser = size)]
    pub(crate) nics: Option<usize>,
    /// Maximum distance within a pair of GPU and NIC [default: none]
    #[arg(long, value_name = "LEVEL", requires = "nics", ignore_case = true,
          value_parser = level())]
    pub(crate) within: Option<PcieLevel>,
}

/// Flags that explain a pod, the history or a source. They exclude a request.
#[derive(Args, Debug)]
#[group(multiple = false, conflicts_with = "RequestArgs")]
pub(crate) struct LookupArgs {
    /// Explain the devices of a running pod, from the agent's allocation history
    #[arg(long, value_name = "[NAMESPACE/]NAME")]
    pub(crate) pod: Option<PodName>,
    /// List the choices in the agent's allocation history, newest first
    #[arg(long)]
    pub(crate) past: bool,
    /// Explain each candidate of a configured source: its device, or the first reason for its rejection
    #[arg(long, value_name = "NAME")]
    pub(crate) source: Option<String>,
}

/// Namespace and name of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

fn size(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "write a number of devices, from 1".to_owned())
}

fn policy() -> impl TypedValueParser<Value = Policy> {
    enum_parser(Policy::ALL.map(|policy| (policy.name(), policy, policy_help(policy))))
}

/// Goal of a policy.
fn policy_help(policy: Policy) -> &'static str {
    match policy {
        Policy::Aligned => "The best connected set that leaves the most useful remainder",
        Policy::Packed => {
            "From the most used NUMA nodes or parent devices, so that others stay free"
        }
        Policy::Distributed => "From the least used NUMA nodes or parent devices",
        Policy::NumaStrict => "As aligned, within one NUMA node or not at all",
        Policy::First => "The lowest indices",
    }
}

/// Distance levels in lower case; `windlass topo` prints them in upper case.
fn level() -> impl TypedValueParser<Value = PcieLevel> {
    enum_parser([
        ("pix", PcieLevel::Pix, "Below one PCIe switch"),
        ("pxb", PcieLevel::Pxb, "Below several PCIe switches"),
        ("phb", PcieLevel::Phb, "Below one host bridge"),
        ("node", PcieLevel::Node, "On one NUMA node"),
        ("sys", PcieLevel::Sys, "Anywhere"),
    ])
}

// === impl HostFlagsCheck ===

impl Args for HostFlagsCheck {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for HostFlagsCheck {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        const HOST_FLAGS: [(&str, &str); 4] = [
            ("host_root", "--host-root"),
            ("nvml_library", "--nvml-library"),
            ("kubelet_dir", "--kubelet-dir"),
            ("state_dir", "--state-dir"),
        ];
        let is_typed = |id| matches.value_source(id) == Some(ValueSource::CommandLine);
        let host_flag = HOST_FLAGS.into_iter().find(|(id, _)| is_typed(id));
        match host_flag.filter(|_| is_typed("machine")) {
            None => Ok(Self),
            Some((_, flag)) => Err(clap::Error::raw(
                ErrorKind::ArgumentConflict,
                format!("{flag} belongs to this host and cannot be used with --machine\n"),
            )),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

// === impl PodName ===

impl std::str::FromStr for PodName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (namespace, name) = text.split_once('/').unwrap_or(("default", text));
        if namespace.is_empty() || name.is_empty() || name.contains('/') {
            return Err("write a pod's name, or namespace/name".to_owned());
        }
        Ok(Self { namespace: namespace.to_owned(), name: name.to_owned() })
    }
}

impl std::fmt::Display for PodName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
