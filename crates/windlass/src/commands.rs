//! What each command does.

mod devices;
mod kubelet;
mod machine;
mod node;
mod topo;

use std::{future::Future, time::Duration};

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use serde::Serialize;
use windlass_core::inventory::Inventory;
use windlass_node::{
    Config, agent,
    clock::Clock,
    config::{ConfigFile, DeviceList},
};

pub(crate) use devices::{device_table, name as short_name, sources};
pub(crate) use machine::host_flags;
pub(crate) use topo::matrix;

use crate::{
    cli::{Command, HostArgs, OutputArg},
    demo,
    exit::Misuse,
    screen::{Paint, Tone, line},
};

/// A thread that hangs in a driver's call does not keep the process.
const ABANDON_AFTER: Duration = Duration::from_millis(500);

/// Runs a command to its end.
pub(crate) fn run(command: Command) -> Result<()> {
    match command {
        Command::Node(args) => block_on(node::run(args)),
        Command::Devices(args) => block_on(devices::run(args)),
        Command::Topo(args) => block_on(topo::run(args)),
        Command::Demo(args) => block_on(demo::run(args)),
        Command::Kubelet(args) => block_on(kubelet::run(args)),
        Command::Machine(args) => machine::run(args.command),
    }
}

/// One thread serves everything: an agent waits far more than it computes.
fn block_on(command: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .thread_keep_alive(Duration::from_secs(1))
        .build()
        .context("cannot start the async runtime")?;
    let outcome = runtime.block_on(command);
    runtime.shutdown_timeout(ABANDON_AFTER);
    outcome
}

/// The defaults, the file over them, the flags over the file.
fn config(args: HostArgs) -> Result<Config> {
    let mut config = match &args.config {
        Some(path) => ConfigFile::load(path).map_err(|error| Misuse(error.into()))?,
        None => Config::default(),
    };
    if let Some(root) = args.host_root {
        config.host_root = root;
    }
    config.nvml_library = args.nvml_library.or(config.nvml_library);
    Ok(config)
}

/// Looks at this host once.
async fn survey(args: HostArgs) -> Result<Inventory> {
    let config = Config { device_list: DeviceList::Envvar, ..config(args)? };
    Ok(agent::survey(&config, clock()).await)
}

/// Writes a document for programs, or the table for people.
fn answer(
    output: OutputArg,
    document: &impl Serialize,
    table: impl FnOnce() -> Result<()>,
) -> Result<()> {
    match output {
        OutputArg::Json => line(serde_json::to_string_pretty(document)?)?,
        OutputArg::Yaml => line(serde_saphyr::to_string(document)?.trim_end())?,
        OutputArg::Table => table()?,
    }
    Ok(())
}

/// A simulation says so in every output.
fn simulated(inventory: &Inventory, paint: Paint) -> Result<()> {
    if let Some(profile) = &inventory.simulated {
        line(paint.text(Tone::Notable, format!("SIMULATED machine {profile}")))?;
    }
    Ok(())
}

/// The clock of this process.
pub(crate) fn clock() -> Clock {
    Clock::starting_at(Timestamp::now())
}
