//! Cache of one scan: each file is read once, so that its content stays the same for the scan.

use std::{
    collections::HashMap,
    ffi::OsString,
    path::Path,
    sync::{Arc, OnceLock},
};

use rustix::{fs::FileType, io::Result};

use super::pci_index::PciKinds;
use crate::{entry::Entry, shared::Shared};

/// Cached reads of the file system, by kind of read.
#[derive(Debug, Default)]
pub(super) struct ScanCache {
    pub(super) texts: CachedReads<Arc<[u8]>>,
    pub(super) lists: CachedReads<Arc<[Entry]>>,
    pub(super) links: CachedReads<Arc<str>>,
    pub(super) kinds: CachedReads<FileType>,
    pub(super) pci: OnceLock<Arc<PciKinds>>,
}

/// Results of one kind of read, by path. Keys are strings, since hashing a `Path` is slower: it walks the components.
#[derive(Debug)]
pub(super) struct CachedReads<A>(Shared<HashMap<OsString, Result<A>>>);

// === impl CachedReads ===

impl<A: Clone> CachedReads<A> {
    /// The cached result, or that of `read`. The lock is not held during the read, because a device may hang.
    pub(super) fn get(&self, path: &Path, read: impl FnOnce() -> Result<A>) -> Result<A> {
        let path = path.as_os_str();
        if let Some(result) = self.0.with_lock(|cached| cached.get(path).cloned()) {
            return result;
        }
        let result = read();
        self.0.with_lock(|cached| cached.insert(path.to_owned(), result.clone()));
        result
    }
}

impl<A> Default for CachedReads<A> {
    fn default() -> Self {
        Self(Shared::default())
    }
}
