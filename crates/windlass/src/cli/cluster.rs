//! Command lines of `windlass cluster`.

use std::{ops::RangeInclusive, path::PathBuf};

use clap::{Args, Subcommand, builder::TypedValueParser};
use windlass_sched::{policy::Policy, simulation::KnowledgeSource};

use super::{OutputArg, word::word};

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
