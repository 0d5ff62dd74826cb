//! CDI documents read from files and folders.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde_json::Value;
use windlass_core::cdi::Spec;
use windlass_host::files::{self, Symlinks};

use crate::exit::UsageError;

/// File with its document, or with the parse error.
#[derive(Debug)]
pub(super) struct CdiDocument {
    pub(super) path: PathBuf,
    pub(super) content: Result<Spec, String>,
}

/// Size limit, ten times a document for sixteen GPUs with all driver files.
const MAX_BYTES: u64 = 16 << 20;

/// File extensions of documents; runtimes ignore other files.
const EXTENSIONS: [&str; 2] = ["json", "yaml"];

/// Reads documents from files and folders. The documents of a folder are in order of file names.
pub(super) fn read(arguments: &[PathBuf]) -> Result<Vec<CdiDocument>> {
    let mut paths = Vec::new();
    for argument in arguments {
        if argument.is_dir() {
            paths.extend(document_paths(argument)?);
        } else if argument.exists() {
            paths.push(argument.clone());
        } else {
            let problem = anyhow::anyhow!("{} does not exist", argument.display());
            return Err(UsageError(problem).into());
        }
    }
    Ok(paths.into_iter().map(read_document).collect())
}

fn document_paths(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder);
    let entries = entries.with_context(|| format!("cannot read {}", folder.display()))?;
    let paths = entries.flatten().map(|entry| entry.path());
    let mut paths: Vec<_> = paths.filter(|path| extension(path).is_some()).collect();
    paths.sort();
    Ok(paths)
}

fn read_document(path: PathBuf) -> CdiDocument {
    let content = files::read_regular_text(&path, Symlinks::Followed, MAX_BYTES);
    let content = content.map_err(|error| error.to_string());
    let content = content.and_then(|text| {
        if extension(&path) == Some("yaml") {
            parse_yaml(&text)
        } else {
            serde_json::from_str(&text).map_err(|error| error.to_string())
        }
    });
    CdiDocument { path, content }
}

/// Parses YAML into a JSON value first: YAML deserializers for every type of a document would add 0.2 MB of code.
/// Unlike runtimes, this refuses a number in place of a text.
fn parse_yaml(text: &str) -> Result<Spec, String> {
    let value: Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    serde_json::from_value(value).map_err(|error| error.to_string())
}

fn extension(path: &Path) -> Option<&'static str> {
    let name = path.extension()?;
    EXTENSIONS.into_iter().find(|extension| name == *extension)
}
