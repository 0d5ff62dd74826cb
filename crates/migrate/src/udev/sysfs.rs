//! Files of sysfs and properties that rules ask for, and the attributes that have what is in them.

/// What a USB device says of itself.
const USB: [(&str, &str); 5] = [
    ("idVendor", "usbVendor"),
    ("idProduct", "usbProduct"),
    ("serial", "usbSerial"),
    ("manufacturer", "usbManufacturer"),
    ("product", "usbProductName"),
];

/// What else is in the folder of a USB device.
const OF_USB: [&str; 9] = [
    "bcdDevice",
    "bDeviceClass",
    "bDeviceSubClass",
    "bDeviceProtocol",
    "bNumConfigurations",
    "devpath",
    "speed",
    "version",
    "configuration",
];

/// What a PCI function says of itself: numbers with `0x`, which the attributes have without, but for the class.
const PCI: [(&str, &str); 5] = [
    ("vendor", "pciVendor"),
    ("device", "pciDevice"),
    ("subsystem_vendor", "pciSubsystemVendor"),
    ("subsystem_device", "pciSubsystemDevice"),
    ("class", "pciClass"),
];

/// What the rules of udev say of a USB device, with or without `USB_` behind `ID_`.
const USB_PROPERTIES: [(&str, &str); 5] = [
    ("ID_VENDOR_ID", "usbVendor"),
    ("ID_MODEL_ID", "usbProduct"),
    ("ID_SERIAL_SHORT", "usbSerial"),
    ("ID_VENDOR", "usbManufacturer"),
    ("ID_MODEL", "usbProductName"),
];

/// The attribute that has a file of a USB device.
pub(super) fn of_usb(file: &str) -> Option<&'static str> {
    found(&USB, file)
}

/// Whether only a USB device has such a file.
pub(super) fn is_usb_file(file: &str) -> bool {
    file.starts_with("bDevice") || ["idVendor", "idProduct", "bcdDevice"].contains(&file)
}

/// Whether a USB device has such a file.
pub(super) fn is_in_usb_folder(file: &str) -> bool {
    of_usb(file).is_some() || OF_USB.contains(&file)
}

/// Whether only an interface of a USB device has such a file.
pub(super) fn is_of_interface(file: &str) -> bool {
    file.starts_with("bInterface") || ["interface", "bAlternateSetting"].contains(&file)
}

/// The attribute that has a file of a PCI function.
pub(super) fn of_pci(file: &str) -> Option<&'static str> {
    found(&PCI, file)
}

/// Whether it is a PCI function that has such a file saying that: disks have a `vendor` too.
pub(super) fn is_pci_file(file: &str, value: &str) -> bool {
    of_pci(file).is_some() && value.split('|').all(|value| value.starts_with("0x"))
}

/// The attribute that has a property of USB devices. Udev writes `_` in it for what it does not print.
pub(super) fn of_usb_property(property: &str) -> Option<&'static str> {
    let plain = property.replacen("ID_USB_", "ID_", 1);
    found(&USB_PROPERTIES, &plain)
}

fn found(table: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    table.iter().find(|(file, _)| *file == name).map(|(_, attribute)| *attribute)
}

/// Whether a name is a PCI address, `0000:3b:00.*`.
pub(super) fn is_pci_address(name: &str) -> bool {
    let parts: Vec<_> = name.split(':').collect();
    let is_number =
        |it: &str| it.chars().all(|letter| letter.is_ascii_hexdigit() || "*?[]-".contains(letter));
    match parts[..] {
        [domain, bus, function] => {
            domain.len() >= 4
                && is_number(domain)
                && is_number(bus)
                && function
                    .split_once('.')
                    .is_some_and(|(slot, nth)| is_number(slot) && is_number(nth))
        }
        _ => false,
    }
}

/// The number of a PCI id as the attributes have it.
pub(super) fn pci_number(file: &str, value: &str) -> Result<String, String> {
    if file == "class" {
        return Ok(value.to_owned());
    }
    let number = value.strip_prefix("0x").or_else(|| value.starts_with('*').then_some(value));
    let number = number
        .ok_or_else(|| format!("{file} is compared with {value:?}, and sysfs writes 0x10ee"))?;
    Ok(number.to_owned())
}
