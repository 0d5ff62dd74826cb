//! NRI plugin of the container runtime: adjusts containers with fractions, and lists the existing ones.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use tokio::sync::watch;
use windlass_cdi::memory_limits::LimitRecords;
use windlass_config::NvFractions;
use windlass_host::blocking;
use windlass_nri::{Adjustment, Container, EndEvent, Plugin};
use windlass_resources::NodeState;

use super::{
    plan::{self, FractionError, Plan},
    request::{FractionRequest, FractionRequestError},
};

/// Containers with fractions by the runtime's id.
pub(super) type FractionedContainers = BTreeMap<String, Fraction>;

/// A container with a fraction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fraction {
    pub(super) container: Container,
    pub(super) request: FractionRequest,
}

/// NRI plugin.
pub(super) struct FractionPlugin {
    pub(super) settings: NvFractions,
    pub(super) state: watch::Receiver<Arc<NodeState>>,
    pub(super) records: LimitRecords,
    pub(super) containers: watch::Sender<Arc<FractionedContainers>>,
}

// === impl FractionPlugin ===

impl FractionPlugin {
    fn request(
        &self,
        container: &Container,
    ) -> Result<Option<FractionRequest>, FractionRequestError> {
        let annotations = &container.pod.annotations;
        FractionRequest::of(&container.name, annotations, &self.settings.annotation_prefix)
    }

    /// Plans the container and writes the record of its limit.
    async fn adjust(
        &self,
        container: &Container,
        request: &FractionRequest,
    ) -> Result<Adjustment, String> {
        let state = self.state.borrow().clone();
        // The id becomes a file name.
        let is_allowed =
            |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
        let id = container.id.clone();
        if id.is_empty() || !id.chars().all(is_allowed) {
            return Err(format!("{id:?} is not a container id"));
        }
        let plan = plan::plan(request, &state, &self.records.path(&id));
        let Plan { limit, adjustment } = plan.map_err(|error| error.to_string())?;
        if let Some(limit) = limit {
            let records = self.records.clone();
            blocking(move || records.write_or_remove(&id, Some(&limit.record))).await?;
        }
        Ok(adjustment)
    }

    /// Removes containers, and their limit records from the disk.
    async fn remove(&self, is_removed: impl Fn(&Fraction) -> bool) {
        let containers = self.containers.borrow().clone();
        let ids: Vec<_> = containers
            .values()
            .filter(|fraction| is_removed(fraction))
            .map(|fraction| fraction.container.id.clone())
            .collect();
        if ids.is_empty() {
            return;
        }
        self.change(|containers| ids.iter().for_each(|id| drop(containers.remove(id))));
        let records = self.records.clone();
        blocking(move || {
            for id in ids {
                if let Err(error) = records.write_or_remove(&id, None) {
                    tracing::warn!(container = id, error, "record of a GPU fraction stays on disk");
                }
            }
        })
        .await;
    }

    fn change(&self, change: impl FnOnce(&mut FractionedContainers)) {
        self.containers.send_modify(|containers| change(Arc::make_mut(containers)));
    }
}

impl Plugin for FractionPlugin {
    async fn synchronize(&mut self, containers: Vec<Container>) {
        let fraction = |container: Container| {
            let request = self.request(&container).ok()??;
            Some((container.id.clone(), Fraction { container, request }))
        };
        let containers: FractionedContainers =
            containers.into_iter().filter_map(fraction).collect();
        let ids: BTreeSet<_> = containers.keys().cloned().collect();
        self.containers.send_replace(Arc::new(containers));
        let records = self.records.clone();
        blocking(move || records.retain(|name| ids.contains(name))).await;
    }

    async fn create_container(&mut self, container: Container) -> Result<Adjustment, String> {
        let adjusted = match self.request(&container) {
            Ok(None) => return Ok(Adjustment::default()),
            Ok(Some(request)) => {
                self.adjust(&container, &request).await.map(|adjustment| (request, adjustment))
            }
            Err(error) => Err(FractionError::FractionRequest(error).to_string()),
        };
        let (namespace, pod) = (&*container.pod.namespace, &*container.pod.name);
        let name = &*container.name;
        match adjusted {
            Ok((request, adjustment)) => {
                tracing::info!(
                    namespace,
                    pod,
                    container = name,
                    limit_mib = request.limit_mib,
                    "GPU fraction adjusted"
                );
                // Removes earlier containers of this name: the runtime sends no end event for a container whose
                // creation failed.
                let is_same = |fraction: &Fraction| {
                    fraction.container.name == container.name
                        && fraction.container.pod.uid == container.pod.uid
                        && fraction.container.id != container.id
                };
                self.remove(is_same).await;
                let id = container.id.clone();
                self.change(|containers| {
                    drop(containers.insert(id, Fraction { container, request }));
                });
                Ok(adjustment)
            }
            Err(reason) => {
                tracing::warn!(
                    namespace,
                    pod,
                    container = name,
                    why = reason,
                    "GPU fraction refused"
                );
                Err(format!("windlass refuses container {name} of pod {namespace}/{pod}: {reason}"))
            }
        }
    }

    async fn handle_end(&mut self, ended: EndEvent) {
        self.remove(|fraction| match &ended {
            EndEvent::Container(id) => fraction.container.id == *id,
            EndEvent::Sandbox(id) => fraction.container.pod.sandbox_id == *id,
        })
        .await;
    }
}
