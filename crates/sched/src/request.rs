//! Resource request of a pod.

pub use windlass_core::virtual_gpus::ShareMemory;

use crate::gpu::{ModelSet, WHOLE_MILLI};

/// The part of a pod's request that decides its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    /// CPU, in thousandths of a core.
    pub cpu_milli: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// The GPUs.
    pub gpus: Gpus,
    /// Accepted products.
    pub models: ModelSet,
}

/// The GPUs of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Gpus {
    /// None.
    None,
    /// A number of exclusive whole GPUs; at least one.
    Whole(u8),
    /// A share of each of some GPUs. An amount of zero requests none of that resource.
    Share {
        /// Number of GPUs, all different; from 1 to 64.
        count: u8,
        /// Compute of each, in thousandths of the GPU.
        compute_milli: u16,
        /// Memory of each.
        memory: ShareMemory,
    },
    /// A MIG instance of a profile, as an index into the view's [`Catalog`](crate::view::Catalog).
    Partition(ProfileId),
}

/// A MIG profile, as an index into the view's [`Catalog`](crate::view::Catalog).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProfileId(pub u8);

/// Size class of a request. Simulations report refusals and waits by class, which shows starvation of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SizeClass {
    /// No GPU.
    CpuOnly,
    /// Parts of GPUs.
    Fraction,
    /// One whole GPU.
    OneGpu,
    /// Two to seven whole GPUs.
    TwoToSeven,
    /// Eight or more whole GPUs.
    EightOrMore,
}

impl SizeClass {
    /// Every class, smallest first.
    pub const ALL: [Self; 5] =
        [Self::CpuOnly, Self::Fraction, Self::OneGpu, Self::TwoToSeven, Self::EightOrMore];

    /// The class's name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::CpuOnly => "no GPU",
            Self::Fraction => "part of a GPU",
            Self::OneGpu => "1 GPU",
            Self::TwoToSeven => "2 to 7 GPUs",
            Self::EightOrMore => "8 GPUs and more",
        }
    }
}

impl Gpus {
    /// A share of one GPU, in thousandths of its compute and in MiB of its memory.
    pub fn share(compute_milli: u16, memory_mib: u32) -> Self {
        Self::Share { count: 1, compute_milli, memory: ShareMemory::Mib(memory_mib) }
    }

    /// Compute in thousandths and memory in MiB of a share, on a GPU with `gpu_mib` of memory. `None` if the request is
    /// not for a share.
    pub fn share_of(self, gpu_mib: u32) -> Option<(u16, u32)> {
        match self {
            Self::Share { compute_milli, memory, .. } => {
                Some((compute_milli, memory.mib_of(gpu_mib).unwrap_or(0)))
            }
            _ => None,
        }
    }

    /// The same share of another number of GPUs. Other kinds are returned unchanged.
    #[must_use]
    pub fn with_count(self, count: u8) -> Self {
        match self {
            Self::Share { compute_milli, memory, .. } => {
                Self::Share { count, compute_milli, memory }
            }
            other => other,
        }
    }
}

impl Request {
    /// The size class of the request.
    pub fn class(&self) -> SizeClass {
        match self.gpus {
            Gpus::None => SizeClass::CpuOnly,
            Gpus::Share { .. } | Gpus::Partition(_) => SizeClass::Fraction,
            Gpus::Whole(1) => SizeClass::OneGpu,
            Gpus::Whole(2..8) => SizeClass::TwoToSeven,
            Gpus::Whole(_) => SizeClass::EightOrMore,
        }
    }

    /// Number of GPUs that serve the request together.
    pub fn gpu_count(&self) -> u32 {
        match self.gpus {
            Gpus::None => 0,
            Gpus::Whole(count) | Gpus::Share { count, .. } => u32::from(count),
            Gpus::Partition(_) => 1,
        }
    }

    /// Requested GPUs in thousandths. Memory and MIG instances count as zero: their size depends on the GPU. See
    /// [`ClusterView::average_milli`](crate::view::ClusterView::average_milli).
    pub fn gpu_milli(&self) -> u32 {
        match self.gpus {
            Gpus::None | Gpus::Partition(_) => 0,
            Gpus::Whole(count) => u32::from(count) * u32::from(WHOLE_MILLI),
            Gpus::Share { count, compute_milli, .. } => u32::from(count) * u32::from(compute_milli),
        }
    }
}

/// Size of a share on a GPU with `memory_mib`, in thousandths of the GPU: the larger of its compute and its memory.
pub fn share_of(memory_mib: u32, compute_milli: u16, memory: ShareMemory) -> u16 {
    let whole = u64::from(WHOLE_MILLI);
    let memory_milli = match memory {
        ShareMemory::Percent(percent) => u64::from(percent) * whole / 100,
        ShareMemory::Mib(_) if memory_mib == 0 => 0,
        ShareMemory::Mib(mib) => (u64::from(mib) * whole).div_ceil(u64::from(memory_mib)),
    };
    compute_milli.max(u16::try_from(memory_milli.min(whole)).unwrap_or(WHOLE_MILLI))
}
