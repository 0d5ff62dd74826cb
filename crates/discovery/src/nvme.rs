//! NVMe drives, for topology only: never allocated.

use jiff::Timestamp;
use windlass_core::{
    attribute::Attributes,
    device::{Device, DeviceKind, SourceName},
    health::{Observation, Reason},
    inventory::SourceState,
};
use windlass_host::{Host, PciFunction};

use super::{
    facts::{attributes, count_text, function_attributes, text_value},
    failure::{self, Failure},
    scanner::{Scan, Scanner},
};

/// Scanner of NVMe drives.
#[derive(Debug, Default)]
pub(super) struct Nvme;

/// PCI class of NVM Express (PCI Code and ID Assignment).
const CLASSES: [&str; 1] = ["0x010802"];

const DRIVERS: [&str; 1] = ["nvme"];

/// State of a working controller (`drivers/nvme/host/sysfs.c`).
const LIVE: &str = "live";

const WITHHOLD_REASON: &str = "listed for topology only: CSI drivers provide storage";

// === impl Nvme ===

impl Scanner for Nvme {
    fn names(&self) -> Vec<SourceName> {
        vec![SourceName::NVME]
    }

    fn scan(&mut self, host: &Host) -> Scan {
        let functions = host.pci_functions(|kind| kind.is_of_class(&CLASSES));
        let devices: Vec<_> =
            (0..).zip(&functions).map(|(index, function)| drive(host, index, function)).collect();
        let state = match devices.len() {
            0 => SourceState::Absent("no PCI function is an NVMe drive".to_owned()),
            count => SourceState::Ready(count_text(count, "drive")),
        };
        Scan { states: [(SourceName::NVME, state)].into(), devices, ..Scan::default() }
    }
}

fn drive(host: &Host, index: u32, function: &PciFunction) -> (Device, Observation) {
    let id = format!("{}-{}", SourceName::NVME, function.id());
    let id = id.parse().expect("made of letters, digits and '-'");
    let device = Device {
        index,
        attributes: drive_attributes(host, function),
        place: function.location(),
        withheld: Some(WITHHOLD_REASON.to_owned()),
        ..Device::new(id, DeviceKind::Nvme, SourceName::NVME, Timestamp::UNIX_EPOCH)
    };
    (device, failure::observation(failure_of(host, function)))
}

/// Attributes of a drive. The serial number is omitted, because no selector needs it.
fn drive_attributes(host: &Host, function: &PciFunction) -> Attributes {
    let attribute = |file: &str| controller_attribute(host, function, file).and_then(text_value);
    let nvme_attributes = attributes(
        "windlass.dev",
        [
            ("model", attribute("model")),
            ("firmware", attribute("firmware_rev")),
            ("transport", attribute("transport")),
        ],
    );
    nvme_attributes.into_iter().chain(function_attributes(host, function)).collect()
}

fn failure_of(host: &Host, function: &PciFunction) -> Option<Failure> {
    let state = || controller_attribute(host, function, "state").filter(|state| state != LIVE);
    let state_failure =
        || state().map(|state| (Reason::NotReady, format!("its controller is {state}")));
    failure::driver_failure(function, &DRIVERS).or_else(state_failure)
}

fn controller_attribute(host: &Host, function: &PciFunction, file: &str) -> Option<String> {
    let folder = function.folder().join("nvme");
    let controller = host.entry_names(&folder).into_iter().next()?;
    host.read_text(folder.join(controller).join(file))
}
