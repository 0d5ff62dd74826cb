//! Sharing of devices: number of containers, method, and memory of each.

use std::num::NonZeroU32;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use windlass_core::{
    enforcement::Enforcement,
    placement::{self, shares::Span},
};

use crate::scalar::{Mebibytes, Text, is_default};

/// Sharing of a device among containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "SharingKeys", into = "Option<SharingKeys>")]
pub enum Sharing {
    /// A device serves one container.
    #[default]
    Exclusive,
    /// A device serves several containers.
    Shared(Shared),
    /// All devices of the resource together serve several containers.
    Pooled(Pooled),
}

/// Sharing of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// Method that separates the containers.
    pub method: SharingMethod,
    /// Number of containers that one device serves; with `memory_mib`, the upper limit of that number.
    pub replicas: Replicas,
    /// Limit of replicas per container.
    pub per_container: PerContainer,
    /// Memory of a replica, in MiB; `None` for an equal part by MPS, and for no limit otherwise.
    pub memory_mib: Option<u64>,
}

/// Sharing of all devices of a resource together, without separation of the containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pooled {
    /// Number of containers that the pool serves.
    pub tokens: Replicas,
    /// Limit of tokens per container; every token stands for all devices of the pool.
    pub per_container: PerContainer,
}

/// Method that separates the containers on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SharingMethod {
    /// Time slices of the driver alone. Containers share faults, and memory unless `memory` divides it.
    TimeSlicing,
    /// Time slices, with `memory` limited by the driver. Without that limit no container starts.
    Driver,
    /// Time slices, with memory limited by the kernel's controller `dmem`, for GPUs of AMD and Intel.
    Dmem,
    /// No separation: the device serves several users by itself, as an RDMA interface and `/dev/kvm` do.
    Shared,
    /// An MPS daemon, which gives each client process an equal part of memory and threads.
    Mps,
}

/// Limit of replicas per container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PerContainer {
    /// One: further replicas would give a container no more time.
    One,
    /// Any number.
    Any,
}

/// A number of replicas within the kubelet's limits.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(try_from = "u64", into = "u32")]
#[schemars(inline, extend("minimum" = 1, "maximum" = Self::MAX))]
pub struct Replicas(NonZeroU32);

/// A number of replicas outside the kubelet's limits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} replicas: write a number from 1 to {max}", max = Replicas::MAX)]
pub struct InvalidReplicas(u64);

/// Sharing of a device by several containers.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[schemars(rename = "Sharing")]
struct SharingKeys {
    /// Method that separates the containers.
    method: SharingMethod,
    /// Number of containers that one device serves; at most 48 with `mps`. Default with `memory`: as many as fit.
    #[serde(default, skip_serializing_if = "is_default")]
    replicas: Option<Replicas>,
    /// Memory of each replica, at least `256Mi`; with all methods but `shared`. A container's replicas are on one
    /// device, and their memory adds up.
    #[serde(default, skip_serializing_if = "is_default", with = "Text::<Mebibytes>")]
    memory: Option<Mebibytes>,
    /// Limit of replicas per container. Default: `one` with `mps`, and `any` otherwise.
    #[serde(default, skip_serializing_if = "is_default")]
    per_container: Option<PerContainer>,
    /// Makes each replica stand for all devices together, so that a container gets every device; with `shared` only.
    #[serde(default, skip_serializing_if = "is_default")]
    pool: bool,
}

/// Minimum memory of a replica. A CUDA program takes about as much before its first allocation.
const MIN_MEMORY_MIB: u64 = 256;

const MIB: u64 = 1 << 20;

/// Maximum number of clients of one MPS server, since compute capability 7.0. Older GPUs take 16; the configuration
/// does not know the GPUs.
pub(crate) const MAX_MPS_CLIENTS: u32 = 48;

/// Error messages for a method that does not support the GPUs of a vendor.
pub(crate) const MPS_OF_OTHERS: &str = "MPS shares NVIDIA's GPUs only";
pub(crate) const DRIVER_OF_OTHERS: &str = "NVIDIA's driver limits the memory of its GPUs only";
pub(crate) const DMEM_OF_OTHERS: &str =
    "the kernel limits the memory of AMD's and Intel's GPUs only";

