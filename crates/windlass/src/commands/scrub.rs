//! `windlass scrub`: overwrite the free memory of a GPU. The agent runs it for `memory: overwrite`.
//!
//! CUDA's driver reads its device filter from the environment at process start, so the command executes itself again
//! with the filter set.

use std::{env, os::unix::process::CommandExt as _, process::Command};

use anyhow::{Context as _, Result, anyhow};
use serde::Serialize;
use windlass_core::inventory::Inventory;
use windlass_cuda::{OverwriteReport, VISIBLE_DEVICES, overwrite};

use super::{Origin, host_config, print_origin_notice, print_output};
use crate::{
    cli::ScrubArgs,
    screen::{Paint, Table},
};

/// Output in JSON and YAML.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ScrubDocument<'a> {
    #[serde(flatten)]
    origin: Origin<'a>,
    device: &'a str,
    overwritten_bytes: u64,
    free_bytes: u64,
    total_bytes: u64,
}

/// Loads CUDA code eagerly. Lazy loading (default since CUDA 12.2, `Lazy Loading` in the CUDA C++ Programming Guide)
/// would find no memory left.
const LOADING: &str = "CUDA_MODULE_LOADING";

const MIB: u64 = 1 << 20;

pub(crate) fn run(args: ScrubArgs) -> Result<()> {
    let config = host_config(args.host)?;
    let uuid = args.uuid.as_str();
    if env::var(VISIBLE_DEVICES).ok().as_deref() != Some(uuid) {
        return Err(reexec(uuid));
    }
    let roots = config.places.roots();
    let library = roots.cuda_library(config.places.nvml_library.clone());
    let library = library.ok_or_else(|| {
        let folders = roots.driver.nvml_folders();
        anyhow!("NVIDIA driver not found in {folders}; --nvml-library names its library")
    })?;
    let report = overwrite(&library, uuid).with_context(|| format!("cannot overwrite {uuid}"))?;
    let (simulated, recorded) = (roots.host.simulated(), roots.host.recorded());
    let inventory = Inventory { simulated, recorded, ..Inventory::default() };
    let document = ScrubDocument {
        origin: Origin::of(&inventory),
        device: uuid,
        overwritten_bytes: report.overwritten,
        free_bytes: report.free,
        total_bytes: report.total,
    };
    print_output(args.output, &document, || table(&inventory, uuid, report))
}

fn table(inventory: &Inventory, uuid: &str, report: OverwriteReport) -> Result<()> {
    print_origin_notice(inventory, Paint::for_stdout())?;
    let mut table = Table::new(["DEVICE", "OVERWRITTEN", "FREE", "TOTAL"]);
    let mib = |bytes: u64| format!("{} MiB", bytes / MIB);
    table.add_row([uuid.to_owned(), mib(report.overwritten), mib(report.free), mib(report.total)]);
    Ok(table.print()?)
}

/// Executes this command again with the device filter in its environment; returns only on failure.
fn reexec(uuid: &str) -> anyhow::Error {
    let mut command = Command::new("/proc/self/exe");
    command.args(env::args_os().skip(1)).env(VISIBLE_DEVICES, uuid).env(LOADING, "EAGER");
    anyhow::Error::new(command.exec()).context("cannot restart")
}
