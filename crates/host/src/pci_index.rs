//! Index of the PCI functions, cached between scans.
//!
//! Each family of devices filters all functions at each scan, and machines with virtual functions have thousands.
//! Vendor and class are constant while the kernel lists a function. A function that was plugged in again has a new
//! directory entry with another inode.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::io::Errno;
use windlass_core::pci::PciAddress;

use super::Host;
use crate::{entry::Entry, shared::Shared};

/// Folder of all PCI functions.
pub const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// PCI functions of a host. All are read under one lock, because reading these files cannot hang in a driver.
#[derive(Debug, Default)]
pub(super) struct PciIndex(Shared<CachedFunctions>);

#[derive(Debug, Default)]
struct CachedFunctions {
    /// Inode and kind of each function.
    functions: BTreeMap<PciAddress, (u64, Arc<PciKind>)>,
    /// True if the last scan exceeded the limit.
    exceeds_limit: bool,
}

/// Listed functions with their kinds.
pub(super) type PciKinds = BTreeMap<PciAddress, Arc<PciKind>>;

/// Kind of a PCI function.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PciKind {
    /// Vendor id, `10de`.
    pub vendor: Option<String>,
    /// Class, subclass and programming interface, `0x030200`.
    pub class: Option<String>,
    /// Error of a file that exists but cannot be read.
    pub(super) read_error: Option<Errno>,
}

/// Limit on functions. Large machines with virtual functions have two thousand.
const MAX_FUNCTIONS: usize = 20_000;

// === impl PciKind ===

impl PciKind {
    pub(super) fn read(host: &Host, folder: &Path) -> Self {
        // The function was unplugged meanwhile.
        let is_gone = |error: Errno| matches!(error, Errno::NOENT | Errno::NODEV);
        let mut read_error = None;
        let mut text = |file: &str| {
            let text = host.read_bytes(&folder.join(file));
            read_error =
                read_error.or(text.as_ref().err().copied().filter(|error| !is_gone(*error)));
            Some(std::str::from_utf8(&text.ok()?).ok()?.trim().to_owned())
        };
        let vendor = text("vendor").map(|id| id.trim_start_matches("0x").to_owned());
        let class = text("class");
        Self { vendor, class, read_error }
    }

    /// True if the class begins with one of these, `0x0302`.
    pub fn is_of_class(&self, classes: &[&str]) -> bool {
        let class = self.class.as_deref().unwrap_or_default();
        classes.iter().any(|prefix| class.starts_with(prefix))
    }

    /// True for one of these vendors, `10de`.
    pub fn is_of_vendor(&self, vendors: &[&str]) -> bool {
        self.vendor.as_deref().is_some_and(|vendor| vendors.contains(&vendor))
    }

    /// True if vendor and class were read.
    fn is_read(&self) -> bool {
        self.vendor.is_some() && self.class.is_some()
    }
}

// === impl Host ===

impl Host {
    /// All functions in this scan.
    pub(super) fn pci_kinds(&self) -> Arc<PciKinds> {
        let read_kinds = || {
            let entries = self.read_dir(PCI_DEVICES);
            let entries = entries.as_deref().unwrap_or_default();
            self.pci.0.with_lock(|cached| cached.refresh(self, entries))
        };
        match &self.scan_cache {
            Some(cache) => cache.pci.get_or_init(read_kinds).clone(),
            None => read_kinds(),
        }
    }
}

// === impl CachedFunctions ===

impl CachedFunctions {
    /// Reads new functions, and drops removed ones. Unreadable functions are read again at the next scan.
    fn refresh(&mut self, host: &Host, entries: &[Entry]) -> Arc<PciKinds> {
        let (listed, exceeds_limit) = lowest(entries, MAX_FUNCTIONS);
        if exceeds_limit && !self.exceeds_limit {
            tracing::warn!(
                folder = PCI_DEVICES,
                most = MAX_FUNCTIONS,
                "too many PCI functions, higher addresses ignored: create fewer virtual functions"
            );
        }
        self.exceeds_limit = exceeds_limit;
        self.functions.retain(|address, (inode, _)| listed.get(address) == Some(inode));
        let mut kinds = PciKinds::new();
        for (address, inode) in listed {
            let kind = self.functions.get(&address).map(|(_, kind)| kind.clone());
            let kind = kind.unwrap_or_else(|| Arc::new(PciKind::read(host, &pci_folder(address))));
            if kind.is_read() {
                self.functions.insert(address, (inode, kind.clone()));
            }
            kinds.insert(address, kind);
        }
        Arc::new(kinds)
    }
}

/// Addresses and inodes of the functions with the lowest addresses, up to `max_functions`. The second value is
/// true if there are more.
fn lowest(entries: &[Entry], max_functions: usize) -> (BTreeMap<PciAddress, u64>, bool) {
    let address = |entry: &Entry| Some((entry.name.parse().ok()?, entry.inode));
    let mut listed: Vec<(PciAddress, u64)> = entries.iter().filter_map(address).collect();
    listed.sort_unstable();
    let exceeds_limit = listed.len() > max_functions;
    (listed.into_iter().take(max_functions).collect(), exceeds_limit)
}

/// Sysfs folder of a function.
pub fn pci_folder(address: PciAddress) -> PathBuf {
    Path::new(PCI_DEVICES).join(address.to_string())
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use tempfile::TempDir;

    use super::*;

    const ADDRESS: &str = "0000:01:00.0";

    /// Lists a function again, as the kernel does after a plug.
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
    fn a_function_is_read_again_only_when_another_takes_its_address() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let host = Host::new(root.path(), root.path());
        let count_of_class =
            |class: &str| host.pci_functions(|kind| kind.is_of_class(&[class])).len();
        assert_eq!(count_of_class("0x030200"), 0, "the host has no functions");
        plug(&root, "0x030200");
        assert_eq!(count_of_class("0x030200"), 1);
        let file = root.path().join("sys/devices/pci0000:00/0x030200").join(ADDRESS).join("class");
        fs::write(file, "0x999999").expect("written");
        assert_eq!(count_of_class("0x030200"), 1, "vendor and class are constant");
        plug(&root, "0x120000");
        assert_eq!((count_of_class("0x030200"), count_of_class("0x120000")), (0, 1));
    }

    #[test]
    fn only_the_lowest_addresses_up_to_the_limit_are_read() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let list = root.path().join(PCI_DEVICES.trim_start_matches('/'));
        fs::create_dir_all(&list).expect("made");
        for number in 0..100 {
            fs::write(list.join(format!("a-{number}")), "").expect("written");
        }
        for bus in (0..20).rev() {
            fs::write(list.join(format!("0000:{bus:02x}:00.0")), "").expect("written");
        }
        let host = Host::new(root.path(), root.path());
        let entries = host.read_dir(PCI_DEVICES).expect("listed");
        assert!(!lowest(&entries, 20).1);
        let (functions, exceeds_limit) = lowest(&entries, 7);
        let buses: Vec<_> = functions.keys().map(ToString::to_string).collect();
        assert!(exceeds_limit && buses.len() == 7, "{buses:?}");
        assert_eq!(buses.last().map(String::as_str), Some("0000:06:00.0"));
    }
}
