//! USB devices: by serial number where it tells them apart, and else by the port they are plugged in.
//! The number of the bus and that of the device are given anew at every start and every plug.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    path::{Path, PathBuf},
};

use windlass_host::Host;

use super::find::{Candidate, MOST_ENTRIES};

/// Who goes by which serial number: cheap devices all have the same. A device that has it keeps it for as
/// long as it is plugged in, whatever comes after it. The agent does not remember it over a restart: then both
/// go by their ports, and what a container has by its number is not handed out by its port.
#[derive(Debug, Default)]
pub(super) struct Serials(BTreeMap<Sort, Holders>);

/// What devices have to differ in: one maker's serial numbers say nothing of another's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sort {
    vendor: Option<String>,
    product: Option<String>,
    serial: String,
}

/// The devices with one serial number, by their ports.
#[derive(Debug, Default)]
struct Holders {
    /// Goes by the serial number.
    named: Option<String>,
    /// Came while there was another, and go by their ports.
    others: BTreeSet<String>,
}

/// What a device of the bus says of itself, by the attribute that it becomes.
const FACTS: [(&str, &str); 5] = [
    ("usbVendor", "idVendor"),
    ("usbProduct", "idProduct"),
    ("usbSerial", "serial"),
    ("usbManufacturer", "manufacturer"),
    ("usbProductName", "product"),
];

const LIST: &str = "/sys/bus/usb/devices";

/// The folder of what is plugged in, for a folder of it or below it: between a node and its device are
/// devices of other buses, `usb-serial` and `hid`.
pub(super) fn device_of(host: &Host, folder: &Path) -> Option<PathBuf> {
    let below_devices = |folder: &&Path| folder.starts_with("/sys/devices");
    let mut above = folder.ancestors().take_while(below_devices);
    above.find(|folder| host.has(folder.join("idVendor"))).map(Path::to_owned)
}

/// Notes what a device says.
pub(super) fn tell(host: &Host, device: &Path, candidate: &mut Candidate) {
    for (attribute, file) in FACTS {
        candidate.note(attribute, host.line(device.join(file)));
    }
    candidate.note("usbPort", port(host, device));
    let interfaces = interfaces(host, device);
    let of_each = |read: &dyn Fn(&PathBuf) -> Option<String>| {
        let all: BTreeSet<_> = interfaces.iter().filter_map(read).collect();
        all.into_iter().collect::<Vec<_>>().join(" ")
    };
    let class = of_each(&|interface| host.line(interface.join("bInterfaceClass")));
    candidate.note("usbInterfaceClass", Some(class));
    let drivers = of_each(&|interface| host.link_name(interface.join("driver")));
    candidate.note("driver", Some(drivers));
}

/// What tells a device from all others.
pub(super) fn identity(host: &Host, device: &Path, serials: &Serials) -> String {
    let place = place(host, device);
    serials.name_of(host, device, &place).unwrap_or(place)
}

/// The port, or the folder where it has none that can be told.
fn place(host: &Host, device: &Path) -> String {
    port(host, device).unwrap_or_else(|| device.display().to_string())
}

/// The port: the controller, which of its root hubs, and the way from there. A controller has a root hub
/// for each generation of USB that it speaks, always in the same order, whatever number they have.
fn port(host: &Host, device: &Path) -> Option<String> {
    let name = device.file_name()?.to_str()?;
    let hub = device.ancestors().find(|folder| is_root_hub(folder))?;
    let controller = hub.parent()?;
    let mut hubs: Vec<_> =
        host.folders(controller).into_iter().filter(|folder| is_root_hub(folder)).collect();
    hubs.sort_by_key(|folder| number(folder));
    let nth = hubs.iter().position(|folder| Some(folder.as_os_str()) == hub.file_name())?;
    let controller = controller.ancestors().find(|folder| !is_numbered(folder))?;
    let controller = controller.file_name()?.to_str()?;
    // The root hub itself is at port 0.
    let ports = name.split_once('-').map_or("0", |(_, ports)| ports);
    Some(format!("{controller}-{nth}-{ports}"))
}

