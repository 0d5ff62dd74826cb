//! Overwriting a device's free memory.
//!
//! All free memory is allocated before any of it is freed, in the largest possible pieces. Each piece is filled twice,
//! and sampled after each fill. Zeros alone would prove nothing, because the driver may clear memory itself.

use std::path::Path;

use crate::{
    context::{Allocation, Context, MemoryInfo},
    device::DeviceUuid,
    driver::Cuda,
    error::{CudaError, LoadError},
};

/// Amounts of memory after a successful overwrite, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverwriteReport {
    /// Overwritten memory.
    pub overwritten: u64,
    /// Free memory before the overwrite, with the context created.
    pub free: u64,
    /// Total memory for programs: free, used by the context, and used by other processes.
    pub total: u64,
}

/// Reason why memory was not, or not provably, overwritten.
#[derive(Debug, thiserror::Error)]
pub enum OverwriteError {
    /// The driver library does not load or initialise.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A CUDA call failed.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The first visible device is not the requested one.
    #[error("CUDA shows another device: {0}")]
    WrongDevice(DeviceUuid),
    /// The device uses the host's memory.
    #[error("the device has no dedicated memory: it uses the host's")]
    Integrated,
    /// Free memory could not be allocated.
    #[error(
        "{remaining_mib} of {free_mib} MiB of free memory could not be allocated and are not overwritten"
    )]
    RemainingMemory {
        /// Remaining memory, in MiB.
        remaining_mib: u64,
        /// Free memory before, in MiB.
        free_mib: u64,
    },
    /// Written values do not read back.
    #[error("memory reads back {read:#04x} after {written:#04x} was written")]
    ReadBackMismatch {
        /// Last written value.
        written: u8,
        /// Value read back.
        read: u8,
    },
}

const MIB: u64 = 1 << 20;

/// Smallest piece: the driver maps large allocations in pages of 2 MiB.
const PAGE_BYTES: usize = 2 << 20;

/// Permitted remaining free memory: fragments below a page, and memory that the driver uses for mapping. NVIDIA
/// documents no number. This bound is far above that use, and far below the size of a tenant's data.
const MAX_REMAINING_BYTES: u64 = 64 * MIB;

/// Fill values, in order. The last value stays in memory.
const FILL_VALUES: [u8; 2] = [0xa5, 0];

/// Size in bytes of the samples at the start, middle and end of each piece.
const SAMPLE_BYTES: usize = 4096;

/// Overwrites the free memory of the process's only device, which must have this UUID.
pub fn overwrite(library: &Path, uuid: &str) -> Result<OverwriteReport, OverwriteError> {
    let cuda = Cuda::load(library)?;
    let device = cuda.first_device()?;
    let found = device.uuid()?;
    if !found.matches(uuid) {
        return Err(OverwriteError::WrongDevice(found));
    }
    if device.is_integrated()? {
        return Err(OverwriteError::Integrated);
    }
    let context = device.context()?;
    warm_up(&context)?;
    let before = context.memory_info()?;
    let pieces = allocate_all(&context, before)?;
    for value in FILL_VALUES {
        pieces.iter().try_for_each(|piece| piece.fill(value))?;
        context.synchronize()?;
        pieces.iter().try_for_each(|piece| check_samples(piece, value))?;
    }
    check_remaining(before, context.memory_info()?)?;
    let overwritten = pieces.iter().map(|piece| piece.bytes() as u64).sum();
    Ok(OverwriteReport { overwritten, free: before.free, total: before.total })
}

/// Makes the driver load its code for fill and copy before all memory is allocated.
fn warm_up(context: &Context<'_>) -> Result<(), OverwriteError> {
    let Some(piece) = context.allocate(PAGE_BYTES)? else { return Ok(()) };
    piece.fill(FILL_VALUES[0])?;
    context.synchronize()?;
    check_samples(&piece, FILL_VALUES[0])
}

/// Allocates all free memory. Starts with a piece of all free memory, and halves the size after each failure.
fn allocate_all<'a>(
    context: &'a Context<'_>,
    memory: MemoryInfo,
) -> Result<Vec<Allocation<'a>>, CudaError> {
    let mut pieces = Vec::new();
    let free = usize::try_from(memory.free).expect("CUDA reports a size_t");
    let mut size = free - free % PAGE_BYTES;
    while size >= PAGE_BYTES {
        match context.allocate(size)? {
            Some(piece) => pieces.push(piece),
            None if size == PAGE_BYTES => break,
            None => size = (size / 2).next_multiple_of(PAGE_BYTES),
        }
    }
    Ok(pieces)
}

/// Checks that samples of a piece have the written value.
fn check_samples(piece: &Allocation<'_>, written: u8) -> Result<(), OverwriteError> {
    let mut sample = [!written; SAMPLE_BYTES];
    let last = piece.bytes() - SAMPLE_BYTES;
    for offset in [0, last / 2, last] {
        piece.read(offset, &mut sample)?;
        if let Some(read) = sample.into_iter().find(|byte| *byte != written) {
            return Err(OverwriteError::ReadBackMismatch { written, read });
        }
    }
    Ok(())
}

/// Checks that at most [`MAX_REMAINING_BYTES`] is still free.
fn check_remaining(before: MemoryInfo, after: MemoryInfo) -> Result<(), OverwriteError> {
    if after.free <= MAX_REMAINING_BYTES {
        return Ok(());
    }
    Err(OverwriteError::RemainingMemory {
        remaining_mib: after.free / MIB,
        free_mib: before.free / MIB,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_that_is_not_allocated_is_an_error() {
        let memory = |free| MemoryInfo { free: free * MIB, total: 81_000 * MIB };
        assert!(check_remaining(memory(80_000), memory(64)).is_ok());
        let error = check_remaining(memory(80_000), memory(65)).expect_err("too much").to_string();
        assert_eq!(
            error,
            "65 of 80000 MiB of free memory could not be allocated and are not overwritten"
        );
    }
}
