//! The node's state, and the one task that owns it.
//!
//! The keeper merges what the sources publish into an inventory, writes the CDI documents for it,
//! cuts it into offers, and only then publishes: whoever is offered a device finds its document.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use windlass_core::{inventory::Inventory, resource::ResourceName};
use windlass_kubelet_api::{checkpoint, deviceplugin};

use crate::{
    cdi::{CdiError, CdiFiles},
    config::{Config, DeviceList, Resources},
    discovery::SourceSnapshot,
    host::Host,
    offer::{self, Held, Offers},
};

/// The node at one moment.
#[derive(Clone, Debug, Default)]
pub struct NodeState {
    /// All devices.
    pub inventory: Inventory,
    /// What the kubelet is told of them.
    pub(crate) offers: Offers,
    /// Why the CDI documents are not up to date.
    pub(crate) cdi: Option<CdiError>,
}

/// Owns the node's state.
pub(crate) struct Keeper {
    sources: Vec<(&'static str, watch::Receiver<SourceSnapshot>)>,
    resources: Resources,
    news: Arc<Notify>,
    held: Held,
    kubelet_checkpoint: PathBuf,
    cdi: Option<CdiFiles>,
    publish: watch::Sender<Arc<NodeState>>,
}

/// CDI documents that could not be written are tried again after this, without news too.
const WRITE_AGAIN: Duration = Duration::from_secs(10);

// === impl NodeState ===

impl NodeState {
    /// The resources offered, with the number of devices and of those that may be allocated.
    pub fn resources(&self) -> BTreeMap<ResourceName, (usize, usize)> {
        let count = |offer: &offer::Offer| (offer.devices.len(), offer.allocatable());
        self.offers.iter().map(|(name, offer)| (name.clone(), count(offer))).collect()
    }
}

// === impl Keeper ===

impl Keeper {
    pub(crate) fn new(
        config: &Config,
        sources: Vec<(&'static str, watch::Receiver<SourceSnapshot>)>,
        news: Arc<Notify>,
        publish: watch::Sender<Arc<NodeState>>,
    ) -> Self {
        let host = Host::new(&config.host_root, &config.host_root_on_node);
        let cdi = CdiFiles::new(&config.cdi_dir, host);
        let plugins = config.kubelet_dir.join(deviceplugin::PLUGIN_DIR);
        Self {
            sources,
            news,
            resources: config.resources.clone(),
            held: Held::new(),
            kubelet_checkpoint: plugins.join(checkpoint::FILE),
            cdi: (config.device_list == DeviceList::Cdi).then_some(cdi),
            publish,
        }
    }

    /// Keeps the state until stopped. Ends every reader's stream when it ends.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        self.held = read_held(&self.kubelet_checkpoint);
        loop {
            self.refresh().await;
            let again = self.publish.borrow().cdi.is_some();
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.news.notified() => {}
                () = sleep(WRITE_AGAIN), if again => {}
            }
        }
    }

    async fn refresh(&mut self) {
        let merged = merge(&self.sources);
        let known = self.publish.borrow().clone();
        if !merged.is_complete() || merged.says_the_same_as(&known.inventory) && known.cdi.is_none()
        {
            return;
        }
        let inventory = Inventory { generation: known.inventory.generation + 1, ..merged };
        summarize(&known.inventory, &inventory);
        let (inventory, cdi) = self.write_cdi(inventory).await;
        if let Some(error) = cdi.as_ref().filter(|error| known.cdi.as_ref() != Some(error)) {
            tracing::error!(%error, "devices cannot be handed out until this is mended");
        }
        let offers = offer::plan(&self.resources, &inventory, &known.offers, &self.held);
        self.publish.send_replace(Arc::new(NodeState { inventory, offers, cdi }));
    }

    /// Writing waits for the disk, which requests must not.
    async fn write_cdi(&self, inventory: Inventory) -> (Inventory, Option<CdiError>) {
        let Some(files) = self.cdi.clone() else { return (inventory, None) };
        let write = move || {
            let error = files.write(&inventory).err();
            (inventory, error)
        };
        tokio::task::spawn_blocking(write).await.expect("writing neither panics nor is cancelled")
    }
}

/// One line whenever the numbers change; what happened to single devices is said by their source.
fn summarize(before: &Inventory, now: &Inventory) {
    let healthy = |inventory: &Inventory| {
        inventory.devices.iter().filter(|device| device.health.is_healthy()).count()
    };
    let (devices, healthy_now) = (now.devices.len(), healthy(now));
    if (before.devices.len(), healthy(before)) != (devices, healthy_now) {
        let simulated = now.simulated.as_deref();
        tracing::info!(devices, healthy = healthy_now, simulated, "inventory changed");
    }
}

/// Puts the sources' newest snapshots together.
fn merge(sources: &[(&'static str, watch::Receiver<SourceSnapshot>)]) -> Inventory {
    let mut inventory = Inventory::default();
    for (name, snapshots) in sources {
        let snapshot = snapshots.borrow();
        inventory.sources.insert((*name).to_owned(), snapshot.state.clone());
        inventory.simulated = inventory.simulated.or_else(|| snapshot.simulated.clone());
        inventory.devices.extend(snapshot.devices.iter().cloned());
    }
    inventory.sort();
    inventory
}

/// What containers hold, by the kubelet's own record. Without a record nothing is held; one that
/// cannot be read is no reason not to serve.
fn read_held(path: &Path) -> Held {
    let Ok(text) = std::fs::read_to_string(path) else { return Held::new() };
    let record = match checkpoint::Checkpoint::parse(text.trim_end()) {
        Ok(record) => record,
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "ignoring the kubelet's record");
            return Held::new();
        }
    };
    let names = record.pods.iter().flatten().map(|entry| entry.resource_name.clone());
    let names: std::collections::BTreeSet<String> = names.collect();
    let held = |name: &String| {
        let ids = record.held(name).filter_map(|id| id.parse().ok()).collect();
        Some((name.parse().ok()?, ids))
    };
    names.iter().filter_map(held).collect()
}
