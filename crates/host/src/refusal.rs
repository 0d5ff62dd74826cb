//! Folders that are there and cannot be read: what is in them is unknown, which is not the same as nothing.

use std::io;

use super::Host;

// === impl Host ===

impl Host {
    /// Why a folder that is there cannot be read; `None` for one that can, and for one that is not there. Blocks.
    pub fn refusal(&self, folder: &str) -> Option<String> {
        match self.list(folder) {
            Ok(_) => None,
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => Some(format!("cannot read {folder}: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn what_is_not_there_is_told_from_what_cannot_be_read() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(root.path(), root.path());
        assert_eq!(host.refusal("/sys/bus/pci/devices"), None, "there is no such bus");
        fs::create_dir_all(root.path().join("sys/bus/pci")).expect("made");
        let list = root.path().join("sys/bus/pci/devices");
        // Root may read whatever a mode forbids; these are refused to everybody.
        symlink(&list, &list).expect("linked");
        let why = host.refusal("/sys/bus/pci/devices").expect("a link to itself");
        assert!(why.starts_with("cannot read /sys/bus/pci/devices: "), "{why}");
        fs::remove_file(&list).expect("removed");
        fs::create_dir(&list).expect("made");
        assert_eq!(host.refusal("/sys/bus/pci/devices"), None, "it has nothing");
    }
}
