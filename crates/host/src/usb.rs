//! USB devices by sysfs. The identity of a device is its serial number if unique, else its port. Bus and device numbers
//! change at every boot and plug.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    path::{Path, PathBuf},
};

use crate::Host;

/// USB devices by serial number. Cheap devices may have the same serial number.
///
/// A serial number identifies the first device that has it until this device is unplugged. Later devices with the same
/// number are identified by port. If both are present when the agent starts, both are identified by port. A device
/// that a container holds under its serial number is then not allocated a second time under its port.
#[derive(Debug, Default)]
pub struct Serials(BTreeMap<SerialKey, SerialHolders>);

/// Vendor, product and serial number; vendors number independently.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct SerialKey {
    vendor: Option<String>,
    product: Option<String>,
    serial: String,
}

/// Devices with one serial number, by port.
#[derive(Debug, Default)]
struct SerialHolders {
    /// Port of the device that is identified by the serial number.
    owner_port: Option<String>,
    /// Ports of devices that are identified by port, because another device had the number when they appeared.
    other_ports: BTreeSet<String>,
}

/// Attributes with their sysfs files.
const ATTRIBUTES: [(&str, &str); 5] = [
    ("usbVendor", "idVendor"),
    ("usbProduct", "idProduct"),
    ("usbSerial", "serial"),
    ("usbManufacturer", "manufacturer"),
    ("usbProductName", "product"),
];

const USB_DEVICES: &str = "/sys/bus/usb/devices";
/// Maximum number of devices on the bus.
const MAX_DEVICES: usize = 10_000;

/// Folder of the USB device at or above a folder. Devices of other buses, `usb-serial` and `hid`, may lie
/// between.
pub fn device_of(host: &Host, folder: &Path) -> Option<PathBuf> {
    let below_devices = |folder: &&Path| folder.starts_with("/sys/devices");
    let mut ancestors = folder.ancestors().take_while(below_devices);
    ancestors.find(|folder| host.exists(folder.join("idVendor"))).map(Path::to_owned)
}

/// Attributes of a device, by name: its identity, port, and the classes and drivers of its interfaces.
pub fn attributes(host: &Host, device: &Path) -> Vec<(&'static str, Option<String>)> {
    let interfaces = interfaces(host, device);
    let join_distinct = |read: &dyn Fn(&PathBuf) -> Option<String>| {
        let values: BTreeSet<_> = interfaces.iter().filter_map(read).collect();
        values.into_iter().collect::<Vec<_>>().join(" ")
    };
    let class = join_distinct(&|interface| host.read_line(interface.join("bInterfaceClass")));
    let drivers = join_distinct(&|interface| host.link_name(interface.join("driver")));
    let of_files = ATTRIBUTES.map(|(name, file)| (name, host.read_line(device.join(file))));
    let others = [
        ("usbPort", port(host, device)),
        ("usbInterfaceClass", Some(class)),
        ("driver", Some(drivers)),
    ];
    of_files.into_iter().chain(others).collect()
}

/// Identity of a device: its serial number if no other device has it, else its port.
pub fn identity(host: &Host, device: &Path, serials: &Serials) -> String {
    let port = port_or_folder(host, device);
    serials.serial_identity(host, device, &port).unwrap_or(port)
}

/// Port, or sysfs folder if the port is unknown.
fn port_or_folder(host: &Host, device: &Path) -> String {
    port(host, device).unwrap_or_else(|| device.display().to_string())
}

/// Port: controller, root hub index, path of ports. A controller has one root hub per USB generation, in
/// fixed order with varying numbers.
fn port(host: &Host, device: &Path) -> Option<String> {
    let name = device.file_name()?.to_str()?;
    let hub = device.ancestors().find(|folder| is_root_hub(folder))?;
    let controller = hub.parent()?;
    let mut hubs: Vec<_> =
        host.subfolders(controller).into_iter().filter(|folder| is_root_hub(folder)).collect();
    hubs.sort_by_key(|folder| number(folder));
    let hub_index = hubs.iter().position(|folder| Some(folder.as_os_str()) == hub.file_name())?;
    let controller = controller.ancestors().find(|folder| !is_numbered(folder))?;
    let controller = controller.file_name()?.to_str()?;
    // The root hub itself is port 0.
    let ports = name.split_once('-').map_or("0", |(_, ports)| ports);
    Some(format!("{controller}-{hub_index}-{ports}"))
}

