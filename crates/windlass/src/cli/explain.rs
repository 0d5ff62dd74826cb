//! `windlass explain` as typed.

use clap::{
    ArgMatches, Args, Command, FromArgMatches,
    builder::{PossibleValue, PossibleValuesParser, TypedValueParser},
    error::ErrorKind,
    parser::ValueSource,
};
use windlass_core::{placement::Policy, resource::ResourceName, topology::PcieLevel};

use super::{HostArgs, OutputArg, RecordArgs};

#[derive(Args, Debug)]
#[command(override_usage = "\
windlass explain --size <N> [OPTIONS]
       windlass explain --pod <[NAMESPACE/]NAME> [OPTIONS]
       windlass explain --past [OPTIONS]
       windlass explain --source <NAME> [OPTIONS]")]
#[command(after_help = format!("{EXAMPLES}{SIMULATED}{NAMES}"))]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) elsewhere: Elsewhere,
    #[command(flatten)]
    pub(crate) ask: AskArgs,
    #[command(flatten)]
    pub(crate) instead: InsteadArgs,
    #[command(flatten)]
    pub(crate) host: HostArgs,
    #[command(flatten)]
    pub(crate) record: RecordArgs,
    /// How to write the answer.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: OutputArg,
}

/// What is asked of this host.
const EXAMPLES: &str = "\
Examples:
  windlass explain --size 2
      what a container would get now that asks for two GPUs
  windlass explain --pod default/trainer
      why a pod that runs has its devices, and what it would get today
  windlass explain --config windlass.yaml --source scope
      what a source of the configuration looked at, which devices that is, and why the rest is none";

/// What is asked of another machine, which only a build with the laboratory makes.
const SIMULATED: &str = if cfg!(feature = "laboratory") {
    "
  windlass explain --machine dgx-a100 --free 0,1,2,5 --size 2
      what a container would get on another machine, of which these are free
  windlass explain --machine dgx-h100 --size 2 --nics 2 --within pix
      two GPUs and two NICs, each pair below one PCIe switch"
} else {
    ""
};

/// How devices are named.
const NAMES: &str = "

Devices go by the names that `windlass devices` shows, GPU0, GPU0:1 (a MIG instance), mlx5_0, or by
their ids; with --free and --require by number alone too: 0, 0-3, 0/1. 0::2 is one replica of a
shared device. With --nics, --free and --require take NICs as well, by name: 0-3,mlx5_0.

Exit codes: 0 there is an answer, 1 there is none, 64 wrong command line or configuration.";

/// What is typed of this host would count for nothing beside a simulated machine, and is refused. The
/// variables of this host may stay as they are.
#[derive(Debug)]
pub(crate) struct Elsewhere;

/// A question of now, or of "what if".
#[derive(Args, Debug)]
pub(crate) struct AskArgs {
    /// How many devices the container asks for
    #[arg(long, value_name = "N", required_unless_present = "InsteadArgs",
          allow_negative_numbers = true, value_parser = size)]
    pub(crate) size: Option<usize>,
    /// The resource that it asks for [default: the only one, or nvidia.com/gpu]
    #[arg(long, value_name = "NAME")]
    pub(crate) resource: Option<ResourceName>,
    /// A simulated machine in place of this host: a name from `windlass machine list`, or a YAML file;
    /// --host-root, --nvml-library, --kubelet-dir and --state-dir are of this host, and do not go with it
    #[arg(long, value_name = "NAME|FILE", hide = cfg!(not(feature = "laboratory")))]
    pub(crate) machine: Option<String>,
    /// Take these devices for the free ones [default: those that no container holds]
    #[arg(long, value_name = "DEVICES", value_delimiter = ',')]
    pub(crate) free: Option<Vec<String>>,
    /// Devices that the container must get
    #[arg(long, value_name = "DEVICES", value_delimiter = ',')]
    pub(crate) require: Vec<String>,
    /// Other devices that it gets besides, such as a NIC: the choice is near them
    #[arg(long, value_name = "DEVICES", value_delimiter = ',')]
    pub(crate) near: Vec<String>,
    /// What makes a set better [default: as the configuration says]
    #[arg(long, value_name = "POLICY", value_parser = policy())]
    pub(crate) policy: Option<Policy>,
    /// As many NICs besides, chosen together with the GPUs: each GPU is paired with one that is near
    ///
    /// What makes a choice better is the order for GPUs and NICs in docs/placement.md, whatever the
    /// resource's placement says. No alternative is shown.
    #[arg(long, value_name = "N", requires = "size", conflicts_with_all = ["near", "policy"],
          allow_negative_numbers = true, value_parser = size)]
    pub(crate) nics: Option<usize>,
    /// No GPU and NIC of a pair farther apart than this [default: as near as can be]
    #[arg(long, value_name = "LEVEL", requires = "nics", ignore_case = true,
          value_parser = level())]
    pub(crate) within: Option<PcieLevel>,
}

