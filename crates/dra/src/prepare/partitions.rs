//! MIG changes for a claim: an instance is made, or MIG mode is turned off for a full GPU. The record is written before
//! a change. Instances are removed before their record is.
//!
//! ```text
//!   recorded ──placement──> MIG turned on, if the agent may ──> instance made ──> in the inventory
//!            └─full GPU───> MIG turned off ──> in the inventory
//! ```
//!
//! Each step detects that it is done already, so the record alone tells how to continue. If an agent is killed after it
//! made an instance, the next one finds it by its placement: when the kubelet asks again, or to remove it with an
//! orphaned claim. The removal leaves the MIG mode as it is; the next claim changes it if necessary.

use std::fmt;

use tokio::time::Duration;
use windlass_allocations::ledger::ClaimUse;
use windlass_core::{
    device::{DeviceId, Partition},
    partition::instance_at,
};
use windlass_discovery::mig::{MigFailure, PartitionError, retry_until_initialised};
use windlass_host::{causes, deadline};
use windlass_resources::NodeState;

use super::{Environment, Input, Preparer};
use crate::{
    claim::Claim,
    record::{PreparedClaim, PreparedDevice},
};

/// A change of a GPU that a claim needs.
#[derive(Clone, Debug)]
enum MigChange {
    /// MIG mode is turned off.
    FullGpu(DeviceId),
    /// An instance is made at this placement.
    Instance(Partition),
}

/// Deadline for the inventory to show a new instance, or to lack a removed one.
const INVENTORY_TIMEOUT: Duration = Duration::from_secs(15);

// === impl Preparer ===

impl Preparer {
    /// True if GPUs have to change for the claim.
    pub(super) fn needs_mig_changes(&self, uid: &str) -> bool {
        !self.mig_changes(uid).is_empty()
    }

    fn mig_changes(&self, uid: &str) -> Vec<MigChange> {
        let state = self.environment.state.borrow();
        let devices = self.record(uid).into_iter().flat_map(|record| &record.devices);
        devices.filter_map(|device| MigChange::of(device, &state)).collect()
    }

    /// True if instances of the claim are still to be made.
    fn lacks_instances(&self, uid: &str) -> bool {
        self.mig_changes(uid).iter().any(|change| matches!(change, MigChange::Instance(_)))
    }

    /// Applies the changes after the record is written.
    pub(super) fn change_mig(&mut self, uid: &str, claim: Box<Claim>) {
        let (mig_changes, record_write, environment) =
            (self.mig_changes(uid), self.save(), self.environment.clone());
        self.spawn(uid, async move {
            if let Err(error) = record_write.await {
                return Input::RecordFailed(error);
            }
            let changed = environment.apply_mig_changes(&mig_changes).await;
            changed.map_or_else(|error| Input::Failed(error.into()), |()| Input::MigChanged(claim))
        });
    }

    /// Plans again, now with the ids of the claim's instances.
    pub(super) fn replan(&mut self, claim: &Claim) -> Input {
        match self.plan_and_hold(claim) {
            Ok(()) if self.lacks_instances(&claim.reference.uid) => {
                Input::Failed("a MIG instance vanished right after it was made".to_owned().into())
            }
            Ok(()) => Input::Planned,
            Err(cause) => Input::Failed(cause.report(&claim.reference).into()),
        }
    }
}

// === impl Environment ===

impl Environment {
    /// Applies the changes, and waits until the resulting devices are healthy and have their CDI documents.
    async fn apply_mig_changes(&self, mig_changes: &[MigChange]) -> Result<(), String> {
        let changed = deadline::cancel_after(INVENTORY_TIMEOUT, async |deadline_passed| {
            for change in mig_changes {
                retry_until_initialised(&deadline_passed, || self.apply_mig_change(change)).await?;
            }
            Ok(())
        });
        changed.await.map_err(|error: PartitionError| causes(&error))?;
        let lacking = |state: &NodeState| {
            mig_changes.iter().find(|change| !change.is_complete(state)).cloned()
        };
        let mut state = self.state.clone();
        let completed =
            deadline::timeout(INVENTORY_TIMEOUT, state.wait_for(|state| lacking(state).is_none()))
                .await
                .is_ok();
        match lacking(&self.state.borrow()) {
            Some(change) if !completed => {
                Err(format!("{change} was made, but is not healthy after {INVENTORY_TIMEOUT:?}"))
            }
            _ => Ok(()),
        }
    }

