//! Publisher of the catalog: computes the desired ResourceSlices at each change, and counts the outcome of their
//! writes.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use windlass_allocations::ledger::Ledger;
use windlass_cluster::{
    Client,
    slices::{self, DesiredSlices, PublishState, SliceContent},
};
use windlass_config::{DraOffer, DriverName};
use windlass_core::inventory::SourceState;
use windlass_resources::NodeState;

use super::{
    catalog::{Catalog, pool_name},
    slices::{SliceOptions, slices},
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
    let (sender, desired) = watch::channel(None);
    let node = client.node().to_owned();
    let publisher = Publisher { state, ledger, node, driver: driver.clone(), slices: sender };
    let (publish_state, publication) = slices::publish(client, driver, desired, stop);
    tokio::select! {
        () = publication => {}
        () = publisher.run() => {}
        () = update_metrics(publish_state, metrics) => {}
    }
}

/// Computes the desired slices.
struct Publisher {
    state: watch::Receiver<Arc<NodeState>>,
    ledger: watch::Receiver<Ledger>,
    node: String,
    driver: DriverName,
    slices: watch::Sender<Option<Arc<DesiredSlices>>>,
}

// === impl Publisher ===

impl Publisher {
    async fn run(mut self) {
        loop {
            let state = self.state.borrow_and_update().clone();
            let ledger = self.ledger.borrow_and_update().clone();
            // While the holders of devices are unknown, every device would be tainted.
            if state.policy.dra.offer == DraOffer::Off || ledger.is_complete() {
                let desired = desired(&state, &ledger, &self.node, &self.driver);
                windlass_host::watch::publish_if_changed(&self.slices, desired.map(Arc::new));
            }
            tokio::select! {
                () = windlass_host::watch::changed(&mut self.state) => {}
                () = windlass_host::watch::changed(&mut self.ledger) => {}
            }
        }
    }
}

/// Desired slices of a node; `None` if it offers nothing to claims.
fn desired(
    state: &NodeState,
    ledger: &Ledger,
    node: &str,
    driver: &DriverName,
) -> Option<DesiredSlices> {
    let policy = &state.policy.dra;
    if policy.offer == DraOffer::Off {
        return None;
    }
    let options = SliceOptions { driver, taints: policy.taints };
    let mut desired = slices(&Catalog::of(state, node, driver, ledger), options);
    let sources = state.inventory.sources.iter();
    let starting = sources.filter(|(_, state)| **state == SourceState::Starting);
    // Slices of an earlier agent stay until the source has answered.
    desired.unknown_pools = starting.map(|(source, _)| pool_name(node, source)).collect();
    if !state.inventory.is_complete() {
        desired.unknown_pools.insert(node.to_owned());
    } else if desired.pools.is_empty() {
        // An empty pool shows that the driver is present.
        desired.pools.insert(node.to_owned(), vec![SliceContent::default()]);
    }
    Some(desired)
}

async fn update_metrics(
    mut publish_state: watch::Receiver<Arc<PublishState>>,
    metrics: DraMetrics,
) {
    loop {
        metrics.update(&publish_state.borrow_and_update());
        windlass_host::watch::changed(&mut publish_state).await;
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
        let desired = desired(&state, &Ledger::default(), "n1", &DriverName::default())?;
        Some([desired.pools.into_keys().collect(), desired.unknown_pools.into_iter().collect()])
    }

    fn absent() -> SourceState {
        SourceState::Absent("no driver".to_owned())
    }

    #[test]
    fn published_slices_stay_until_the_sources_have_answered() {
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
