//! Overwriting a device's free memory.
//!
//! All of it is allocated before any is freed, in the largest possible pieces. Each piece is filled twice and
//! sampled in between: zeros alone prove nothing if the driver clears memory itself.

use std::path::Path;

use crate::{
    context::{Allocation, Context, MemoryInfo},
    device::DeviceUuid,
    driver::Cuda,
    error::{CudaError, LoadError},
};

/// Result of overwriting, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overwritten {
    /// Overwritten.
    pub overwritten: u64,
    /// Free after the context was created.
    pub free: u64,
    /// Total for programs: free memory, the context's, and other processes'.
    pub total: u64,
}

/// Reason why memory was not, or not provably, overwritten.
#[derive(Debug, thiserror::Error)]
pub enum OverwriteError {
    /// No driver.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The driver refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// `CUDA_VISIBLE_DEVICES` named another device at the start.
    #[error("CUDA shows the device {0}, which is another")]
    Another(DeviceUuid),
    /// The device uses the host's memory.
    #[error("it has no memory of its own: it uses the host's")]
    Integrated,
    /// Free memory could not be allocated.
    #[error(
        "{left} MiB of the {free} MiB that are free cannot be had, so that they are as they were"
    )]
    Left {
        /// Remaining memory, in MiB.
        left: u64,
        /// Free memory before, in MiB.
        free: u64,
    },
    /// Written values do not read back.
    #[error("what is read back is not what was written: {read:#04x} in place of {written:#04x}")]
    Differs {
        /// Last written value.
        written: u8,
        /// Value read back.
        read: u8,
    },
}

const MIB: u64 = 1 << 20;

/// Smallest piece: the driver maps large allocations in pages of 2 MiB.
const SMALLEST: usize = 2 << 20;

/// Permitted free remainder: fragments below a page, and the driver's own use for mapping. NVIDIA documents
/// no number; this bound is far above that use and far below a tenant's data.
const MAX_LEFT: u64 = 64 * MIB;

/// Fill values in order; the last one stays.
const VALUES: [u8; 2] = [0xa5, 0];

/// Sample size at the start, middle and end of each piece.
const SAMPLE: usize = 4096;

/// Overwrites the free memory of the process's only device, which must have this UUID.
pub fn overwrite(library: &Path, uuid: &str) -> Result<Overwritten, OverwriteError> {
    let cuda = Cuda::load(library)?;
    let device = cuda.first_device()?;
    let found = device.uuid()?;
    if !found.is_written(uuid) {
        return Err(OverwriteError::Another(found));
    }
    if device.is_integrated()? {
        return Err(OverwriteError::Integrated);
    }
    let context = device.context()?;
    warm_up(&context)?;
    let before = context.memory_info()?;
    let pieces = all(&context, before)?;
    for value in VALUES {
        pieces.iter().try_for_each(|piece| piece.fill(value))?;
        context.finish()?;
        pieces.iter().try_for_each(|piece| proved(piece, value))?;
    }
    enough(before, context.memory_info()?)?;
    let overwritten = pieces.iter().map(|piece| piece.bytes() as u64).sum();
    Ok(Overwritten { overwritten, free: before.free, total: before.total })
}

/// Makes the driver load its fill and copy code before memory is exhausted.
fn warm_up(context: &Context<'_>) -> Result<(), OverwriteError> {
    let Some(piece) = context.allocate(SMALLEST)? else { return Ok(()) };
    piece.fill(VALUES[0])?;
    context.finish()?;
    proved(&piece, VALUES[0])
}

/// Allocates all free memory: as much as is free, then half of that, and so on.
fn all<'a>(context: &'a Context<'_>, room: MemoryInfo) -> Result<Vec<Allocation<'a>>, CudaError> {
    let mut pieces = Vec::new();
    let free = usize::try_from(room.free).expect("CUDA reports it as a size_t");
    let mut size = free - free % SMALLEST;
    while size >= SMALLEST {
        match context.allocate(size)? {
            Some(piece) => pieces.push(piece),
            None if size == SMALLEST => break,
            None => size = (size / 2).next_multiple_of(SMALLEST),
        }
    }
    Ok(pieces)
}

/// Checks samples of a piece.
fn proved(piece: &Allocation<'_>, written: u8) -> Result<(), OverwriteError> {
    let mut sample = [!written; SAMPLE];
    let last = piece.bytes() - SAMPLE;
    for offset in [0, last / 2, last] {
        piece.read(offset, &mut sample)?;
        if let Some(read) = sample.into_iter().find(|byte| *byte != written) {
            return Err(OverwriteError::Differs { written, read });
        }
    }
    Ok(())
}

/// Checks that little memory is still free.
fn enough(before: MemoryInfo, after: MemoryInfo) -> Result<(), OverwriteError> {
    if after.free <= MAX_LEFT {
        return Ok(());
    }
    Err(OverwriteError::Left { left: after.free / MIB, free: before.free / MIB })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_free_and_cannot_be_had_is_told() {
        let room = |free| MemoryInfo { free: free * MIB, total: 81_000 * MIB };
        assert!(enough(room(80_000), room(64)).is_ok());
        let why = enough(room(80_000), room(65)).expect_err("too much").to_string();
        assert_eq!(
            why,
            "65 MiB of the 80000 MiB that are free cannot be had, so that they are as they were"
        );
    }
}
