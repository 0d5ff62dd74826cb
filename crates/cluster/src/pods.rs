//! Reader of this node's pods, one at a time, and writer of one annotation.

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;
use windlass_core::virtual_gpus::ContainerRequest;

use super::{
    BoundPod, Client, ClusterError, MANAGER,
    bound_pod::{is_mirror_of, requests},
    kept_connection::KeptConnection,
};

/// Pods of this node. Clones share a connection until it fails.
#[derive(Clone, Debug)]
pub struct Pods(KeptConnection);

// === impl Pods ===

impl Pods {
    /// Pods of this client's node.
    pub fn new(client: Client) -> Self {
        Self(KeptConnection::new(client))
    }

    /// The pod of this UID at the kubelet, if it is bound to this node; a lagging API server may not know it yet. The
    /// kubelet's checkpoint has UIDs only, so the node's pods are listed. A static pod is found by its mirror pod, unless
    /// several pods claim to be that.
    pub async fn find(&self, uid: &str) -> Result<Option<BoundPod>, ClusterError> {
        let connection = self.0.connect().await?;
        let node = self.0.client().node();
        let pods: Api<Pod> = Api::all(connection.kube.clone());
        // A node's pod has its annotations since the write that bound it: an old answer is as good as a new one.
        let which = ListParams::default().fields(&format!("spec.nodeName={node}")).match_any();
        let doing = || format!("cannot list pods of node {node}");
        let listed = connection.call(doing, pods.list_metadata(&which)).await;
        let listed = listed.inspect_err(|_| self.0.forget())?;
        let mut all: Vec<_> = listed.items.into_iter().map(|pod| pod.metadata).collect();
        let own = all.iter().position(|pod| pod.uid.as_deref() == Some(uid));
        let mut mirrors = all.iter().enumerate().filter(|(_, pod)| is_mirror_of(pod, uid));
        let mirror = mirrors.next().filter(|_| mirrors.next().is_none()).map(|(nth, _)| nth);
        Ok(own.or(mirror).map(|nth| BoundPod::of(all.swap_remove(nth))))
    }

    /// Requests of this very pod's containers for virtual GPUs; `None` if it is gone.
    pub async fn virtual_gpus(
        &self,
        pod: &BoundPod,
    ) -> Result<Option<Vec<ContainerRequest>>, ClusterError> {
        let connection = self.0.connect().await?;
        let pods: Api<Pod> = Api::namespaced(connection.kube.clone(), &pod.namespace);
        let doing = || format!("cannot read pod {}", pod.title());
        let found = connection.call(doing, pods.get_opt(&pod.name)).await;
        let found = found.inspect_err(|_| self.0.forget())?;
        let found = found.filter(|found| found.metadata.uid.as_ref() == Some(&pod.uid));
        Ok(found.map(|found| requests(&found)))
    }

    /// Writes an annotation of this very pod.
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
        let how = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let doing = || format!("cannot annotate pod {}", pod.title());
        let change = Patch::Merge(&change);
        let request = pods.patch_metadata(&pod.name, &how, &change);
        let written = connection.call(doing, request).await;
        written.inspect_err(|_| self.0.forget()).map(drop)
    }
}
