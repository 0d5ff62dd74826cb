//! A pod of this node: identity, annotations, and requests for virtual GPUs.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, ObjectMeta};
use windlass_core::{annotation::PodPlacement, virtual_gpus::ContainerRequest};

use super::{
    FIELD_MANAGER,
    pod_fields::{ContainerFields, PodFields},
};

/// A pod that is bound to this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BoundPod {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID at the API server. At the kubelet a static pod has another UID.
    pub uid: String,
    /// Annotations, without forged placements.
    pub annotations: BTreeMap<String, String>,
    /// Field manager that forged an annotation: it wrote a placement without a Binding, or a correction instead of the
    /// agent.
    pub forging_manager: Option<String>,
}

/// Annotation of a mirror pod: the UID of its static pod at the kubelet.
const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";

// === impl BoundPod ===

impl BoundPod {
    /// `namespace/name`.
    pub fn namespaced_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Reads a pod's metadata.
    ///
    /// The API server records a field manager for each field that a request sets, but none for a Binding's
    /// annotations (`BindingREST` in `registry/core/pod/storage`). A placement with a field manager was therefore not
    /// written by the cluster half.
    pub(crate) fn of(metadata: ObjectMeta) -> Self {
        let mut annotations = metadata.annotations.unwrap_or_default();
        let entries = metadata.managed_fields.unwrap_or_default();
        let mut forging_manager = None;
        for (annotation, owner) in [
            (PodPlacement::ANNOTATION, None),
            (PodPlacement::PLACED_ANNOTATION, Some(FIELD_MANAGER)),
        ] {
            let mut writers = entries.iter().filter(|entry| has_annotation(entry, annotation));
            let forging_writer = writers.find(|entry| entry.manager.as_deref() != owner);
            if let Some(entry) = forging_writer.filter(|_| annotations.remove(annotation).is_some())
            {
                forging_manager = Some(entry.manager.clone().unwrap_or_default());
            }
        }
        Self {
            namespace: metadata.namespace.unwrap_or_default(),
            name: metadata.name.unwrap_or_default(),
            uid: metadata.uid.unwrap_or_default(),
            annotations,
            forging_manager,
        }
    }
}

/// True if the entry's manager owns the annotation.
fn has_annotation(entry: &ManagedFieldsEntry, annotation: &str) -> bool {
    let fields = entry.fields_v1.as_ref();
    let annotations = fields.and_then(|fields| fields.0.get("f:metadata")?.get("f:annotations"));
    annotations.is_some_and(|annotations| annotations.get(format!("f:{annotation}")).is_some())
}

/// True for the mirror of a static pod that has this UID at the kubelet.
pub(crate) fn is_mirror_of(pod: &ObjectMeta, uid: &str) -> bool {
    let annotations = pod.annotations.as_ref();
    annotations
        .and_then(|annotations| annotations.get(MIRROR_ANNOTATION))
        .is_some_and(|hash| hash == uid)
}

/// Requests of a pod's containers for virtual GPUs.
pub(crate) fn container_requests(pod: &PodFields) -> Vec<ContainerRequest> {
    ContainerRequest::of_pod(
        &pod.spec.init_containers,
        &pod.spec.containers,
        |container: &ContainerFields| container.restart_policy.as_deref(),
        |container, resource| {
            let mut amounts =
                [&container.resources.requests, &container.resources.limits].into_iter();
            amounts.find_map(|amounts| amounts.get(resource)).map(String::as_str)
        },
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A pod with placement and correction, and the managers of annotations.
    fn pod(entries: &[(&str, &str)]) -> BoundPod {
        let entry = |(manager, annotation): &(&str, &str)| {
            let annotations = json!({".": {}, format!("f:{annotation}"): {}});
            json!({"manager": manager, "operation": "Update", "fieldsType": "FieldsV1",
                   "fieldsV1": {"f:metadata": {"f:annotations": annotations}, "f:spec": {}}})
        };
        let entries: Vec<Value> = entries.iter().map(entry).collect();
        let metadata = json!({
            "name": "p", "namespace": "ns", "uid": "u", "managedFields": entries,
            "annotations": {"windlass.dev/placement": "a", "windlass.dev/placed": "b", "other": "c"},
        });
        BoundPod::of(serde_json::from_value(metadata).expect("metadata"))
    }

    #[test]
    fn a_placement_with_a_manager_was_not_written_by_a_binding() {
        let check =
            |entries: &[(&str, &str)], placements: &[&str], forging_manager: Option<&str>| {
                let pod = pod(entries);
                let values: Vec<_> = PodPlacement::annotation_values(&pod.annotations).collect();
                assert_eq!(
                    (values.as_slice(), pod.forging_manager.as_deref()),
                    (placements, forging_manager)
                );
                assert_eq!(pod.annotations["other"], "c");
            };
        check(&[], &["b", "a"], None);
        check(&[("kubectl", "other"), ("windlass", "windlass.dev/placed")], &["b", "a"], None);
        check(&[("kubectl", "windlass.dev/placement")], &["b"], Some("kubectl"));
        check(&[("kubectl", "windlass.dev/placed")], &["a"], Some("kubectl"));
    }

    #[test]
    fn a_mirror_pod_has_the_uid_of_its_static_pod_in_an_annotation() {
        let annotations = json!({"kubernetes.io/config.mirror": "hash"});
        let metadata = json!({"uid": "u", "annotations": annotations});
        let metadata: ObjectMeta = serde_json::from_value(metadata).expect("metadata");
        assert!(is_mirror_of(&metadata, "hash") && !is_mirror_of(&metadata, "u"));
    }
}
