//! Overwriting what is free of a device's memory.
//!
//! All of it is allocated before any is given back, in pieces as large as there are. Each piece is filled twice and
//! looked at in between: zeroes alone would prove nothing where the driver clears memory itself.

use std::path::Path;

use crate::{
    context::{Allocation, Context, Room},
    device::DeviceUuid,
    error::{CudaError, LoadError},
    table::Cuda,
};

/// What was done, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overwritten {
    /// So much of it was overwritten.
    pub overwritten: u64,
    /// So much was free, once there was a context.
    pub free: u64,
    /// So much programs can have at all: the rest is what the context takes, and what others have.
    pub total: u64,
}

/// Why a device's memory is not overwritten, or not known to be.
#[derive(Debug, thiserror::Error)]
pub enum OverwriteError {
    /// No driver.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The driver refuses.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// `CUDA_VISIBLE_DEVICES` was not what it is to be when the process began.
    #[error("CUDA shows the device {0}, which is another")]
    Another(DeviceUuid),
    /// All of the host's memory would be taken.
    #[error("it has no memory of its own: it uses the host's")]
    Integrated,
    /// Something keeps memory that counts as free from being allocated.
    #[error(
        "{left} MiB of the {free} MiB that are free cannot be had, so that they are as they were"
    )]
    Left {
        /// What is left, in MiB.
        left: u64,
        /// What was free, in MiB.
        free: u64,
    },
    /// Writing changes nothing.
    #[error("what is read back is not what was written: {read:#04x} in place of {written:#04x}")]
    Differs {
        /// What was written last.
        written: u8,
        /// What is there.
        read: u8,
    },
}

const MIB: u64 = 1 << 20;

/// The smallest piece that is asked for: the driver maps large allocations by pages of 2 MiB.
const SMALLEST: usize = 2 << 20;

/// What may be left of free memory: less than a page where it lies in pieces, and what the driver takes while
/// it maps the rest. NVIDIA tells no number; this one is meant to be far above it and far below a tenant's data.
const MOST_LEFT: u64 = 64 * MIB;

/// Written one after the other; the last one stays.
const VALUES: [u8; 2] = [0xa5, 0];

/// Looked at from the beginning, the middle and the end of each piece.
const SAMPLE: usize = 4096;

/// Overwrites what is free of the memory of the one device that this process sees, which is to be called so.
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
    let before = context.room()?;
    let pieces = all(&context, before)?;
    for value in VALUES {
        pieces.iter().try_for_each(|piece| piece.fill(value))?;
        context.finish()?;
        pieces.iter().try_for_each(|piece| proved(piece, value))?;
    }
    enough(before, context.room()?)?;
    let overwritten = pieces.iter().map(|piece| piece.bytes() as u64).sum();
    Ok(Overwritten { overwritten, free: before.free, total: before.total })
}

/// What the driver loads when it is first asked to fill and to read, it would have no memory for later.
fn warm_up(context: &Context<'_>) -> Result<(), OverwriteError> {
    let Some(piece) = context.allocate(SMALLEST)? else { return Ok(()) };
    piece.fill(VALUES[0])?;
    context.finish()?;
    proved(&piece, VALUES[0])
}

/// Everything that can be had: as much as is free, then half of that, and so on.
fn all<'a>(context: &'a Context<'_>, room: Room) -> Result<Vec<Allocation<'a>>, CudaError> {
    let mut pieces = Vec::new();
    let free = usize::try_from(room.free).expect("CUDA told it as a size_t");
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

/// Looks at samples of a piece.
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

/// Whether what is free still is little enough.
fn enough(before: Room, after: Room) -> Result<(), OverwriteError> {
    if after.free <= MOST_LEFT {
        return Ok(());
    }
    Err(OverwriteError::Left { left: after.free / MIB, free: before.free / MIB })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_free_and_cannot_be_had_is_told() {
        let room = |free| Room { free: free * MIB, total: 81_000 * MIB };
        assert!(enough(room(80_000), room(64)).is_ok());
        let why = enough(room(80_000), room(65)).expect_err("too much").to_string();
        assert_eq!(
            why,
            "65 MiB of the 80000 MiB that are free cannot be had, so that they are as they were"
        );
    }
}
