//! What befalls a device in the demo, by its kind.

use windlass_core::device::Device;
use windlass_machine::{Fault, Happening};

/// A fault, and how it ends.
#[derive(Debug)]
pub(super) struct Trouble {
    /// What is told of it.
    pub(super) what: String,
    pub(super) begins: Fault,
    /// What is the case from then on: it does not recover by itself.
    pub(super) lasts: Option<Fault>,
    pub(super) ends: Fault,
    /// What is told of its end.
    pub(super) end: &'static str,
}

/// "GPU has fallen off the bus": what is injected.
const FALLEN_OFF: u64 = 79;

/// What only a virtual function says: where its adapter is.
const PHYSICAL: &str = "pfPciAddress";

// === impl Trouble ===

impl Trouble {
    /// What a simulation can do to a device: NVIDIA's driver tells of a fault; any other device of the PCI
    /// bus is pulled out.
    pub(super) fn of(device: &Device) -> Option<Self> {
        if device.family().is_managed {
            let gpu = device.index as usize;
            return Some(Self {
                what: format!("the driver reports XID {FALLEN_OFF} on GPU{gpu}"),
                begins: Fault::Xid { gpu, code: FALLEN_OFF },
                lasts: Some(Fault::Lost { gpu }),
                ends: Fault::Recover { gpu },
                end: "the GPU was reset",
            });
        }
        // A virtual function comes and goes with its number, which is its adapter's to say.
        let is_virtual = device.attributes.keys().any(|name| name.name() == PHYSICAL);
        let target = device.place.pci.filter(|_| !is_virtual)?.to_string();
        let happens = |what| Fault::ToDevice { name: target.clone(), what };
        Some(Self {
            what: format!("{target} is pulled out of its slot"),
            begins: happens(Happening::Unplug),
            lasts: None,
            ends: happens(Happening::Plug),
            end: "it is back in its slot",
        })
    }
}
