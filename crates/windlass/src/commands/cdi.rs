//! `windlass cdi`: generate, list and check CDI documents.

mod check;
mod documents;
mod list;

use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::{Context as _, Result, ensure};
use windlass_cdi::{CdiFiles, MissingParts, to_json};
use windlass_config::Config;
use windlass_core::inventory::Inventory;
use windlass_node::agent;

use super::{
    clock, host_config, make_absolute, print_origin_notice_to_stderr, print_to_stderr,
    require_sources, source_lines,
};
use crate::{
    cli::{CdiCommand, GenerateArgs},
    screen::{Paint, pluralized, print_line},
};

pub(crate) async fn run(command: CdiCommand) -> Result<()> {
    match command {
        CdiCommand::Generate(args) => generate(args).await,
        CdiCommand::List(args) => list::run(args),
        CdiCommand::Check(args) => check::run(args),
    }
}

async fn generate(args: GenerateArgs) -> Result<()> {
    let mut config = host_config(args.host)?;
    config.places.host_root_on_node =
        args.host_root_on_node.unwrap_or(config.places.host_root_on_node);
    make_absolute(&mut config);
    let inventory = agent::scan_host(&config, clock()).await.inventory;
    require_sources(&inventory)?;
    print_origin_notice_to_stderr(&inventory)?;
    match args.output_dir {
        Some(folder) => write(config, folder, &inventory),
        None => print(&config, &inventory),
    }
}

fn print(config: &Config, inventory: &Inventory) -> Result<()> {
    let generated =
        CdiFiles::new(&config.places, config.policy.delivery.clone()).generate(inventory);
    report_missing(&generated.missing_parts)?;
    require_documents(generated.documents.len(), inventory)?;
    for document in generated.documents.values() {
        print_line(to_json(document).trim_end())?;
    }
    Ok(())
}

fn write(mut config: Config, folder: PathBuf, inventory: &Inventory) -> Result<()> {
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    config.places.cdi_dir = folder;
    let outcome = CdiFiles::new(&config.places, config.policy.delivery.clone())
        .write(inventory, BTreeMap::new());
    report_missing(&outcome.missing_parts)?;
    let paths: Vec<_> = outcome.paths().collect();
    for path in &paths {
        print_line(path.display())?;
    }
    match outcome.document_errors.values().next() {
        Some(error) => Err(error.clone().into()),
        None => require_documents(paths.len(), inventory),
    }
}

/// Fails if there is no document. A host without devices has none, because runtimes reject a document without devices.
fn require_documents(documents: usize, inventory: &Inventory) -> Result<()> {
    let reasons = source_lines(inventory, Paint::plain()).join("\n  ");
    ensure!(documents > 0, "this host has no device for a CDI document:\n  {reasons}");
    Ok(())
}

fn report_missing(missing_parts: &MissingParts) -> Result<()> {
    missing_parts.problems.iter().try_for_each(print_to_stderr)
}

/// Formats a count: `2 mistakes`, `no mistake`.
fn counted(number: usize, noun: &str) -> String {
    if number == 0 { format!("no {noun}") } else { pluralized(number, noun) }
}
