//! Reads the files of a trace.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use windlass_host::files::{Symlinks, read_regular_text};
use windlass_sched::{simulation::Simulation, trace};

/// Maximum size of a table, in bytes. A table of the public traces has 1 MB.
const MAX_BYTES: u64 = 256 << 20;
/// Default table of pods in a trace with several.
const DEFAULT_PODS: &str = "default";

/// Reads the cluster and a table of its pods. Returns the simulation, and the table's name.
pub(super) fn read(folder: &Path, pods: Option<&str>) -> Result<(Simulation, String)> {
    let files = tables(folder)?;
    let nodes = nodes(folder, &files)?;
    let (name, pods) = choose(folder, &files, pods)?;
    let view = trace::nodes(&text(nodes)?).with_context(|| nodes.display().to_string())?;
    let requests = trace::pods(&text(pods)?, view.catalog());
    let requests = requests.with_context(|| pods.display().to_string())?;
    let simulation = Simulation::new(view, requests);
    let simulation = simulation.with_context(|| format!("--trace {}", folder.display()))?;
    Ok((simulation, name))
}

fn tables(folder: &Path) -> Result<Vec<PathBuf>> {
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

/// Finds the table of nodes. Of a table of all nodes and one of nodes with GPUs, it chooses the latter.
fn nodes<'a>(folder: &Path, files: &'a [PathBuf]) -> Result<&'a PathBuf> {
    let tables: Vec<_> = files.iter().filter(|path| stem(path).contains("node_list")).collect();
    let with_gpus = tables.iter().find(|path| stem(path).ends_with("gpu_node"));
    let table = with_gpus.or_else(|| tables.first()).copied();
    table.with_context(|| format!("{} has no table of nodes, *node_list*.csv", folder.display()))
}

fn choose<'a>(
    folder: &Path,
    files: &'a [PathBuf],
    requested: Option<&str>,
) -> Result<(String, &'a PathBuf)> {
    let by_name = |path: &'a PathBuf| {
        let (_, name) = stem(path).split_once("pod_list")?;
        Some((name.trim_start_matches('_').to_owned(), path))
    };
    let tables: Vec<_> = files.iter().filter_map(by_name).collect();
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
