//! Reader of this node's pods, one at a time, and writer of one annotation.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::json;

use super::{Client, ClusterError, MANAGER, kept_connection::KeptConnection};

/// Pods of this node. Clones share a connection until it fails.
#[derive(Clone, Debug)]
pub struct Pods(KeptConnection);

/// A pod that is bound to this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundPod {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

// === impl Pods ===

impl Pods {
    /// Pods of this client's node.
    pub fn new(client: Client) -> Self {
        Self(KeptConnection::new(client))
    }

    /// The pod of this UID, if it is bound to this node; a lagging API server may not know it yet. The kubelet's
    /// checkpoint has UIDs only, so the node's pods are listed.
    pub async fn find(&self, uid: &str) -> Result<Option<BoundPod>, ClusterError> {
        let connection = self.0.connect().await?;
        let node = self.0.client().node();
        let pods: Api<Pod> = Api::all(connection.kube.clone());
        // A node's pod has its annotations since the write that bound it: an old answer is as good as a new one.
        let which = ListParams::default().fields(&format!("spec.nodeName={node}")).match_any();
        let doing = || format!("cannot list pods of node {node}");
        let listed = connection.call(doing, pods.list_metadata(&which)).await;
        let listed = listed.inspect_err(|_| self.0.forget())?;
        let found = listed.items.into_iter().find(|pod| pod.metadata.uid.as_deref() == Some(uid));
        Ok(found.map(|pod| BoundPod {
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            uid: uid.to_owned(),
            annotations: pod.metadata.annotations.unwrap_or_default(),
        }))
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
        let doing = || format!("cannot annotate pod {}/{}", pod.namespace, pod.name);
        let change = Patch::Merge(&change);
        let request = pods.patch_metadata(&pod.name, &how, &change);
        let written = connection.call(doing, request).await;
        written.inspect_err(|_| self.0.forget()).map(drop)
    }
}
