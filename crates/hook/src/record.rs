//! Reading of the agent's record and of the hook's note, both of which only the hook's user may write.

use std::{fs::Metadata, io, os::unix::fs::MetadataExt as _, path::Path};

use windlass_core::memory_limit::{MemoryLimitError, MemoryLimitNote, MemoryLimitRecord};
use windlass_host::files::{self, Links};

use crate::{HookError, MAX_DOCUMENT};

/// Write permission of group and others.
const WRITTEN_BY_OTHERS: u32 = 0o022;

/// Reads a record that only this user may write, with its limits for this many replicas.
pub(crate) fn read(path: &Path, replicas: u32) -> Result<MemoryLimitRecord, HookError> {
    document(path, |text| MemoryLimitRecord::parse(text)?.times(replicas))
}

/// Reads a note that only this user may write.
pub(crate) fn note(path: &Path) -> Result<MemoryLimitNote, HookError> {
    document(path, MemoryLimitNote::parse)
}

fn document<T>(
    path: &Path,
    parse: impl FnOnce(&[u8]) -> Result<T, MemoryLimitError>,
) -> Result<T, HookError> {
    let (metadata, text) =
        contents(path).map_err(|source| HookError::Read { path: path.to_owned(), source })?;
    let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
    if !is_own || metadata.mode() & WRITTEN_BY_OTHERS != 0 {
        return Err(HookError::NotOurs(path.to_owned()));
    }
    parse(text.as_bytes()).map_err(|source| HookError::Document { path: path.to_owned(), source })
}

fn contents(path: &Path) -> io::Result<(Metadata, String)> {
    let file = files::open_regular(path, Links::Refused)?;
    let metadata = file.metadata()?;
    Ok((metadata, files::text_of(file, MAX_DOCUMENT)?))
}