// === impl Sharing ===

impl TryFrom<SharingKeys> for Sharing {
    type Error = &'static str;

    fn try_from(keys: SharingKeys) -> Result<Self, Self::Error> {
        let SharingKeys { method, replicas, memory, per_container, pool } = keys;
        let per_container = per_container.unwrap_or(method.default_per_container());
        let memory_mib = memory.map(|memory| memory.0 / MIB);
        if memory_mib.is_some_and(|mib| mib < MIN_MEMORY_MIB) {
            return Err(
                "a CUDA program takes some hundred MiB before it begins: write memory: 256Mi or more",
            );
        }
        if memory_mib.is_some() && method == SharingMethod::Shared {
            return Err("method: shared gives no memory; leave memory out");
        }
        if memory_mib.is_none() && method.required_enforcement() > Enforcement::None {
            return Err("driver and dmem limit memory: write memory: 10Gi, for example");
        }
        let max_replicas = memory_mib.and(Some(method.max_replicas()));
        let replicas =
            replicas.or(max_replicas).ok_or("write replicas: 4 or memory: 10Gi, for example")?;
        match (pool, method) {
            (false, _) => Ok(Self::Shared(Shared { method, replicas, per_container, memory_mib })),
            (true, SharingMethod::Shared) => {
                Ok(Self::Pooled(Pooled { tokens: replicas, per_container }))
            }
            (true, _) => Err("only method: shared pools devices; leave pool out"),
        }
    }
}

impl From<Sharing> for Option<SharingKeys> {
    /// The keys of shared devices; `None` for exclusive devices.
    fn from(sharing: Sharing) -> Self {
        let (shared, pool) = match sharing {
            Sharing::Exclusive => return None,
            Sharing::Shared(shared) => (shared, false),
            Sharing::Pooled(Pooled { tokens, per_container }) => {
                let method = SharingMethod::Shared;
                (Shared { method, replicas: tokens, per_container, memory_mib: None }, true)
            }
        };
        let Shared { method, replicas, per_container, memory_mib } = shared;
        let default = method.default_per_container();
        let is_default_number = memory_mib.is_some() && replicas == method.max_replicas();
        Some(SharingKeys {
            method,
            replicas: (!is_default_number).then_some(replicas),
            memory: memory_mib.map(|mib| Mebibytes(mib * MIB)),
            per_container: Some(per_container).filter(|limit| *limit != default),
            pool,
        })
    }
}

impl Sharing {
    /// True if an MPS daemon serves the containers on a device.
    pub fn is_mps(self) -> bool {
        matches!(self, Self::Shared(shared) if shared.method == SharingMethod::Mps)
    }

    /// The weakest enforcement of memory with which a container may start.
    pub fn required_enforcement(self) -> Enforcement {
        match self {
            Self::Shared(shared) => shared.method.required_enforcement(),
            Self::Exclusive | Self::Pooled(_) => Enforcement::None,
        }
    }

    /// Number of containers that share a device or a pool; `None` without sharing.
    pub fn replicas(self) -> Option<Replicas> {
        match self {
            Self::Exclusive => None,
            Self::Shared(shared) => Some(shared.replicas),
            Self::Pooled(pooled) => Some(pooled.tokens),
        }
    }

    /// Sharing of a device with this much memory in MiB; `None` if its memory is unknown.
    ///
    /// # Errors
    ///
    /// Fails if a replica would have more memory than the device.
    pub fn for_memory(self, device_mib: Option<u64>) -> Result<Self, String> {
        match self {
            Self::Shared(shared) => shared.for_memory(device_mib).map(Self::Shared),
            Self::Exclusive | Self::Pooled(_) => Ok(self),
        }
    }

    /// Default placement: exclusive devices are chosen close together, shared devices by the fewest containers.
    pub fn default_placement(self) -> placement::Policy {
        match self {
            Self::Exclusive => placement::Policy::Aligned,
            Self::Shared(_) => placement::Policy::Distributed,
            // All tokens stand for the same devices.
            Self::Pooled(_) => placement::Policy::First,
        }
    }
}