/// True for a folder whose number depends on probe order, `xhci-hcd.1.auto`. On Arm most controllers have one,
/// below a folder that is named after an address.
fn is_numbered(folder: &Path) -> bool {
    folder.extension() == Some(OsStr::new("auto"))
}

fn is_root_hub(folder: &Path) -> bool {
    number(folder).is_some()
}

/// Bus number of a root hub, `usb1`.
fn number(folder: &Path) -> Option<u32> {
    folder.file_name()?.to_str()?.strip_prefix("usb")?.parse().ok()
}

fn interfaces(host: &Host, device: &Path) -> Vec<PathBuf> {
    let is_interface = |folder: &PathBuf| folder.to_string_lossy().contains(':');
    let folders = host.subfolders(device).into_iter().filter(is_interface);
    folders.map(|folder| device.join(folder)).collect()
}

// === impl Serials ===

impl Serials {
    /// Reads the devices on the bus. If the bus is unreadable, the last state stays.
    pub fn refresh(&mut self, host: &Host) {
        let Ok(names) = host.try_entry_names(USB_DEVICES, MAX_DEVICES) else { return };
        let mut ports_by_key: BTreeMap<SerialKey, BTreeSet<String>> = BTreeMap::new();
        for name in names {
            let Some(device) = host.resolve_link(Path::new(USB_DEVICES).join(name)) else {
                continue;
            };
            if let Some(key) = SerialKey::read(host, &device) {
                ports_by_key.entry(key).or_default().insert(port_or_folder(host, &device));
            }
        }
        self.0.retain(|key, _| ports_by_key.contains_key(key));
        for (key, ports) in ports_by_key {
            self.0.entry(key).or_default().update(ports);
        }
    }

    /// Serial number of a device, if the device is identified by it.
    fn serial_identity(&self, host: &Host, device: &Path, port: &str) -> Option<String> {
        let key = SerialKey::read(host, device)?;
        let owner_port = self.0.get(&key)?.owner_port.as_deref();
        (owner_port == Some(port)).then_some(key.serial)
    }
}

// === impl SerialHolders ===

impl SerialHolders {
    /// Updates the ports at which the number is present. Devices that appear together are all identified by port,
    /// since none had the number before.
    fn update(&mut self, ports: BTreeSet<String>) {
        self.other_ports.retain(|port| ports.contains(port));
        let is_alone = ports.len() == 1;
        let is_known = |port: &String| {
            self.owner_port.as_ref() == Some(port) || self.other_ports.contains(port)
        };
        let new_ports: Vec<_> = ports.into_iter().filter(|port| !is_known(port)).collect();
        if is_alone && !new_ports.is_empty() {
            self.owner_port = new_ports.into_iter().next();
        } else {
            self.other_ports.extend(new_ports);
        }
    }
}

// === impl SerialKey ===

impl SerialKey {
    /// The key of a device with a serial number.
    fn read(host: &Host, device: &Path) -> Option<Self> {
        let line = |file: &str| host.read_line(device.join(file));
        Some(Self { serial: line("serial")?, vendor: line("idVendor"), product: line("idProduct") })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_port_has_no_number_that_depends_on_probe_order() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let device = "sys/devices/platform/fe9c0000.usb/xhci-hcd.3.auto/usb5/5-1";
        fs::create_dir_all(root.path().join(device)).expect("made");
        let host = Host::new(root.path(), "/");
        let device = Path::new("/").join(device);
        assert_eq!(port(&host, &device).as_deref(), Some("fe9c0000.usb-0-1"));
    }

    #[test]
    fn the_first_device_keeps_its_serial_number_and_later_ones_have_their_port() {
        let mut holders = SerialHolders::default();
        let mut owner_port = |ports: &[&str]| {
            holders.update(ports.iter().map(|port| (*port).to_owned()).collect());
            holders.owner_port.clone().filter(|owner_port| ports.contains(&owner_port.as_str()))
        };
        assert_eq!(owner_port(&["a"]).as_deref(), Some("a"));
        assert_eq!(owner_port(&["a", "b"]).as_deref(), Some("a"));
        assert_eq!(owner_port(&["b"]), None, "identified by port, and still so when alone");
        assert_eq!(owner_port(&["a", "b"]).as_deref(), Some("a"), "plugged in again where it was");
        assert_eq!(
            owner_port(&["c"]).as_deref(),
            Some("c"),
            "moved while no other device had the number"
        );
        assert_eq!(owner_port(&["a", "c"]).as_deref(), Some("c"));
    }
}
