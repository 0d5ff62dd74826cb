//! `windlass demo`, as typed.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use windlass_machine::Attached;

#[derive(Args, Debug)]
pub(crate) struct DemoArgs {
    /// A machine profile: a name from `windlass machine list`, or a YAML file.
    #[arg(long, value_name = "NAME|FILE", default_value = "dgx-h100")]
    pub(crate) machine: String,
    /// Devices to add and to offer, by a device profile and how many of them: hailo, darwin3-network:2.
    /// May be given several times.
    #[arg(long, value_name = "NAME[:COUNT]")]
    pub(crate) device: Vec<Attached>,
    /// Configuration file of the agent, where the machine's devices are not offered without one.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// How to tell what happens: text for people, or one JSON object per event.
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: DemoOutputArg,
    /// Tell how claims get devices instead (Dynamic Resource Allocation): an API server and a scheduler are
    /// embedded as well. In a soak claims come and go beside the other pods, and the API server fails too.
    #[arg(long)]
    pub(crate) dra: bool,
    /// Leave everything running at the end, with the paths to poke at, until Ctrl-C.
    #[arg(long)]
    pub(crate) keep: bool,
    /// Let pods come and go for so long while everything around the agent fails, and check what must hold,
    /// after each step or when it can be seen (docs/reliability.md): 30s, 10m, 8h.
    #[arg(long, value_name = "DURATION", value_parser = duration,
          conflicts_with_all = ["device", "config", "keep"])]
    pub(crate) soak: Option<Duration>,
    /// The seed of a soak that is to come again.
    #[arg(long, value_name = "N", requires = "soak")]
    pub(crate) seed: Option<u64>,
}

/// Whole seconds, minutes or hours.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration: write 30s, 10m or 8h");
    let (unit, seconds) = [('s', 1), ('m', 60), ('h', 3600)]
        .into_iter()
        .find(|(unit, _)| text.ends_with(*unit))
        .ok_or_else(wrong)?;
    let number: u64 = text.trim_end_matches(unit).parse().map_err(|_| wrong())?;
    number
        .checked_mul(seconds)
        .filter(|total| *total > 0)
        .map(Duration::from_secs)
        .ok_or_else(wrong)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DemoOutputArg {
    /// For people.
    Text,
    /// One JSON object per event.
    Json,
}
