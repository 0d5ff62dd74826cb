//! Orphaned MIG instances on GPUs that are cut for claims. They would block claims for ever, so they are
//! removed when the driver starts, and when the policy gives it such GPUs.
//!
//! Instances of containers and claims stay, by the ledger; so do those with processes, by the driver.

use tokio::{sync::watch, time::Duration};
use windlass_allocations::ledger::{ClaimRef, Ledger, Use};
use windlass_config::DraPartitions;
use windlass_core::device::{Device, DeviceId};
use windlass_host::{causes, deadline, state_file::Versioned};
use windlass_resources::{NodeState, offers::present_parts};

use super::{prepare::Environment, record::Records};

/// Longest time until a removed instance vanishes from the inventory.
const VISIBLE: Duration = Duration::from_secs(15);

/// Removes orphans, each time that instances come to be made for claims.
pub(super) async fn keep(environment: Environment, records: watch::Receiver<Versioned<Records>>) {
    let mut state = environment.state.clone();
    let is_on_demand = |state: &NodeState| state.policy.dra.partitions == DraPartitions::OnDemand;
    let is_ready = |state: &NodeState| state.inventory.is_complete() && is_on_demand(state);
    while state.wait_for(|state| is_ready(state)).await.is_ok() {
        environment.ledger.known().await;
        let known = records.borrow().1.clone();
        remove(&environment, &known).await;
        // The next change is noticed above.
        drop(state.wait_for(|state| !is_on_demand(state)).await);
    }
    // The agent ends.
    std::future::pending::<()>().await;
}

async fn remove(environment: &Environment, records: &Records) {
    if records.values().flat_map(|entry| &entry.devices).any(|held| held.device.is_none()) {
        tracing::warn!("MIG instances not removed: instances of claims unknown");
        return;
    }
    let now = environment.state.borrow().clone();
    let ledger = environment.ledger.watch().borrow().clone();
    for (gpu, instance) in unknown(&now, &ledger) {
        remove_one(environment, (gpu, instance), &now).await;
    }
}

/// Orphaned instances, each with its GPU.
fn unknown<'a>(state: &'a NodeState, ledger: &Ledger) -> Vec<(&'a Device, &'a DeviceId)> {
    let is_free = |id: &&DeviceId| {
        let overlap = state.overlaps.overlap(id);
        ledger.container(&overlap).is_none() && ledger.claim(&overlap).is_none()
    };
    let gpus = state.inventory.devices.iter().filter(|gpu| state.policy.cuts_for_claims(gpu));
    let of_gpu = |gpu: &'a Device| {
        let parts = present_parts(&state.inventory, &gpu.id).map(|part| &part.id);
        parts.filter(is_free).map(move |id| (gpu, id)).collect::<Vec<_>>()
    };
    gpus.flat_map(of_gpu).collect()
}

/// Claims the instance in the ledger, so that it cannot be allocated meanwhile.
async fn remove_one(
    environment: &Environment,
    (gpu, device): (&Device, &DeviceId),
    state: &NodeState,
) {
    let name = device.to_string();
    let [namespace, uid] = ["(driver)", "(removal)"].map(|it| format!("{it}{name}"));
    let keeper = ClaimRef { namespace, name, uid };
    if environment
        .ledger
        .take_for_claim(&keeper, &[(state.overlaps.overlap(device), Use::Alone)])
        .is_err()
    {
        return;
    }
    match environment.partitions.remove_device(&gpu.id, device).await {
        Ok(()) => {
            tracing::info!(%device, gpu = %gpu.id, "orphaned MIG instance removed");
            let mut state = environment.state.clone();
            let is_gone = |state: &NodeState| {
                let found = state.inventory.get(device.as_str());
                found.is_none_or(|device| device.health.has_vanished())
            };
            let _ = deadline::timeout(VISIBLE, state.wait_for(|state| is_gone(state))).await;
        }
        Err(error) => {
            let error = causes(&error);
            tracing::warn!(%device, error, "orphaned MIG instance not removed: it blocks claims");
        }
    }
    environment.ledger.release_claim(&keeper.uid);
}
