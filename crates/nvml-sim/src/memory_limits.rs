//! Memory limits per cgroup, which exist since driver 615. For an older driver, `windlass_machine` hides the functions.
//!
//! The simulated driver stores the limits itself, like the real driver's backend `misc`. It accepts any existing folder
//! as a cgroup, so that tests need no cgroup. The simulated CUDA library charges the memory of its programs.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process,
};

use windlass_machine::{CgroupLimits, LimitFault, state::Gpu};

use crate::{
    abi::{Out, Text},
    handle::Device,
    library,
    status::{NvmlResult, Status},
};

/// `nvmlSetMemoryLimits_v1_t` of CUDA 13.4. The bindings are older.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct SetMemoryLimits {
    name_space: Text,
    soft: u64,
    hard: u64,
}

/// `nvmlGetMemoryLimits_v1_t` of CUDA 13.4.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct GetMemoryLimits {
    name_space: Text,
    soft: u64,
    hard: u64,
    used: u64,
}

/// Limit of this process, and the remaining memory below it, in bytes.
pub(crate) struct ProcessLimit {
    /// Lowest hard limit.
    pub(crate) hard: u64,
    /// Remaining memory below the tightest limit.
    pub(crate) remaining: u64,
}

/// Environment variable with the folder of this process's cgroup, for tests without real cgroups.
const CGROUP_VARIABLE: &str = "WINDLASS_SIM_CGROUP";

/// Mount point of cgroup v2.
const CGROUP_ROOT: &str = "/sys/fs/cgroup";

export! {
    fn nvmlDeviceSetMemoryLimits_v1(device: Device, limits: Out<SetMemoryLimits>) {
        let gpu = device.gpu()?;
        let request = limits.read()?;
        let cgroup = cgroup(request.name_space)?;
        match gpu.faults.limit {
            Some(LimitFault::Error(code)) => return Err(Status(code)),
            Some(LimitFault::Ignored) => return Ok(()),
            None => {}
        }
        library::update_gpu(gpu.number, |gpu| {
            // Limits of deleted cgroups are dropped.
            gpu.memory_limits.retain(|cgroup, _| Path::new(cgroup).is_dir());
            let (soft, hard) = (request.soft, request.hard);
            let charged = gpu.memory_limits.remove(&cgroup).map(|earlier| earlier.charged);
            let charged = charged.unwrap_or_default();
            gpu.memory_limits.insert(cgroup, CgroupLimits { soft, hard, charged });
        })
    }

    fn nvmlDeviceGetMemoryLimits_v1(device: Device, limits: Out<GetMemoryLimits>) {
        let gpu = device.gpu()?;
        let request = limits.read()?;
        let cgroup = cgroup(request.name_space)?;
        let stored_limits = gpu.memory_limits.get(&cgroup).ok_or(Status::NOT_SUPPORTED)?;
        let CgroupLimits { soft, hard, .. } = *stored_limits;
        let used = stored_limits.used(is_alive);
        limits.put(GetMemoryLimits { soft, hard, used, ..request })
    }
}

/// Limits on this process's memory of a GPU; `None` without a limit.
pub(crate) fn process_limit(gpu: &Gpu) -> Option<ProcessLimit> {
    if gpu.memory_limits.is_empty() {
        return None;
    }
    let cgroup = own_cgroup()?;
    let applicable_limits: Vec<_> =
        gpu.applicable_limits(&cgroup).filter(|limits| limits.hard != u64::MAX).collect();
    Some(ProcessLimit {
        hard: applicable_limits.iter().map(|limits| limits.hard).min()?,
        remaining: applicable_limits.iter().map(|limits| limits.remaining(is_alive)).min()?,
    })
}

/// Sets this process's charge for a GPU to `bytes`. Returns false if a limit would be exceeded.
pub(crate) fn charge(gpu: &Gpu, bytes: u64) -> NvmlResult<bool> {
    if process_limit(gpu).is_none() {
        return Ok(true);
    }
    let Some(cgroup) = own_cgroup() else { return Ok(true) };
    let mut fits = false;
    library::update_gpu(gpu.number, |gpu| {
        fits = gpu.charge(&cgroup, process::id(), bytes, is_alive);
    })?;
    Ok(fits)
}

/// Path of a cgroup's folder. The real driver also refuses a folder that is not a cgroup.
fn cgroup(name_space: Text) -> NvmlResult<String> {
    let path = name_space.read()?;
    if !Path::new(&path).is_absolute() {
        return Err(Status::INVALID_ARGUMENT);
    }
    if Path::new(&path).is_dir() { Ok(path) } else { Err(Status::NOT_FOUND) }
}

fn own_cgroup() -> Option<PathBuf> {
    if let Some(path) = env::var_os(CGROUP_VARIABLE) {
        return Some(path.into());
    }
    let lines = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = lines.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(CGROUP_ROOT).join(path))
}

/// True if the process runs. Memory of an exited process is free.
fn is_alive(process: u32) -> bool {
    Path::new("/proc").join(process.to_string()).exists()
}
