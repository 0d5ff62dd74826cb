//! Source of the policy: fixed, or reloaded on request and on a change of its file or of the node's label.

use std::sync::Arc;

use tokio::sync::watch;
use windlass_cluster::{Client, InvalidNodeName, node_label};
use windlass_config::{Config, LabelOutput, LabelValue, Policy};
use windlass_host::clock::Clock;

use super::{StartError, tasks::TaskSet};
use crate::{
    metrics::ReloadMetrics,
    reload::{ReloadSource, ReloadStatus, ReloadTriggers, Reloader},
};

pub(super) enum PolicySource {
    /// The caller supplies the policy.
    Supplied(watch::Receiver<Arc<Policy>>),
    /// The configuration is reloaded on changes.
    Reloaded(ReloadSource),
}

// === impl PolicySource ===

impl PolicySource {
    /// API server client, not connected yet. An invalid node name is an error only if the configuration uses the API
    /// server.
    pub(super) fn client(&self, config: &Config) -> Result<Option<Client>, InvalidNodeName> {
        let uses_label = matches!(self, Self::Reloaded(ReloadSource { label: Some(_), .. }));
        let labels =
            matches!(config.policy.labels.output, LabelOutput::Node | LabelOutput::NodeFeature);
        let claims = config.policy.has_shares_or_claims();
        let leases = config.policy.sources.iter().any(|source| source.lease);
        let devices = config.policy.labels.devices;
        let fractions = config.nv_fractions.enabled;
        // An optional use: the API server announces the end of pods, whose MPS clients are then terminated in time.
        let is_useful = config.policy.shares_by_mps();
        let is_needed = uses_label
            || labels
            || devices
            || leases
            || claims
            || fractions
            || config.cluster.events;
        if let Some(kubeconfig) =
            config.cluster.kubeconfig.as_ref().filter(|_| !is_needed && !is_useful)
        {
            tracing::warn!(
                path = %kubeconfig.display(),
                "kubeconfig not used: no configured feature uses the API server"
            );
        }
        match Client::new(&config.cluster) {
            Ok(client) => Ok(Some(client)),
            Err(error) if is_needed => Err(error),
            Err(_) => Ok(None),
        }
    }

    /// Starts the task that keeps the policy current.
    pub(super) fn start(
        self,
        config: &Config,
        client: Option<&Client>,
        (clock, metrics): (Clock, ReloadMetrics),
        tasks: &mut TaskSet,
    ) -> Result<watch::Receiver<Arc<Policy>>, StartError> {
        let source = match self {
            Self::Supplied(policy) => return Ok(policy),
            Self::Reloaded(source) => source,
        };
        let label = match (client, source.label) {
            (Some(client), Some(key)) => {
                let (label, watch) = node_label::watch(client.clone(), key, tasks.stop_token());
                tasks.spawn("node's label", watch);
                label
            }
            _ => watch::channel(LabelValue::Unknown).1,
        };
        let triggers = ReloadTriggers { requests: source.requests, label };
        let folder = source.folder;
        let reloader =
            Reloader::new(config.clone(), source.load, folder.as_deref(), triggers, clock);
        // Without a folder there is no watch that can fail.
        let reloader =
            reloader.map_err(|error| StartError::Watch(folder.unwrap_or_default(), error))?;
        let policy = reloader.policy();
        tasks.spawn("metrics of the configuration", count_reloads(reloader.status(), metrics));
        tasks.spawn("configuration", reloader.run(tasks.stop_token()));
        Ok(policy)
    }
}

/// Counts reloads until the reloader ends.
async fn count_reloads(mut status: watch::Receiver<ReloadStatus>, metrics: ReloadMetrics) {
    while status.changed().await.is_ok() {
        let ReloadStatus { last_success, error, .. } = status.borrow_and_update().clone();
        match error {
            None => metrics.record_loaded(last_success),
            Some(_) => metrics.record_refused(),
        }
    }
}
