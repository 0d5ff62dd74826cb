//! Folder for a bug report: the findings, and a recording of the host without serial numbers and addresses.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use windlass_config::Config;
use windlass_core::inventory::Inventory;

use super::Diagnosis;
use crate::{
    cli::LONG_VERSION,
    commands::{
        host::{Identifiers, new_folder, write_recording},
        print_to_stderr,
    },
    screen::shell_word,
};

/// Creates the folder before the checks run, so that an unusable folder fails at once.
pub(super) fn create_folder(folder: &Path) -> Result<()> {
    new_folder(folder)
}

pub(super) fn write(
    folder: &Path,
    config: &Config,
    inventory: &Inventory,
    report: &Diagnosis<'_>,
) -> Result<()> {
    let (_, anonymiser) = write_recording(folder, config, inventory, Identifiers::Anonymised)?;
    let mut findings = serde_json::to_value(report)?;
    anonymiser.anonymise_document(&mut findings);
    for (name, text) in [
        ("findings.json", serde_json::to_string_pretty(&findings)? + "\n"),
        ("version.txt", format!("windlass {LONG_VERSION}\n")),
    ] {
        let path = folder.join(name);
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let path = shell_word(folder);
    print_to_stderr(format_args!(
        "wrote {path}: read it, then pack it with  tar czf report.tgz -C {path} ."
    ))
}
