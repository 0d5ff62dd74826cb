//! Command line of `windlass demo`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use windlass_machine::Attached;

#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// Machine profile: a name from `windlass machine list`, or a YAML file.
    #[arg(long, value_name = "NAME|FILE", default_value = "dgx-h100")]
    pub(crate) machine: String,
    /// Devices to add to the machine and to offer, as device profile and count: hailo, darwin3-network:2. Repeatable.
    #[arg(long, value_name = "NAME[:COUNT]")]
    pub(crate) device: Vec<Attached>,
    /// Configuration file of the agent, for machines whose devices need one to be offered.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Output format: text for people, or one JSON object per event.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: DemoOutputArg,
    #[command(flatten)]
    pub(crate) variant: DemoVariantArgs,
    /// Wait for Enter after each event, and after each screenful.
    #[arg(long, conflicts_with_all = ["output", "soak", "edge"])]
    pub(crate) step: bool,
    /// Keep everything running at the end, and print the paths to explore, until Ctrl-C.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Run a soak test of this duration: pods start and end while everything around the agent fails. Invariants are
    /// checked after each step, or as soon as they can be observed (docs/reliability.md): 30s, 10m, 8h.
    #[arg(long, value_name = "DURATION", value_parser = duration,
          conflicts_with_all = ["device", "config", "keep"])]
    pub(crate) soak: Option<Duration>,
    /// Seed of a soak, to repeat it.
    #[arg(long, value_name = "N", requires = "soak")]
    pub(crate) seed: Option<u64>,
}

/// Alternatives to the default demonstration, which shows one machine with its agent and kubelet.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct DemoVariantArgs {
    /// Show allocation by claims (Dynamic Resource Allocation), with an embedded API server and scheduler. With --soak,
    /// claims are created and deleted beside other pods, and the API server fails too.
    #[arg(long)]
    pub(crate) dra: bool,
    /// Show the cluster half: the extender places pods on two hundred simulated nodes, one of which runs the agent. The
    /// same pods, placed by kube-scheduler without the extender, are drawn beside them.
    #[arg(long, conflicts_with_all = ["dra", "soak"])]
    pub(crate) cluster: bool,
    /// Show a pipeline on five simulated edge boards: three layouts predicted and measured, with stages as processes
    /// and links of the boards' rates. Then a board fails under load, and its stages move to other boards.
    #[arg(long, conflicts_with_all = ["dra", "cluster", "soak", "machine", "device", "config", "keep"])]
    pub(crate) edge: bool,
}

/// Parses whole seconds, minutes or hours.
fn duration(text: &str) -> Result<Duration, String> {
    let message = || format!("{text:?} is not a duration: write 30s, 10m or 8h");
    let (unit, seconds) = [('s', 1), ('m', 60), ('h', 3600)]
        .into_iter()
        .find(|(unit, _)| text.ends_with(*unit))
        .ok_or_else(message)?;
    let number: u64 = text.trim_end_matches(unit).parse().map_err(|_| message())?;
    number
        .checked_mul(seconds)
        .filter(|total| *total > 0)
        .map(Duration::from_secs)
        .ok_or_else(message)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DemoOutputArg {
    /// Text for people.
    Text,
    /// One JSON object per event.
    Json,
}
