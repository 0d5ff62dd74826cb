//! An entry of a folder, as the list of the folder has it.

use rustix::fs::FileType;

/// An entry of a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name in the folder.
    pub name: String,
    /// The number of what has that name.
    pub inode: u64,
    pub(crate) kind: FileType,
}

// === impl Entry ===

impl Entry {
    /// Whether it is a link; says nothing of what it leads to.
    pub fn is_link(&self) -> bool {
        self.kind == FileType::Symlink
    }
}
