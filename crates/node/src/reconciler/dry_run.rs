//! Node state without a reconciler: one scan, merged and planned without writing.

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::watch;
use windlass_allocations::HeldIds;
use windlass_config::Config;
use windlass_core::{inventory::Inventory, topology::set_islands};
use windlass_discovery::{SourceSnapshot, live_driver::LiveDriver};
use windlass_lifecycle::cleanup;
use windlass_resources::{
    NodeState,
    offers::{self, Fingerprints, MovePermission, Pools, ReplicaKinds},
};

use super::{disk_check::DiskCheck, obstacles::ObstacleChecks};

pub(crate) type Snapshots = Vec<(&'static str, watch::Receiver<SourceSnapshot>)>;

/// State that a new agent would publish. Blocks on reads of small files.
pub(crate) fn dry_run(
    config: &Config,
    sources: &Snapshots,
    driver: Option<LiveDriver>,
) -> NodeState {
    let policy = Arc::new(config.policy.clone());
    let mut inventory = merge(sources);
    inventory.recorded = config.places.host().recorded();
    let delivery = policy.delivery.clone();
    let mut check = DiskCheck::new(&config.places, &config.mps, delivery, driver);
    let check_result = check.dry_run(&inventory, &policy);
    let cleanup_states = cleanup::recorded_states(&config.places);
    let cleanup_demand = cleanup::plans(&policy, &inventory, &|_| None);
    let checks = ObstacleChecks {
        check_result: &check_result,
        waiting_for_disk: &BTreeSet::new(),
        policy: &policy,
        lease: &|_| None,
    };
    let inputs = offers::OfferInputs {
        policy: &policy,
        inventory: &inventory,
        previous: &offers::Offers::new(),
        held: &HeldIds::new(),
        replica_kinds: &ReplicaKinds::new(),
        pools: &Pools::new(),
        fingerprints: &Fingerprints::new(),
        move_permission: MovePermission::Denied,
        obstacle: &|device, _| checks.of_containers(device).map(|obstacle| obstacle.reason),
        share_obstacle: &|device| checks.of_shares(device).map(|obstacle| obstacle.reason),
        cleanup: &|id| {
            cleanup_states.get(id).filter(|_| cleanup_demand.contains_key(id))?.obstacle()
        },
    };
    let plan = offers::plan(inputs);
    let obstacles = checks.of_claims(&inventory);
    let topology = NodeState::default().topology_of(&inventory);
    NodeState {
        claim_obstacles: obstacles,
        topology,
        ..check_result.state(inventory, policy.clone(), plan)
    }
}

pub(crate) fn merge(sources: &Snapshots) -> Inventory {
    let mut inventory = Inventory::default();
    for (_, snapshots) in sources {
        let snapshot = snapshots.borrow();
        let states = snapshot.states.iter();
        inventory.sources.extend(states.map(|(name, state)| (name.to_string(), state.clone())));
        inventory.simulated = inventory.simulated.or_else(|| snapshot.simulated.clone());
        inventory.devices.extend(snapshot.devices.iter().cloned());
    }
    inventory.sort();
    set_islands(&mut inventory.devices);
    inventory
}
