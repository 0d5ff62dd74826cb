//! Table of GPU faults in command line syntax. Parser, formatter and help derive from its rows.

use super::Fault;

/// GPU fault: the word before the `@`, and its meaning.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row {
    word: &'static str,
    /// Example of the argument behind the word's colon, if the fault has one.
    argument: Option<&'static str>,
    meaning: &'static str,
}

/// Argument of a word, as a pattern or as a value.
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
        /// Every GPU fault except MIG instance faults and faults without a GPU.
        pub(super) const ROWS: &[Row] = &[
            $(Row { word: $word, argument: given!($($example)?), meaning: $meaning }),*
        ];

        /// Parses a word and its argument.
        pub(super) fn read(word: &str, argument: Option<&str>, gpu: usize) -> Option<Fault> {
            Some(match (word, argument) {
                $(($word, given!($($field)?)) => {
                    Fault::$variant { gpu $(, $field: $field.parse().ok()?)? }
                })*
                _ => return None,
            })
        }

        /// Word and argument of a GPU fault.
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
    "limit": how like "ignored" => Limit, "a limit of memory is set without effect; limit:17, its call returns this nvmlReturn_t";
    "no-compute-instance" => NoComputeInstance, "no compute instance of MIG can be made";
    "recover" => Recover, "it is reset: all of the above end but what no reset ends";
    "remove" => RemoveGpu, "it is pulled out";
}

// === impl Row ===

impl Row {
    /// Example for GPU 3 in command line syntax.
    pub(super) fn example(&self) -> String {
        match self.argument {
            Some(argument) => format!("{}:{argument}@3", self.word),
            None => format!("{}@3", self.word),
        }
    }

    /// Effect of the example on GPU 3.
    pub(super) fn meaning(&self) -> &'static str {
        self.meaning
    }
}
