//! Faults: what can be done to a machine while it runs, and how the command line writes it.

use std::{fmt, str::FromStr};

use crate::state::CudaFault;

mod apply;
mod cuda;
mod device;
mod happen;
mod nearest;
mod table;

pub use apply::FaultError;
pub use device::Happening;
pub use happen::HappeningError;

/// Something that happens to a machine. GPUs are named by NVML index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The driver logs an XID: an event, and nothing else changes.
    Xid {
        /// Index of the GPU.
        gpu: usize,
        /// Which XID.
        code: u64,
    },
    /// The driver logs an XID that is confined to a MIG instance.
    InstanceXid {
        /// Index of the GPU.
        gpu: usize,
        /// Id of the GPU instance.
        instance: u32,
        /// Which XID.
        code: u64,
    },
    /// ECC cannot repair memory: counters rise, a row waits to be remapped, an event is told.
    DoubleBitEcc {
        /// Index of the GPU.
        gpu: usize,
    },
    /// The GPU falls off the bus: its calls return `NVML_ERROR_GPU_IS_LOST`.
    Lost {
        /// Index of the GPU.
        gpu: usize,
    },
    /// Its calls return an error.
    Error {
        /// Index of the GPU.
        gpu: usize,
        /// An `nvmlReturn_t`.
        code: u32,
    },
    /// Its calls take longer.
    Slow {
        /// Index of the GPU.
        gpu: usize,
        /// How much longer.
        millis: u32,
    },
    /// Its calls do not return until it recovers.
    Hang {
        /// Index of the GPU.
        gpu: usize,
    },
    /// Its calls succeed, and every byte that they write is 0xff: counts, names, UUIDs, shares.
    Garbage {
        /// Index of the GPU.
        gpu: usize,
    },
    /// The next call to it ends the process that makes it, as a defect of the driver's library does.
    Crash {
        /// Index of the GPU.
        gpu: usize,
    },
    /// Programs that compute fail on it, though NVML answers.
    Cuda {
        /// Index of the GPU.
        gpu: usize,
        /// How they fail.
        how: CudaFault,
    },
    /// Its compute instances cannot be made: `NVML_ERROR_UNKNOWN`.
    NoComputeInstance {
        /// Index of the GPU.
        gpu: usize,
    },
    /// ECC cannot repair memory, and no event tells: a counter rises.
    EccCount {
        /// Index of the GPU.
        gpu: usize,
    },
    /// A row of memory waits to be replaced at the next reset; on older cards, a page to be retired.
    RemapPending {
        /// Index of the GPU.
        gpu: usize,
    },
    /// A row of memory could not be replaced, which no reset mends.
    RemapFailed {
        /// Index of the GPU.
        gpu: usize,
    },
    /// An NVLink goes down.
    LinkDown {
        /// Index of the GPU.
        gpu: usize,
        /// Which of its ports.
        port: u8,
    },
    /// The fabric manager cannot put it into the NVLink fabric.
    Fabric {
        /// Index of the GPU.
        gpu: usize,
    },
    /// It is too hot, and slows down.
    Thermal {
        /// Index of the GPU.
        gpu: usize,
    },
    /// It gets too little power, and slows down.
    Power {
        /// Index of the GPU.
        gpu: usize,
    },
    /// So much of its memory is used though no process has it.
    MemoryKept {
        /// Index of the GPU.
        gpu: usize,
        /// How much.
        mib: u64,
    },
    /// The GPU is reset: faults in force end, volatile counters are zero, memory is free.
    Recover {
        /// Index of the GPU.
        gpu: usize,
    },
    /// A GPU like the last one is plugged in.
    AddGpu,
    /// A GPU is pulled out.
    RemoveGpu {
        /// Index of the GPU.
        gpu: usize,
    },
    /// Something happens to another device.
    ToDevice {
        /// Its name, that of its interface, or its PCI address.
        name: String,
        /// What happens.
        what: Happening,
    },
}

/// Text that is not a fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a fault; {nearest} is one, and `windlass machine fault --help` shows all")]
pub struct FaultSyntaxError {
    text: String,
    nearest: String,
}

/// Those that name no GPU, or a part of one, with what they do.
const OTHERS: [(&str, &str); 2] = [
    ("xid:79@3/1", "an XID, confined to the MIG instance with id 1"),
    ("add", "one more GPU is plugged in"),
];

// === impl Fault ===

impl Fault {
    /// Every fault as it is typed, with what it does: examples for GPU 3, and for devices of other kinds.
    pub fn examples() -> impl Iterator<Item = (String, &'static str)> {
        let of_gpus = table::ROWS.iter().map(|row| (row.example(), row.meaning()));
        let others = OTHERS.iter().chain(&device::EXAMPLES);
        of_gpus.chain(others.map(|(example, meaning)| ((*example).to_owned(), *meaning)))
    }

