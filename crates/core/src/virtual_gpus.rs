//! Virtual GPUs: a pod's request for shares of several GPUs, by HAMi's resource names.
//!
//! | resource | meaning |
//! | --- | --- |
//! | `nvidia.com/gpu` | number of virtual GPUs, each on another GPU |
//! | `nvidia.com/gpumem` | memory of each in MiB |
//! | `nvidia.com/gpumem-percentage` | memory of each in percent of its GPU |
//! | `nvidia.com/gpucores` | compute of each in percent; zero by default |
//!
//! Without an amount of memory, a virtual GPU has all memory of its GPU. A pod without any amount has whole GPUs.
//!
//! HAMi gives each container its own GPUs. Windlass gives a pod one set of GPUs, as many as its largest container
//! requests. On each GPU, the amounts of containers that run at the same time add up.

use std::fmt;

use crate::selector::Amount;

/// Resource that counts virtual GPUs, or whole ones.
pub const COUNT_RESOURCE: &str = "nvidia.com/gpu";
/// Resource of memory in MiB.
pub const MEMORY_RESOURCE: &str = "nvidia.com/gpumem";
/// Resource of memory in percent.
pub const MEMORY_PERCENTAGE_RESOURCE: &str = "nvidia.com/gpumem-percentage";
/// Resource of compute in percent.
pub const CORES_RESOURCE: &str = "nvidia.com/gpucores";

/// A container's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerRequest {
    /// Stage of the pod's life at which the container runs.
    pub stage: Stage,
    /// Number of virtual GPUs.
    pub count: u64,
    /// Memory of each in MiB; 0 if not requested.
    pub memory_mib: u64,
    /// Memory of each in percent; 0 if not requested.
    pub memory_percent: u64,
    /// Compute of each in percent; 0 if not requested.
    pub cores: u64,
}

/// Stage of a pod's life at which a container runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Runs alone, before later containers.
    Init,
    /// Runs concurrently with all later containers (KEP-753).
    Sidecar,
    /// Runs concurrently with the other main containers of the pod.
    Main,
}

/// A pod's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodRequest {
    /// Whole GPUs, or none.
    WholeGpus,
    /// A share of each of some GPUs.
    Shares(GpuShares),
}

/// Equal shares of several GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuShares {
    /// Number of GPUs, from 1 to 64.
    pub count: u8,
    /// Memory of each.
    pub memory: ShareMemory,
    /// Compute of each in percent, up to 100; 0 if not requested.
    pub compute_percent: u8,
}

/// Memory of a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ShareMemory {
    /// An amount in MiB.
    Mib(u32),
    /// A part of the memory of the GPU that serves the share, in percent.
    Percent(u8),
}

/// Error in a pod's request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// An amount is requested without a number of virtual GPUs.
    #[error(
        "{0} needs {COUNT_RESOURCE} in the same container: the kubelet gives no GPU without it"
    )]
    AmountWithoutCount(&'static str),
    /// Memory is requested in two units.
    #[error(
        "{MEMORY_RESOURCE} and {MEMORY_PERCENTAGE_RESOURCE} exclude each other in one pod, and a container with neither has 100 percent"
    )]
    TwoMemoryUnits,
    /// More than 100 percent of a GPU.
    #[error("{resource}: {percent} is more than the 100 percent of a GPU, all containers together")]
    PercentTooLarge {
        /// The resource.
        resource: &'static str,
        /// The sum.
        percent: u64,
    },
    /// More than any node has.
    #[error("{resource}: {amount} is more than any node has")]
    AmountTooLarge {
        /// The resource.
        resource: &'static str,
        /// The amount.
        amount: u64,
    },
}

/// Maximum number of GPUs of a node.
const MAX_GPUS: u8 = 64;

/// Percentage of a whole GPU.
const FULL_PERCENT: u64 = 100;

// === impl ShareMemory ===

impl ShareMemory {
    /// Amount in MiB on a GPU with `gpu_mib` of memory; zero means unknown. `None` for a percentage above zero of
    /// unknown memory.
    pub fn mib_of(self, gpu_mib: u32) -> Option<u32> {
        match self {
            Self::Mib(mib) => Some(mib),
            Self::Percent(percent) => {
                let mib = u64::from(gpu_mib) * u64::from(percent) / 100;
                (gpu_mib > 0 || percent == 0).then(|| u32::try_from(mib).unwrap_or(u32::MAX))
            }
        }
    }
}

