//! The GPUs that a pod asks for, under every name that its authors may use.
//!
//! | resources | meaning |
//! | --- | --- |
//! | `nvidia.com/gpu: 2` | two whole GPUs |
//! | `windlass.dev/gpu-memory: 8`, `windlass.dev/gpu-compute: 30` | 8 GiB and 30 % of one GPU |
//! | `aliyun.com/gpu-mem: 8` | 8 GiB of one GPU, as for gpushare |
//! | `nvidia.com/gpu: 2` with `nvidia.com/gpumem`, `gpumem-percentage` or `gpucores`, as for HAMi | two whole GPUs |
//!
//! HAMi's device plugin gives parts under the name of whole GPUs. The agent gives whole GPUs under that name, so its
//! pods count as such.

use k8s_openapi::api::core::v1::PodSpec;
use windlass_sched::request::Gpus;

use super::amounts;

/// Whole GPUs.
const WHOLE: &str = "nvidia.com/gpu";
/// Memory of one GPU in GiB.
const MEMORY: &str = "windlass.dev/gpu-memory";
/// Compute of one GPU in percent.
const COMPUTE: &str = "windlass.dev/gpu-compute";
/// Memory of one GPU in GiB, as gpushare's users write it.
const GPUSHARE_MEMORY: &str = "aliyun.com/gpu-mem";
/// Memory of each GPU in MiB, as HAMi's users write it.
const HAMI_MEMORY: &str = "nvidia.com/gpumem";
/// Compute of each GPU in percent, as HAMi's users write it.
const HAMI_CORES: &str = "nvidia.com/gpucores";
/// Memory of each GPU in percent of it, as HAMi's users write it.
const HAMI_MEMORY_PERCENTAGE: &str = "nvidia.com/gpumem-percentage";

/// MiB of a GiB.
const MIB_PER_GIB: u64 = 1024;

/// GPUs that a pod asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuWish {
    /// None.
    None,
    /// Whole ones.
    Whole(u8),
    /// A part of one GPU.
    Share {
        /// Compute in thousandths.
        milli: u16,
        /// Memory in MiB.
        mib: u32,
        /// The names by which it was asked for.
        by: SharedBy,
    },
}

/// The names by which a share is asked for: each has its own annotations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SharedBy {
    /// Windlass' names.
    Windlass,
    /// gpushare's names.
    Gpushare,
}

/// A request for GPUs that no GPU can serve, or that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuWishError {
    /// More percent than a GPU has.
    #[error("{resource}: {percent} is more than the 100 percent of a GPU")]
    Percent {
        /// The resource.
        resource: &'static str,
        /// The amount asked for.
        percent: u64,
    },
    /// More than a number can say.
    #[error("{resource}: {amount} is more than any node has")]
    TooMuch {
        /// The resource.
        resource: &'static str,
        /// The amount asked for.
        amount: u64,
    },
    /// Two names that exclude each other.
    #[error("{one} and {other} exclude each other in one pod: leave one out")]
    Contradiction {
        /// One resource.
        one: &'static str,
        /// Another resource.
        other: &'static str,
    },
}

// === impl GpuWish ===

impl GpuWish {
    /// Reads the resources of a pod. Its containers share the GPUs.
    pub(super) fn of(spec: &PodSpec) -> Result<Self, GpuWishError> {
        let units = |resource| units(spec, resource);
        let (whole, gpushare) = (units(WHOLE), units(GPUSHARE_MEMORY));
        let ours = (units(MEMORY), units(COMPUTE));
        let hami = (units(HAMI_MEMORY), units(HAMI_MEMORY_PERCENTAGE), units(HAMI_CORES));
        let is_hami = hami != (0, 0, 0);
        let exclusive = [
            (ours != (0, 0), if ours.0 > 0 { MEMORY } else { COMPUTE }),
            (gpushare > 0, GPUSHARE_MEMORY),
            (whole > 0 || is_hami, WHOLE),
        ];
        contradiction(&exclusive)?;
        contradiction(&[(hami.0 > 0, HAMI_MEMORY), (hami.1 > 0, HAMI_MEMORY_PERCENTAGE)])?;
        if ours != (0, 0) {
            let (milli, mib) = (milli(COMPUTE, ours.1)?, gib(MEMORY, ours.0)?);
            return Ok(Self::Share { milli, mib, by: SharedBy::Windlass });
        }
        if gpushare > 0 {
            let mib = gib(GPUSHARE_MEMORY, gpushare)?;
            return Ok(Self::Share { milli: 0, mib, by: SharedBy::Gpushare });
        }
        if is_hami {
            let error = |_| too_much(HAMI_MEMORY, hami.0);
            u32::try_from(hami.0).map_err(error)?;
            milli(HAMI_MEMORY_PERCENTAGE, hami.1)?;
            milli(HAMI_CORES, hami.2)?;
        }
        Ok(if whole == 0 && !is_hami { Self::None } else { Self::Whole(count(whole.max(1))?) })
    }

