//! Directory entries.

use rustix::fs::FileType;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name in the directory.
    pub name: String,
    /// Inode number.
    pub inode: u64,
    pub(crate) kind: FileType,
}

// === impl Entry ===

impl Entry {
    /// True for a symbolic link, wherever it leads.
    pub fn is_link(&self) -> bool {
        self.kind == FileType::Symlink
    }
}