impl fmt::Display for ShareMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mib(mib) => write!(f, "{mib} MiB"),
            Self::Percent(percent) => write!(f, "{percent} % of the memory"),
        }
    }
}

// === impl ContainerRequest ===

impl ContainerRequest {
    /// Reads the quantities of a container.
    pub fn from_quantities<'a>(stage: Stage, quantity: impl Fn(&str) -> Option<&'a str>) -> Self {
        let amount = |resource| {
            let amount = quantity(resource).and_then(Amount::parse);
            amount.map_or(0, |amount| u64::try_from(amount.ceil()).unwrap_or(0))
        };
        Self {
            stage,
            count: amount(COUNT_RESOURCE),
            memory_mib: amount(MEMORY_RESOURCE),
            memory_percent: amount(MEMORY_PERCENTAGE_RESOURCE),
            cores: amount(CORES_RESOURCE),
        }
    }

    /// Reads a pod's containers, in the order in which they start. An init container with the restart policy `Always`
    /// is a sidecar.
    pub fn of_pod<'a, C: 'a>(
        init: impl IntoIterator<Item = &'a C>,
        main: impl IntoIterator<Item = &'a C>,
        restart_policy: impl Fn(&'a C) -> Option<&'a str>,
        quantity: impl Fn(&'a C, &str) -> Option<&'a str>,
    ) -> Vec<Self> {
        let init_stage = |container| match restart_policy(container) {
            Some("Always") => Stage::Sidecar,
            _ => Stage::Init,
        };
        let init = init.into_iter().map(|container| (init_stage(container), container));
        let main = main.into_iter().map(|container| (Stage::Main, container));
        let request = |(stage, container)| {
            Self::from_quantities(stage, |resource| quantity(container, resource))
        };
        init.chain(main).map(request).collect()
    }

    /// The first resource with a requested amount.
    fn amount(&self) -> Option<&'static str> {
        let amounts = [
            (MEMORY_RESOURCE, self.memory_mib),
            (MEMORY_PERCENTAGE_RESOURCE, self.memory_percent),
            (CORES_RESOURCE, self.cores),
        ];
        amounts.into_iter().find(|(_, amount)| *amount > 0).map(|(resource, _)| resource)
    }

    /// Memory in percent. HAMi's default is all memory.
    fn percent(&self) -> u64 {
        let has_all = self.count > 0 && self.memory_mib == 0 && self.memory_percent == 0;
        if has_all { FULL_PERCENT } else { self.memory_percent }
    }
}

// === impl PodRequest ===

impl PodRequest {
    /// Request of a pod with these containers, in the order of its specification, init containers first.
    ///
    /// # Errors
    ///
    /// The request contradicts itself, or no GPU could serve it.
    pub fn from_containers(containers: &[ContainerRequest]) -> Result<Self, RequestError> {
        if containers.iter().all(|container| container.amount().is_none()) {
            return Ok(Self::WholeGpus);
        }
        let mut without_count = containers.iter().filter(|container| container.count == 0);
        if let Some(resource) = without_count.find_map(ContainerRequest::amount) {
            return Err(RequestError::AmountWithoutCount(resource));
        }
        let count = containers.iter().map(|container| container.count).max().unwrap_or(0);
        let percent = largest_concurrent_sum(containers, ContainerRequest::percent);
        let mib = largest_concurrent_sum(containers, |container| container.memory_mib);
        let memory = match (mib, percent) {
            (0, percent) => {
                ShareMemory::Percent(check_percent(MEMORY_PERCENTAGE_RESOURCE, percent)?)
            }
            (mib, 0) => {
                let too_large =
                    |_| RequestError::AmountTooLarge { resource: MEMORY_RESOURCE, amount: mib };
                ShareMemory::Mib(u32::try_from(mib).map_err(too_large)?)
            }
            _ => return Err(RequestError::TwoMemoryUnits),
        };
        let too_many = RequestError::AmountTooLarge { resource: COUNT_RESOURCE, amount: count };
        let gpu_count = u8::try_from(count).ok().filter(|count| *count <= MAX_GPUS);
        let compute_percent = check_percent(
            CORES_RESOURCE,
            largest_concurrent_sum(containers, |container| container.cores),
        )?;
        Ok(Self::Shares(GpuShares { count: gpu_count.ok_or(too_many)?, memory, compute_percent }))
    }
}

