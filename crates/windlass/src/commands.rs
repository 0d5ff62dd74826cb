//! Implementation of the commands.

pub(crate) mod cdi;
#[cfg(feature = "cluster")]
pub(crate) mod cluster;
pub(crate) mod config;
#[cfg(feature = "laboratory")]
pub(crate) mod conformance;
pub(crate) mod devices;
pub(crate) mod doctor;
pub(crate) mod explain;
mod folders;
pub(crate) mod host;
#[cfg(feature = "laboratory")]
pub(crate) mod kubelet;
pub(crate) mod labels;
#[cfg(feature = "laboratory")]
pub(crate) mod machine;
pub(crate) mod mps;
pub(crate) mod node;
#[cfg(feature = "pipeline")]
pub(crate) mod pipeline;
pub(crate) mod probe;
pub(crate) mod scrub;
#[cfg(feature = "pipeline")]
pub(crate) mod stage;
pub(crate) mod top;
pub(crate) mod topo;
pub(crate) mod xids;

use std::{
    io::{self, Write as _},
    path::Path,
};

use anyhow::{Context as _, Result, anyhow, ensure};
use jiff::Timestamp;
use serde::Serialize;
use windlass_config::Config;
use windlass_core::{
    device::Device,
    health::Reason,
    inventory::{Inventory, SourceState},
};
use windlass_host::clock::Clock;
use windlass_migrate::{load, without_file};
use windlass_node::agent;
use windlass_resources::NodeState;

#[cfg(feature = "laboratory")]
pub(crate) use devices::{DeviceStatus, Width, device_tables};
pub(crate) use devices::{
    is_named, name as short_name, name_prefix, sorted_by_inventory, source_lines,
};
use folders::{make_absolute, move_into_recording, require_host_paths};
#[cfg(feature = "laboratory")]
pub(crate) use machine::host_flags;
pub(crate) use topo::Topology;

use crate::{
    cli::{HostArgs, NvidiaPluginArgs, OutputArg, StatePathArgs},
    exit::UsageError,
    screen::{Paint, Style, print_line},
};

/// Configuration from defaults, file and flags, in ascending precedence.
fn host_config(args: HostArgs) -> Result<Config> {
    // Variables of NVIDIA's plugin count too: an agent in the same pod may use them.
    let nvidia_plugin =
        NvidiaPluginArgs::from_environment().map_err(|error| UsageError(error.into()))?;
    let (file, flags) =
        (args.config.clone().or_else(|| nvidia_plugin.file()), nvidia_plugin.flags());
    let mut config = match &file {
        Some(path) => load(path, &flags).context("--config").map_err(UsageError)?.config,
        None => without_file(&flags).map_err(|error| UsageError(error.into()))?.config,
    };
    apply_host(args, &mut config);
    check_host_root(&config)?;
    if config.places.host().recorded().is_some() {
        move_into_recording(&mut config.places);
    }
    make_absolute(&mut config);
    Ok(config)
}

/// Configuration with the folders of allocation records.
fn config_with_state_paths(host: HostArgs, state_paths: StatePathArgs) -> Result<Config> {
    let mut config = host_config(host)?;
    let nvidia_plugin =
        NvidiaPluginArgs::from_environment().map_err(|error| UsageError(error.into()))?;
    let kubelet_dir = state_paths.kubelet_dir.or_else(|| nvidia_plugin.kubelet_dir());
    config.places.kubelet_dir = kubelet_dir.unwrap_or(config.places.kubelet_dir);
    config.places.state_dir = state_paths.state_dir.unwrap_or(config.places.state_dir);
    make_absolute(&mut config);
    Ok(config)
}

fn apply_host(args: HostArgs, config: &mut Config) {
    if let Some(root) = args.host_root {
        config.places.host_root = root;
    }
    config.places.nvml_library = args.nvml_library.or(config.places.nvml_library.take());
}

fn check_host_root(config: &Config) -> Result<()> {
    let root = &config.places.host_root;
    require_directory("host root", root, "--host-root or hostRoot")?;
    // A simulated machine has its host root in a subfolder.
    let subfolder = root.join("host");
    if !root.join("sys").exists() && subfolder.join("sys").is_dir() {
        let (root, subfolder) = (root.display(), subfolder.display());
        let problem =
            anyhow!("there is no /sys in the host root {root}: did you mean {subfolder}?");
        return Err(UsageError(problem).into());
    }
    Ok(())
}

