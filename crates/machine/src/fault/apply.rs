//! Application of a fault to the model: a pure change of state.

use super::{DeviceEventError, Fault};
use crate::state::{EventKind, Gpu, LibraryDefect, Model, RemappedRows, Telemetry};

/// `NVML_ERROR_UNKNOWN`.
const NVML_ERROR_UNKNOWN: u32 = 999;

/// Reason why a fault does not apply to a machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultError {
    /// The GPU index is too high.
    #[error("`{fault}`: there is no GPU {gpu}, the machine has {count}")]
    UnknownGpu {
        /// Rejected fault.
        fault: Fault,
        /// Index of the GPU.
        gpu: usize,
        /// Number of GPUs.
        count: usize,
    },
    /// A new GPU copies another one, and the machine has none.
    #[error("`add`: the machine has no GPU to copy")]
    NothingToClone,
    /// A card without ECC detects no errors.
    #[error("`{fault}`: {card} has no ECC")]
    NoEcc {
        /// Rejected fault.
        fault: Fault,
        /// Name of the card.
        card: String,
    },
    /// Older cards retire pages and cannot remap rows.
    #[error("`{fault}`: {card} does not remap memory rows")]
    NoRemapping {
        /// Rejected fault.
        fault: Fault,
        /// Name of the card.
        card: String,
    },
    /// The GPU lacks this link, or a fabric behind its links.
    #[error("`{fault}`: the GPU has no such link")]
    NoLink {
        /// Rejected fault.
        fault: Fault,
    },
    /// The device cannot change in this way.
    #[error("`{fault}`: {reason}")]
    DeviceUnchangeable {
        /// Rejected fault.
        fault: Fault,
        /// Reason of the rejection.
        reason: DeviceEventError,
    },
    /// The GPU lacks this MIG instance.
    #[error("`{fault}`: the GPU has no GPU instance with that id")]
    NoInstance {
        /// Rejected fault.
        fault: Fault,
    },
}

// === impl Model ===

impl Model {
    /// Applies a fault.
    pub fn apply(&mut self, fault: &Fault) -> Result<(), FaultError> {
        if let Fault::Device { name, event } = fault {
            let device_error =
                |reason| FaultError::DeviceUnchangeable { fault: fault.clone(), reason };
            return self.apply_device_event(name, event).map_err(device_error);
        }
        let count = self.gpus.len();
        let Some(index) = fault.gpu() else { return self.add_gpu() };
        let Some(gpu) = self.gpus.get_mut(index) else {
            return Err(FaultError::UnknownGpu { fault: fault.clone(), gpu: index, count });
        };
        gpu.check_supported(fault)?;
        let number = gpu.number;
        match *fault {
            Fault::Xid { code, .. } => self.events.push(number, EventKind::Xid(code)),
            Fault::InstanceXid { instance, code, .. } => {
                let ids = gpu.instance_ids(instance);
                self.events.push_for_instance(number, ids, EventKind::Xid(code));
            }
            Fault::EccCount { .. } => gpu.count_ecc_error(),
            Fault::RemapPending { .. } => gpu.live.remapped.pending = true,
            Fault::RemapFailed { .. } => gpu.live.remapped.failed = true,
            Fault::LinkDown { port, .. } => gpu.faults.links_down |= 1 << port,
            Fault::Fabric { .. } => gpu.faults.fabric = true,
            Fault::Thermal { .. } => gpu.faults.slowed.thermal = true,
            Fault::Power { .. } => gpu.faults.slowed.power = true,
            Fault::DoubleBitEcc { .. } => {
                gpu.break_memory_row();
                self.events.push(number, EventKind::DoubleBitEcc);
            }
            Fault::Lost { .. } => gpu.faults.lost = true,
            Fault::Error { code, .. } => gpu.faults.error = Some(code),
            Fault::Slow { millis, .. } => gpu.faults.slow_ms = millis,
            Fault::MemoryLeaked { mib, .. } => gpu.live.memory_used_mib = mib,
            Fault::Hang { .. } => gpu.faults.hang = true,
            Fault::Garbage { .. } => gpu.faults.defect = Some(LibraryDefect::Garbage),
            Fault::Crash { .. } => gpu.faults.defect = Some(LibraryDefect::Crash),
            Fault::Cuda { failure_mode, .. } => gpu.faults.cuda = Some(failure_mode),
            Fault::MemoryLimit { failure_mode, .. } => gpu.faults.limit = Some(failure_mode),
            Fault::NoComputeInstance { .. } => {
                gpu.faults.compute_instance_error = Some(NVML_ERROR_UNKNOWN);
            }
            Fault::Recover { .. } => gpu.reset(),
            Fault::RemoveGpu { .. } => self.remove_gpu(index),
            Fault::AddGpu | Fault::Device { .. } => {}
        }
        Ok(())
    }

