//! `windlass scrub`: overwrite the free memory of a GPU. The agent runs it for `memory: overwrite`.
//!
//! CUDA's driver reads its device filter from the environment at process start, so the command executes itself again
//! with the filter set.

use std::{env, os::unix::process::CommandExt as _, process::Command};

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use serde::Serialize;
use windlass_core::inventory::Inventory;
use windlass_cuda::{Overwritten, VISIBLE_DEVICES, overwrite};

use super::{Origin, answer, host_config, simulated};
use crate::{
    cli::{HostArgs, OutputArg},
    screen::{Paint, Table},
};

#[derive(Args, Debug)]
#[command(after_help = "\
Memory of running programs is untouched; they cannot allocate more during the scrub.

Exit codes: 0 done, 1 failed, 64 wrong command line or configuration.")]
pub(crate) struct ScrubArgs {
    /// GPU or MIG device, as in `windlass devices`: GPU-..., MIG-...
    #[arg(value_name = "UUID", value_parser = uuid)]
    uuid: String,
    #[command(flatten)]
    host: HostArgs,
    /// Output format.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: OutputArg,
}

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

/// Digits in each part of a UUID.
const PARTS: [usize; 5] = [8, 4, 4, 4, 12];

pub(super) fn run(args: ScrubArgs) -> Result<()> {
    let config = host_config(args.host)?;
    let uuid = args.uuid.as_str();
    if env::var(VISIBLE_DEVICES).ok().as_deref() != Some(uuid) {
        return Err(anew(uuid));
    }
    let roots = config.places.roots();
    let library = roots.cuda_library(config.places.nvml_library.clone());
    let library = library.ok_or_else(|| {
        let searched = roots.driver.nvml_folders();
        anyhow!("NVIDIA driver not found in {searched}; --nvml-library names its library")
    })?;
    let done = overwrite(&library, uuid).with_context(|| format!("cannot overwrite {uuid}"))?;
    let (simulated, recorded) = (roots.host.simulated(), roots.host.recorded());
    let inventory = Inventory { simulated, recorded, ..Inventory::default() };
    let document = ScrubDocument {
        origin: Origin::of(&inventory),
        device: uuid,
        overwritten_bytes: done.overwritten,
        free_bytes: done.free,
        total_bytes: done.total,
    };
    answer(args.output, &document, || table(&inventory, uuid, done))
}

fn table(inventory: &Inventory, uuid: &str, done: Overwritten) -> Result<()> {
    simulated(inventory, Paint::for_stdout())?;
    let mut table = Table::new(["DEVICE", "OVERWRITTEN", "FREE", "TOTAL"]);
    let mib = |bytes: u64| format!("{} MiB", bytes / MIB);
    table.row([uuid.to_owned(), mib(done.overwritten), mib(done.free), mib(done.total)]);
    Ok(table.print()?)
}

/// Executes this command again with the variable; returns only on failure.
fn anew(uuid: &str) -> anyhow::Error {
    let mut command = Command::new("/proc/self/exe");
    command.args(env::args_os().skip(1)).env(VISIBLE_DEVICES, uuid).env(LOADING, "EAGER");
    anyhow::Error::new(command.exec()).context("cannot restart")
}

/// Parses a UUID as NVML formats it since driver 470. Older formats of MIG devices are unknown to CUDA.
fn uuid(text: &str) -> Result<String, String> {
    let digits = text.strip_prefix("GPU-").or_else(|| text.strip_prefix("MIG-"));
    let is_hex = |part: &str| part.chars().all(|letter| letter.is_ascii_hexdigit());
    let is_uuid =
        |digits: &str| digits.split('-').map(str::len).eq(PARTS) && digits.split('-').all(is_hex);
    if digits.is_some_and(is_uuid) {
        return Ok(text.to_owned());
    }
    Err("write GPU- or MIG- and a UUID, as `windlass devices` shows it".to_owned())
}