/// Largest sum over containers that run at the same time.
fn largest_concurrent_sum(
    containers: &[ContainerRequest],
    amount: impl Fn(&ContainerRequest) -> u64,
) -> u64 {
    let (mut running, mut largest) = (0_u64, 0_u64);
    for container in containers {
        let sum = running.saturating_add(amount(container));
        largest = largest.max(sum);
        if container.stage != Stage::Init {
            running = sum;
        }
    }
    largest
}

fn check_percent(resource: &'static str, percent: u64) -> Result<u8, RequestError> {
    let valid_percent = u8::try_from(percent).ok().filter(|_| percent <= FULL_PERCENT);
    valid_percent.ok_or(RequestError::PercentTooLarge { resource, percent })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A container with a number, MiB, percent of memory and percent of compute.
    fn container(stage: Stage, amounts: [&'static str; 4]) -> ContainerRequest {
        let names = [COUNT_RESOURCE, MEMORY_RESOURCE, MEMORY_PERCENTAGE_RESOURCE, CORES_RESOURCE];
        ContainerRequest::from_quantities(stage, |resource| {
            let nth = names.iter().position(|name| *name == resource)?;
            Some(amounts[nth]).filter(|amount| !amount.is_empty())
        })
    }

    fn main(amounts: [&'static str; 4]) -> ContainerRequest {
        container(Stage::Main, amounts)
    }

    #[track_caller]
    fn check(containers: &[ContainerRequest], expected: Result<(u8, ShareMemory, u8), &str>) {
        let request = PodRequest::from_containers(containers).map_err(|error| error.to_string());
        let expected = expected.map_err(str::to_owned);
        let shares = expected.map(|(count, memory, compute_percent)| {
            PodRequest::Shares(GpuShares { count, memory, compute_percent })
        });
        assert_eq!(request, shares);
    }

    #[test]
    fn each_virtual_gpu_has_the_amounts_and_all_memory_without_one() {
        use ShareMemory::{Mib, Percent};
        check(&[main(["2", "3k", "", "30"])], Ok((2, Mib(3000), 30)));
        check(&[main(["1", "", "50", ""])], Ok((1, Percent(50), 0)));
        check(&[main(["4", "", "", "25"])], Ok((4, Percent(100), 25)));
        let whole = [main(["2", "", "", ""]), main(["1", "", "", ""])];
        assert_eq!(PodRequest::from_containers(&whole), Ok(PodRequest::WholeGpus));
        assert_eq!(PodRequest::from_containers(&[]), Ok(PodRequest::WholeGpus));
    }

    #[test]
    fn containers_that_run_together_share_the_gpus_of_the_largest() {
        use ShareMemory::{Mib, Percent};
        let pair = [main(["2", "1000", "", "10"]), main(["1", "500", "", "20"])];
        check(&pair, Ok((2, Mib(1500), 30)));
        check(&[main(["1", "1000", "", ""]), main(["", "", "", ""])], Ok((1, Mib(1000), 0)));
        let init = container(Stage::Init, ["3", "", "80", ""]);
        let sidecar = container(Stage::Sidecar, ["1", "", "10", ""]);
        check(&[init, sidecar, main(["1", "", "40", ""])], Ok((3, Percent(80), 0)));
    }

    #[test]
    fn a_request_that_nothing_can_serve_says_why() {
        let no_count = "nvidia.com/gpumem needs nvidia.com/gpu in the same container: the kubelet gives no GPU without it";
        check(&[main(["1", "1", "", ""]), main(["", "1", "", ""])], Err(no_count));
        let two_units = "nvidia.com/gpumem and nvidia.com/gpumem-percentage exclude each other in one pod, and a container with neither has 100 percent";
        check(&[main(["1", "1", "1", ""])], Err(two_units));
        check(&[main(["1", "1", "", ""]), main(["1", "", "", ""])], Err(two_units));
        let over_percent = "nvidia.com/gpumem-percentage: 120 is more than the 100 percent of a GPU, all containers together";
        check(&[main(["1", "", "60", ""]), main(["1", "", "60", ""])], Err(over_percent));
        let too_many = "nvidia.com/gpu: 65 is more than any node has";
        check(&[main(["65", "1", "", ""])], Err(too_many));
    }
}
