//! Enforcement of memory limits on the node's shared GPUs: the strongest means per GPU, and the weakest of these on the
//! node.

use windlass_cdi::memory_limits::LimitRules;
use windlass_config::{ShareMethod, Shared, Sharing, SharingMethod};
use windlass_core::{device::Device, enforcement::Enforcement};

use crate::{
    NodeState,
    offers::{Allocatability, OfferedDevice},
};

// === impl NodeState ===

impl NodeState {
    /// Rules for the memory of containers on shared GPUs.
    pub fn limit_rules(&self) -> LimitRules<'_> {
        LimitRules { policy: &self.policy, support: &self.limit_support }
    }

    /// The strongest means that enforces memory limits on a device. `None` unless it is a MIG instance, or a GPU that
    /// several containers share or may share.
    pub fn enforcement(&self, device: &Device) -> Option<Enforcement> {
        let mut offered_device =
            self.offers.values().filter_map(|offer| offer.devices.get(&device.id));
        let offered_device = offered_device.next();
        let shared = offered_device.and_then(OfferedDevice::shared);
        if let Some((offered_device, shared)) =
            offered_device.zip(shared).filter(|_| device.kind.is_gpu())
        {
            return Some(self.replica_enforcement(device, offered_device, shared));
        }
        if device.kind.is_mig_instance() {
            return Some(Enforcement::Mig);
        }
        let strongest = || self.limit_rules().strongest_for(device);
        if self.shareable.contains_key(&device.id) {
            return Some(strongest());
        }
        let is_claimable = self.claimable.get(&device.id) == Some(&Sharing::Exclusive);
        let share_rule = self.policy.dra.share_settings(device).filter(|_| is_claimable)?;
        Some(match share_rule.method {
            ShareMethod::Mps => Enforcement::Mps,
            ShareMethod::TimeSlicing | ShareMethod::Driver | ShareMethod::Dmem => strongest(),
        })
    }

    fn replica_enforcement(
        &self,
        gpu: &Device,
        offered: &OfferedDevice,
        shared: Shared,
    ) -> Enforcement {
        let is_serving = !matches!(offered.state, Allocatability::Blocked(_));
        match shared {
            // On a MIG instance the daemon enforces nothing: a program can run without it, because the compute mode
            // that would prevent this belongs to the whole GPU.
            Shared { method: SharingMethod::Mps, memory_mib: Some(_), .. }
                if gpu.kind.is_mig_instance() =>
            {
                self.limit_support.enforcement_without_hook(&self.policy, None)
            }
            Shared { method: SharingMethod::Mps, .. } if gpu.kind.is_mig_instance() => {
                Enforcement::None
            }
            // Only a running daemon enforces limits.
            Shared { method: SharingMethod::Mps, .. } if is_serving => Enforcement::Mps,
            Shared { method: SharingMethod::Mps, .. } | Shared { memory_mib: None, .. } => {
                Enforcement::None
            }
            // The strongest means may be the hook, which needs CDI.
            Shared { .. } if !self.policy.delivery.uses_cdi() => {
                self.limit_support.enforcement_without_hook(&self.policy, gpu.drm_pci_address())
            }
            Shared { .. } => self.limit_rules().strongest_for(gpu),
        }
    }

    /// The weakest enforcement among the node's GPUs that have one. MIG instances do not count.
    pub fn weakest_enforcement(&self) -> Option<Enforcement> {
        let gpus = self.inventory.devices.iter().filter(|device| !device.health.has_vanished());
        gpus.filter(|gpu| !gpu.kind.is_mig_instance()).filter_map(|gpu| self.enforcement(gpu)).min()
    }
}
