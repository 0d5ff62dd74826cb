//! GPU of a node: its product, and its free part.

use std::fmt;

/// Compute of a whole GPU, in thousandths.
pub const WHOLE_MILLI: u16 = 1000;

/// State of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Gpu {
    /// Product of the GPU.
    pub model: ModelId,
    /// Memory in MiB; zero if unknown. No request for memory in MiB fits an unknown amount.
    pub memory_mib: u32,
    /// False while the GPU is unhealthy or withheld: it gets no new holder.
    pub is_usable: bool,
    /// Use of the GPU by holders.
    pub state: GpuState,
}

/// Use of a GPU: shared by amounts, held as a whole, or partitioned by MIG.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GpuState {
    /// Shares may be allocated from the free amounts. The GPU has no holder if all of its compute and memory is free.
    Shared {
        /// Compute that no share holds, in thousandths.
        free_milli: u16,
        /// Memory that no share holds, in MiB.
        free_mib: u32,
    },
    /// One pod holds the whole GPU.
    Whole,
    /// The GPU has MIG instances.
    Partitioned {
        /// Bit mask of the memory slices in use; never zero.
        memory_slices: u8,
    },
}

impl Gpu {
    /// A GPU without a holder.
    pub fn free(model: ModelId, memory_mib: u32) -> Self {
        let state = GpuState::Shared { free_milli: WHOLE_MILLI, free_mib: memory_mib };
        Self { model, memory_mib, is_usable: true, state }
    }

    /// True if the GPU is usable and has no holder.
    pub fn is_free(&self) -> bool {
        self.is_usable && self.has_no_holder()
    }

    /// True if the GPU has no holder. It may be unusable.
    pub fn has_no_holder(&self) -> bool {
        self.state == Self::free(self.model, self.memory_mib).state
    }

    /// The free part in thousandths of the GPU: the smaller of free compute and free memory, or the free compute if the
    /// memory is unknown. For a partitioned GPU: the fraction of free memory slices. Zero for an unusable GPU.
    pub fn idle_milli(&self) -> u16 {
        match self.state {
            _ if !self.is_usable => 0,
            GpuState::Shared { free_milli, free_mib } if self.memory_mib > 0 => {
                let memory_milli =
                    u64::from(free_mib) * u64::from(WHOLE_MILLI) / u64::from(self.memory_mib);
                free_milli.min(u16::try_from(memory_milli).unwrap_or(WHOLE_MILLI))
            }
            GpuState::Shared { free_milli, .. } => free_milli,
            GpuState::Partitioned { memory_slices } => {
                u16::try_from(memory_slices.count_zeros()).unwrap_or(0) * (WHOLE_MILLI / 8)
            }
            GpuState::Whole => 0,
        }
    }
}

/// A product, as an index into the view's [`Catalog`](crate::view::Catalog).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelId(pub u8);

/// A set of products. A catalog has at most 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelSet(u64);

impl ModelSet {
    /// Every product.
    pub const ANY: Self = Self(u64::MAX);
    /// No product.
    pub const NONE: Self = Self(0);

    /// The union with one product.
    #[must_use]
    pub fn with(self, model: ModelId) -> Self {
        Self(self.0 | 1 << model.0)
    }

    /// The intersection.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// True if the set has the product.
    pub fn contains(self, model: ModelId) -> bool {
        self.0 >> model.0 & 1 == 1
    }
}

/// A set of a node's GPUs by position, as a bit mask. A node has at most 64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuSet(pub u64);

impl GpuSet {
    /// The set of one GPU.
    pub fn single(position: usize) -> Self {
        Self(1 << position)
    }

    /// The intersection.
    #[must_use]
    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// True if the set has the GPU.
    pub fn contains(self, position: usize) -> bool {
        self.0 >> position & 1 == 1
    }

    /// The difference: GPUs of this set that are not in the other.
    #[must_use]
    pub fn difference(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The union.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Number of GPUs.
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }

    /// True if the set has no GPU.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The positions, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut bits = self.0;
        std::iter::from_fn(move || {
            let position = bits.trailing_zeros();
            bits &= bits.wrapping_sub(1);
            (position < u64::BITS).then_some(position as usize)
        })
    }

    /// The `count` lowest positions, or all if there are fewer.
    #[must_use]
    pub fn lowest(self, count: u32) -> Self {
        self.iter().take(count as usize).fold(Self::default(), |set, it| Self(set.0 | 1 << it))
    }
}

impl fmt::Display for GpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, position) in self.iter().enumerate() {
            let separator = if n == 0 { "" } else { "," };
            write!(f, "{separator}{position}")?;
        }
        Ok(())
    }
}
