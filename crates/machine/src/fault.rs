//! Faults of a running machine, and their syntax on the command line.

use std::{fmt, str::FromStr};

use crate::{memory_limits::LimitFault, state::CudaFault};

mod apply;
mod cuda;
mod device;
mod happen;
mod limit;
mod nearest;
mod table;

pub use apply::FaultError;
pub use cuda::CudaFaultSyntaxError;
pub use device::DeviceEvent;
pub use happen::DeviceEventError;
pub use limit::LimitFaultSyntaxError;

/// Fault of a machine. NVML indices name the GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The driver logs an XID: an event without further changes.
    Xid {
        /// Index of the GPU.
        gpu: usize,
        /// XID code.
        code: u64,
    },
    /// The driver logs an XID confined to a MIG instance.
    InstanceXid {
        /// Index of the GPU.
        gpu: usize,
        /// GPU instance id.
        instance: u32,
        /// XID code.
        code: u64,
    },
    /// Uncorrectable ECC error: counters rise, a row waits for remapping, and the driver sends an event.
    DoubleBitEcc {
        /// Index of the GPU.
        gpu: usize,
    },
    /// The GPU falls off the bus: its calls return `NVML_ERROR_GPU_IS_LOST`.
    Lost {
        /// Index of the GPU.
        gpu: usize,
    },
    /// Calls to the GPU return an error.
    Error {
        /// Index of the GPU.
        gpu: usize,
        /// `nvmlReturn_t` of the calls.
        code: u32,
    },
    /// Calls to the GPU take longer.
    Slow {
        /// Index of the GPU.
        gpu: usize,
        /// Additional time of a call.
        millis: u32,
    },
    /// Calls to the GPU block until the GPU recovers.
    Hang {
        /// Index of the GPU.
        gpu: usize,
    },
    /// Calls to the GPU succeed, but write 0xff into every byte: counts, names, UUIDs, shares.
    Garbage {
        /// Index of the GPU.
        gpu: usize,
    },
    /// The next call to the GPU ends the calling process, as a defect in the driver's library does.
    Crash {
        /// Index of the GPU.
        gpu: usize,
    },
    /// CUDA programs fail on the GPU, while NVML still answers.
    Cuda {
        /// Index of the GPU.
        gpu: usize,
        /// Failure mode.
        failure_mode: CudaFault,
    },
    /// Memory limits cannot be set on the GPU.
    MemoryLimit {
        /// Index of the GPU.
        gpu: usize,
        /// Failure mode.
        failure_mode: LimitFault,
    },
    /// Creation of compute instances fails with `NVML_ERROR_UNKNOWN`.
    NoComputeInstance {
        /// Index of the GPU.
        gpu: usize,
    },
    /// Uncorrectable ECC error without an event: a counter rises.
    EccCount {
        /// Index of the GPU.
        gpu: usize,
    },
    /// A memory row waits for remapping at the next reset; on older cards, a page waits for retirement.
    RemapPending {
        /// Index of the GPU.
        gpu: usize,
    },
    /// Remapping of a memory row failed. A reset does not help.
    RemapFailed {
        /// Index of the GPU.
        gpu: usize,
    },
    /// An NVLink goes down.
    LinkDown {
        /// Index of the GPU.
        gpu: usize,
        /// Port number of the link.
        port: u8,
    },
    /// The fabric manager fails to add the GPU to the NVLink fabric.
    Fabric {
        /// Index of the GPU.
        gpu: usize,
    },
    /// The GPU overheats and slows down.
    Thermal {
        /// Index of the GPU.
        gpu: usize,
    },
    /// The GPU lacks power and slows down.
    Power {
        /// Index of the GPU.
        gpu: usize,
    },
    /// Memory stays allocated without any process.
    MemoryLeaked {
        /// Index of the GPU.
        gpu: usize,
        /// Amount of allocated memory.
        mib: u64,
    },
    /// The GPU is reset: active faults end, volatile counters return to zero, memory is free.
    Recover {
        /// Index of the GPU.
        gpu: usize,
    },
    /// Another GPU like the last one is plugged in.
    AddGpu,
    /// A GPU is removed.
    RemoveGpu {
        /// Index of the GPU.
        gpu: usize,
    },
    /// Another device changes.
    Device {
        /// Name of the device or its interface, or its PCI address.
        name: String,
        /// Change of the device.
        event: DeviceEvent,
    },
}

