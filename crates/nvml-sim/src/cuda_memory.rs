//! Memory of a simulated CUDA program. New allocations contain the residue of the previous program.

use std::collections::BTreeMap;

use crate::cuda::CudaError;

/// Allocations of one program, and their content.
#[derive(Debug, Default)]
pub(crate) struct AddressSpace {
    /// Size of each allocation, by address.
    allocated: BTreeMap<u64, u64>,
    /// Writes in chronological order.
    writes: Vec<Write>,
    next_address: u64,
}

#[derive(Debug)]
struct Write {
    address: u64,
    bytes: u64,
    value: u8,
}

/// Allocation granularity: the driver's large page.
const PAGE: u64 = 2 << 20;

/// Address of the first allocation. It is not null.
const FIRST_ADDRESS: u64 = 1 << 32;

/// Value of each byte before the first write.
const RESIDUE: u8 = 0x5a;

// === impl AddressSpace ===

impl AddressSpace {
    pub(crate) fn allocated(&self) -> u64 {
        self.allocated.values().sum()
    }

    /// Allocates memory. Free memory is fragmented: an allocation gets at most half of it, or one page. A program
    /// needs several allocations to get all memory.
    pub(crate) fn allocate(&mut self, bytes: u64, free: u64) -> Result<u64, CudaError> {
        if bytes == 0 {
            return Err(CudaError::INVALID_VALUE);
        }
        let bytes = bytes.next_multiple_of(PAGE);
        if bytes > free || bytes > (free / 2).max(PAGE) {
            return Err(CudaError::OUT_OF_MEMORY);
        }
        let address = FIRST_ADDRESS + self.next_address;
        self.next_address += bytes;
        self.allocated.insert(address, bytes);
        Ok(address)
    }

    pub(crate) fn free(&mut self, address: u64) -> Result<(), CudaError> {
        self.allocated.remove(&address).map(drop).ok_or(CudaError::INVALID_VALUE)
    }

    pub(crate) fn set(&mut self, address: u64, bytes: u64, value: u8) -> Result<(), CudaError> {
        self.check_bounds(address, bytes)?;
        self.writes.push(Write { address, bytes, value });
        Ok(())
    }

    pub(crate) fn read(&self, start: u64, bytes: u64) -> Result<Vec<u8>, CudaError> {
        self.check_bounds(start, bytes)?;
        let value = |address| {
            let mut newest = self.writes.iter().rev();
            let write = newest
                .find(|write| (write.address..write.address + write.bytes).contains(&address));
            write.map_or(RESIDUE, |write| write.value)
        };
        Ok((start..start + bytes).map(value).collect())
    }

    /// Checks that an access stays within one allocation.
    fn check_bounds(&self, start: u64, bytes: u64) -> Result<(), CudaError> {
        let allocation = self.allocated.range(..=start).next_back();
        let fits = allocation
            .is_some_and(|(address, size)| bytes <= address + size - start.min(address + size));
        if fits { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
    }
}
