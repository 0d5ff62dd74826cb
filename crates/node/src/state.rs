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
    causes,
    cdi::{CdiError, CdiFiles, Documents, Lacks, Written},
    config::{Config, Resources},
    discovery::SourceSnapshot,
    offer::{self, Held, Offers},
};

/// The node at one moment.
#[derive(Clone, Debug, Default)]
pub struct NodeState {
    /// All devices.
    pub inventory: Inventory,
    /// What the kubelet is told of them.
    pub(crate) offers: Offers,
    /// The CDI documents that the offers need.
    pub(crate) documents: Documents,
    /// CDI names that every container of a GPU gets besides those of its devices.
    pub besides: Vec<String>,
    /// What the CDI documents lack.
    pub lacks: Lacks,
    /// Why the CDI documents are not up to date.
    pub(crate) cdi: Option<CdiError>,
}

/// Owns the node's state.
pub(crate) struct Keeper {
    sources: Vec<(&'static str, watch::Receiver<SourceSnapshot>)>,
    resources: Resources,
    news: Arc<Notify>,
    /// Counts the changes of the folder in which the kubelet keeps its record.
    kubelet_writes: watch::Receiver<u64>,
    held: Held,
    kubelet_checkpoint: PathBuf,
    cdi: Option<CdiFiles>,
    /// How often documents are looked at without news.
    documents_again: Duration,
    publish: watch::Sender<Arc<NodeState>>,
}

/// What wakes the keeper.
pub(crate) struct Notices {
    /// A source has news.
    pub(crate) news: Arc<Notify>,
    /// Counts the changes of the kubelet's folder.
    pub(crate) kubelet_writes: watch::Receiver<u64>,
}

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
        notices: Notices,
        publish: watch::Sender<Arc<NodeState>>,
    ) -> Self {
        let plugins = config.kubelet_dir.join(deviceplugin::PLUGIN_DIR);
        Self {
            sources,
            news: notices.news,
            kubelet_writes: notices.kubelet_writes,
            resources: config.policy.resources.clone(),
            held: Held::new(),
            kubelet_checkpoint: plugins.join(checkpoint::FILE),
            cdi: config.policy.delivery.uses_cdi().then(|| CdiFiles::new(config)),
            documents_again: config.session.look_interval,
            publish,
        }
    }

    /// Keeps the state until stopped. Ends every reader's stream when it ends.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        self.held = self.read_held().await.unwrap_or_default();
        loop {
            self.refresh().await;
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.news.notified() => {}
                Ok(()) = self.kubelet_writes.changed(), if !self.held.is_empty() => {
                    self.release().await;
                }
                () = sleep(self.documents_again), if self.cdi.is_some() => {}
            }
        }
    }

    /// Forgets what containers held when the agent started and have released since. What they were
    /// given since then the offers themselves remember.
    async fn release(&mut self) {
        // A record that cannot be read releases nothing.
        let Some(now) = self.read_held().await else { return };
        self.held.retain(|name, ids| {
            ids.retain(|id| now.get(name).is_some_and(|held| held.contains(id)));
            !ids.is_empty()
        });
    }

    async fn read_held(&self) -> Option<Held> {
        let path = self.kubelet_checkpoint.clone();
        let read = tokio::task::spawn_blocking(move || read_held(&path));
        read.await.expect("reading neither panics nor is cancelled")
    }

    /// Documents are brought up to date at every look, also when the inventory is unchanged: someone
    /// may have removed one, and nodes that all GPUs share come and go by themselves.
    async fn refresh(&mut self) {
        let merged = merge(&self.sources);
        if !merged.is_complete() {
            return;
        }
        let known = self.publish.borrow().clone();
        let (merged, written) = self.write_documents(merged).await;
        let (written, cdi) = match written {
            Ok(written) => (written, None),
            Err(error) => (Written::default(), Some(error)),
        };
        let Written { documents, besides, lacks } = written;
        let offers = offer::plan(&self.resources, &merged, &known.offers, &self.held);
        let unchanged = merged.says_the_same_as(&known.inventory);
        let documents_say_the_same =
            (&cdi, &besides, &lacks) == (&known.cdi, &known.besides, &known.lacks);
        if unchanged && offers == known.offers && documents_say_the_same {
            return;
        }
        for trouble in lacks.troubles.iter().filter(|new| !known.lacks.troubles.contains(new)) {
            tracing::warn!(trouble, "containers get less than they need");
        }
        if let Some(error) = cdi.as_ref().filter(|error| known.cdi.as_ref() != Some(error)) {
            tracing::error!(%error, "devices cannot be handed out until this is mended");
        }
        summarize(&known.inventory, &merged);
        let generation = known.inventory.generation + 1;
        let inventory = Inventory { generation, ..merged };
        let state = NodeState { inventory, offers, documents, besides, lacks, cdi };
        self.publish.send_replace(Arc::new(state));
    }

    /// Writing waits for the disk, which requests must not.
    async fn write_documents(
        &mut self,
        inventory: Inventory,
    ) -> (Inventory, Result<Written, CdiError>) {
        let Some(mut files) = self.cdi.take() else { return (inventory, Ok(Written::default())) };
        let write = move || {
            let written = files.write(&inventory);
            (files, inventory, written)
        };
        let done = tokio::task::spawn_blocking(write).await;
        let (files, inventory, written) = done.expect("writing neither panics nor is cancelled");
        self.cdi = Some(files);
        (inventory, written)
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
pub(crate) fn merge(sources: &[(&'static str, watch::Receiver<SourceSnapshot>)]) -> Inventory {
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

/// What containers hold, by the kubelet's own record. Without a record nothing is held; `None` for one
/// that cannot be read, which is no reason not to serve.
fn read_held(path: &Path) -> Option<Held> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Some(Held::new()),
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "cannot read the kubelet's record");
            return None;
        }
    };
    let record = match checkpoint::Checkpoint::parse(text.trim_end()) {
        Ok(record) => record,
        Err(error) => {
            let error = causes(&error);
            tracing::warn!(path = %path.display(), error, "ignoring the kubelet's record");
            return None;
        }
    };
    let names = record.pods.iter().flatten().map(|entry| entry.resource_name.clone());
    let names: std::collections::BTreeSet<String> = names.collect();
    let held = |name: &String| {
        let ids = record.held(name).filter_map(|id| id.parse().ok()).collect();
        Some((name.parse().ok()?, ids))
    };
    Some(names.iter().filter_map(held).collect())
}
