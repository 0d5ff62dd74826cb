//! What is done on a device: memory that is allocated, filled and read.

use std::ffi::c_void;

use crate::{
    Result,
    table::{Table, call},
};

/// The device of this thread. A handle is a raw pointer, so that no other thread gets it.
#[derive(Debug)]
pub(crate) struct Context<'a> {
    table: &'a Table,
    handle: *mut c_void,
}

/// What CUDA counts of the device's memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) free: u64,
    pub(crate) total: u64,
}

/// Some of the device's memory, free again when dropped.
#[derive(Debug)]
pub(crate) struct Allocation<'a> {
    context: &'a Context<'a>,
    address: u64,
    bytes: usize,
}

// === impl Context ===

impl<'a> Context<'a> {
    /// A context that was made on this thread just now.
    pub(crate) fn new(table: &'a Table, handle: *mut c_void) -> Self {
        Self { table, handle }
    }

    pub(crate) fn room(&self) -> Result<Room> {
        let (mut free, mut total) = (0, 0);
        call!(self.table, cuMemGetInfo_v2, &raw mut free, &raw mut total)?;
        Ok(Room { free: free as u64, total: total as u64 })
    }

    /// So much in one piece; `None` where there is no such piece.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<Option<Allocation<'_>>> {
        let mut address = 0;
        match call!(self.table, cuMemAlloc_v2, &raw mut address, bytes) {
            Ok(()) => Ok(Some(Allocation { context: self, address, bytes })),
            Err(error) if error.is_out_of_memory() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Waits for all that was begun, and learns whether it failed.
    pub(crate) fn finish(&self) -> Result<()> {
        call!(self.table, cuCtxSynchronize)
    }
}

impl Drop for Context<'_> {
    fn drop(&mut self) {
        // Nothing can be done about a failure; the end of the process does the same.
        let _ = call!(self.table, cuCtxDestroy_v2, self.handle);
    }
}

// === impl Allocation ===

impl Allocation<'_> {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Every byte of it.
    pub(crate) fn fill(&self, value: u8) -> Result<()> {
        call!(self.context.table, cuMemsetD8_v2, self.address, value, self.bytes)
    }

    /// What is in it from there on, as far as there is room in the buffer. It has to be long enough for that.
    pub(crate) fn read(&self, offset: usize, buffer: &mut [u8]) -> Result<()> {
        assert!(offset <= self.bytes && buffer.len() <= self.bytes - offset, "beyond the end");
        let (to, from) = (buffer.as_mut_ptr().cast(), self.address + offset as u64);
        call!(self.context.table, cuMemcpyDtoH_v2, to, from, buffer.len())
    }
}

impl Drop for Allocation<'_> {
    fn drop(&mut self) {
        // Nothing can be done about a failure; the context's end does the same.
        let _ = call!(self.context.table, cuMemFree_v2, self.address);
    }
}
