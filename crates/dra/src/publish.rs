//! The part that publishes what claims may have: follows the node's state, and counts how it fares.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_allocations::ledger::Ledger;
use windlass_cluster::{
    Client,
    slices::{self, Content, PublishState, Wanted},
};
use windlass_config::{DraOffer, DriverName};
use windlass_core::inventory::SourceState;
use windlass_resources::NodeState;

use super::{
    catalog::{Catalog, pool_name},
    slices::{Manner, slices},
};
use crate::metrics::DraMetrics;

/// Publishes until stopped.
pub async fn run(
    state: watch::Receiver<Arc<NodeState>>,
    ledger: watch::Receiver<Ledger>,
    client: Client,
    driver: DriverName,
    metrics: DraMetrics,
    stop: CancellationToken,
) {
    let (wish, wanted) = watch::channel(None);
    let node = client.node().to_owned();
    let wisher = Wisher { state, ledger, node, driver: driver.clone(), wish };
    let (outcome, publisher) = slices::publish(client, driver, wanted, stop);
    tokio::select! {
        () = publisher => {}
        () = wisher.run() => {}
        () = count(outcome, metrics) => {}
    }
}

/// Knows what is to be published.
struct Wisher {
    state: watch::Receiver<Arc<NodeState>>,
    ledger: watch::Receiver<Ledger>,
    node: String,
    driver: DriverName,
    wish: watch::Sender<Option<Arc<Wanted>>>,
}

// === impl Wisher ===

impl Wisher {
    async fn run(mut self) {
        loop {
            let state = self.state.borrow_and_update().clone();
            let ledger = self.ledger.borrow_and_update().clone();
            // Before it is known what containers have, every device would be tainted for a moment.
            let is_known = state.policy.dra.offer == DraOffer::Off || ledger.is_complete();
            if is_known {
                self.wish_for(wanted(&state, &ledger, (&self.node, &self.driver)));
            }
            tokio::select! {
                () = windlass_host::watch::changed(&mut self.state) => {}
                () = windlass_host::watch::changed(&mut self.ledger) => {}
            }
        }
    }

    fn wish_for(&self, wanted: Option<Wanted>) {
        windlass_host::watch::publish(&self.wish, wanted.map(Arc::new));
    }
}

/// What of a node is to be published; `None` if it offers nothing to claims.
fn wanted(
    state: &NodeState,
    ledger: &Ledger,
    (node, driver): (&str, &DriverName),
) -> Option<Wanted> {
    let policy = &state.policy.dra;
    if policy.offer == DraOffer::Off {
        return None;
    }
    let manner = Manner { driver, taints: policy.taints };
    let mut wanted = slices(&Catalog::of(state, node, driver, ledger), manner);
    let sources = state.inventory.sources.iter();
    let starting = sources.filter(|(_, state)| **state == SourceState::Starting);
    // What an earlier life of the agent published stays until the source has answered.
    wanted.undecided = starting.map(|(source, _)| pool_name(node, source)).collect();
    if !state.inventory.is_complete() {
        wanted.undecided.insert(node.to_owned());
    } else if wanted.pools.is_empty() {
        // It says that the driver is there.
        wanted.pools.insert(node.to_owned(), vec![Content::default()]);
    }
    Some(wanted)
}

async fn count(mut outcome: watch::Receiver<Arc<PublishState>>, metrics: DraMetrics) {
    loop {
        metrics.stand(&outcome.borrow_and_update());
        windlass_host::watch::changed(&mut outcome).await;
    }
}

#[cfg(test)]
mod tests {
    use windlass_config::{DraPolicy, Policy};
    use windlass_core::inventory::Inventory;

    use super::*;

    fn pools(offer: DraOffer, sources: [(&str, SourceState); 2]) -> Option<[Vec<String>; 2]> {
        let dra = DraPolicy { offer, ..DraPolicy::default() };
        let policy = Arc::new(Policy { dra, ..Policy::default() });
        let sources = sources.map(|(name, state)| (name.to_owned(), state)).into();
        let inventory = Inventory { sources, ..Inventory::default() };
        let state = NodeState { inventory, policy, ..NodeState::default() };
        let wanted = wanted(&state, &Ledger::default(), ("n1", &DriverName::default()))?;
        Some([wanted.pools.into_keys().collect(), wanted.undecided.into_iter().collect()])
    }

    fn absent() -> SourceState {
        SourceState::Absent("no driver".to_owned())
    }

    #[test]
    fn what_was_published_stays_until_the_sources_have_answered() {
        let starting = [("nics", absent()), ("nvidia", SourceState::Starting)];
        let expected = [vec![], vec!["n1".to_owned(), "n1/nvidia".to_owned()]];
        assert_eq!(pools(DraOffer::Beside, starting), Some(expected));
    }

    #[test]
    fn a_node_without_devices_has_an_empty_pool_and_one_that_offers_nothing_has_none() {
        let sources = || [("nics", absent()), ("nvidia", absent())];
        assert_eq!(pools(DraOffer::Instead, sources()), Some([vec!["n1".to_owned()], vec![]]));
        assert_eq!(pools(DraOffer::Off, sources()), None);
    }
}