// === impl Shared ===

impl Shared {
    /// Maximum number of replicas of a device that a container may have.
    pub fn max_per_container(self) -> u32 {
        match self.per_container {
            PerContainer::One => 1,
            PerContainer::Any => self.replicas.get(),
        }
    }

    fn for_memory(self, device_mib: Option<u64>) -> Result<Self, String> {
        let Some(replica_mib) = self.memory_mib else { return Ok(self) };
        let total_mib =
            device_mib.ok_or("its memory is unknown, and the sharing gives parts of it")?;
        let replicas =
            Replicas::try_from((total_mib / replica_mib).min(self.replicas.get().into()));
        let too_large = |_| {
            format!("a replica has {replica_mib} MiB of memory, and the device {total_mib} MiB")
        };
        Ok(Self { replicas: replicas.map_err(too_large)?, ..self })
    }
}

// === impl SharingMethod ===

impl SharingMethod {
    /// Devices from which one container's replicas may come. With MPS they come from one device, since each device has
    /// its own daemon, and a client connects to one daemon. With `memory`, too: the amounts add up on a device.
    pub fn span(self, memory_mib: Option<u64>) -> Span {
        match self {
            Self::Mps => Span::OneDevice,
            _ if memory_mib.is_some() => Span::OneDevice,
            Self::TimeSlicing | Self::Driver | Self::Dmem | Self::Shared => Span::AnyDevices,
        }
    }

    /// The weakest enforcement of memory with which a container may start.
    pub fn required_enforcement(self) -> Enforcement {
        match self {
            Self::TimeSlicing | Self::Shared | Self::Mps => Enforcement::None,
            Self::Driver => Enforcement::Driver,
            Self::Dmem => Enforcement::Dmem,
        }
    }

    /// Maximum number of replicas of a device.
    fn max_replicas(self) -> Replicas {
        let max = match self {
            Self::TimeSlicing | Self::Driver | Self::Dmem | Self::Shared => Replicas::MAX,
            Self::Mps => MAX_MPS_CLIENTS,
        };
        Replicas(NonZeroU32::new(max).expect("not zero"))
    }

    /// Default limit of replicas per container. MPS limits each process to one replica's part, so a second replica has
    /// no effect.
    fn default_per_container(self) -> PerContainer {
        match self {
            Self::TimeSlicing | Self::Driver | Self::Dmem | Self::Shared => PerContainer::Any,
            Self::Mps => PerContainer::One,
        }
    }
}

/// Error message for more replicas than an MPS server has clients.
pub fn mps_clients_error(replicas: Replicas) -> Option<String> {
    let count = replicas.get();
    (count > MAX_MPS_CLIENTS)
        .then(|| format!("{count} replicas: an MPS server has at most {MAX_MPS_CLIENTS} clients"))
}

// === impl Replicas ===

impl Replicas {
    /// Maximum number of replicas of one device. The kubelet takes messages of at most 4 MiB (gRPC's default),
    /// and 16 devices with this many replicas make a list of about 1 MiB.
    pub const MAX: u32 = 1024;

    /// A single replica.
    pub const ONE: Self = Self(NonZeroU32::MIN);

    /// The number.
    pub fn get(self) -> u32 {
        self.0.get()
    }
}

impl From<Replicas> for u32 {
    fn from(replicas: Replicas) -> Self {
        replicas.get()
    }
}

impl TryFrom<u64> for Replicas {
    type Error = InvalidReplicas;

    fn try_from(count: u64) -> Result<Self, Self::Error> {
        let valid_count = u32::try_from(count).ok().filter(|count| *count <= Self::MAX);
        valid_count.and_then(NonZeroU32::new).map(Self).ok_or(InvalidReplicas(count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_of_none_or_of_too_many_are_refused() {
        for good in [1, 2, 1024] {
            assert_eq!(u64::from(Replicas::try_from(good).expect("valid").get()), good);
        }
        for bad in [0, 1025, 100_000, u64::MAX] {
            let error = Replicas::try_from(bad).expect_err("invalid").to_string();
            assert_eq!(error, format!("{bad} replicas: write a number from 1 to 1024"));
        }
    }
}
