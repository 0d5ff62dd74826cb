//! CUDA context, and its memory: allocate, set, read back.

use std::ffi::c_void;

use crate::{
    Result,
    table::{Table, call},
};

/// Context that this thread created. The raw pointer makes the type neither `Send` nor `Sync`.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    table: &'a Table,
    handle: *mut c_void,
}

/// Device memory as CUDA reports it, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryInfo {
    pub(crate) free: u64,
    pub(crate) total: u64,
}

/// Device memory, freed on drop.
#[derive(Debug)]
pub(crate) struct Allocation<'a> {
    context: &'a Context<'a>,
    address: u64,
    bytes: usize,
}

// === impl Context ===

impl<'a> Context<'a> {
    /// Wraps the handle of a context that this thread created.
    pub(crate) fn new(table: &'a Table, handle: *mut c_void) -> Self {
        Self { table, handle }
    }

    pub(crate) fn memory_info(&self) -> Result<MemoryInfo> {
        let (mut free, mut total) = (0, 0);
        call!(self.table, cuMemGetInfo_v2, &raw mut free, &raw mut total)?;
        Ok(MemoryInfo { free: free as u64, total: total as u64 })
    }

    /// Allocates one contiguous range; `None` if no free range is large enough.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<Option<Allocation<'_>>> {
        let mut address = 0;
        match call!(self.table, cuMemAlloc_v2, &raw mut address, bytes) {
            Ok(()) => Ok(Some(Allocation { context: self, address, bytes })),
            Err(error) if error.is_out_of_memory() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for all operations and returns their error.
    pub(crate) fn synchronize(&self) -> Result<()> {
        call!(self.table, cuCtxSynchronize)
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        // A failure has no remedy. The exit of the process frees everything.
        let _ = call!(self.table, cuCtxDestroy_v2, self.handle);
    }
}

// === impl Allocation ===

impl Allocation<'_> {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn fill(&self, value: u8) -> Result<()> {
        call!(self.context.table, cuMemsetD8_v2, self.address, value, self.bytes)
    }

    /// Reads into the buffer from an offset in bytes. Panics if the range exceeds the allocation.
    pub(crate) fn read(&self, offset: usize, buffer: &mut [u8]) -> Result<()> {
        assert!(
            offset <= self.bytes && buffer.len() <= self.bytes - offset,
            "the range exceeds the allocation"
        );
        let (to, from) = (buffer.as_mut_ptr().cast(), self.address + offset as u64);
        call!(self.context.table, cuMemcpyDtoH_v2, to, from, buffer.len())
    }
}

impl Drop for Allocation<'_> {
    fn drop(&mut self) {
        // A failure has no remedy. The destruction of the context frees the memory.
        let _ = call!(self.context.table, cuMemFree_v2, self.address);
    }
}
