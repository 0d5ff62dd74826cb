//! The GPUs that a pod asks for, under every name that its authors may use.
//!
//! | resources | meaning |
//! | --- | --- |
//! | `nvidia.com/gpu: 2` | two whole GPUs |
//! | `windlass.dev/gpu-memory: 8`, `windlass.dev/gpu-compute: 30` | 8 GiB and 30 % of one GPU |
//! | `aliyun.com/gpu-mem: 8` | 8 GiB of one GPU, as for gpushare |
//! | `nvidia.com/gpu: 1`, `nvidia.com/gpumem: 3000`, `nvidia.com/gpucores: 30` | 3000 MiB and 30 % of one GPU, as for HAMi |

use k8s_openapi::api::core::v1::PodSpec;

use super::amounts;

/// Whole GPUs. With [`HAMI_MEMORY`] or [`HAMI_CORES`] beside it, the number of GPUs of which a part is asked for.
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
        /// Compute in thousandths of a GPU.
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
    /// HAMi's names.
    Hami,
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
    /// A form that is not served.
    #[error("{resource} is not served: {remedy}")]
    NotServed {
        /// The resource.
        resource: &'static str,
        /// A form that is.
        remedy: &'static str,
    },
}

// === impl GpuWish ===

impl GpuWish {
    /// Reads the resources of a pod. Its containers share the GPUs.
    pub(super) fn of(spec: &PodSpec) -> Result<Self, GpuWishError> {
        let units = |resource| units(spec, resource);
        let whole = units(WHOLE);
        let ours = (units(MEMORY), units(COMPUTE));
        let gpushare = units(GPUSHARE_MEMORY);
        let hami = (units(HAMI_MEMORY), units(HAMI_CORES));
        if units(HAMI_MEMORY_PERCENTAGE) > 0 {
            let remedy = "ask for nvidia.com/gpumem in MiB";
            return Err(GpuWishError::NotServed { resource: HAMI_MEMORY_PERCENTAGE, remedy });
        }
        let is_hami = hami != (0, 0);
        let all = [
            (ours != (0, 0), if ours.0 > 0 { MEMORY } else { COMPUTE }),
            (gpushare > 0, GPUSHARE_MEMORY),
            (whole > 0 || is_hami, WHOLE),
        ];
        let mut names = all.into_iter().filter(|(is_named, _)| *is_named).map(|(_, name)| name);
        if let (Some(one), Some(other)) = (names.next(), names.next()) {
            return Err(GpuWishError::Contradiction { one, other });
        }
        if ours != (0, 0) {
            let milli = milli(COMPUTE, ours.1)?;
            return Ok(Self::Share { milli, mib: gib(MEMORY, ours.0)?, by: SharedBy::Windlass });
        }
        if gpushare > 0 {
            let mib = gib(GPUSHARE_MEMORY, gpushare)?;
            return Ok(Self::Share { milli: 0, mib, by: SharedBy::Gpushare });
        }
        if is_hami {
            if whole > 1 {
                let remedy = "ask for one GPU with nvidia.com/gpumem, or for whole GPUs";
                return Err(GpuWishError::NotServed { resource: WHOLE, remedy });
            }
            let mib = u32::try_from(hami.0);
            let mib = mib.map_err(|_| too_much(HAMI_MEMORY, hami.0))?;
            return Ok(Self::Share { milli: milli(HAMI_CORES, hami.1)?, mib, by: SharedBy::Hami });
        }
        match whole {
            0 => Ok(Self::None),
            1..=64 => Ok(Self::Whole(u8::try_from(whole).expect("at most 64"))),
            amount => Err(too_much(WHOLE, amount)),
        }
    }

    /// The pod asks for GPUs.
    pub fn is_some(self) -> bool {
        self != Self::None
    }
}

fn units(spec: &PodSpec, resource: &str) -> u64 {
    const PER_UNIT: i128 = 1_000_000_000;
    let billionths = amounts::of_pod(spec, resource);
    u64::try_from((billionths + PER_UNIT - 1) / PER_UNIT).unwrap_or(u64::MAX)
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
        let hami = json!({
            "nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30",
        });
        assert_eq!(wish(hami), share(300, 3000, SharedBy::Hami));
        let hami = json!({"nvidia.com/gpumem": "3000"});
        assert_eq!(wish(hami), share(0, 3000, SharedBy::Hami));
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
        refused(json!({"nvidia.com/gpumem-percentage": "50"}), "ask for nvidia.com/gpumem in MiB");
    }
}
