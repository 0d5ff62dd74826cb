//! Frame buffer and BAR1 memory.

use nvml_wrapper_sys::bindings as sys;

use crate::{
    abi::{Out, OutVersioned, struct_version, versioned},
    handle::{Device, DeviceSnapshot},
    memory_limits,
    status::NvmlResult,
};

const MIB: u64 = 1024 * 1024;

/// Divisor of the memory that the driver reserves: about 1/128 of the total with ECC on.
const RESERVED_DIVISOR: u64 = 128;

versioned!(sys::nvmlMemory_v2_t, sys::nvmlDeviceAddressingMode_t);

/// Memory sizes in bytes.
pub(crate) struct Memory {
    pub(crate) total: u64,
    pub(crate) reserved: u64,
    pub(crate) used: u64,
}

export! {
    /// Version 1 counts reserved memory as used.
    fn nvmlDeviceGetMemoryInfo(device: Device, memory: Out<sys::nvmlMemory_t>) {
        let Memory { total, reserved, used } = Memory::of(&device.find()?)?;
        let used = used.saturating_add(reserved);
        memory.put(sys::nvmlMemory_t { total, used, free: total.saturating_sub(used) })
    }

    /// A process with a memory limit gets the limit as the total.
    fn nvmlDeviceGetMemoryInfo_v2(device: Device, memory: OutVersioned) {
        let snapshot = device.find()?;
        let Memory { total, reserved, used } = match Memory::of_limited_process(&snapshot) {
            Some(process_memory) => process_memory,
            None => Memory::of(&snapshot)?,
        };
        memory.put(sys::nvmlMemory_v2_t {
            version: struct_version::<sys::nvmlMemory_v2_t>(2),
            total,
            reserved,
            free: total.saturating_sub(used.saturating_add(reserved)),
            used,
        })
    }

    /// The addressing mode is neither HMM nor ATS.
    fn nvmlDeviceGetAddressingMode(device: Device, mode: OutVersioned) {
        device.gpu()?;
        mode.put(sys::nvmlDeviceAddressingMode_t {
            version: struct_version::<sys::nvmlDeviceAddressingMode_t>(1),
            value: sys::nvmlDeviceAddressingModeType_t_NVML_DEVICE_ADDRESSING_MODE_NONE,
        })
    }

    fn nvmlDeviceGetBAR1MemoryInfo(device: Device, memory: Out<sys::nvmlBAR1Memory_t>) {
        let bar1Total = match device.find()? {
            DeviceSnapshot::Gpu(gpu) => gpu.card.bar1_mib * MIB,
            DeviceSnapshot::Mig(mig) => {
                let gpu_bar1 = mig.gpu.card.bar1_mib * MIB;
                gpu_bar1 / u64::from(mig.gpu.capability()?.memory_slices())
                    * u64::from(mig.gpu_instance_profile()?.memory_slices)
            }
        };
        let bar1Used = MIB;
        let bar1Free = bar1Total.saturating_sub(bar1Used);
        memory.put(sys::nvmlBAR1Memory_t { bar1Total, bar1Used, bar1Free })
    }
}

// === impl Memory ===

impl Memory {
    pub(crate) fn of(snapshot: &DeviceSnapshot) -> NvmlResult<Self> {
        Ok(match snapshot {
            DeviceSnapshot::Gpu(gpu) => {
                let total = gpu.card.memory_mib * MIB;
                let process_memory = gpu.live.processes.iter().map(|process| process.memory_mib);
                let used = process_memory.fold(gpu.live.memory_used_mib, u64::saturating_add);
                let used = used.saturating_mul(MIB).min(total);
                Self { total, reserved: total / RESERVED_DIVISOR, used }
            }
            DeviceSnapshot::Mig(mig) => {
                let total = mig.gpu_instance_profile()?.memory_mib(&mig.gpu.card) * MIB;
                Self { total, reserved: 0, used: 0 }
            }
        })
    }

    /// Memory as a limited process sees it; `None` without a limit.
    fn of_limited_process(snapshot: &DeviceSnapshot) -> Option<Self> {
        let DeviceSnapshot::Gpu(gpu) = snapshot else { return None };
        let limit = memory_limits::process_limit(gpu)?;
        let used = limit.hard.saturating_sub(limit.remaining);
        Some(Self { total: limit.hard, reserved: 0, used })
    }
}