/// Requires a directory. The error names it by `description`, and by `setting`, its flag and configuration key.
fn require_directory(description: &str, path: &Path, setting: &str) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let problem =
        anyhow!("the {description} {} is not a directory: change {setting}", path.display());
    Err(UsageError(problem).into())
}

/// Scans this host once.
async fn scan_host(args: HostArgs) -> Result<NodeState> {
    Ok(agent::scan_host(&host_config(args)?, clock()).await)
}

/// Fails if a source has not answered in time. The caller shows the other sources anyway.
fn require_sources(inventory: &Inventory) -> Result<()> {
    let starting = inventory.sources.iter().filter(|(_, state)| **state == SourceState::Starting);
    let names: Vec<_> = starting.map(|(name, _)| name.as_str()).collect();
    ensure!(
        names.is_empty(),
        "no answer in time from {}: its devices are missing",
        names.join(", ")
    );
    Ok(())
}

/// Fails if the driver has not answered in time for a device or a source.
fn require_driver_answers(inventory: &Inventory) -> Result<()> {
    let devices = inventory.devices.iter();
    let is_unresponsive = |device: &&Device| {
        device.health.failure().is_some_and(|failure| failure.reason == Reason::Unresponsive)
    };
    let names: Vec<_> = devices.filter(is_unresponsive).map(short_name).collect();
    ensure!(names.is_empty(), "the driver did not answer in time for {}", names.join(", "));
    require_sources(inventory)
}

/// Writes JSON or YAML for programs, or the table for people.
fn print_output(
    output: OutputArg,
    document: &impl Serialize,
    table: impl FnOnce() -> Result<()>,
) -> Result<()> {
    match output {
        OutputArg::Json => print_line(serde_json::to_string_pretty(document)?)?,
        OutputArg::Yaml => print_line(serde_saphyr::to_string(document)?.trim_end())?,
        OutputArg::Table => table()?,
    }
    Ok(())
}

/// Groups values by reason, in order of appearance.
fn group_by_reason<'a, T>(entries: impl Iterator<Item = (&'a str, T)>) -> Vec<(&'a str, Vec<T>)> {
    let mut groups: Vec<(&str, Vec<T>)> = Vec::new();
    for (reason, value) in entries {
        match groups.iter_mut().find(|(group_reason, _)| *group_reason == reason) {
            Some((_, values)) => values.push(value),
            None => groups.push((reason, vec![value])),
        }
    }
    groups
}

/// Marks a document about a simulated or recorded machine.
#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Origin<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded: Option<&'a str>,
}

impl<'a> Origin<'a> {
    fn of(inventory: &'a Inventory) -> Self {
        let (simulated, recorded) = (&inventory.simulated, &inventory.recorded);
        Self { simulated: simulated.as_deref(), recorded: recorded.as_deref() }
    }

    fn notices(self) -> impl Iterator<Item = String> {
        let simulated = self.simulated.map(|profile| format!("SIMULATED machine {profile}"));
        let recorded = self.recorded.map(|origin| format!("RECORDED host, {origin}"));
        simulated.into_iter().chain(recorded)
    }

    fn print(self, paint: Paint) -> Result<()> {
        Ok(self.notices().try_for_each(|text| print_line(paint.styled(Style::Warning, text)))?)
    }
}

/// Prints a notice for a simulated machine or a recording.
fn print_origin_notice(inventory: &Inventory, paint: Paint) -> Result<()> {
    Origin::of(inventory).print(paint)
}

/// Prints the notice to stderr, for documents without a field for it.
fn print_origin_notice_to_stderr(inventory: &Inventory) -> Result<()> {
    Origin::of(inventory).notices().try_for_each(print_to_stderr)
}

/// Prints a message to stderr, apart from output for programs.
fn print_to_stderr(text: impl std::fmt::Display) -> Result<()> {
    Ok(writeln!(io::stderr(), "windlass: {text}")?)
}

pub(crate) fn clock() -> Clock {
    Clock::starting_at(Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_is_late_is_named() {
        let check = |states: &[(&str, SourceState)]| {
            let sources = states.iter().map(|(name, state)| ((*name).to_owned(), state.clone()));
            let inventory = Inventory { sources: sources.collect(), ..Inventory::default() };
            require_sources(&inventory).map_err(|error| error.to_string())
        };
        let ready = ("nics", SourceState::Absent("none".into()));
        assert_eq!(check(std::slice::from_ref(&ready)), Ok(()));
        let error = check(&[ready, ("nvidia", SourceState::Starting)])
            .expect_err("a source has not answered");
        assert!(error.starts_with("no answer in time from nvidia"), "{error}");
    }
}
