//! What the PCI functions of a machine are, read once for who asks again and again.
//!
//! Each family picks its functions out of all that there are, thousands on a machine with virtual ones,
//! at each look. What a function is does not change while the kernel lists it; one that is added again is
//! a new entry of the directory, with a number of its own.

use std::{
    collections::BTreeMap,
    fs::{self, DirEntry},
    os::unix::fs::DirEntryExt as _,
};

use windlass_core::pci::PciAddress;

use super::{Host, PciFunction, pci::PCI_DEVICES};

/// What is known of a host's functions, by address.
#[derive(Debug, Default)]
pub struct PciIndex {
    known: BTreeMap<PciAddress, Listed>,
    /// Whether there were more at the last look than are looked at.
    is_crowded: bool,
}

/// A function that the kernel lists.
#[derive(Debug)]
struct Listed {
    /// The number of its entry.
    inode: u64,
    /// Class, subclass and programming interface, `0x030200`.
    class: String,
    /// Vendor id, `0x10de`.
    vendor: String,
}

/// Functions that are looked at. A big machine with virtual functions has two thousand.
const MOST_FUNCTIONS: usize = 20_000;

// === impl PciIndex ===

impl PciIndex {
    /// The functions whose class begins with one of these, `0x0302`, by address. Blocks.
    pub fn of_class(&mut self, host: &Host, classes: &[&str]) -> Vec<PciFunction> {
        let addresses = self.addresses_of_class(host, classes);
        addresses.into_iter().map(|address| host.pci_function(address)).collect()
    }

    /// Their addresses alone, in order. Blocks.
    pub fn addresses_of_class(&mut self, host: &Host, classes: &[&str]) -> Vec<PciAddress> {
        self.of(host, |it| classes.iter().any(|begin| it.class.starts_with(begin)))
    }

    /// The functions of these vendors, `0x10de`, by address. Blocks.
    pub fn of_vendor(&mut self, host: &Host, vendors: &[&str]) -> Vec<PciFunction> {
        let addresses = self.of(host, |it| vendors.contains(&it.vendor.as_str()));
        addresses.into_iter().map(|address| host.pci_function(address)).collect()
    }

    fn of(&mut self, host: &Host, is_meant: impl Fn(&Listed) -> bool) -> Vec<PciAddress> {
        self.refresh(host);
        self.known.iter().filter(|(_, it)| is_meant(it)).map(|(address, _)| *address).collect()
    }

    /// Reads what is new. A function that cannot be read is asked again at the next look.
    fn refresh(&mut self, host: &Host) {
        let (listed, is_crowded) = listed(host, MOST_FUNCTIONS);
        if is_crowded && !self.is_crowded {
            tracing::warn!(
                folder = PCI_DEVICES,
                most = MOST_FUNCTIONS,
                "more PCI functions than are looked at: those with higher addresses are left out"
            );
        }
        self.is_crowded = is_crowded;
        self.known.retain(|address, it| listed.get(address) == Some(&it.inode));
        for (address, inode) in listed {
            if !self.known.contains_key(&address) {
                self.known.extend(Listed::read(host, address, inode).map(|it| (address, it)));
            }
        }
    }
}

/// The addresses of all functions with the numbers of their entries; of more than so many the lowest, whatever
/// the order in which the kernel lists them.
fn listed(host: &Host, most: usize) -> (BTreeMap<PciAddress, u64>, bool) {
    let entries = fs::read_dir(host.path(PCI_DEVICES)).into_iter().flatten().flatten();
    let address = |entry: &DirEntry| entry.file_name().to_str()?.parse().ok();
    let (mut listed, mut is_crowded) = (BTreeMap::new(), false);
    for (address, inode) in entries.filter_map(|entry| Some((address(&entry)?, entry.ino()))) {
        listed.insert(address, inode);
        if listed.len() > most {
            listed.pop_last();
            is_crowded = true;
        }
    }
    (listed, is_crowded)
}

// === impl Listed ===

impl Listed {
    fn read(host: &Host, address: PciAddress, inode: u64) -> Option<Self> {
        let text = |file: &str| host.text(format!("{PCI_DEVICES}/{address}/{file}"));
        Some(Self { inode, class: text("class")?, vendor: text("vendor")? })
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
        let mut index = PciIndex::default();
        let mut of_class = |class: &str| index.of_class(&host, &[class]).len();
        assert_eq!(of_class("0x030200"), 0, "there is none");
        plug(&root, "0x030200");
        assert_eq!(of_class("0x030200"), 1);
        let file = root.path().join("sys/devices/pci0000:00/0x030200").join(ADDRESS).join("class");
        fs::write(file, "0x999999").expect("written");
        assert_eq!(of_class("0x030200"), 1, "what it is does not change");
        plug(&root, "0x120000");
        assert_eq!((of_class("0x030200"), of_class("0x120000")), (0, 1));
    }

    #[test]
    fn of_a_crowd_the_lowest_addresses_are_looked_at_and_what_is_none_does_not_count() {
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
        assert!(!listed(&host, 20).1);
        let (some, is_crowded) = listed(&host, 7);
        let buses: Vec<_> = some.keys().map(ToString::to_string).collect();
        assert!(is_crowded && buses.len() == 7, "{buses:?}");
        assert_eq!(buses.last().map(String::as_str), Some("0000:06:00.0"));
    }
}
