//! Plan for a container with a GPU fraction: its GPUs, the memory limit, and the adjustment of the
//! container. Pure functions.

use std::{collections::BTreeMap, path::Path};

use windlass_cdi::memory_limits::{GpuMemory, HookLimit, LimitRules, WeakLimitError};
use windlass_core::device::{Device, DeviceId};
use windlass_nri::Adjustment;
use windlass_resources::NodeState;

use super::request::{FractionRequest, FractionRequestError, RequestedGpus};

/// Plan for one container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Limit that the hook sets. Its record has to be on disk before the container is created. `None` if the node
    /// enforces no limit.
    pub(super) limit: Option<HookLimit>,
    /// Changes of the container.
    pub(super) adjustment: Adjustment,
}

/// Reason to refuse a container.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum FractionError {
    /// The pod's annotations are invalid.
    #[error(transparent)]
    FractionRequest(#[from] FractionRequestError),
    /// The agent has just started.
    #[error("the GPUs of this node are not known yet: the kubelet tries again")]
    AgentStarting,
    /// The node has no GPU of this UUID or index.
    #[error("this node has no GPU {0:?}")]
    UnknownGpu(String),
    /// The node has no NVIDIA GPU.
    #[error("this node has no NVIDIA GPU")]
    NoGpu,
    /// The GPU has vanished. The second value is its health.
    #[error("{0} has vanished: {1}")]
    GpuVanished(DeviceId, String),
    /// The request names a MIG instance.
    #[error("{0} is a MIG instance, and the driver limits memory of whole GPUs only")]
    Instance(String),
    /// The GPU is in MIG mode.
    #[error("{0} is in MIG mode, in which the driver limits no memory")]
    MigMode(DeviceId),
    /// The driver does not report the size of the GPU's memory.
    #[error("the driver does not report the memory of {0}: a limit needs it")]
    NoMemory(DeviceId),
    /// The limit is larger than the GPU.
    #[error("its limit of {limit_mib} MiB is above the {total_mib} MiB of {gpu}")]
    AboveGpu {
        /// The GPU.
        gpu: DeviceId,
        /// The limit.
        limit_mib: u64,
        /// Memory of the GPU.
        total_mib: u64,
    },
    /// The node cannot enforce the limit as strictly as the pod or the policy requires.
    #[error(transparent)]
    WeakLimit(#[from] WeakLimitError),
}

/// Variables with the amounts in MiB, for programs in the container. Earlier versions of KAI's
/// `fractiond` wrote the plural.
const REQUESTS: [&str; 2] = ["NVIDIA_GPU_MEMORY_REQUEST", "NVIDIA_GPU_MEMORY_REQUESTS"];
const LIMITS: [&str; 2] = ["NVIDIA_GPU_MEMORY_LIMIT", "NVIDIA_GPU_MEMORY_LIMITS"];

/// Variable by which NVIDIA's container runtime adds GPUs.
const VISIBLE_DEVICES: &str = "NVIDIA_VISIBLE_DEVICES";

/// Memory of each GPU of a request.
pub(super) fn memory(
    request: &FractionRequest,
    state: &NodeState,
) -> Result<Vec<GpuMemory>, FractionError> {
    gpus(request, state)?.into_iter().map(|gpu| gpu_memory(gpu, request)).collect()
}

/// Memory of each GPU of a request that can still be measured. GPUs that vanished or entered MIG
/// mode since the container was created are left out.
pub(super) fn measurable_memory(request: &FractionRequest, state: &NodeState) -> Vec<GpuMemory> {
    let gpus = gpus(request, state).unwrap_or_default();
    gpus.into_iter().filter_map(|gpu| gpu_memory(gpu, request).ok()).collect()
}

/// GPUs of a request, each once.
fn gpus<'a>(
    request: &FractionRequest,
    state: &'a NodeState,
) -> Result<Vec<&'a Device>, FractionError> {
    if !state.inventory.is_complete() {
        return Err(FractionError::AgentStarting);
    }
    let is_gpu = |device: &&Device| {
        device.family().has_nvml && device.kind.is_gpu() && !device.kind.is_mig_instance()
    };
    let gpus: BTreeMap<_, _> =
        state.inventory.devices.iter().filter(is_gpu).map(|gpu| (gpu.id.as_str(), gpu)).collect();
    let chosen = match &request.gpus {
        RequestedGpus::All => gpus.values().copied().collect::<Vec<_>>(),
        RequestedGpus::Named(names) => {
            let named = names.iter().map(|name| find_gpu(&gpus, name));
            named.collect::<Result<Vec<_>, _>>()?
        }
    };
    if chosen.is_empty() {
        return Err(FractionError::NoGpu);
    }
    // The same GPU may be named by its UUID and its index.
    let distinct: BTreeMap<_, _> = chosen.into_iter().map(|gpu| (&gpu.id, gpu)).collect();
    Ok(distinct.into_values().collect())
}

/// Plan for a request; `path` is the path of the hook's record.
pub(super) fn plan(
    request: &FractionRequest,
    state: &NodeState,
    path: &Path,
) -> Result<Plan, FractionError> {
    let gpus = memory(request, state)?;
    let rules = LimitRules { policy: &state.policy, support: &state.limit_support };
    let limit = rules.limit(&gpus, request.min_enforcement, path)?;
    let amounts = |names: [&str; 2], mib: u64| names.map(|name| (name.to_owned(), mib.to_string()));
    let mut env: BTreeMap<_, _> = amounts(REQUESTS, request.request_mib)
        .into_iter()
        .chain(amounts(LIMITS, request.limit_mib))
        .collect();
    if let RequestedGpus::Named(_) = request.gpus {
        let ids: Vec<_> = gpus.iter().map(|gpu| gpu.device.as_str()).collect();
        env.insert(VISIBLE_DEVICES.to_owned(), ids.join(","));
    }
    let create_runtime = limit.iter().map(HookLimit::hook).collect();
    Ok(Plan { limit, adjustment: Adjustment { env, create_runtime } })
}

/// GPU by UUID or by index.
fn find_gpu<'a>(
    gpus: &BTreeMap<&str, &'a Device>,
    name: &str,
) -> Result<&'a Device, FractionError> {
    if name.starts_with("MIG-") {
        return Err(FractionError::Instance(name.to_owned()));
    }
    let by_index = || {
        let index: u32 = name.parse().ok()?;
        gpus.values().find(|gpu| gpu.index == index)
    };
    let gpu = gpus.get(name).or_else(by_index).copied();
    gpu.ok_or_else(|| FractionError::UnknownGpu(name.to_owned()))
}

fn gpu_memory(gpu: &Device, request: &FractionRequest) -> Result<GpuMemory, FractionError> {
    if gpu.health.has_vanished() {
        return Err(FractionError::GpuVanished(gpu.id.clone(), gpu.health.to_string()));
    }
    if gpu.partitioned {
        return Err(FractionError::MigMode(gpu.id.clone()));
    }
    let memory = GpuMemory::with_limit(gpu, request.limit_mib);
    let memory = memory.ok_or_else(|| FractionError::NoMemory(gpu.id.clone()))?;
    if memory.limit_mib > memory.total_mib {
        let GpuMemory { device: gpu, limit_mib, total_mib, .. } = memory;
        return Err(FractionError::AboveGpu { gpu, limit_mib, total_mib });
    }
    Ok(memory)
}
