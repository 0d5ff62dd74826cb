//! GPU request of a pod, under every supported resource name.
//!
//! | resources | meaning |
//! | --- | --- |
//! | `nvidia.com/gpu: 2` | two whole GPUs |
//! | `windlass.dev/gpu-memory: 8`, `windlass.dev/gpu-compute: 30` | 8 GiB and 30 % of one GPU |
//! | `aliyun.com/gpu-mem: 8` | 8 GiB of one GPU, as for gpushare |
//! | `nvidia.com/gpu: 2` with `nvidia.com/gpumem`, `gpumem-percentage` or `gpucores` | this share of two GPUs, as for HAMi |

use k8s_openapi::api::core::v1::{Container, PodSpec};
use windlass_core::virtual_gpus::{
    COUNT_RESOURCE, ContainerRequest, GpuShares, PodRequest, RequestError,
};
use windlass_sched::request::{Gpus, ShareMemory};

use super::amounts;

/// Memory of one GPU in GiB.
const MEMORY: &str = "windlass.dev/gpu-memory";
/// Compute of one GPU in percent.
const COMPUTE: &str = "windlass.dev/gpu-compute";
/// Memory of one GPU in GiB: the resource name of gpushare.
const GPUSHARE_MEMORY: &str = "aliyun.com/gpu-mem";

/// MiB in a GiB.
const MIB_PER_GIB: u64 = 1024;

/// GPUs that a pod requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuRequest {
    /// None.
    None,
    /// A number of whole GPUs.
    Whole(u8),
    /// A share of each of some GPUs.
    Share {
        /// Number of GPUs, all different.
        count: u8,
        /// Compute of each in thousandths.
        compute_milli: u16,
        /// Memory of each.
        memory: ShareMemory,
        /// Scheme of the request's resource names.
        scheme: ShareScheme,
    },
}

/// Scheme of the resource names by which a pod requests a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShareScheme {
    /// `windlass.dev/gpu-memory` and `windlass.dev/gpu-compute`.
    Windlass,
    /// `aliyun.com/gpu-mem` of gpushare, which also needs its own annotations.
    Gpushare,
    /// `nvidia.com/gpu` with HAMi's amounts. On nodes without virtual GPUs `nvidia.com/gpu` counts whole GPUs.
    Hami {
        /// Number of whole GPUs that the pod gets on a node without virtual GPUs.
        whole: u8,
    },
}

/// A GPU request that no GPU can serve, or that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuRequestError {
    /// More than 100 percent of a GPU.
    #[error("{resource}: {percent} is more than the 100 percent of a GPU")]
    Percent {
        /// The resource.
        resource: &'static str,
        /// Requested amount.
        percent: u64,
    },
    /// More than the largest node can have.
    #[error("{resource}: {amount} is more than any node has")]
    TooMuch {
        /// The resource.
        resource: &'static str,
        /// Requested amount.
        amount: u64,
    },
    /// Two resource names that exclude each other.
    #[error("{one} and {other} exclude each other in one pod: leave one out")]
    Contradiction {
        /// One resource.
        one: &'static str,
        /// Another resource.
        other: &'static str,
    },
    /// An invalid request for virtual GPUs.
    #[error(transparent)]
    Virtual(#[from] RequestError),
}

// === impl GpuRequest ===

