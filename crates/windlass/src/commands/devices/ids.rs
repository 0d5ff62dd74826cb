//! What vendors and devices are called, by the identifiers of their bus: the PCI and USB id databases as
//! they were when the binary was built, see `build.rs`.

use std::sync::LazyLock;

/// Identifiers and names, sorted.
type Names = LazyLock<Vec<(&'static str, &'static str)>>;

static PCI: Names = Names::new(|| lines(include_str!(concat!(env!("OUT_DIR"), "/pci.names"))));

static USB: Names = Names::new(|| lines(include_str!(concat!(env!("OUT_DIR"), "/usb.names"))));

/// What a PCI device is called.
pub(super) fn pci_device(vendor: u16, device: u16) -> Option<&'static str> {
    name(&PCI, &format!("{vendor:04x}:{device:04x}"))
}

/// What a vendor of PCI devices is called.
pub(super) fn pci_vendor(vendor: u16) -> Option<&'static str> {
    name(&PCI, &format!("{vendor:04x}"))
}

/// What a USB device is called.
pub(super) fn usb_device(vendor: u16, product: u16) -> Option<&'static str> {
    name(&USB, &format!("{vendor:04x}:{product:04x}"))
}

fn name(names: &Names, id: &str) -> Option<&'static str> {
    let found = names.binary_search_by_key(&id, |(known, _)| known).ok()?;
    Some(names[found].1)
}

fn lines(text: &'static str) -> Vec<(&'static str, &'static str)> {
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
