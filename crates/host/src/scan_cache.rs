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

/// Cached answers of the file system.
#[derive(Debug, Default)]
pub(super) struct ScanCache {
    pub(super) texts: CachedReads<Arc<[u8]>>,
    pub(super) lists: CachedReads<Arc<[Entry]>>,
    pub(super) links: CachedReads<Arc<str>>,
    pub(super) kinds: CachedReads<FileType>,
    pub(super) pci: OnceLock<Arc<PciKinds>>,
}

/// Answers of one kind, by path. Keys are strings, since hashing a `Path` is slower: it walks the components.
#[derive(Debug)]
pub(super) struct CachedReads<A>(Shared<HashMap<OsString, Result<A>>>);

// === impl CachedReads ===

impl<A: Clone> CachedReads<A> {
    /// The cached answer, or that of `read`. The lock is not held during the read, because a device may hang.
    pub(super) fn get(&self, path: &Path, read: impl FnOnce() -> Result<A>) -> Result<A> {
        let path = path.as_os_str();
        if let Some(answer) = self.0.with_lock(|cached| cached.get(path).cloned()) {
            return answer;
        }
        let answer = read();
        self.0.with_lock(|cached| cached.insert(path.to_owned(), answer.clone()));
        answer
    }
}

impl<A> Default for CachedReads<A> {
    fn default() -> Self {
        Self(Shared::default())
    }
}
