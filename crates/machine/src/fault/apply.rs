//! What a fault does to the model: a pure change of state.

use super::Fault;
use crate::state::{EventKind, Gpu, Live, Model, RemappedRows};

/// A fault that cannot happen to this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FaultError {
    /// The index is too high.
    #[error("`{fault}`: there is no GPU {gpu}, the machine has {count}")]
    NoGpu {
        /// What was to happen.
        fault: Fault,
        /// To which GPU.
        gpu: usize,
        /// How many there are.
        count: usize,
    },
    /// A GPU is added like another, and there is no other.
    #[error("`add`: the machine has no GPU to add another one like")]
    NothingToClone,
    /// A card without ECC notices no errors.
    #[error("`{fault}`: {card} has no ECC")]
    NoEcc {
        /// What was to happen.
        fault: Fault,
        /// The card's name.
        card: String,
    },
}

// === impl Model ===

impl Model {
    /// Lets a fault happen.
    pub fn apply(&mut self, fault: &Fault) -> Result<(), FaultError> {
        let count = self.gpus.len();
        let Some(index) = fault.gpu() else { return self.add_gpu() };
        let Some(gpu) = self.gpus.get_mut(index) else {
            return Err(FaultError::NoGpu { fault: fault.clone(), gpu: index, count });
        };
        let number = gpu.number;
        if matches!(fault, Fault::DoubleBitEcc { .. }) && !gpu.card.ecc {
            return Err(FaultError::NoEcc { fault: fault.clone(), card: gpu.card.name.clone() });
        }
        match *fault {
            Fault::Xid { code, .. } => self.events.push(number, EventKind::Xid(code)),
            Fault::DoubleBitEcc { .. } => {
                gpu.break_a_memory_row();
                self.events.push(number, EventKind::DoubleBitEcc);
            }
            Fault::Lost { .. } => gpu.faults.lost = true,
            Fault::Error { code, .. } => gpu.faults.error = Some(code),
            Fault::Slow { millis, .. } => gpu.faults.slow_ms = millis,
            Fault::Hang { .. } => gpu.faults.hang = true,
            Fault::Recover { .. } => gpu.reset(),
            Fault::RemoveGpu { .. } => self.remove_gpu(index),
            Fault::AddGpu => {}
        }
        Ok(())
    }

    fn add_gpu(&mut self) -> Result<(), FaultError> {
        let gpu = self.clone_last_gpu().ok_or(FaultError::NothingToClone)?;
        self.gpus.push(gpu);
        self.next_number += 1;
        Ok(())
    }

    /// Takes a GPU out; links that led to it lead nowhere.
    fn remove_gpu(&mut self, index: usize) {
        let gone = self.gpus.remove(index).number;
        let links = self.gpus.iter_mut().flat_map(|gpu| &mut gpu.links);
        links
            .filter(|link| **link == Some(crate::state::LinkEnd::Gpu(gone)))
            .for_each(|link| *link = None);
    }
}

// === impl Gpu ===

impl Gpu {
    fn break_a_memory_row(&mut self) {
        self.live.ecc_volatile.uncorrected += 1;
        self.live.ecc_aggregate.uncorrected += 1;
        self.live.remapped.pending = true;
    }

    /// What a GPU reset does: faults end, volatile counters are zero, waiting rows are remapped.
    fn reset(&mut self) {
        let remapped = self.live.remapped;
        let replaced = u32::from(remapped.pending);
        self.faults = crate::state::Faults::default();
        self.live = Live {
            ecc_volatile: crate::state::EccCounts::default(),
            remapped: RemappedRows {
                uncorrected: remapped.uncorrected + replaced,
                pending: false,
                ..remapped
            },
            ..self.live.clone()
        };
    }
}
