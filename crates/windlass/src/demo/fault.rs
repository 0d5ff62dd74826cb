//! Fault of the demo for each kind of device.

use windlass_core::device::Device;
use windlass_machine::{DeviceEvent, Fault};

#[derive(Debug)]
pub(super) struct DeviceFault {
    /// Description for the reader.
    pub(super) description: String,
    /// Fault that is injected first.
    pub(super) initial: Fault,
    /// Persistent fault that follows: the device does not recover by itself.
    pub(super) follow_up: Option<Fault>,
    /// Change that repairs the device.
    pub(super) repair: Fault,
    /// Description of the repair for the reader.
    pub(super) repair_text: &'static str,
}

/// Injected XID: "GPU has fallen off the bus".
const XID_FALLEN_OFF_BUS: u64 = 79;

/// Attribute of virtual functions: the address of their physical function.
const PHYSICAL_FUNCTION: &str = "pfPciAddress";

// === impl DeviceFault ===

impl DeviceFault {
    /// Fault for a device: an XID for NVIDIA GPUs, removal for other PCI devices; `None` if neither can be simulated.
    pub(super) fn of(device: &Device) -> Option<Self> {
        if device.family().has_nvml {
            let gpu = device.index as usize;
            return Some(Self {
                description: format!("the driver reports XID {XID_FALLEN_OFF_BUS} on GPU{gpu}"),
                initial: Fault::Xid { gpu, code: XID_FALLEN_OFF_BUS },
                follow_up: Some(Fault::Lost { gpu }),
                repair: Fault::Recover { gpu },
                repair_text: "the GPU was reset",
            });
        }
        // A virtual function is created and removed by its physical function.
        let is_virtual = device.attributes.keys().any(|name| name.name() == PHYSICAL_FUNCTION);
        let target = device.place.pci.filter(|_| !is_virtual)?.to_string();
        let device_fault = |event| Fault::Device { name: target.clone(), event };
        Some(Self {
            description: format!("{target} is pulled out of its slot"),
            initial: device_fault(DeviceEvent::Unplug),
            follow_up: None,
            repair: device_fault(DeviceEvent::Plug),
            repair_text: "it is back in its slot",
        })
    }
}
