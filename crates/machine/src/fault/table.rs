//! What can be done to a GPU as it is typed: one row for each, from which reading, writing and help come.

use super::Fault;

/// A fault of a GPU: what is typed before the `@`, and what it does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    word: &'static str,
    /// An example of what stands behind the word's colon, where something does.
    argument: Option<&'static str>,
    meaning: &'static str,
}

/// What a word's argument is, in a pattern as in a value: nothing, or what was given.
macro_rules! given {
    () => {
        None
    };
    ($($given:tt)+) => {
        Some($($given)+)
    };
}

macro_rules! faults {
    ($($word:literal $(: $field:ident like $example:literal)? => $variant:ident, $meaning:literal;)*) => {
        /// All of them but those that name no GPU, or a part of one.
        pub(super) const ROWS: &[Row] = &[
            $(Row { word: $word, argument: given!($($example)?), meaning: $meaning }),*
        ];

        /// The fault that a word stands for.
        pub(super) fn read(word: &str, argument: Option<&str>, gpu: usize) -> Option<Fault> {
            Some(match (word, argument) {
                $(($word, given!($($field)?)) => {
                    Fault::$variant { gpu $(, $field: $field.parse().ok()?)? }
                })*
                _ => return None,
            })
        }

        /// The word of a fault of a GPU, and its argument.
        pub(super) fn written(fault: &Fault) -> Option<(&'static str, Option<String>)> {
            Some(match fault {
                $(Fault::$variant { $($field,)? .. } => ($word, given!($($field.to_string())?)),)*
                Fault::InstanceXid { .. } | Fault::AddGpu | Fault::ToDevice { .. } => return None,
            })
        }
    };
}

faults! {
    "xid": code like "79" => Xid, "the driver reports the XID";
    "ecc" => DoubleBitEcc, "a double-bit ECC error";
    "ecc-count" => EccCount, "an error that ECC cannot correct is counted, and no event tells";
    "remap-pending" => RemapPending, "a bad row of memory waits for a reset";
    "remap-failed" => RemapFailed, "a bad row could not be replaced; no reset ends that";
    "nvlink": port like "5" => LinkDown, "its NVLink 5 goes down";
    "fabric" => Fabric, "the fabric manager cannot put it into the NVLink fabric";
    "thermal" => Thermal, "it is too hot, and slows down";
    "power" => Power, "it gets too little power, and slows down";
    "lost" => Lost, "it falls off the bus";
    "error": code like "15" => Error, "its calls return this nvmlReturn_t";
    "slow": millis like "250" => Slow, "its calls take 250 ms longer";
    "memory": mib like "4096" => MemoryKept, "4096 MiB of its memory stay in use, of no process";
    "hang" => Hang, "its calls do not return";
    "garbage" => Garbage, "its calls succeed, and every byte that they write is 0xff";
    "crash" => Crash, "the next call to it ends the process that makes it";
    "cuda": how like "802" => Cuda, "CUDA answers with this CUresult; or cuda:hang, cuda:stale";
    "no-compute-instance" => NoComputeInstance, "no compute instance of MIG can be made";
    "recover" => Recover, "it is reset: all of the above end but what no reset ends";
    "remove" => RemoveGpu, "it is pulled out";
}

// === impl Row ===

impl Row {
    /// As it is typed for GPU 3.
    pub(super) fn example(&self) -> String {
        match self.argument {
            Some(argument) => format!("{}:{argument}@3", self.word),
            None => format!("{}@3", self.word),
        }
    }

    /// What it does to GPU 3.
    pub(super) fn meaning(&self) -> &'static str {
        self.meaning
    }
}
