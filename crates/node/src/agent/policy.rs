//! Source of the policy: fixed, or reloaded from its file and by the node's label.

use std::sync::Arc;

use tokio::sync::watch;
use windlass_cluster::{Client, InvalidNodeName, node_label};
use windlass_config::{Config, LabelOutput, LabelValue, Policy};
use windlass_host::clock::Clock;

use super::{StartError, parts::TaskSet};
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
        let by_label = matches!(self, Self::Reloaded(ReloadSource { label: Some(_), .. }));
        let labels =
            matches!(config.policy.labels.output, LabelOutput::Node | LabelOutput::NodeFeature);
        let claims = config.policy.has_shares_or_claims();
        let leases = config.policy.sources.iter().any(|source| source.lease);
        let devices = config.policy.labels.devices;
        let fractions = config.nv_fractions.enabled;
        let is_used = config.policy.shares_by_mps();
        let is_needed =
            by_label || labels || devices || leases || claims || fractions || config.cluster.events;
        if let Some(kubeconfig) =
            config.cluster.kubeconfig.as_ref().filter(|_| !is_needed && !is_used)
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
        parts: &mut TaskSet,
    ) -> Result<watch::Receiver<Arc<Policy>>, StartError> {
        let follow = match self {
            Self::Supplied(policy) => return Ok(policy),
            Self::Reloaded(follow) => follow,
        };
        let label = match (client, follow.label) {
            (Some(client), Some(key)) => {
                let (label, watch) = node_label::watch(client.clone(), key, parts.token());
                parts.spawn("node's label", watch);
                label
            }
            _ => watch::channel(LabelValue::Unknown).1,
        };
        let triggers = ReloadTriggers { requests: follow.requests, label };
        let folder = follow.folder.as_deref();
        let reloader = Reloader::new(config.clone(), follow.load, folder, triggers, clock);
        let watched = folder.unwrap_or(&config.places.kubelet_dir);
        let reloader = reloader.map_err(|source| StartError::Watch(watched.to_owned(), source))?;
        let policy = reloader.policy();
        parts.spawn("metrics of the configuration", count(reloader.status(), metrics));
        parts.spawn("configuration", reloader.run(parts.token()));
        Ok(policy)
    }
}

/// Counts reloads until the reloader ends.
async fn count(mut status: watch::Receiver<ReloadStatus>, metrics: ReloadMetrics) {
    while status.changed().await.is_ok() {
        let ReloadStatus { last_success, error, .. } = status.borrow_and_update().clone();
        match error {
            None => metrics.record_loaded(last_success),
            Some(_) => metrics.record_refused(),
        }
    }
}