/// Syntax error in a fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a fault; {nearest} is one, and `windlass machine fault --help` lists all")]
pub struct FaultSyntaxError {
    text: String,
    nearest: String,
}

/// Examples and meanings of MIG instance faults and of faults without a GPU, which the table lacks.
const OTHER_EXAMPLES: [(&str, &str); 2] = [
    ("xid:79@3/1", "logs an XID of the MIG instance with id 1"),
    ("add", "adds a copy of the last GPU"),
];

// === impl Fault ===

impl Fault {
    /// Every fault in command line syntax, with its meaning. The examples use GPU 3 and devices of other
    /// kinds.
    pub fn examples() -> impl Iterator<Item = (String, &'static str)> {
        let gpu_examples = table::ROWS.iter().map(|row| (row.example(), row.meaning()));
        let other_examples = OTHER_EXAMPLES.iter().chain(device::EXAMPLES);
        gpu_examples
            .chain(other_examples.map(|(example, meaning)| ((*example).to_owned(), *meaning)))
    }

    /// Affected GPU. A new GPU has no index yet.
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
            | Self::MemoryLeaked { gpu, .. }
            | Self::Slow { gpu, .. }
            | Self::Hang { gpu }
            | Self::Garbage { gpu }
            | Self::Crash { gpu }
            | Self::Cuda { gpu, .. }
            | Self::MemoryLimit { gpu, .. }
            | Self::NoComputeInstance { gpu }
            | Self::Recover { gpu }
            | Self::RemoveGpu { gpu } => Some(gpu),
            Self::AddGpu | Self::Device { .. } => None,
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
            Self::Device { name, event } => return event.format(name, f),
            _ => {}
        }
        let (keyword, argument) =
            table::format(self).expect("the table has a row for every GPU fault");
        f.write_str(keyword)?;
        if let Some(argument) = argument {
            write!(f, ":{argument}")?;
        }
        write!(f, "@{}", self.gpu().expect("a GPU fault"))
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
            let (name, event) = DeviceEvent::parse(text)?;
            Some(Self::Device { name, event })
        };
        parse(text).or_else(to_device).ok_or_else(|| FaultSyntaxError::of(text))
    }
}

fn parse(text: &str) -> Option<Fault> {
    if text == "add" {
        return Some(Fault::AddGpu);
    }
    let (keyword_and_argument, gpu) = text.split_once('@')?;
    if let (Some(("xid", code)), Some((gpu, instance))) =
        (keyword_and_argument.split_once(':'), gpu.split_once('/'))
    {
        let (gpu, instance) = (gpu.parse().ok()?, instance.parse().ok()?);
        return Some(Fault::InstanceXid { gpu, instance, code: code.parse().ok()? });
    }
    let gpu = gpu.parse().ok()?;
    match keyword_and_argument.split_once(':') {
        Some((keyword, argument)) => table::parse(keyword, Some(argument), gpu),
        None => table::parse(keyword_and_argument, None, gpu),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_round_trips_through_its_text() {
        let all = "xid:79@3 xid:79@3/1 ecc@0 ecc-count@1 remap-pending@1 remap-failed@1 \
                   nvlink:5@2 fabric@2 thermal@2 power@2 lost@3 error:15@3 slow:250@3 memory:4096@3 hang@3 \
                   garbage@3 crash@3 cuda:802@3 cuda:hang@3 cuda:stale@3 limit:ignored@3 limit:17@3 \
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
    fn syntax_errors_suggest_the_nearest_fault_and_the_help() {
        for invalid in [
            "",
            "xid@3",
            "xid:a@3",
            "lost@3/1",
            "nvlink@3",
            "lost",
            "lost@x",
            "melt@1",
            "cuda:melt@1",
            "limit:melt@1",
            "ecc:1@3",
            "vfs:eth0",
            "vfs:eth0=x",
            "unplug:",
            "set:eth0",
            "bind:eth0=",
        ] {
            let error = invalid.parse::<Fault>().expect_err(invalid).to_string();
            assert!(error.contains("machine fault --help"), "{error}");
        }
        for (invalid, nearest) in
            [("xid@3", "xid:79@3"), ("vfs:eth0", "vfs:eth0=4"), ("los@1", "lost@3")]
        {
            let error = invalid.parse::<Fault>().expect_err(invalid).to_string();
            assert!(error.contains(&format!("; {nearest} is one")), "{error}");
        }
    }
}