    /// The GPU that it happens to; a new GPU has no index yet.
    pub fn gpu(&self) -> Option<usize> {
        match *self {
            Self::Xid { gpu, .. }
            | Self::InstanceXid { gpu, .. }
            | Self::DoubleBitEcc { gpu }
            | Self::EccCount { gpu }
            | Self::RemapPending { gpu }
            | Self::RemapFailed { gpu }
            | Self::LinkDown { gpu, .. }
            | Self::Fabric { gpu }
            | Self::Thermal { gpu }
            | Self::Power { gpu }
            | Self::Lost { gpu }
            | Self::Error { gpu, .. }
            | Self::MemoryKept { gpu, .. }
            | Self::Slow { gpu, .. }
            | Self::Hang { gpu }
            | Self::Garbage { gpu }
            | Self::Crash { gpu }
            | Self::Cuda { gpu, .. }
            | Self::NoComputeInstance { gpu }
            | Self::Recover { gpu }
            | Self::RemoveGpu { gpu } => Some(gpu),
            Self::AddGpu | Self::ToDevice { .. } => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InstanceXid { gpu, instance, code } => {
                return write!(f, "xid:{code}@{gpu}/{instance}");
            }
            Self::AddGpu => return f.write_str("add"),
            Self::ToDevice { name, what } => return what.write(name, f),
            _ => {}
        }
        let (word, argument) = table::written(self).expect("a row for every fault of a GPU");
        f.write_str(word)?;
        if let Some(argument) = argument {
            write!(f, ":{argument}")?;
        }
        write!(f, "@{}", self.gpu().expect("a fault of a GPU"))
    }
}

// === impl FaultSyntaxError ===

impl FaultSyntaxError {
    fn of(text: &str) -> Self {
        let nearest = nearest::nearest(text, Fault::examples().map(|(example, _)| example));
        Self { text: text.to_owned(), nearest }
    }
}

impl FromStr for Fault {
    type Err = FaultSyntaxError;

    fn from_str(text: &str) -> Result<Self, FaultSyntaxError> {
        let text = text.trim();
        let to_device = || {
            let (name, what) = Happening::parse(text)?;
            Some(Self::ToDevice { name, what })
        };
        parse(text).or_else(to_device).ok_or_else(|| FaultSyntaxError::of(text))
    }
}

fn parse(text: &str) -> Option<Fault> {
    if text == "add" {
        return Some(Fault::AddGpu);
    }
    let (what, gpu) = text.split_once('@')?;
    if let (Some(("xid", code)), Some((gpu, instance))) =
        (what.split_once(':'), gpu.split_once('/'))
    {
        let (gpu, instance) = (gpu.parse().ok()?, instance.parse().ok()?);
        return Some(Fault::InstanceXid { gpu, instance, code: code.parse().ok()? });
    }
    let gpu = gpu.parse().ok()?;
    match what.split_once(':') {
        Some((word, argument)) => table::read(word, Some(argument), gpu),
        None => table::read(what, None, gpu),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_reads_back_as_it_is_written() {
        let all = "xid:79@3 xid:79@3/1 ecc@0 ecc-count@1 remap-pending@1 remap-failed@1 \
                   nvlink:5@2 fabric@2 thermal@2 power@2 lost@3 error:15@3 slow:250@3 memory:4096@3 hang@3 \
                   garbage@3 crash@3 cuda:802@3 cuda:hang@3 cuda:stale@3 \
                   no-compute-instance@3 recover@3 add remove@7 unplug:eth0 plug:0000:17:00.0 replug:stick=2-1.4 \
                   unbind:u250-0 bind:0000:17:00.2=vfio-pci vfs:mlx5_0=4 group:ens1f0v1=99 \
                   set:u250-0:rom.u.1/VBNV=x set:0000:3b:00.1:ready=0x0 unset:u250-0:rom.u.1 \
                   link-down:eth0 link-up:eth0";
        for text in all.split(' ') {
            assert_eq!(text.parse::<Fault>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn every_example_is_a_fault_and_has_a_meaning() {
        for (example, meaning) in Fault::examples() {
            assert_eq!(example.parse::<Fault>().expect(&example).to_string(), example);
            assert!(meaning.len() > 5, "{example}: {meaning}");
        }
    }

    #[test]
    fn what_is_not_a_fault_is_answered_with_the_nearest_one_and_where_all_are() {
        for wrong in [
            "",
            "xid@3",
            "xid:a@3",
            "lost@3/1",
            "nvlink@3",
            "lost",
            "lost@x",
            "melt@1",
            "cuda:melt@1",
            "ecc:1@3",
            "vfs:eth0",
            "vfs:eth0=x",
            "unplug:",
            "set:eth0",
            "bind:eth0=",
        ] {
            let error = wrong.parse::<Fault>().expect_err(wrong).to_string();
            assert!(error.contains("machine fault --help"), "{error}");
        }
        for (wrong, nearest) in
            [("xid@3", "xid:79@3"), ("vfs:eth0", "vfs:eth0=4"), ("los@1", "lost@3")]
        {
            let error = wrong.parse::<Fault>().expect_err(wrong).to_string();
            assert!(error.contains(&format!("; {nearest} is one")), "{error}");
        }
    }
}
