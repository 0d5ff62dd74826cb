//! Requests about single pods of this node: reads them, writes annotations and events, and evicts.

use std::collections::BTreeMap;

use k8s_openapi::api::{core::v1::Pod, events::v1::Event};
use kube::{
    Api,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams, Preconditions},
};
use serde_json::json;
use windlass_core::virtual_gpus::ContainerRequest;

use super::{
    BoundPod, Client, ClusterError, FIELD_MANAGER, PodWarning,
    bound_pod::{container_requests, is_mirror_of},
    create_params,
    error::is_write_conflict,
    pod_fields::{self, PodFields},
    shared_connection::SharedConnection,
};

/// Pods of this node. Clones share a connection until it fails.
#[derive(Clone, Debug)]
pub struct Pods(SharedConnection);

/// Claims and containers of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodDetails {
    /// Names of the claims that the pod uses, including claims created from its templates.
    pub claims: Vec<String>,
    /// Names of the pod's started containers, by container id at the runtime.
    pub containers: BTreeMap<String, String>,
}

// === impl Pods ===

impl Pods {
    /// Pods of this client's node.
    pub fn new(client: Client) -> Self {
        Self(SharedConnection::new(client))
    }

    /// Finds a pod by its UID in the kubelet's checkpoint. `None` if the API server lists no such pod on this node, for
    /// instance because its cache lags. The API server has no lookup by UID, so all pods of the node are listed. A
    /// static pod is found by its mirror pod, unless several pods claim to be its mirror.
    pub async fn find(&self, uid: &str) -> Result<Option<BoundPod>, ClusterError> {
        let connection = self.0.connect().await?;
        let node = self.0.client().node();
        let pods: Api<Pod> = Api::all(connection.kube.clone());
        // The API server may answer from its cache (resourceVersion 0): the scheduler's annotations
        // are as old as the pod's binding, so an older answer either lacks the pod or has them.
        let params = ListParams::default().fields(&format!("spec.nodeName={node}")).match_any();
        let context = || format!("cannot list pods of node {node}");
        let list = connection.call(context, pods.list_metadata(&params)).await;
        let list = list.inspect_err(|_| self.0.reset())?;
        let mut pods_metadata: Vec<_> = list.items.into_iter().map(|pod| pod.metadata).collect();
        let with_uid = pods_metadata.iter().position(|pod| pod.uid.as_deref() == Some(uid));
        let mut mirrors =
            pods_metadata.iter().enumerate().filter(|(_, pod)| is_mirror_of(pod, uid));
        let mirror = mirrors.next().filter(|_| mirrors.next().is_none()).map(|(nth, _)| nth);
        Ok(with_uid.or(mirror).map(|nth| BoundPod::of(pods_metadata.swap_remove(nth))))
    }

    /// Requests of the pod's containers for virtual GPUs; `None` if no pod has this UID any more.
    pub async fn virtual_gpu_requests(
        &self,
        pod: &BoundPod,
    ) -> Result<Option<Vec<ContainerRequest>>, ClusterError> {
        Ok(self.read(pod).await?.map(|fields| container_requests(&fields)))
    }

    /// Claims and containers of the pod; `None` if no pod has this UID any more.
    pub async fn details(&self, pod: &BoundPod) -> Result<Option<PodDetails>, ClusterError> {
        Ok(self.read(pod).await?.map(PodDetails::of))
    }

    async fn read(&self, pod: &BoundPod) -> Result<Option<PodFields>, ClusterError> {
        let connection = self.0.connect().await?;
        let pods = pod_fields::pods(connection.kube.clone(), &pod.namespace);
        let context = || format!("cannot read pod {}", pod.namespaced_name());
        let object = connection.call(context, pods.get_opt(&pod.name)).await;
        let object = object.inspect_err(|_| self.0.reset())?;
        let object = object.filter(|object| object.metadata.uid.as_ref() == Some(&pod.uid));
        let fields = object.map(|object| serde_json::from_value(object.data)).transpose();
        fields.map_err(|error| ClusterError::of(context(), kube::Error::SerdeError(error)))
    }

