//! Memory limits per cgroup, of driver 615 and newer. Older drivers lack the functions; `windlass_machine` hides them.
//!
//! The simulated driver keeps limits in a table of its own, as the backend `misc` of the real one. It looks at the
//! folder of the cgroup only, which may lie anywhere. The simulated CUDA charges the memory of its programs.

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
    status::{Answer, Status},
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

/// Memory within the limits of this process, in bytes.
pub(crate) struct Limited {
    /// Lowest hard limit.
    pub(crate) hard: u64,
    /// Memory below every limit.
    pub(crate) left: u64,
}

/// Environment variable with the folder of this process's cgroup, for tests with cgroups of their own.
const CGROUP: &str = "WINDLASS_SIM_CGROUP";

/// Mount point of cgroup v2.
const ROOT: &str = "/sys/fs/cgroup";

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
        library::change(gpu.number, |gpu| {
            // The limits of a cgroup go with it.
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
        let found = gpu.memory_limits.get(&cgroup).ok_or(Status::NOT_SUPPORTED)?;
        let used = found.used(is_alive);
        limits.put(GetMemoryLimits { soft: found.soft, hard: found.hard, used, ..request })
    }
}

/// Limits of this process on a GPU; `None` without one.
pub(crate) fn of_this_process(gpu: &Gpu) -> Option<Limited> {
    if gpu.memory_limits.is_empty() {
        return None;
    }
    let cgroup = own_cgroup()?;
    let above: Vec<_> = gpu.limits_above(&cgroup).filter(|it| it.hard != u64::MAX).collect();
    Some(Limited {
        hard: above.iter().map(|limits| limits.hard).min()?,
        left: above.iter().map(|limits| limits.left(is_alive)).min()?,
    })
}

/// Charges this process with all of its memory on a GPU. False if that is beyond a limit.
pub(crate) fn charge(gpu: &Gpu, bytes: u64) -> Answer<bool> {
    if of_this_process(gpu).is_none() {
        return Ok(true);
    }
    let Some(cgroup) = own_cgroup() else { return Ok(true) };
    let mut fits = false;
    library::change(gpu.number, |gpu| {
        fits = gpu.charge(&cgroup, process::id(), bytes, is_alive);
    })?;
    Ok(fits)
}

/// Folder of a cgroup. The real driver finds cgroups only.
fn cgroup(name_space: Text) -> Answer<String> {
    let path = name_space.read()?;
    if !Path::new(&path).is_absolute() {
        return Err(Status::INVALID_ARGUMENT);
    }
    if Path::new(&path).is_dir() { Ok(path) } else { Err(Status::NOT_FOUND) }
}

fn own_cgroup() -> Option<PathBuf> {
    if let Some(path) = env::var_os(CGROUP) {
        return Some(path.into());
    }
    let lines = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = lines.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(ROOT).join(path))
}

/// True if the process runs. Its memory is free otherwise.
fn is_alive(process: u32) -> bool {
    Path::new("/proc").join(process.to_string()).exists()
}
