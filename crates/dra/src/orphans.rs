//! Removal of orphaned MIG instances from GPUs that are partitioned for claims, which they would block for ever. They
//! are removed when the driver starts, and when a new policy partitions GPUs for claims.
//!
//! Instances of containers and claims stay: the ledger has them. Instances with processes stay too: NVIDIA's driver
//! refuses to remove them.

use tokio::{sync::watch, time::Duration};
use windlass_allocations::ledger::{ClaimRef, ClaimUse, Ledger};
use windlass_config::DraPartitions;
use windlass_core::device::{Device, DeviceId};
use windlass_host::{causes, deadline, state_file::Versioned, watch::until};
use windlass_resources::{NodeState, offers::present_parts};

use super::{prepare::Environment, record::Records};

/// Deadline for a removed instance to vanish from the inventory.
const INVENTORY_TIMEOUT: Duration = Duration::from_secs(15);

/// Removes orphans each time that the policy starts to partition GPUs for claims.
pub(super) async fn run(environment: Environment, records: watch::Receiver<Versioned<Records>>) {
    let mut state = environment.state.clone();
    let is_on_demand = |state: &NodeState| state.policy.dra.partitions == DraPartitions::OnDemand;
    let is_ready = |state: &NodeState| state.inventory.is_complete() && is_on_demand(state);
    loop {
        until(&mut state, |state| is_ready(state)).await;
        environment.ledger.wait_until_known().await;
        let recorded_claims = records.borrow().1.clone();
        remove_all(&environment, &recorded_claims).await;
        // Waits for the policy to stop partitioning; the loop then waits for it to start again.
        until(&mut state, |state| !is_on_demand(state)).await;
    }
}

async fn remove_all(environment: &Environment, records: &Records) {
    if records.values().flat_map(|record| &record.devices).any(|device| device.device.is_none()) {
        tracing::warn!("MIG instances not removed: instances of claims unknown");
        return;
    }
    let state = environment.state.borrow().clone();
    let ledger = environment.ledger.watch().borrow().clone();
    for (gpu, instance) in orphans(&state, &ledger) {
        remove_one(environment, (gpu, instance), &state).await;
    }
}

/// Orphaned instances, each with its GPU.
fn orphans<'a>(state: &'a NodeState, ledger: &Ledger) -> Vec<(&'a Device, &'a DeviceId)> {
    let is_free = |id: &&DeviceId| {
        let overlap = state.overlaps.overlap(id);
        ledger.container_holder(&overlap).is_none() && ledger.claim_holder(&overlap).is_none()
    };
    let gpus =
        state.inventory.devices.iter().filter(|gpu| state.policy.creates_instances_for_claims(gpu));
    let orphans_of_gpu = |gpu: &'a Device| {
        let parts = present_parts(&state.inventory, &gpu.id).map(|part| &part.id);
        parts.filter(is_free).map(move |id| (gpu, id)).collect::<Vec<_>>()
    };
    gpus.flat_map(orphans_of_gpu).collect()
}

/// Removes an instance. Meanwhile the ledger holds it for a placeholder claim, so that it cannot be allocated.
async fn remove_one(
    environment: &Environment,
    (gpu, device): (&Device, &DeviceId),
    state: &NodeState,
) {
    let name = device.to_string();
    let [namespace, uid] = ["(driver)", "(removal)"].map(|prefix| format!("{prefix}{name}"));
    let placeholder = ClaimRef { namespace, name, uid };
    if environment
        .ledger
        .take_for_claim(&placeholder, &[(state.overlaps.overlap(device), ClaimUse::Exclusive)])
        .is_err()
    {
        return;
    }
    match environment.partitions.remove_device(&gpu.id, device).await {
        Ok(()) => {
            tracing::info!(%device, gpu = %gpu.id, "orphaned MIG instance removed");
            let mut state = environment.state.clone();
            let is_gone = |state: &NodeState| {
                let instance = state.inventory.get(device.as_str());
                instance.is_none_or(|device| device.health.has_vanished())
            };
            let _ =
                deadline::timeout(INVENTORY_TIMEOUT, state.wait_for(|state| is_gone(state))).await;
        }
        Err(error) => {
            let error = causes(&error);
            tracing::warn!(%device, error, "orphaned MIG instance not removed: it blocks claims");
        }
    }
    environment.ledger.release_claim(&placeholder.uid);
}