impl GpuRequest {
    /// Reads the resources of a pod. All containers of the pod share its GPUs.
    pub(super) fn of(spec: &PodSpec) -> Result<Self, GpuRequestError> {
        let units = |resource| units(spec, resource);
        let (whole, gpushare) = (units(COUNT_RESOURCE), units(GPUSHARE_MEMORY));
        let (memory, compute) = (units(MEMORY), units(COMPUTE));
        let has_share = (memory, compute) != (0, 0);
        let hami = PodRequest::from_containers(&containers(spec));
        let exclusive = [
            (has_share, if memory > 0 { MEMORY } else { COMPUTE }),
            (gpushare > 0, GPUSHARE_MEMORY),
            (whole > 0 || hami != Ok(PodRequest::WholeGpus), COUNT_RESOURCE),
        ];
        check_exclusive(&exclusive)?;
        let of_one_gpu = |compute_milli, memory_mib, scheme| Self::Share {
            count: 1,
            compute_milli,
            memory: ShareMemory::Mib(memory_mib),
            scheme,
        };
        if has_share {
            let (compute_milli, memory_mib) = (milli(COMPUTE, compute)?, mib(MEMORY, memory)?);
            return Ok(of_one_gpu(compute_milli, memory_mib, ShareScheme::Windlass));
        }
        if gpushare > 0 {
            return Ok(of_one_gpu(0, mib(GPUSHARE_MEMORY, gpushare)?, ShareScheme::Gpushare));
        }
        match hami? {
            PodRequest::WholeGpus if whole == 0 => Ok(Self::None),
            PodRequest::WholeGpus => Ok(Self::Whole(count(whole)?)),
            PodRequest::Shares(GpuShares { count: gpu_count, memory, compute_percent }) => {
                let compute_milli = u16::from(compute_percent) * 10;
                let scheme = ShareScheme::Hami { whole: count(whole)? };
                Ok(Self::Share { count: gpu_count, compute_milli, memory, scheme })
            }
        }
    }

    /// The request in the types of `windlass_sched`.
    pub(super) fn gpus(self) -> Gpus {
        match self {
            Self::None => Gpus::None,
            Self::Whole(count) => Gpus::Whole(count),
            Self::Share { count, compute_milli, memory, .. } => {
                Gpus::Share { count, compute_milli, memory }
            }
        }
    }

    /// The request on a node without virtual GPUs, where `nvidia.com/gpu` counts whole GPUs.
    #[must_use]
    pub(crate) fn without_virtual_gpus(self) -> Self {
        match self {
            Self::Share { scheme: ShareScheme::Hami { whole }, .. } => Self::Whole(whole),
            other => other,
        }
    }

    /// Compute in thousandths and memory in MiB of a share, on a GPU with `gpu_mib` of memory. `None` if the request is
    /// not for a share.
    pub fn share_of(self, gpu_mib: u32) -> Option<(u16, u32)> {
        match self {
            Self::Share { compute_milli, memory, .. } => {
                Some((compute_milli, memory.mib_of(gpu_mib).unwrap_or(0)))
            }
            Self::None | Self::Whole(_) => None,
        }
    }

    /// True if the pod requests GPUs.
    pub fn is_some(self) -> bool {
        self != Self::None
    }
}

/// Requests of the containers for virtual GPUs.
fn containers(spec: &PodSpec) -> Vec<ContainerRequest> {
    ContainerRequest::of_pod(
        spec.init_containers.iter().flatten(),
        &spec.containers,
        |container: &Container| container.restart_policy.as_deref(),
        |container, resource| amounts::quantity(container, resource).map(|it| it.0.as_str()),
    )
}

fn units(spec: &PodSpec, resource: &str) -> u64 {
    let nano_units = amounts::of_pod(spec, resource);
    u64::try_from(amounts::round_up(nano_units, amounts::NANOS_PER_UNIT)).unwrap_or(u64::MAX)
}