    /// Evicts the pod with this UID, unless a disruption budget forbids it.
    pub async fn evict(&self, pod: &BoundPod) -> Result<(), ClusterError> {
        let connection = self.0.connect().await?;
        let pods: Api<Pod> = Api::namespaced(connection.kube.clone(), &pod.namespace);
        let uid = Preconditions { uid: Some(pod.uid.clone()), ..Preconditions::default() };
        let delete = DeleteParams { preconditions: Some(uid), ..DeleteParams::default() };
        let params = EvictParams { delete_options: Some(delete), ..EvictParams::default() };
        let context = || format!("cannot evict pod {}", pod.namespaced_name());
        let evicted = connection.call(context, pods.evict(&pod.name, &params)).await;
        evicted.inspect_err(|_| self.0.reset()).map(drop)
    }

    /// Writes a warning as an event of the pod.
    pub async fn warn(&self, pod: &BoundPod, warning: &PodWarning<'_>) -> Result<(), ClusterError> {
        let connection = self.0.connect().await?;
        let events: Api<Event> = Api::namespaced(connection.kube.clone(), &pod.namespace);
        let event = warning.event(pod, self.0.client().node());
        let context = || format!("cannot write an event of pod {}", pod.namespaced_name());
        let written = connection.call(context, events.create(&create_params(), &event)).await;
        match written {
            // An earlier attempt wrote the event, and its answer was lost.
            Err(error) if error.status().is_some_and(is_write_conflict) => Ok(()),
            written => written.inspect_err(|_| self.0.reset()).map(drop),
        }
    }

    /// Writes an annotation of the pod with this UID.
    pub async fn annotate(
        &self,
        pod: &BoundPod,
        key: &str,
        value: &str,
    ) -> Result<(), ClusterError> {
        let connection = self.0.connect().await?;
        let pods: Api<Pod> = Api::namespaced(connection.kube.clone(), &pod.namespace);
        // A pod of the same name with another UID is refused.
        let change = json!({"metadata": {"uid": pod.uid, "annotations": {key: value}}});
        let (params, change) = (PatchParams::apply(FIELD_MANAGER), Patch::Merge(&change));
        let context = || format!("cannot annotate pod {}", pod.namespaced_name());
        let request = pods.patch_metadata(&pod.name, &params, &change);
        let written = connection.call(context, request).await;
        written.inspect_err(|_| self.0.reset()).map(drop)
    }
}

// === impl PodDetails ===

impl PodDetails {
    fn of(pod: PodFields) -> Self {
        let PodFields { spec, status } = pod;
        // Claims of a template have their names in the status.
        let claims = spec.resource_claims.into_iter().chain(status.resource_claim_statuses);
        let claims = claims.filter_map(|claim| claim.resource_claim_name);
        let statuses = [
            status.container_statuses,
            status.init_container_statuses,
            status.ephemeral_container_statuses,
        ];
        let containers = statuses.into_iter().flatten().filter_map(|status| {
            let (_, id) = status.container_id.as_ref()?.split_once("://")?;
            Some((id.to_owned(), status.name))
        });
        Self { claims: claims.collect(), containers: containers.collect() }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn claims_are_those_of_the_pod_and_of_its_templates() {
        let pod = json!({
            "spec": {"containers": [], "resourceClaims": [
                {"name": "a", "resourceClaimName": "shared"}, {"name": "b", "resourceClaimTemplateName": "t"}]},
            "status": {
                "resourceClaimStatuses": [{"name": "b", "resourceClaimName": "p-b-x"}],
                "containerStatuses": [
                    {"name": "main", "containerID": "containerd://1f", "image": "", "imageID": "", "ready": true, "restartCount": 0},
                    {"name": "waits", "image": "", "imageID": "", "ready": false, "restartCount": 0}]},
        });
        let details = PodDetails::of(serde_json::from_value(pod).expect("a pod"));
        assert_eq!(details.claims, ["shared", "p-b-x"]);
        assert_eq!(details.containers, [("1f".to_owned(), "main".to_owned())].into());
    }
}
