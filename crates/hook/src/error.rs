//! Errors of the hook: reasons why a container does not start, or why its limits are not cleared.

use std::{io, path::PathBuf};

use windlass_core::memory_limit::MemoryLimitError;
use windlass_nvml::{LoadError, NvmlError};

/// Reason why a container does not start, or why its limits are not cleared.
#[derive(Debug, thiserror::Error)]
pub enum HookError {
    /// A file is missing or unreadable.
    #[error("cannot read {path}")]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error from the kernel.
        source: io::Error,
    },
    /// The note, or the installed program, cannot be written.
    #[error("cannot write {path}")]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Error from the kernel.
        source: io::Error,
    },
    /// Users other than the hook's may write the record or the note.
    #[error("{0} can be written by others")]
    NotOurs(PathBuf),
    /// The record or the note is invalid.
    #[error("cannot use {path}")]
    Document {
        /// Path of the document.
        path: PathBuf,
        /// Mistake in the document.
        source: MemoryLimitError,
    },
    /// The note would be invalid.
    #[error("cannot make a note")]
    Note(#[from] MemoryLimitError),
    /// Standard input has no state of a container, or one in which the hook cannot run.
    #[error("the state of the container on standard input is unusable: {0}")]
    State(String),
    /// The container has no cgroup that a limit could be set for.
    #[error("process {pid} has no cgroup to limit: {reason}")]
    Cgroup {
        /// First process of the container.
        pid: u32,
        /// Reason in words.
        reason: String,
    },
    /// NVML does not load, or has no driver.
    #[error("cannot use the driver")]
    Driver(#[from] LoadError),
    /// The driver is older than memory limits.
    #[error("{0} has no function that limits memory; the driver has to be 615 or newer")]
    OldDriver(PathBuf),
    /// The GPU is gone or fails.
    #[error("{uuid} cannot be used")]
    Gpu {
        /// UUID of the GPU.
        uuid: String,
        /// Error of the driver.
        source: NvmlError,
    },
    /// MIG is on. The driver limits whole GPUs only.
    #[error("{0} is in MIG mode, and the driver limits whole GPUs only")]
    Mig(String),
    /// A cgroup lacks the controller for device memory.
    #[error(
        "{} has no dmem controller: the kernel has to be 6.14 or newer, and every cgroup above has to enable it",
        .0.display()
    )]
    NoDmem(PathBuf),
    /// The kernel knows no such region: the GPU is gone, or its driver registers none.
    #[error("{path} has no region {region}")]
    NoRegion {
        /// Name of the region.
        region: String,
        /// File with the limits of the container's cgroup.
        path: PathBuf,
    },
    /// The driver does not set the limit or does not read it back.
    #[error("{uuid}: a limit of {asked} bytes failed")]
    Refused {
        /// UUID of the GPU.
        uuid: String,
        /// Limit in bytes.
        asked: u64,
        /// Error of the driver.
        source: NvmlError,
    },
    /// The driver or the kernel reads back another limit.
    #[error(
        "{uuid}: asked for a limit of {asked} bytes, the {by} reads back {}",
        limit_text(*.found)
    )]
    Differs {
        /// UUID of the GPU.
        uuid: String,
        /// Limit in bytes.
        asked: u64,
        /// `driver` or `kernel`.
        by: &'static str,
        /// Limit that is read back, in bytes.
        found: Option<u64>,
    },
    /// The call failed, and limits may remain because they could not be lifted again.
    #[error("{cause}; the limits of {gpus} may stay, because they could not be lifted")]
    Kept {
        /// First failure, with its causes.
        cause: String,
        /// UUIDs, with commas.
        gpus: String,
    },
    /// Limits of a note could not be lifted.
    #[error("the limits of {} on {gpus} could not be lifted", .cgroup.display())]
    NotCleared {
        /// Directory of the cgroup.
        cgroup: PathBuf,
        /// UUIDs with their errors.
        gpus: String,
    },
}

fn limit_text(limit: Option<u64>) -> String {
    limit.map_or_else(|| "no limit".to_owned(), |bytes| format!("{bytes} bytes"))
}