/// Fails if a pod uses two of these exclusive names.
fn check_exclusive(resources: &[(bool, &'static str)]) -> Result<(), GpuRequestError> {
    let mut names = resources.iter().filter(|(is_named, _)| *is_named).map(|(_, name)| *name);
    match (names.next(), names.next()) {
        (Some(one), Some(other)) => Err(GpuRequestError::Contradiction { one, other }),
        _ => Ok(()),
    }
}

fn count(gpus: u64) -> Result<u8, GpuRequestError> {
    match u8::try_from(gpus) {
        Ok(count @ 1..=64) => Ok(count),
        _ => Err(too_much(COUNT_RESOURCE, gpus)),
    }
}

fn milli(resource: &'static str, percent: u64) -> Result<u16, GpuRequestError> {
    match u16::try_from(percent) {
        Ok(percent @ 0..=100) => Ok(percent * 10),
        _ => Err(GpuRequestError::Percent { resource, percent }),
    }
}

/// Converts GiB to MiB.
fn mib(resource: &'static str, amount: u64) -> Result<u32, GpuRequestError> {
    let mib = amount.checked_mul(MIB_PER_GIB).and_then(|mib| u32::try_from(mib).ok());
    mib.ok_or(too_much(resource, amount))
}

fn too_much(resource: &'static str, amount: u64) -> GpuRequestError {
    GpuRequestError::TooMuch { resource, amount }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "calls read better without a reference")]
    fn parse(limits: Value) -> Result<GpuRequest, String> {
        let spec = json!({"containers": [{"name": "c", "resources": {"limits": limits}}]});
        let spec: PodSpec = serde_json::from_value(spec).expect("a pod's specification");
        GpuRequest::of(&spec).map_err(|error| error.to_string())
    }

    #[test]
    fn every_scheme_of_resource_names_is_read() {
        let share = |compute_milli, memory_mib, scheme| {
            Ok(GpuRequest::Share {
                count: 1,
                compute_milli,
                memory: ShareMemory::Mib(memory_mib),
                scheme,
            })
        };
        assert_eq!(parse(json!({"cpu": "4"})), Ok(GpuRequest::None));
        assert_eq!(parse(json!({"nvidia.com/gpu": "2"})), Ok(GpuRequest::Whole(2)));
        let limits = json!({"windlass.dev/gpu-memory": "8", "windlass.dev/gpu-compute": "30"});
        assert_eq!(parse(limits), share(300, 8192, ShareScheme::Windlass));
        let limits = json!({"windlass.dev/gpu-compute": "100"});
        assert_eq!(parse(limits), share(1000, 0, ShareScheme::Windlass));
        assert_eq!(
            parse(json!({"aliyun.com/gpu-mem": "3"})),
            share(0, 3072, ShareScheme::Gpushare)
        );
    }

    #[test]
    fn hamis_names_request_a_share_of_each_gpu() {
        let check = |limits: Value, memory, compute_milli| {
            let mut limits = limits;
            limits["nvidia.com/gpu"] = "2".into();
            let scheme = ShareScheme::Hami { whole: 2 };
            assert_eq!(
                parse(limits),
                Ok(GpuRequest::Share { count: 2, compute_milli, memory, scheme })
            );
        };
        check(json!({"nvidia.com/gpumem": "3000"}), ShareMemory::Mib(3000), 0);
        check(json!({"nvidia.com/gpumem-percentage": "30"}), ShareMemory::Percent(30), 0);
        check(json!({"nvidia.com/gpucores": "30"}), ShareMemory::Percent(100), 300);
        let spec = json!({
            "initContainers": [{"name": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
            "containers": [
                {"name": "a", "resources": {"limits": {"nvidia.com/gpu": "2", "nvidia.com/gpumem-percentage": "20"}}},
                {"name": "b", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "30"}}},
            ],
        });
        let request = GpuRequest::of(&serde_json::from_value(spec).expect("a pod's specification"));
        let request = request.expect("the init container has all memory of its GPU, for itself");
        assert_eq!(
            request.gpus(),
            Gpus::Share { count: 2, compute_milli: 0, memory: ShareMemory::Percent(100) }
        );
        assert_eq!(request.without_virtual_gpus(), GpuRequest::Whole(3));
        assert_eq!(request.share_of(24_576), Some((0, 24_576)));
    }

    #[test]
    fn an_impossible_request_is_refused_with_its_reason() {
        let check_refusal = |limits, part: &str| {
            let error = parse(limits).expect_err("an impossible request");
            assert!(error.contains(part), "{error}");
        };
        check_refusal(
            json!({"windlass.dev/gpu-compute": "101"}),
            "101 is more than the 100 percent",
        );
        check_refusal(
            json!({"nvidia.com/gpu": "65"}),
            "nvidia.com/gpu: 65 is more than any node has",
        );
        check_refusal(json!({"windlass.dev/gpu-memory": "5000000"}), "more than any node has");
        check_refusal(
            json!({"windlass.dev/gpu-memory": "8", "nvidia.com/gpu": "1"}),
            "windlass.dev/gpu-memory and nvidia.com/gpu exclude each other",
        );
        check_refusal(
            json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "101"}),
            "more than the 100 percent",
        );
        check_refusal(
            json!({"nvidia.com/gpumem-percentage": "50"}),
            "nvidia.com/gpumem-percentage needs nvidia.com/gpu in the same container",
        );
        check_refusal(
            json!({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50", "nvidia.com/gpumem": "1"}),
            "nvidia.com/gpumem and nvidia.com/gpumem-percentage exclude each other",
        );
    }
}
