//! Reads a trace: CSV tables of nodes and of pods in a folder.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use windlass_host::files::{Symlinks, read_regular_text};
use windlass_sched::{simulation::Simulation, trace};

/// Maximum size of a table, in bytes. A table of the public traces has 1 MB.
const MAX_BYTES: u64 = 256 << 20;
/// Name of the default table of pods, in a trace with several.
const DEFAULT_PODS: &str = "default";

/// Reads the nodes and a table of pods. Returns the simulation, and the name of the pods' table.
pub(super) fn read(folder: &Path, pods: Option<&str>) -> Result<(Simulation, String)> {
    let files = csv_files(folder)?;
    let node_table = node_table(folder, &files)?;
    let (name, pod_table) = pod_table(folder, &files, pods)?;
    let view = trace::nodes(&text(node_table)?);
    let view = view.with_context(|| node_table.display().to_string())?;
    let requests = trace::pods(&text(pod_table)?, view.catalog());
    let requests = requests.with_context(|| pod_table.display().to_string())?;
    let simulation = Simulation::new(view, requests);
    let simulation = simulation.with_context(|| format!("--trace {}", folder.display()))?;
    Ok((simulation, name))
}

fn csv_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("--trace {}", folder.display()))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("--trace {}", folder.display()))?.path();
        if path.extension().is_some_and(|extension| extension == "csv") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Finds the table of nodes. A table of nodes with GPUs precedes a table of all nodes.
fn node_table<'a>(folder: &Path, files: &'a [PathBuf]) -> Result<&'a PathBuf> {
    let tables: Vec<_> = files.iter().filter(|path| stem(path).contains("node_list")).collect();
    let with_gpus = tables.iter().find(|path| stem(path).ends_with("gpu_node"));
    let table = with_gpus.or_else(|| tables.first()).copied();
    table.with_context(|| format!("{} has no table of nodes, *node_list*.csv", folder.display()))
}

/// Finds the requested table of pods, else the only one or the default one. Returns its name too.
fn pod_table<'a>(
    folder: &Path,
    files: &'a [PathBuf],
    requested: Option<&str>,
) -> Result<(String, &'a PathBuf)> {
    let with_name = |path: &'a PathBuf| {
        let (_, name) = stem(path).split_once("pod_list")?;
        Some((name.trim_start_matches('_').to_owned(), path))
    };
    let tables: Vec<_> = files.iter().filter_map(with_name).collect();
    let folder = folder.display();
    ensure!(!tables.is_empty(), "{folder} has no table of pods, *pod_list_NAME.csv");
    let names = tables.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let chosen = match requested {
        None if tables.len() == 1 => tables.first(),
        name => tables.iter().find(|(table, _)| table == name.unwrap_or(DEFAULT_PODS)),
    };
    chosen.cloned().ok_or_else(|| match requested {
        Some(name) => anyhow!("{folder} has no pods {name:?}; --pods is one of {names}"),
        None => anyhow!("{folder} has several tables of pods; choose by --pods one of {names}"),
    })
}

fn stem(path: &Path) -> &str {
    path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default()
}

fn text(path: &Path) -> Result<String> {
    read_regular_text(path, Symlinks::Followed, MAX_BYTES)
        .with_context(|| format!("cannot read {}", path.display()))
}
