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
    /// A file of a cgroup, the note, or the installed program cannot be written.
    #[error("cannot write {path}")]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// Error from the kernel.
        source: io::Error,
    },
    /// Another user owns the record or the note, or may write it.
    #[error("{0} can be written by others")]
    Untrusted(PathBuf),
    /// The record or the note is invalid.
    #[error("cannot use {path}")]
    InvalidDocument {
        /// Path of the document.
        path: PathBuf,
        /// Mistake in the document.
        source: MemoryLimitError,
    },
    /// The note would be invalid.
    #[error("cannot create a note")]
    InvalidNote(#[from] MemoryLimitError),
    /// Standard input has no valid container state, or the container is in a state in which the hook must not run.
    #[error("the state of the container on standard input is unusable: {0}")]
    InvalidState(String),
    /// The container has no cgroup of its own in cgroup v2.
    #[error("process {pid} has no cgroup to limit: {reason}")]
    NoOwnCgroup {
        /// First process of the container.
        pid: u32,
        /// Reason, as a clause.
        reason: String,
    },
    /// NVML cannot be loaded, or finds no driver.
    #[error("cannot use the driver")]
    Driver(#[from] LoadError),
    /// The driver is older than 615, the first version with memory limits.
    #[error("{0} has no function that limits memory; the driver must be 615 or newer")]
    OldDriver(PathBuf),
    /// The GPU was removed, or a call of the driver failed.
    #[error("{uuid} cannot be used")]
    Gpu {
        /// UUID of the GPU.
        uuid: String,
        /// Error of the driver.
        source: NvmlError,
    },
    /// The GPU is in MIG mode. The driver limits whole GPUs only.
    #[error("{0} is in MIG mode, and the driver limits whole GPUs only")]
    Mig(String),
    /// A cgroup lacks the controller for device memory.
    #[error(
        "{} has no dmem controller: the kernel must be 6.14 or newer, and every ancestor must enable the controller",
        .0.display()
    )]
    NoDmem(PathBuf),
    /// The kernel has no such region: the GPU was removed, or its driver registers no region.
    #[error("{path} has no region {region}")]
    NoRegion {
        /// Name of the region.
        region: String,
        /// File with the limits of the container's cgroup.
        path: PathBuf,
    },
    /// The driver failed to set the limit, or to read it back.
    #[error("{uuid}: cannot set a limit of {requested} bytes")]
    NotSet {
        /// UUID of the GPU.
        uuid: String,
        /// Limit in bytes.
        requested: u64,
        /// Error of the driver.
        source: NvmlError,
    },
    /// The driver or the kernel reads back another limit.
    #[error(
        "{uuid}: set a limit of {requested} bytes, the {limiter} reads back {}",
        limit_text(*.actual)
    )]
    Mismatch {
        /// UUID of the GPU.
        uuid: String,
        /// Requested limit in bytes.
        requested: u64,
        /// `driver` or `kernel`.
        limiter: &'static str,
        /// Limit that was read back, in bytes; `None` for no limit.
        actual: Option<u64>,
    },
    /// The hook failed, and could not lift all limits that it had set.
    #[error("{cause}; the limits of {gpus} may remain, because they could not be lifted")]
    RollbackFailed {
        /// Message of the failure, with its causes.
        cause: String,
        /// UUIDs of GPUs, separated by commas.
        gpus: String,
    },
    /// Limits of a note could not be lifted.
    #[error("the limits of {} on {gpus} could not be lifted", .cgroup.display())]
    NotCleared {
        /// Directory of the cgroup.
        cgroup: PathBuf,
        /// UUIDs of GPUs with their errors, separated by commas.
        gpus: String,
    },
}

fn limit_text(limit: Option<u64>) -> String {
    limit.map_or_else(|| "no limit".to_owned(), |bytes| format!("{bytes} bytes"))
}
