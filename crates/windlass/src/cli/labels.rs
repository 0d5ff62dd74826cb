//! Command line of `windlass labels`.

use clap::{Args, ValueEnum};

use super::HostArgs;

#[derive(Args, Debug)]
pub(crate) struct LabelsArgs {
    #[command(flatten)]
    pub(crate) host: HostArgs,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: LabelsOutputArg,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum LabelsOutputArg {
    /// Table for a terminal.
    Table,
    /// One object, as JSON.
    Json,
    /// One object, as YAML.
    Yaml,
    /// key=value lines for node-feature-discovery.
    Nfd,
}
