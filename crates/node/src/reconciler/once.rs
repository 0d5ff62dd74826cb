//! The node without a reconciler: what the sources have found, put together, and what would be made of it.

use std::{collections::BTreeSet, sync::Arc};

use tokio::sync::watch;
use windlass_allocations::Held;
use windlass_config::Config;
use windlass_core::inventory::Inventory;
use windlass_discovery::SourceSnapshot;
use windlass_lifecycle::cleanup;
use windlass_resources::{
    NodeState,
    offers::{self, Marked, Methods, Moves, Pools},
};

use super::{look::Look, obstacles::Way};

/// The newest snapshot of each source.
pub(crate) type Snapshots = Vec<(&'static str, watch::Receiver<SourceSnapshot>)>;

/// The state as an agent that starts now would publish it, without writing anything.
pub(crate) fn look_once(config: &Config, sources: &Snapshots) -> NodeState {
    let (mut inventory, policy) = (merge(sources), Arc::new(config.policy.clone()));
    inventory.recorded = config.places.host().recorded();
    let mut look = Look::new(&config.places, &config.mps, policy.delivery.clone());
    let looked = look.without_writing(&inventory, &policy);
    let (handovers, care) =
        (cleanup::left(&config.places), cleanup::demand(&policy, &inventory, &|_| None));
    let (looked, late) = (&looked, &BTreeSet::new());
    let way = Way { looked, late, policy: &policy, lease: &|_| None };
    let question = offers::Question {
        policy: &policy,
        inventory: &inventory,
        previous: &offers::Offers::new(),
        held: &Held::new(),
        methods: &Methods::new(),
        pools: &Pools::new(),
        marked: &Marked::new(),
        moves: Moves::Kept,
        obstacle: &|device, _| way.of_containers(device).map(|it| it.why),
        handover: &|id| handovers.get(id).filter(|_| care.contains_key(id))?.trouble(),
    };
    let (plan, obstacles) = (offers::plan(question), way.of_claims(&inventory));
    let topology = NodeState::default().topology_of(&inventory);
    NodeState { obstacles, topology, ..looked.state(inventory, policy.clone(), plan) }
}

/// Puts the sources' newest snapshots together.
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
    inventory
}
