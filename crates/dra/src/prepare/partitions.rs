//! GPUs that are cut for a claim, or made whole: after the record is written. Instances are removed before
//! the record forgets them.
//!
//! ```text
//!   recorded ──placement──> MIG turned on, if the agent may ──> instance made ──> in the inventory
//!            └─full GPU───> MIG turned off ──> in the inventory
//! ```
//!
//! Each step detects that it is done already, so the record alone tells how to continue. If an agent was
//! killed after it made an instance, the next one finds it by its placement when the kubelet asks again,
//! and removes it with an orphaned claim. The MIG mode stays as it is then: the next claim changes it if
//! necessary.

use std::fmt;

use tokio::time::Duration;
use windlass_allocations::ledger::Use;
use windlass_core::{
    device::{DeviceId, Partition},
    partition::instance_at,
};
use windlass_discovery::mig::{MigFailure, PartitionError, patiently};
use windlass_host::{causes, deadline};
use windlass_resources::NodeState;

use super::{Environment, Input, Preparer};
use crate::{
    claim::Claim,
    record::{PreparedClaim, PreparedDevice},
};

#[derive(Clone, Debug)]
enum Form {
    Whole(DeviceId),
    Part(Partition),
}

/// Longest time until the inventory shows a made instance, or lacks a removed one.
const VISIBLE: Duration = Duration::from_secs(15);

// === impl Preparer ===

impl Preparer {
    /// True if GPUs have to be cut or made whole for the claim.
    pub(super) fn needs_forms(&self, uid: &str) -> bool {
        !self.forms(uid).is_empty()
    }

    fn forms(&self, uid: &str) -> Vec<Form> {
        let state = self.environment.state.borrow();
        let devices = self.entry(uid).into_iter().flat_map(|entry| &entry.devices);
        devices.filter_map(|held| Form::of(held, &state)).collect()
    }

    /// True if instances of the claim are still to be made.
    fn lacks_instances(&self, uid: &str) -> bool {
        self.forms(uid).iter().any(|form| matches!(form, Form::Part(_)))
    }

    /// Cuts GPUs, or makes them whole, after the record is written.
    pub(super) fn make(&mut self, uid: &str, claim: Box<Claim>) {
        let (forms, recorded, environment) =
            (self.forms(uid), self.save(), self.environment.clone());
        self.spawn(uid, async move {
            if let Err(why) = recorded.await {
                return Input::Unrecorded(why);
            }
            let made = environment.make(&forms).await;
            made.map_or_else(|why| Input::Failed(why.into()), |()| Input::Made(claim))
        });
    }

    /// Plans again, with the names of the claim's instances.
    pub(super) fn plan_again(&mut self, claim: &Claim) -> Input {
        match self.take(claim) {
            Ok(()) if self.lacks_instances(&claim.reference.uid) => {
                Input::Failed("a MIG instance is gone though it was just made".to_owned().into())
            }
            Ok(()) => Input::Planned,
            Err(cause) => Input::Failed(cause.report(&claim.reference).into()),
        }
    }
}

// === impl Environment ===

impl Environment {
    /// Cuts GPUs and makes them whole, and waits until the inventory has each with all that containers
    /// need.
    async fn make(&self, forms: &[Form]) -> Result<(), String> {
        let made = deadline::beside(VISIBLE, async |over| {
            for form in forms {
                patiently(&over, || self.make_one(form)).await?;
            }
            Ok(())
        });
        made.await.map_err(|error: PartitionError| causes(&error))?;
        let lacking = |state: &NodeState| forms.iter().find(|form| !form.is_served(state)).cloned();
        let mut state = self.state.clone();
        let found = deadline::timeout(VISIBLE, state.wait_for(|state| lacking(state).is_none()))
            .await
            .is_ok();
        match lacking(&self.state.borrow()) {
            Some(form) if !found => {
                Err(format!("{form} was made, but is not healthy after {VISIBLE:?}"))
            }
            _ => Ok(()),
        }
    }

    /// Asks the driver in any case: the inventory may be older.
    async fn make_one(&self, form: &Form) -> Result<(), PartitionError> {
        let place = match form {
            Form::Whole(gpu) => return self.partitions.turn_mig_off(gpu).await,
            Form::Part(place) => place,
        };
        let may_switch = switches(&self.state.borrow(), &place.gpu);
        if may_switch {
            self.partitions.turn_mig_on(&place.gpu).await?;
        }
        let device = self.partitions.make(place).await?;
        tracing::info!(%place, %device, "MIG instance made for a claim");
        Ok(())
    }

    /// Removes the instances of a claim, and waits until no resource offers them.
    pub(super) async fn unmake(&self, places: &[Partition]) -> Result<(), String> {
        let removed = deadline::beside(VISIBLE, async |over| {
            for place in places {
                match patiently(&over, || self.partitions.remove(place)).await {
                    // The instance vanished with its GPU.
                    Err(error) if matches!(error.why, MigFailure::NoGpu) => {}
                    // A reset removes the instance; an ending agent does not wait for it.
                    Err(PartitionError { why: MigFailure::Driver(error), .. })
                        if error.is_lost() =>
                    {
                        tracing::warn!(%place, %error, "GPU of a claim's MIG instance lost, claim released");
                    }
                    removed => removed?,
                }
            }
            Ok(())
        });
        removed.await.map_err(|error: PartitionError| causes(&error))?;
        let is_there = |state: &NodeState| {
            places.iter().any(|place| instance_at(&state.inventory, place).is_some())
        };
        let mut state = self.state.clone();
        // The inventory will follow the driver soon.
        let _ = deadline::timeout(VISIBLE, state.wait_for(|state| !is_there(state))).await;
        Ok(())
    }
}

/// Placements of the instances that are made for a claim.
pub(super) fn places(entry: &PreparedClaim) -> Vec<Partition> {
    entry.devices.iter().filter_map(|held| held.partition.clone()).collect()
}

/// True if MIG of this GPU is switched for claims.
fn switches(state: &NodeState, gpu: &DeviceId) -> bool {
    let gpu = state.inventory.get(gpu.as_str());
    gpu.is_some_and(|gpu| state.policy.switches_for_claims(gpu))
}

// === impl Form ===

impl Form {
    /// The form that a claim's device still needs; `None` if it exists or stays as it is.
    fn of(held: &PreparedDevice, state: &NodeState) -> Option<Self> {
        match &held.partition {
            Some(place) => held.cdi.is_empty().then(|| Self::Part(place.clone())),
            None if held.usage == Use::Admin => None,
            None => held.device.clone().filter(|device| switches(state, device)).map(Self::Whole),
        }
    }

    fn is_served(&self, state: &NodeState) -> bool {
        let device = match self {
            Self::Part(place) => instance_at(&state.inventory, place),
            Self::Whole(gpu) => state.inventory.get(gpu.as_str()).filter(|it| !it.partitioned),
        };
        device.is_some_and(|device| {
            device.health.is_healthy() && state.check_documents(&[device]).is_ok()
        })
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(gpu) => write!(f, "whole GPU {gpu}"),
            Self::Part(place) => write!(f, "MIG partition {place}"),
        }
    }
}
