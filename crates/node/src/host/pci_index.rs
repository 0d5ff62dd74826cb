//! What the PCI functions of a machine are, read once for everyone who asks.
//!
//! Each family picks its functions out of all that there are, thousands on a machine with virtual ones,
//! at each look. What a function is does not change while the kernel lists it; one that is added again is
//! a new entry of the directory, with a number of its own.

use std::{
    collections::BTreeMap,
    fs::{self, DirEntry},
    os::unix::fs::DirEntryExt as _,
    sync::{Mutex, PoisonError},
};

use windlass_core::pci::PciAddress;

use super::{Host, pci::PCI_DEVICES};

/// Functions by address, as far as they were asked for.
#[derive(Debug, Default)]
pub(super) struct PciIndex(Mutex<BTreeMap<PciAddress, Listed>>);

/// A function that the kernel lists.
#[derive(Clone, Debug)]
pub(super) struct Listed {
    /// The number of its entry.
    inode: u64,
    /// Class, subclass and programming interface, `0x030200`.
    pub(super) class: String,
    /// Vendor id, `0x10de`.
    pub(super) vendor: String,
}

/// Functions that are looked at. A big machine with virtual functions has two thousand.
const MOST_FUNCTIONS: usize = 20_000;

// === impl Host ===

impl Host {
    /// The functions that are meant, by address. Blocks.
    pub(super) fn pci_where(&self, is_meant: impl Fn(&Listed) -> bool) -> Vec<PciAddress> {
        // What a panic left behind was read before it.
        let mut known = self.pci.0.lock().unwrap_or_else(PoisonError::into_inner);
        let listed = self.listed_functions();
        known.retain(|address, it| listed.get(address) == Some(&it.inode));
        for (address, inode) in listed {
            if !known.contains_key(&address) {
                known.extend(self.listed(address, inode).map(|it| (address, it)));
            }
        }
        known.iter().filter(|(_, it)| is_meant(it)).map(|(address, _)| *address).collect()
    }

    /// The addresses of all functions with the numbers of their entries.
    fn listed_functions(&self) -> BTreeMap<PciAddress, u64> {
        let entries = fs::read_dir(self.path(PCI_DEVICES)).into_iter().flatten().flatten();
        let address = |entry: &DirEntry| entry.file_name().to_str()?.parse().ok();
        entries
            .take(MOST_FUNCTIONS)
            .filter_map(|entry| Some((address(&entry)?, entry.ino())))
            .collect()
    }

    fn listed(&self, address: PciAddress, inode: u64) -> Option<Listed> {
        let text = |file: &str| self.text(format!("{PCI_DEVICES}/{address}/{file}"));
        Some(Listed { inode, class: text("class")?, vendor: text("vendor")? })
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    const ADDRESS: &str = "0000:01:00.0";

    /// Lists a function anew, as the kernel does after a plug.
    fn plug(root: &TempDir, class: &str) {
        let devices = root.path().join("sys/devices/pci0000:00");
        let folder = devices.join(format!("{class}/{ADDRESS}"));
        let list = root.path().join(PCI_DEVICES.trim_start_matches('/'));
        fs::create_dir_all(&folder).expect("made");
        fs::create_dir_all(&list).expect("made");
        fs::write(folder.join("class"), class).expect("written");
        fs::write(folder.join("vendor"), "0x10de").expect("written");
        symlink(&folder, list.join(format!("{ADDRESS}.new"))).expect("linked");
        fs::rename(list.join(format!("{ADDRESS}.new")), list.join(ADDRESS)).expect("listed");
    }

    #[test]
    fn a_function_is_read_once_and_again_when_another_takes_its_address() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(root.path(), root.path());
        let of_class = |class: &str| host.pci_where(|it| it.class == class).len();
        assert_eq!(of_class("0x030200"), 0, "there is none");
        plug(&root, "0x030200");
        assert_eq!(of_class("0x030200"), 1);
        let file = root.path().join("sys/devices/pci0000:00/0x030200").join(ADDRESS).join("class");
        fs::write(file, "0x999999").expect("written");
        assert_eq!(of_class("0x030200"), 1, "what it is does not change");
        plug(&root, "0x120000");
        assert_eq!((of_class("0x030200"), of_class("0x120000")), (0, 1));
    }
}
