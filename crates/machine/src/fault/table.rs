//! Table of GPU faults in command line syntax. Parser, formatter and help derive from its rows.

use super::Fault;

/// GPU fault on the command line: `keyword@gpu` or `keyword:argument@gpu`.
#[derive(Clone, Copy, Debug)]
pub(super) struct FaultRow {
    keyword: &'static str,
    /// Example of the argument, if the fault has one.
    argument: Option<&'static str>,
    /// Effect of the fault with the example's argument.
    meaning: &'static str,
}

/// `Some` of the given tokens, or `None` without tokens: an optional argument, in expressions and in patterns.
macro_rules! option {
    () => {
        None
    };
    ($($option:tt)+) => {
        Some($($option)+)
    };
}

macro_rules! faults {
    ($($keyword:literal $(: $field:ident like $example:literal)? => $variant:ident, $meaning:literal;)*) => {
        /// Every GPU fault except MIG instance faults and faults without a GPU.
        pub(super) const ROWS: &[FaultRow] = &[
            $(FaultRow { keyword: $keyword, argument: option!($($example)?), meaning: $meaning }),*
        ];

        /// Parses a keyword and its argument.
        pub(super) fn parse(keyword: &str, argument: Option<&str>, gpu: usize) -> Option<Fault> {
            Some(match (keyword, argument) {
                $(($keyword, option!($($field)?)) => {
                    Fault::$variant { gpu $(, $field: $field.parse().ok()?)? }
                })*
                _ => return None,
            })
        }

        /// Keyword and argument of a GPU fault.
        pub(super) fn format(fault: &Fault) -> Option<(&'static str, Option<String>)> {
            Some(match fault {
                $(Fault::$variant { $($field,)? .. } => ($keyword, option!($($field.to_string())?)),)*
                Fault::InstanceXid { .. } | Fault::AddGpu | Fault::Device { .. } => return None,
            })
        }
    };
}

faults! {
    "xid": code like "79" => Xid, "logs an XID";
    "ecc" => DoubleBitEcc, "raises a double-bit ECC error";
    "ecc-count" => EccCount, "counts an uncorrectable ECC error without an event";
    "remap-pending" => RemapPending, "marks a memory row for remapping at the next reset";
    "remap-failed" => RemapFailed, "fails the remapping of a memory row; a reset does not help";
    "nvlink": port like "5" => LinkDown, "takes down NVLink 5 of the GPU";
    "fabric" => Fabric, "fails the registration with the fabric manager";
    "thermal" => Thermal, "slows the GPU down because of its temperature";
    "power" => Power, "slows the GPU down because of its power supply";
    "lost" => Lost, "drops the GPU off the bus";
    "error": code like "15" => Error, "makes its NVML calls return this nvmlReturn_t";
    "slow": millis like "250" => Slow, "delays each of its NVML calls by 250 ms";
    "memory": mib like "4096" => MemoryLeaked, "keeps 4096 MiB of its memory in use without a process";
    "hang" => Hang, "blocks its NVML calls";
    "garbage" => Garbage, "makes its NVML calls succeed with 0xff in every byte";
    "crash" => Crash, "ends the process of the next NVML call to the GPU";
    "cuda": failure_mode like "802" => Cuda, "makes cuCtxCreate return this CUresult; or cuda:hang, cuda:stale";
    "limit": failure_mode like "ignored" => MemoryLimit, "ignores memory limits; limit:17 makes the call return this nvmlReturn_t";
    "no-compute-instance" => NoComputeInstance, "fails the creation of MIG compute instances";
    "recover" => Recover, "resets the GPU, which ends all faults except a failed remapping";
    "remove" => RemoveGpu, "removes the GPU";
}

// === impl FaultRow ===

impl FaultRow {
    /// Example for GPU 3 in command line syntax.
    pub(super) fn example(&self) -> String {
        match self.argument {
            Some(argument) => format!("{}:{argument}@3", self.keyword),
            None => format!("{}@3", self.keyword),
        }
    }

    /// Effect of the example on GPU 3.
    pub(super) fn meaning(&self) -> &'static str {
        self.meaning
    }
}
