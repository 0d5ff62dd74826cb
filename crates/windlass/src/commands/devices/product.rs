//! Product name of a device, from its driver or from its PCI or USB identifiers.

use windlass_core::{
    attribute::Attributes,
    device::{Device, Partitioning},
    inventory::Inventory,
    pci::PciAddress,
};
use windlass_host::Host;

use super::ids;

/// Short product name: `H100 80GB HBM3`, `ConnectX-7`. MIG instances include their profile; partitioned GPUs include
/// the number of partitions.
pub(super) fn product(
    inventory: &Inventory,
    device: &Device,
    host: Option<&Host>,
) -> Option<String> {
    let attributes = &device.attributes;
    let by_sysfs = || host.zip(device.place.pci).and_then(|(host, pci)| by_sysfs_id(host, pci));
    let product = product_name(device)
        .or_else(|| by_pci_id(attributes))
        .or_else(|| by_usb_id(attributes))
        .or_else(by_sysfs);
    let parts = inventory.parts_of(&device.id).count();
    match (text(attributes, "profile"), product) {
        (Some(profile), product) => Some(format!("{} MIG {profile}", product.unwrap_or_default())),
        (None, Some(product)) if device.partitioned => Some(match device.family().partitioning {
            Partitioning::Mig => format!("{product}, {parts} x MIG"),
            Partitioning::Parts | Partitioning::Never => format!("{product}, {parts} parts"),
        }),
        (None, product) => product,
    }
}

/// Name reported by the driver, without the vendor.
fn product_name(device: &Device) -> Option<String> {
    let product_name = device.product()?;
    Some(product_name.strip_prefix("NVIDIA ").unwrap_or(product_name).to_owned())
}

/// Name for the PCI identifiers among the attributes.
fn by_pci_id(attributes: &Attributes) -> Option<String> {
    pci_product(number(attributes, "pciVendor")?, number(attributes, "pciDevice")?)
}

/// Name for the identifiers in sysfs, for devices whose source reports no identifiers.
fn by_sysfs_id(host: &Host, address: PciAddress) -> Option<String> {
    let function = host.pci_function(address);
    pci_product(hexadecimal(&function.vendor?)?, hexadecimal(&function.device?)?)
}

/// Name from the PCI id database; the vendor with the device number for an unknown device.
fn pci_product(vendor: u16, device: u16) -> Option<String> {
    let name = ids::pci_device(vendor, device).map(bracketed);
    name.or_else(|| Some(format!("{} {device:04x}", ids::pci_vendor(vendor)?)))
}

/// Name from the USB id database.
fn by_usb_id(attributes: &Attributes) -> Option<String> {
    let vendor = number(attributes, "usbVendor")?;
    ids::usb_device(vendor, number(attributes, "usbProduct")?).map(bracketed)
}

/// Product within brackets, else the whole name: `GA100 [A100 SXM4 40GB]` names the chip first.
fn bracketed(name: &str) -> String {
    let product = name.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    product.map_or(name, |(product, _)| product).to_owned()
}

/// Value of an attribute in any domain: each family's driver has its own.
pub(super) fn text(attributes: &Attributes, name: &str) -> Option<String> {
    let attribute = attributes.iter().find(|(key, _)| key.name() == name);
    attribute.map(|(_, value)| value.to_string()).filter(|text| !text.is_empty())
}

fn number(attributes: &Attributes, name: &str) -> Option<u16> {
    hexadecimal(&text(attributes, name)?)
}

fn hexadecimal(text: &str) -> Option<u16> {
    u16::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}

#[cfg(test)]
mod tests {
    use windlass_core::attribute::{AttributeName, AttributeValue};

    use super::*;

    #[test]
    fn identifiers_are_looked_up() {
        let product_of = |facts: &[(&'static str, &str)]| {
            let facts = facts.iter().map(|(name, value)| {
                (AttributeName::new("windlass.dev", name), AttributeValue::string(*value))
            });
            let attributes = facts.collect();
            by_pci_id(&attributes).or_else(|| by_usb_id(&attributes))
        };
        let pci = |vendor, device| product_of(&[("pciVendor", vendor), ("pciDevice", device)]);
        assert_eq!(pci("15b3", "0x1021").as_deref(), Some("ConnectX-7"));
        assert_eq!(pci("10ee", "fff1").as_deref(), Some("Xilinx Corporation fff1"));
        assert_eq!(pci("zzzz", "1021"), None);
        let ftdi = product_of(&[("usbVendor", "0403"), ("usbProduct", "6001")]);
        assert_eq!(ftdi.as_deref(), Some("FT232 Serial (UART) IC"));
    }
}
