//! Names of vendors and devices from the PCI and USB id databases, embedded by `build.rs`.

use std::sync::LazyLock;

use crate::packed;

/// Sorted pairs of identifier and name.
type IdTable = LazyLock<Vec<(&'static str, &'static str)>>;

static PCI: IdTable =
    IdTable::new(|| unpack_lines(include_bytes!(concat!(env!("OUT_DIR"), "/pci.names"))));

static USB: IdTable =
    IdTable::new(|| unpack_lines(include_bytes!(concat!(env!("OUT_DIR"), "/usb.names"))));

pub(super) fn pci_device(vendor: u16, device: u16) -> Option<&'static str> {
    find_name(&PCI, &format!("{vendor:04x}:{device:04x}"))
}

pub(super) fn pci_vendor(vendor: u16) -> Option<&'static str> {
    find_name(&PCI, &format!("{vendor:04x}"))
}

pub(super) fn usb_device(vendor: u16, product: u16) -> Option<&'static str> {
    find_name(&USB, &format!("{vendor:04x}:{product:04x}"))
}

fn find_name(names: &IdTable, id: &str) -> Option<&'static str> {
    let index = names.binary_search_by_key(&id, |(known, _)| known).ok()?;
    Some(names[index].1)
}

/// Unpacks the lines; the tables call this once.
fn unpack_lines(names: &[u8]) -> Vec<(&'static str, &'static str)> {
    let text: &'static str = packed::unpack_text(names).leak();
    text.lines().filter_map(|line| line.split_once(' ')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_the_databases_is_found_again() {
        for vendor in pci_ids::Vendors::iter() {
            assert_eq!(pci_vendor(vendor.id()), Some(vendor.name()));
            for device in vendor.devices() {
                assert_eq!(pci_device(vendor.id(), device.id()), Some(device.name()));
            }
        }
        let devices = usb_ids::Vendors::iter().flat_map(usb_ids::Vendor::devices);
        for device in devices {
            let (vendor, product) = device.as_vid_pid();
            assert_eq!(usb_device(vendor, product), Some(device.name()));
        }
    }
}
