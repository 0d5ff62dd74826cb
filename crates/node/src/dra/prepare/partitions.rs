//! Instances that are made for claims: made after that is written down, removed before it is forgotten.
//!
//! Between the two the record explains what stands there. An agent that was killed after an instance was made
//! finds it by its place when the kubelet asks again, and removes it when nobody has the claim any more.

use tokio::time::{Duration, timeout};
use windlass_core::device::Partition;

use super::{Event, Failed, Ground, Preparer};
use crate::{
    causes,
    dra::{claim::Claim, record::Entry},
    partitions::{PartitionError, Why, standing},
    state::NodeState,
};

/// How long an instance takes at most to be found after it was made, or missed after it was removed.
const LOOK: Duration = Duration::from_secs(15);

// === impl Preparer ===

impl Preparer {
    /// Whether the claim is to get instances that are not made yet.
    pub(super) fn lacks_instances(&self, uid: &str) -> bool {
        let entry = self.slots.get(uid).and_then(|slot| slot.entry.as_ref());
        let devices = entry.into_iter().flat_map(|entry| &entry.devices);
        devices.into_iter().any(|held| held.partition.is_some() && held.cdi.is_empty())
    }

    /// Has the instances made that a claim is to get, once it is written down that they are.
    pub(super) fn make(&mut self, uid: &str, claim: Claim) {
        let Some(entry) = self.slots.get(uid).and_then(|slot| slot.entry.as_ref()) else { return };
        let (places, recorded) = (places(entry), self.save());
        let (ground, uid) = (self.ground.clone(), uid.to_owned());
        self.tasks.spawn(async move {
            let made = match recorded.await {
                Ok(()) => ground.make(&places).await.map_err(Failed::Act),
                Err(why) => Err(Failed::Record(why)),
            };
            Event::Made(uid, Box::new(made.map(|()| claim)))
        });
    }

    /// Decides anew what the claim gets, now that its instances have names.
    pub(super) fn made(&mut self, uid: &str, made: Result<Claim, Failed>) {
        let begun = made.and_then(|claim| self.begin(&claim).map_err(Failed::Act));
        match begun {
            Ok(()) if self.lacks_instances(uid) => {
                self.refuse(
                    uid,
                    "a MIG instance is gone though it was just made".to_owned().into(),
                );
            }
            Ok(()) => self.act(uid),
            Err(failed) => self.failed(uid, failed),
        }
    }
}

// === impl Ground ===

impl Ground {
    /// Makes instances, and waits until each is in the inventory with all that containers need of it.
    async fn make(&self, places: &[Partition]) -> Result<(), String> {
        for place in places {
            let device = self.partitions.make(place).await.map_err(|error| causes(&error))?;
            tracing::info!(%place, %device, "MIG instance made for a claim");
        }
        let lacking = |state: &NodeState| {
            let mut lacking = places.iter().filter(|place| !is_served(state, place));
            lacking.next().cloned()
        };
        let mut state = self.state.clone();
        let found = timeout(LOOK, state.wait_for(|state| lacking(state).is_none())).await.is_ok();
        match lacking(&self.state.borrow()) {
            Some(place) if !found => {
                Err(format!("MIG partition {place} was made, and is not found well after {LOOK:?}"))
            }
            _ => Ok(()),
        }
    }

    /// Removes the instances of a claim, and waits until they are not offered to anybody.
    pub(super) async fn unmake(&self, places: &[Partition]) -> Result<(), String> {
        for place in places {
            match self.partitions.remove(place).await {
                // It went with its GPU.
                Err(error) if matches!(error.why, Why::NoGpu) => {}
                // A reset removes it, and is waited for by nobody who ends.
                Err(PartitionError { why: Why::Driver(error), .. }) if error.is_lost() => {
                    tracing::warn!(%place, %error, "the GPU of a claim's instance is lost: let go");
                }
                removed => removed.map_err(|error| causes(&error))?,
            }
        }
        let is_there = |state: &NodeState| {
            places.iter().any(|place| standing(&state.inventory, place).is_some())
        };
        let mut state = self.state.clone();
        // One that the driver has removed and the inventory still has is in nobody's way for long.
        let _ = timeout(LOOK, state.wait_for(|state| !is_there(state))).await;
        Ok(())
    }
}

/// The places of the instances that are made for a claim.
pub(super) fn places(entry: &Entry) -> Vec<Partition> {
    entry.devices.iter().filter_map(|held| held.partition.clone()).collect()
}

fn is_served(state: &NodeState, place: &Partition) -> bool {
    standing(&state.inventory, place).is_some_and(|device| {
        device.health.is_healthy() && state.check_documents(&[device]).is_ok()
    })
}