/// Whether the kernel made up a folder's name in the order of probing, `xhci-hcd.1.auto`; on Arm most
/// controllers are such, below a device with an address.
fn is_numbered(folder: &Path) -> bool {
    folder.extension() == Some(OsStr::new("auto"))
}

fn is_root_hub(folder: &Path) -> bool {
    number(folder).is_some()
}

/// The number of a root hub's bus, `usb1`.
fn number(folder: &Path) -> Option<u32> {
    folder.file_name()?.to_str()?.strip_prefix("usb")?.parse().ok()
}

fn interfaces(host: &Host, device: &Path) -> Vec<PathBuf> {
    let is_interface = |folder: &PathBuf| folder.to_string_lossy().contains(':');
    let own = host.folders(device).into_iter().filter(is_interface);
    own.map(|folder| device.join(folder)).collect()
}

// === impl Serials ===

impl Serials {
    /// Takes note of every device on the bus. Where the bus cannot be read all stays as it is.
    pub(super) fn look(&mut self, host: &Host) {
        let Ok(names) = host.some_names(LIST, MOST_ENTRIES) else { return };
        let mut present: BTreeMap<Sort, BTreeSet<String>> = BTreeMap::new();
        for name in names {
            let Some(device) = host.real(Path::new(LIST).join(name)) else { continue };
            if let Some(sort) = Sort::of(host, &device) {
                present.entry(sort).or_default().insert(place(host, &device));
            }
        }
        self.0.retain(|sort, _| present.contains_key(sort));
        for (sort, places) in present {
            self.0.entry(sort).or_default().see(places);
        }
    }

    /// The serial number of a device that goes by it.
    fn name_of(&self, host: &Host, device: &Path, place: &str) -> Option<String> {
        let sort = Sort::of(host, device)?;
        let named = self.0.get(&sort)?.named.as_deref();
        (named == Some(place)).then_some(sort.serial)
    }
}

// === impl Holders ===

impl Holders {
    /// Of several that come at once none has the number: nothing says which had it before.
    fn see(&mut self, places: BTreeSet<String>) {
        self.others.retain(|place| places.contains(place));
        let is_alone = places.len() == 1;
        let known =
            |place: &String| self.named.as_ref() == Some(place) || self.others.contains(place);
        let new: Vec<_> = places.into_iter().filter(|place| !known(place)).collect();
        if is_alone && !new.is_empty() {
            self.named = new.into_iter().next();
        } else {
            self.others.extend(new);
        }
    }
}

// === impl Sort ===

impl Sort {
    /// That of a device with a serial number.
    fn of(host: &Host, device: &Path) -> Option<Self> {
        let line = |file: &str| host.line(device.join(file));
        Some(Self { serial: line("serial")?, vendor: line("idVendor"), product: line("idProduct") })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_port_is_told_without_numbers_that_depend_on_the_order_of_probing() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let device = "sys/devices/platform/fe9c0000.usb/xhci-hcd.3.auto/usb5/5-1";
        fs::create_dir_all(root.path().join(device)).expect("made");
        let host = Host::new(root.path(), "/");
        let device = Path::new("/").join(device);
        assert_eq!(port(&host, &device).as_deref(), Some("fe9c0000.usb-0-1"));
    }

    #[test]
    fn who_has_a_serial_number_keeps_it_and_who_comes_later_has_its_port() {
        let mut holders = Holders::default();
        let mut named = |places: &[&str]| {
            holders.see(places.iter().map(|place| (*place).to_owned()).collect());
            holders.named.clone().filter(|named| places.contains(&named.as_str()))
        };
        assert_eq!(named(&["a"]).as_deref(), Some("a"));
        assert_eq!(named(&["a", "b"]).as_deref(), Some("a"));
        assert_eq!(named(&["b"]), None, "it goes by its port, and keeps that too");
        assert_eq!(named(&["a", "b"]).as_deref(), Some("a"), "plugged in again where it was");
        assert_eq!(named(&["c"]).as_deref(), Some("c"), "moved, with nobody to mistake it for");
        assert_eq!(named(&["a", "c"]).as_deref(), Some("c"));
    }
}
