//! `windlass cdi list`: device names that containers can request.

use anyhow::{Result, ensure};
use serde::Serialize;
use windlass_core::cdi::{ContainerEdits, Spec};

use super::{
    counted,
    documents::{CdiDocument, read},
    print_to_stderr,
};
use crate::{
    cli::{ListArgs, paths_or_default},
    commands::print_output,
    screen::Table,
};

/// Device name with the numbers of its edits, the edits of its whole document included.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CdiName {
    name: String,
    document: String,
    device_nodes: usize,
    mounts: usize,
    hooks: usize,
}

pub(super) fn run(args: ListArgs) -> Result<()> {
    let documents = read(&paths_or_default(args.paths))?;
    let readable = documents.iter().filter_map(|document| {
        Some((document.path.display().to_string(), document.content.as_ref().ok()?))
    });
    let entries: Vec<_> = readable.flat_map(|(path, spec)| entries(&path, spec)).collect();
    let has_unreadable = documents.iter().any(|document| document.content.is_err());
    // An empty table would hide that no document could be read.
    let shows_table = !entries.is_empty() || !has_unreadable;
    print_output(args.output, &entries, || if shows_table { table(&entries) } else { Ok(()) })?;
    let mut unreadable_count = 0;
    for CdiDocument { path, content } in &documents {
        if let Err(error) = content {
            unreadable_count += 1;
            print_to_stderr(format!("{}: {error}", path.display()))?;
        }
    }
    ensure!(unreadable_count == 0, "{} cannot be read", counted(unreadable_count, "document"));
    Ok(())
}

fn entries(path: &str, spec: &Spec) -> Vec<CdiName> {
    let entry = |device: &windlass_core::cdi::SpecDevice| {
        let edits = [&spec.container_edits, &device.container_edits];
        let sum = |count: fn(&ContainerEdits) -> usize| edits.map(count).iter().sum();
        CdiName {
            name: format!("{}={}", spec.kind, device.name),
            document: path.to_owned(),
            device_nodes: sum(|edits| edits.device_nodes.len()),
            mounts: sum(|edits| edits.mounts.len()),
            hooks: sum(|edits| edits.hooks.len()),
        }
    };
    spec.devices.iter().map(entry).collect()
}

fn table(entries: &[CdiName]) -> Result<()> {
    let mut table = Table::new(["NAME", "NODES", "MOUNTS", "HOOKS", "DOCUMENT"]);
    for CdiName { name, document, device_nodes, mounts, hooks } in entries {
        table.add_row([
            name.clone(),
            device_nodes.to_string(),
            mounts.to_string(),
            hooks.to_string(),
            document.clone(),
        ]);
    }
    Ok(table.print()?)
}
