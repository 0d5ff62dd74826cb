//! Specification of a device's MPS daemon, and the equal shares of its clients.

use windlass_config::Replicas;
use windlass_core::{
    attribute::{AttributeName, Quantity},
    device::Device,
};

/// Specification of a device's MPS daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MpsSpec {
    /// Number of containers that share the device.
    pub replicas: Replicas,
    /// Memory limit of each client in MiB; `None` for an equal part of the device's memory.
    pub memory_mib: Option<u64>,
    /// Memory of the device in bytes; `None` if the device uses the host's memory.
    pub memory_bytes: Option<u64>,
    /// CUDA compute capability, major and minor, if the driver reports it.
    pub compute_capability: Option<(u32, u32)>,
    /// The device's relation to MIG.
    pub mig_role: MigRole,
}

/// A device's relation to MIG.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigRole {
    /// A whole GPU, not in MIG mode.
    WholeGpu,
    /// A MIG instance.
    Instance,
    /// A GPU in MIG mode.
    MigEnabledGpu,
}

/// Limits of each client. MPS counts processes, not containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClientLimits {
    /// Device memory; `None` sets no limit.
    pub(super) memory_mib: Option<u64>,
    /// Percentage of the device's multiprocessors.
    pub(super) threads_percent: u32,
}

/// Reason why a device cannot be shared by MPS.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MpsRefusal {
    #[error("the GPU is in MIG mode; turn MIG off, or share its instances")]
    MigMode,
    #[error("{replicas} replicas: MPS serves at most {max} clients on this GPU{reason}")]
    TooMany { replicas: u32, max: u32, reason: &'static str },
}

const MEMORY: AttributeName = AttributeName::new("nvidia.com", "memory");

/// Limits on the clients of one MPS server: since Volta (compute capability 7.0), and before it (NVIDIA's MPS guide,
/// "Client-Server Connection Limits").
const MAX_CLIENTS: u32 = 48;
const MAX_CLIENTS_BEFORE_VOLTA: u32 = 16;
const VOLTA: (u32, u32) = (7, 0);

const MIB: u64 = 1024 * 1024;

// === impl MpsSpec ===

impl MpsSpec {
    /// Specification for this device, with an equal part for each replica.
    pub fn new(device: &Device, replicas: Replicas) -> Self {
        let memory = device.capacity.get(&MEMORY);
        Self {
            replicas,
            memory_mib: None,
            memory_bytes: memory.and_then(|amount| match amount {
                Quantity::Bytes(bytes) => Some(*bytes),
                Quantity::Count(_) => None,
            }),
            compute_capability: device.compute_capability(),
            mig_role: match device.partitioned {
                _ if device.kind.is_mig_instance() => MigRole::Instance,
                true => MigRole::MigEnabledGpu,
                false => MigRole::WholeGpu,
            },
        }
    }

    pub(super) fn client_limits(&self) -> Result<ClientLimits, MpsRefusal> {
        match self.mig_role {
            MigRole::WholeGpu | MigRole::Instance => {}
            MigRole::MigEnabledGpu => return Err(MpsRefusal::MigMode),
        }
        let replicas = self.replicas.get();
        let (max, reason) = self.max_clients();
        if replicas > max {
            return Err(MpsRefusal::TooMany { replicas, max, reason });
        }
        let equal_part_mib = self.memory_bytes.map(|bytes| bytes / u64::from(replicas) / MIB);
        let memory_mib = self.memory_mib.or(equal_part_mib);
        Ok(ClientLimits { memory_mib, threads_percent: 100 / replicas })
    }

    /// Limit on the clients of the GPU, and a clause with the reason if the limit is low. A GPU with unknown capability
    /// counts as older than Volta.
    pub fn max_clients(&self) -> (u32, &'static str) {
        match self.compute_capability {
            Some(capability) if capability >= VOLTA => (MAX_CLIENTS, ""),
            Some(_) => (MAX_CLIENTS_BEFORE_VOLTA, ", which is older than Volta"),
            None => (MAX_CLIENTS_BEFORE_VOLTA, ", whose compute capability is unknown"),
        }
    }
}

/// True for a GPU before Volta, or with unknown capability.
pub fn is_older_than_volta(device: &Device) -> bool {
    device.compute_capability() < Some(VOLTA)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(replicas: u64, compute_capability: Option<(u32, u32)>, mig_role: MigRole) -> MpsSpec {
        let replicas = Replicas::try_from(replicas).expect("valid");
        let memory_bytes = Some(81_559 * MIB);
        MpsSpec { replicas, memory_mib: None, memory_bytes, compute_capability, mig_role }
    }

    #[test]
    fn shares_are_equal_and_never_more_than_the_device() {
        for (replicas, memory_mib, threads_percent) in
            [(1, 81_559, 100), (2, 40_779, 50), (3, 27_186, 33), (48, 1_699, 2)]
        {
            let limits =
                spec(replicas, Some((9, 0)), MigRole::WholeGpu).client_limits().expect("shareable");
            assert_eq!(limits, ClientLimits { memory_mib: Some(memory_mib), threads_percent });
        }
    }

    #[test]
    fn a_gpu_serves_as_many_clients_as_its_generation_allows() {
        for (replicas, capability, expected) in [
            (48, Some((7, 0)), None),
            (49, Some((7, 0)), Some("49 replicas: MPS serves at most 48 clients on this GPU")),
            (16, Some((6, 1)), None),
            (17, Some((6, 1)), Some("at most 16 clients on this GPU, which is older than Volta")),
            (17, None, Some("whose compute capability is unknown")),
        ] {
            let refusal = spec(replicas, capability, MigRole::WholeGpu).client_limits().err();
            let refusal = refusal.map(|error| error.to_string());
            let is_expected = match (&refusal, expected) {
                (None, None) => true,
                (Some(refusal), Some(expected)) => refusal.contains(expected),
                _ => false,
            };
            assert!(is_expected, "{replicas} on {capability:?}: {refusal:?}");
        }
    }

    #[test]
    fn a_gpu_in_mig_mode_is_refused_with_a_remedy() {
        let refusal = spec(2, Some((9, 0)), MigRole::MigEnabledGpu)
            .client_limits()
            .expect_err("refused")
            .to_string();
        assert!(refusal.contains("turn MIG off, or share its instances"), "{refusal}");
        spec(2, Some((9, 0)), MigRole::Instance).client_limits().expect("an instance is shared");
    }
}
