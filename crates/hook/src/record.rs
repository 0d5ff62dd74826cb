//! Reads the agent's record of an allocation's memory limits, and the hook's note of the limits that it set. Only the
//! hook's user may own and write these files.

use std::{fs::Metadata, io, os::unix::fs::MetadataExt as _, path::Path};

use windlass_core::memory_limit::{MemoryLimitError, MemoryLimitNote, MemoryLimitRecord};
use windlass_host::files::{self, Symlinks};

use crate::{HookError, MAX_DOCUMENT};

/// Write permission of group and others.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Reads a record, and multiplies its limits by the number of the container's replicas. Fails if other users own or
/// may write the file.
pub(crate) fn read(path: &Path, replicas: u32) -> Result<MemoryLimitRecord, HookError> {
    read_document(path, |text| MemoryLimitRecord::parse(text)?.times(replicas))
}

/// Reads a note. Fails if other users own or may write the file.
pub(crate) fn read_note(path: &Path) -> Result<MemoryLimitNote, HookError> {
    read_document(path, MemoryLimitNote::parse)
}

fn read_document<T>(
    path: &Path,
    parse: impl FnOnce(&[u8]) -> Result<T, MemoryLimitError>,
) -> Result<T, HookError> {
    let (metadata, text) =
        contents(path).map_err(|source| HookError::Read { path: path.to_owned(), source })?;
    let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
    if !is_own || metadata.mode() & WRITABLE_BY_OTHERS != 0 {
        return Err(HookError::Untrusted(path.to_owned()));
    }
    parse(text.as_bytes())
        .map_err(|source| HookError::InvalidDocument { path: path.to_owned(), source })
}

fn contents(path: &Path) -> io::Result<(Metadata, String)> {
    let file = files::open_regular(path, Symlinks::Refused)?;
    let metadata = file.metadata()?;
    Ok((metadata, files::read_text(file, MAX_DOCUMENT)?))
}
