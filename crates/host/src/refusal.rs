//! Unreadable folders and functions, which differ from absent ones.

use std::{io, sync::Arc};

use windlass_core::pci::PciAddress;

use super::{
    Host,
    pci_index::{PciKind, pci_folder},
};

// === impl Host ===

impl Host {
    /// Error of a folder that exists but cannot be read; `None` for a readable or missing one. Blocks.
    pub fn folder_error(&self, folder: &str) -> Option<String> {
        match self.read_dir(folder) {
            Ok(_) => None,
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => Some(format!("cannot read {folder}: {error}")),
        }
    }

    /// Error of an unreadable PCI function of this scan; `None` if all are readable.
    pub fn pci_function_error(&self) -> Option<String> {
        let kinds = self.scan_cache.as_ref()?.pci.get()?;
        let unreadable = |(address, kind): (&PciAddress, &Arc<PciKind>)| {
            Some((pci_folder(*address), kind.read_error?))
        };
        let (folder, error) = kinds.iter().find_map(unreadable)?;
        Some(format!("cannot read {}: {}", folder.display(), io::Error::from(error)))
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn an_unreadable_folder_is_an_error_and_a_missing_one_is_not() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(root.path(), root.path());
        assert_eq!(host.folder_error("/sys/bus/pci/devices"), None, "there is no such bus");
        fs::create_dir_all(root.path().join("sys/bus/pci")).expect("made");
        let list = root.path().join("sys/bus/pci/devices");
        // Root can read despite any mode; these paths fail for everybody.
        symlink(&list, &list).expect("linked");
        let error = host.folder_error("/sys/bus/pci/devices").expect("a link to itself");
        assert!(error.starts_with("cannot read /sys/bus/pci/devices: "), "{error}");
        fs::remove_file(&list).expect("removed");
        fs::create_dir(&list).expect("made");
        assert_eq!(host.folder_error("/sys/bus/pci/devices"), None, "the folder is empty");
    }

    #[test]
    fn an_unreadable_function_may_be_of_any_vendor_and_hides_no_other() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(root.path(), root.path());
        let file = |address: &str, name: &str| {
            let folder = root.path().join("sys/bus/pci/devices").join(address);
            fs::create_dir_all(&folder).expect("made");
            folder.join(name)
        };
        assert_eq!(host.has_pci_vendor("10de"), Ok(false), "there is no such bus");
        let unreadable = file("0000:02:00.0", "vendor");
        symlink(&unreadable, &unreadable).expect("linked");
        let error = host.has_pci_vendor("10de").expect_err("unknown");
        assert!(error.starts_with("cannot read /sys/bus/pci/devices/0000:02:00.0: "), "{error}");
        fs::write(file("0000:03:00.0", "vendor"), "0x10de\n").expect("written");
        assert_eq!(host.has_pci_vendor("10de"), Ok(true));
        fs::remove_file(&unreadable).expect("removed");
        assert_eq!(
            host.has_pci_vendor("1002"),
            Ok(false),
            "a function that was unplugged is no error"
        );
    }
}