    fn add_gpu(&mut self) -> Result<(), FaultError> {
        let gpu = self.clone_last_gpu().ok_or(FaultError::NothingToClone)?;
        self.gpus.push(gpu);
        self.next_number += 1;
        Ok(())
    }

    /// Removes a GPU and disconnects the links that led to it.
    fn remove_gpu(&mut self, index: usize) {
        let number = self.gpus.remove(index).number;
        let links = self.gpus.iter_mut().flat_map(|gpu| &mut gpu.links);
        links
            .filter(|link| **link == Some(crate::state::LinkEnd::Gpu(number)))
            .for_each(|link| *link = None);
    }
}

// === impl Gpu ===

impl Gpu {
    /// Checks that the card has the part that the fault breaks.
    fn check_supported(&self, fault: &Fault) -> Result<(), FaultError> {
        let (card, rejected_fault) = (self.card.name.clone(), fault.clone());
        match *fault {
            Fault::DoubleBitEcc { .. }
            | Fault::EccCount { .. }
            | Fault::RemapPending { .. }
            | Fault::RemapFailed { .. }
                if !self.card.ecc =>
            {
                Err(FaultError::NoEcc { fault: rejected_fault, card })
            }
            Fault::RemapFailed { .. } if !self.card.architecture.remaps_rows() => {
                Err(FaultError::NoRemapping { fault: rejected_fault, card })
            }
            Fault::LinkDown { port, .. } if self.link(port.into()).is_none() => {
                Err(FaultError::NoLink { fault: rejected_fault })
            }
            Fault::Fabric { .. } if !self.is_on_fabric() => {
                Err(FaultError::NoLink { fault: rejected_fault })
            }
            Fault::NoComputeInstance { .. } if self.card.mig.is_none() => {
                Err(FaultError::NoInstance { fault: rejected_fault })
            }
            Fault::InstanceXid { instance, .. } if self.instance_ids(instance).is_none() => {
                Err(FaultError::NoInstance { fault: rejected_fault })
            }
            _ => Ok(()),
        }
    }

    /// Ids of a GPU instance and of its compute instance.
    fn instance_ids(&self, gpu_instance: u32) -> Option<(u32, u32)> {
        let instance =
            self.mig.iter().flatten().find(|instance| instance.gpu_instance == gpu_instance);
        instance.and_then(|instance| Some((instance.gpu_instance, instance.compute.as_ref()?.id)))
    }

    fn break_memory_row(&mut self) {
        self.count_ecc_error();
        self.live.remapped.pending = true;
    }

    fn count_ecc_error(&mut self) {
        self.live.ecc_volatile.uncorrected += 1;
        self.live.ecc_aggregate.uncorrected += 1;
    }

    /// Resets the GPU: faults end, volatile counters return to zero, memory is free, pending rows are
    /// remapped.
    fn reset(&mut self) {
        let remapped = self.live.remapped;
        let remapped_rows = u32::from(remapped.pending);
        self.faults = crate::state::Faults::default();
        self.live = Telemetry {
            memory_used_mib: 0,
            ecc_volatile: crate::state::EccCounts::default(),
            remapped: RemappedRows {
                uncorrected: remapped.uncorrected + remapped_rows,
                pending: false,
                ..remapped
            },
            ..self.live.clone()
        };
    }
}
