//! Pods with processes on shared GPUs: names, claims and containers, looked up at the API server.

use std::collections::{BTreeMap, BTreeSet};

use tokio::time::{Duration, Instant};
use windlass_allocations::ledger::ClaimRef;
use windlass_cluster::{BoundPod, ClusterError, PodDetails, Pods};
use windlass_host::{causes, container::ContainerId, keyed::KeyedTasks};

use super::limits::GpuLimits;

/// Pods by the kubelet's UID.
#[derive(Debug)]
pub(super) struct Tenants {
    api: Option<Pods>,
    cached: BTreeMap<String, CachedPod>,
    lookups: KeyedTasks<String, Result<Option<Tenant>, ClusterError>>,
    running: usize,
}

/// A pod, with its claims and containers.
#[derive(Clone, Debug)]
pub(super) struct Tenant {
    pub(super) pod: BoundPod,
    pub(super) details: PodDetails,
}

/// Answer of the API server.
#[derive(Debug)]
struct CachedPod {
    /// `None` if the pod was not found, or if no lookup succeeded.
    tenant: Option<Tenant>,
    looked_up_at: Instant,
}

/// Pause before a pod is looked up again because the pod or its container was unknown. The kubelet reports a started
/// container within a second or two.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// Limit of concurrent lookups of claims. A node may have a hundred pods when the first claim appears.
const MAX_CLAIM_LOOKUPS: usize = 8;

// === impl Tenants ===

impl Tenants {
    pub(super) fn new(api: Option<Pods>) -> Self {
        Self { api, cached: BTreeMap::new(), lookups: KeyedTasks::default(), running: 0 }
    }

    /// The pod of this UID, if it is known.
    pub(super) fn get(&self, pod: &str) -> Option<&Tenant> {
        self.cached.get(pod)?.tenant.as_ref()
    }

    /// True after a lookup that failed or did not find the pod, or if there is no API server. Its claims are unknown.
    pub(super) fn is_unknown(&self, pod: &str) -> bool {
        let cached = self.cached.get(pod);
        cached.map_or(self.api.is_none(), |cached| cached.tenant.is_none())
    }

    /// The holder with its namespace and name, if known. The kubelet names holders of replicas by their UID alone.
    pub(super) fn with_name(&self, holder: &ClaimRef) -> ClaimRef {
        let uid = holder.pod_of_share().filter(|_| holder.namespace.is_empty());
        let pod = uid.and_then(|uid| Some(&self.get(uid)?.pod));
        let named_holder = pod.map(|pod| ClaimRef::of_share(&pod.namespace, &pod.name, &pod.uid));
        named_holder.unwrap_or_else(|| holder.clone())
    }

    /// Name of a container, if it is known.
    pub(super) fn container(&self, container: &ContainerId) -> Option<&str> {
        self.get(&container.pod)?.details.containers.get(&container.id).map(String::as_str)
    }

    /// Looks up the pod of a container, unless both are known.
    pub(super) fn look_up_container(&mut self, container: &ContainerId) {
        let uid = &container.pod;
        if self.container(container).is_none() {
            self.look_up(uid);
        }
    }

    /// Looks up a pod for its claims, which never change. The number of lookups is limited.
    pub(super) fn look_up_claims(&mut self, pod: &str) {
        if self.get(pod).is_none() && self.running < MAX_CLAIM_LOOKUPS {
            self.look_up(pod);
        }
    }

    /// Pods that use a claim with a limit on this GPU.
    pub(super) fn users<'a>(&'a self, gpu: &'a GpuLimits) -> impl Iterator<Item = &'a String> {
        let tenants =
            self.cached.iter().filter_map(|(uid, cached)| Some((uid, cached.tenant.as_ref()?)));
        let uses = |Tenant { pod, details }: &Tenant| {
            gpu.claims(&pod.namespace, &details.claims).next().is_some()
        };
        tenants.filter(move |(_, tenant)| uses(tenant)).map(|(uid, _)| uid)
    }

    fn look_up(&mut self, uid: &str) {
        let is_recent =
            self.cached.get(uid).is_some_and(|cached| cached.looked_up_at.elapsed() < RETRY_DELAY);
        let uid = uid.to_owned();
        if let Some(api) = self.api.clone()
            && !is_recent
            && !self.lookups.is_busy(&uid)
        {
            self.running += 1;
            let pod = uid.clone();
            self.lookups.submit(uid, Box::pin(async move { look_up(&api, &pod).await }));
        }
    }

    /// Waits for the next finished lookup.
    pub(super) async fn next(&mut self) {
        match self.lookups.join_next().await {
            Some((uid, lookup)) => {
                self.running -= 1;
                let lookup = lookup.inspect_err(|error| {
                    let error = causes(error);
                    tracing::debug!(uid, error, "pod on a shared GPU not looked up");
                });
                // A failed lookup keeps the earlier answer.
                let cached_tenant = self.cached.remove(&uid).and_then(|cached| cached.tenant);
                let tenant = lookup.unwrap_or(cached_tenant);
                self.cached.insert(uid, CachedPod { tenant, looked_up_at: Instant::now() });
            }
            None => std::future::pending().await,
        }
    }

    /// Drops all other pods.
    pub(super) fn retain(&mut self, pods: &BTreeSet<&String>) {
        self.cached.retain(|uid, _| pods.contains(uid));
    }
}

async fn look_up(api: &Pods, uid: &str) -> Result<Option<Tenant>, ClusterError> {
    let Some(pod) = api.find(uid).await? else { return Ok(None) };
    let details = api.details(&pod).await?;
    Ok(details.map(|details| Tenant { pod, details }))
}