    /// The wish as the scheduling core understands it.
    pub(super) fn gpus(self) -> Gpus {
        match self {
            Self::None => Gpus::None,
            Self::Whole(count) => Gpus::Whole(count),
            Self::Share { milli, mib, .. } => Gpus::share(milli, mib),
        }
    }

    /// Compute in thousandths and memory in MiB of a share.
    pub fn share(self) -> Option<(u16, u32)> {
        match self {
            Self::Share { milli, mib, .. } => Some((milli, mib)),
            Self::None | Self::Whole(_) => None,
        }
    }

    /// The pod asks for GPUs.
    pub fn is_some(self) -> bool {
        self != Self::None
    }
}

fn units(spec: &PodSpec, resource: &str) -> u64 {
    let billionths = amounts::of_pod(spec, resource);
    u64::try_from(amounts::rounded_up(billionths, amounts::PER_UNIT)).unwrap_or(u64::MAX)
}

/// Two of these names exclude each other.
fn contradiction(all: &[(bool, &'static str)]) -> Result<(), GpuWishError> {
    let mut names = all.iter().filter(|(is_named, _)| *is_named).map(|(_, name)| *name);
    match (names.next(), names.next()) {
        (Some(one), Some(other)) => Err(GpuWishError::Contradiction { one, other }),
        _ => Ok(()),
    }
}

fn count(gpus: u64) -> Result<u8, GpuWishError> {
    match u8::try_from(gpus) {
        Ok(count @ 1..=64) => Ok(count),
        _ => Err(too_much(WHOLE, gpus)),
    }
}

fn milli(resource: &'static str, percent: u64) -> Result<u16, GpuWishError> {
    match u16::try_from(percent) {
        Ok(percent @ 0..=100) => Ok(percent * 10),
        _ => Err(GpuWishError::Percent { resource, percent }),
    }
}

fn gib(resource: &'static str, amount: u64) -> Result<u32, GpuWishError> {
    let mib = amount.checked_mul(MIB_PER_GIB).and_then(|mib| u32::try_from(mib).ok());
    mib.ok_or(too_much(resource, amount))
}

fn too_much(resource: &'static str, amount: u64) -> GpuWishError {
    GpuWishError::TooMuch { resource, amount }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "calls read better without a reference")]
    fn wish(limits: Value) -> Result<GpuWish, String> {
        let spec = json!({"containers": [{"name": "c", "resources": {"limits": limits}}]});
        let spec: PodSpec = serde_json::from_value(spec).expect("a pod's specification");
        GpuWish::of(&spec).map_err(|error| error.to_string())
    }

    #[test]
    fn each_way_of_asking_is_understood() {
        let share = |milli, mib, by| Ok(GpuWish::Share { milli, mib, by });
        assert_eq!(wish(json!({"cpu": "4"})), Ok(GpuWish::None));
        assert_eq!(wish(json!({"nvidia.com/gpu": "2"})), Ok(GpuWish::Whole(2)));
        let ours = json!({"windlass.dev/gpu-memory": "8", "windlass.dev/gpu-compute": "30"});
        assert_eq!(wish(ours), share(300, 8192, SharedBy::Windlass));
        let ours = json!({"windlass.dev/gpu-compute": "100"});
        assert_eq!(wish(ours), share(1000, 0, SharedBy::Windlass));
        assert_eq!(wish(json!({"aliyun.com/gpu-mem": "3"})), share(0, 3072, SharedBy::Gpushare));
        for part in ["gpumem", "gpucores", "gpumem-percentage"] {
            let hami = json!({"nvidia.com/gpu": "2", format!("nvidia.com/{part}"): "30"});
            assert_eq!(wish(hami), Ok(GpuWish::Whole(2)));
            let alone = json!({format!("nvidia.com/{part}"): "30"});
            assert_eq!(wish(alone), Ok(GpuWish::Whole(1)));
        }
    }

    #[test]
    fn a_request_that_nothing_can_serve_says_why() {
        let refused = |limits, part: &str| {
            let error = wish(limits).expect_err("refused");
            assert!(error.contains(part), "{error}");
        };
        refused(json!({"windlass.dev/gpu-compute": "101"}), "101 is more than the 100 percent");
        refused(json!({"nvidia.com/gpu": "65"}), "nvidia.com/gpu: 65 is more than any node has");
        refused(json!({"windlass.dev/gpu-memory": "5000000"}), "more than any node has");
        refused(
            json!({"windlass.dev/gpu-memory": "8", "nvidia.com/gpu": "1"}),
            "windlass.dev/gpu-memory and nvidia.com/gpu exclude each other",
        );
        refused(json!({"nvidia.com/gpumem-percentage": "101"}), "more than the 100 percent");
        refused(
            json!({"nvidia.com/gpumem-percentage": "50", "nvidia.com/gpumem": "1"}),
            "nvidia.com/gpumem and nvidia.com/gpumem-percentage exclude each other",
        );
    }
}