    /// Applies one change. It asks NVIDIA's driver even if the inventory shows the change: the inventory may be
    /// outdated.
    async fn apply_mig_change(&self, change: &MigChange) -> Result<(), PartitionError> {
        let placement = match change {
            MigChange::FullGpu(gpu) => return self.partitions.disable_mig(gpu).await,
            MigChange::Instance(placement) => placement,
        };
        let may_switch = switches_mig_mode(&self.state.borrow(), &placement.gpu);
        if may_switch {
            self.partitions.enable_mig(&placement.gpu).await?;
        }
        let device = self.partitions.create(placement).await?;
        tracing::info!(place = %placement, %device, "MIG instance made for a claim");
        Ok(())
    }

    /// Removes the instances of a claim, and waits until the inventory lacks them, up to a deadline.
    pub(super) async fn remove_instances(&self, placements: &[Partition]) -> Result<(), String> {
        let removed = deadline::cancel_after(INVENTORY_TIMEOUT, async |deadline_passed| {
            for placement in placements {
                match retry_until_initialised(&deadline_passed, || {
                    self.partitions.remove(placement)
                })
                .await
                {
                    // The instance vanished with its GPU.
                    Err(error) if matches!(error.failure, MigFailure::NoGpu) => {}
                    // A reset removes the instance of a lost GPU. The release does not wait for it.
                    Err(PartitionError { failure: MigFailure::Driver(error), .. })
                        if error.is_lost() =>
                    {
                        tracing::warn!(place = %placement, %error, "GPU of a claim's MIG instance lost, claim released");
                    }
                    removed => removed?,
                }
            }
            Ok(())
        });
        removed.await.map_err(|error: PartitionError| causes(&error))?;
        let is_present = |state: &NodeState| {
            placements.iter().any(|placement| instance_at(&state.inventory, placement).is_some())
        };
        let mut state = self.state.clone();
        // After the deadline, the inventory will follow the driver soon.
        let _ =
            deadline::timeout(INVENTORY_TIMEOUT, state.wait_for(|state| !is_present(state))).await;
        Ok(())
    }
}

/// Placements of a claim's instances.
pub(super) fn placements(record: &PreparedClaim) -> Vec<Partition> {
    record.devices.iter().filter_map(|device| device.partition.clone()).collect()
}

/// True if the driver switches the MIG mode of this GPU for claims.
fn switches_mig_mode(state: &NodeState, gpu: &DeviceId) -> bool {
    let gpu = state.inventory.get(gpu.as_str());
    gpu.is_some_and(|gpu| state.policy.switches_mig_for_claims(gpu))
}

// === impl MigChange ===

impl MigChange {
    /// The change that a claim's device still needs; `None` if it exists or stays as it is.
    fn of(prepared: &PreparedDevice, state: &NodeState) -> Option<Self> {
        match &prepared.partition {
            Some(placement) => prepared.cdi.is_empty().then(|| Self::Instance(placement.clone())),
            None if prepared.usage == ClaimUse::Admin => None,
            None => prepared
                .device
                .clone()
                .filter(|device| switches_mig_mode(state, device))
                .map(Self::FullGpu),
        }
    }

    fn is_complete(&self, state: &NodeState) -> bool {
        let device = match self {
            Self::Instance(placement) => instance_at(&state.inventory, placement),
            Self::FullGpu(gpu) => {
                state.inventory.get(gpu.as_str()).filter(|device| !device.partitioned)
            }
        };
        device.is_some_and(|device| {
            device.health.is_healthy() && state.check_documents(&[device]).is_ok()
        })
    }
}

impl fmt::Display for MigChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FullGpu(gpu) => write!(f, "whole GPU {gpu}"),
            Self::Instance(placement) => write!(f, "MIG partition {placement}"),
        }
    }
}