/// Another question than what a request gets.
#[derive(Args, Debug)]
#[group(multiple = false, conflicts_with = "AskArgs")]
pub(crate) struct InsteadArgs {
    /// Explain what a running pod got, as far as the agent remembers
    #[arg(long, value_name = "[NAMESPACE/]NAME")]
    pub(crate) pod: Option<PodName>,
    /// List the choices that the agent remembers, the newest first
    #[arg(long)]
    pub(crate) past: bool,
    /// Explain what a source of the configuration makes of everything that it looks at: which device it is,
    /// or the first reason why it is none
    #[arg(long, value_name = "NAME")]
    pub(crate) source: Option<String>,
}

/// A pod's name, in its namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodName {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

fn size(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "write how many devices, from 1".to_owned())
}

fn policy() -> impl TypedValueParser<Value = Policy> {
    let value = |policy: Policy| PossibleValue::new(policy.name()).help(aim(policy));
    let names = PossibleValuesParser::new(Policy::ALL.map(value));
    names.try_map(|name| name.parse::<Policy>())
}

/// What a policy is after.
fn aim(policy: Policy) -> &'static str {
    match policy {
        Policy::Aligned => "The best connected set, which leaves the most useful rest",
        Policy::Packed => "From the groups with the most in use, so that others stay free",
        Policy::Distributed => "From the groups with the least in use",
        Policy::NumaStrict => "As aligned, on one NUMA node or not at all",
        Policy::First => "The lowest positions",
    }
}

/// The levels of the ladder, as `windlass topo` labels them, in lower case.
fn level() -> impl TypedValueParser<Value = PcieLevel> {
    const LEVELS: [(&str, PcieLevel, &str); 5] = [
        ("pix", PcieLevel::Pix, "Below one PCIe switch"),
        ("pxb", PcieLevel::Pxb, "Below several PCIe switches"),
        ("phb", PcieLevel::Phb, "Below one host bridge"),
        ("node", PcieLevel::Node, "On one NUMA node"),
        ("sys", PcieLevel::Sys, "Anywhere"),
    ];
    let value = |(name, _, about)| PossibleValue::new(name).help(about);
    let names = PossibleValuesParser::new(LEVELS.map(value));
    let called = |text: &str| LEVELS.into_iter().find(|(name, ..)| name.eq_ignore_ascii_case(text));
    names.map(move |text| called(&text).expect("a possible value").1)
}

// === impl Elsewhere ===

impl Args for Elsewhere {
    fn augment_args(command: Command) -> Command {
        command
    }

    fn augment_args_for_update(command: Command) -> Command {
        command
    }
}

impl FromArgMatches for Elsewhere {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        const OF_THIS_HOST: [(&str, &str); 4] = [
            ("host_root", "--host-root"),
            ("nvml_library", "--nvml-library"),
            ("kubelet_dir", "--kubelet-dir"),
            ("state_dir", "--state-dir"),
        ];
        let is_typed = |id| matches.value_source(id) == Some(ValueSource::CommandLine);
        let typed = OF_THIS_HOST.into_iter().find(|(id, _)| is_typed(id));
        match typed.filter(|_| is_typed("machine")) {
            None => Ok(Self),
            Some((_, flag)) => Err(clap::Error::raw(
                ErrorKind::ArgumentConflict,
                format!("{flag} is of this host, and cannot be used with --machine\n"),
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
