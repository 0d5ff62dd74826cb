//! `windlass scrub`: overwrites what is free of a GPU's memory. The agent runs it as well, for `memory: overwrite`.
//!
//! CUDA's driver shows the devices that a variable names in the environment which the process began with, so the
//! command starts itself anew with that.

use std::{env, os::unix::process::CommandExt as _, process::Command};

use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use serde::Serialize;
use windlass_core::inventory::Inventory;
use windlass_cuda::{Overwritten, VISIBLE_DEVICES, overwrite};

use super::{Origin, answer, host_config, simulated};
use crate::{
    cli::{HostArgs, OutputArg},
    screen::{Paint, Table, line},
};

#[derive(Args, Debug)]
#[command(after_help = "\
What a program has on the GPU is left alone; while this runs, none can have more.

Exit codes: 0 done, 1 failed, 64 wrong command line or configuration.")]
pub(crate) struct ScrubArgs {
    /// The GPU or MIG device, as `windlass devices` shows it: GPU-..., MIG-...
    #[arg(value_name = "UUID", value_parser = uuid)]
    uuid: String,
    #[command(flatten)]
    host: HostArgs,
    /// How to write the answer.
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: OutputArg,
}

/// What was done, for programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document<'a> {
    #[serde(flatten)]
    origin: Origin<'a>,
    device: &'a str,
    overwritten_bytes: u64,
    free_bytes: u64,
    total_bytes: u64,
}

/// Since CUDA 12.2 code is loaded when it is first called, for which there would be no memory left (`Lazy Loading`
/// in the CUDA C++ Programming Guide).
const LOADING: &str = "CUDA_MODULE_LOADING";

const MIB: u64 = 1 << 20;

/// Lengths of the parts of a UUID in hexadecimal digits.
const PARTS: [usize; 5] = [8, 4, 4, 4, 12];

pub(super) fn run(args: ScrubArgs) -> Result<()> {
    let config = host_config(args.host)?;
    let uuid = args.uuid.as_str();
    if env::var(VISIBLE_DEVICES).ok().as_deref() != Some(uuid) {
        return Err(anew(uuid));
    }
    let roots = config.places.roots();
    let library = roots.cuda_library(config.places.driver.nvml_library.clone());
    let library = library.ok_or_else(|| {
        let searched = roots.driver.nvml_folders();
        anyhow!("no driver of NVIDIA's in {searched}; --nvml-library names its library")
    })?;
    let done = overwrite(&library, uuid).with_context(|| format!("cannot overwrite {uuid}"))?;
    let (simulated, recorded) = (roots.host.simulated(), roots.host.recorded());
    let inventory = Inventory { simulated, recorded, ..Inventory::default() };
    let document = Document {
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
    Ok(table.lines("").into_iter().try_for_each(line)?)
}

/// Becomes this command with the variable; returns only if that fails.
fn anew(uuid: &str) -> anyhow::Error {
    let mut command = Command::new("/proc/self/exe");
    command.args(env::args_os().skip(1)).env(VISIBLE_DEVICES, uuid).env(LOADING, "EAGER");
    anyhow::Error::new(command.exec()).context("cannot start anew")
}

/// As NVML writes one since driver 470; what an older one writes for a MIG device, CUDA finds by another name.
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
