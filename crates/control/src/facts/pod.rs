//! Facts of a pod: its request, its node, and the GPUs chosen for it.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, PodResourceClaim, PodSpec};
use windlass_core::{
    annotation::{AcceptedGpus, PodPlacement},
    device::DeviceId,
};
use windlass_sched::{gpu::ModelSet, request::Request, view::Catalog};

use super::{Gang, GangError, GpuRequest, GpuRequestError, NodeFacts, amounts, gpu_kind::GpuKind};

/// gpushare's annotation with the index of the chosen GPU.
pub(crate) const GPUSHARE_INDEX: &str = "ALIYUN_COM_GPU_MEM_IDX";

/// The facts of a pod that placement reads.
#[derive(Clone, Debug, PartialEq)]
pub struct PodFacts {
    /// UID of the Pod object.
    pub uid: String,
    /// Resource version; later versions are larger (KEP-5504).
    pub resource_version: u64,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The pod's node, once the pod is bound.
    pub node: Option<String>,
    /// Time of its creation, in seconds since 1970.
    pub created: i64,
    /// Priority. Pods of lower priority may be evicted for this pod.
    pub priority: i32,
    /// Message of kube-scheduler's condition `PodScheduled`, once it has found no node for the pod.
    pub unschedulable: Option<String>,
    /// True in phase `Succeeded` or `Failed`: the pod holds no devices.
    pub is_ended: bool,
    /// The pod's resource request.
    pub resources: ResourceRequest,
    /// The pod's gang, if any; an error if the labels or annotations of the gang are invalid.
    pub gang: Option<Result<Gang, GangError>>,
    /// Index of the pod's GPU from gpushare's annotation, for nodes whose GPUs have no ids.
    pub gpu_index: Option<usize>,
    /// Names of the pod's `ResourceClaims`.
    pub claims: Vec<String>,
    /// Ids of the pod's GPUs: from the agent's correction, or else from the extender's decision; else empty.
    pub gpus: Vec<DeviceId>,
}

/// Resources that a pod requests.
#[derive(Clone, Debug, PartialEq)]
pub struct ResourceRequest {
    /// CPU in thousandths of a core.
    pub cpu_milli: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// GPUs.
    pub gpus: Result<GpuRequest, GpuRequestError>,
    /// Restrictions on products and ids of GPUs.
    pub accepted: AcceptedGpus,
}

// === impl PodFacts ===

impl PodFacts {
    /// Reads a Pod.
    pub fn of(object: &Pod) -> Self {
        let metadata = &object.metadata;
        let (no_spec, no_annotations) = (PodSpec::default(), BTreeMap::new());
        let spec = object.spec.as_ref().unwrap_or(&no_spec);
        let annotations = metadata.annotations.as_ref().unwrap_or(&no_annotations);
        let version = metadata.resource_version.as_deref();
        let phase = object.status.as_ref().and_then(|status| status.phase.as_deref());
        let resources = ResourceRequest::of(spec, annotations, is_served_by_claims(object));
        Self {
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: version.and_then(|text| text.parse().ok()).unwrap_or(0),
            namespace: metadata.namespace.clone().unwrap_or_default(),
            name: metadata.name.clone().unwrap_or_default(),
            node: spec.node_name.clone().filter(|name| !name.is_empty()),
            created: metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
            priority: spec.priority.unwrap_or(0),
            unschedulable: unschedulable_message(object),
            is_ended: matches!(phase, Some("Succeeded" | "Failed")),
            gang: Gang::of(object, &resources),
            resources,
            gpu_index: annotations.get(GPUSHARE_INDEX).and_then(|text| text.parse().ok()),
            claims: claims(object),
            gpus: gpus(annotations),
        }
    }

    /// `namespace/name`.
    pub fn namespaced_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// True if the pod requests GPUs or has claims. An invalid request counts.
    pub(crate) fn needs_devices(&self) -> bool {
        let requests_gpus = self.resources.gpus.as_ref().map_or(true, |gpus| gpus.is_some());
        requests_gpus || !self.claims.is_empty()
    }
}

/// Message of the condition by which kube-scheduler says that no node fits the pod. A gated pod has another reason, and a
/// pod with a nominated node waits for its victims only.
fn unschedulable_message(object: &Pod) -> Option<String> {
    let status = object.status.as_ref().filter(|status| status.nominated_node_name.is_none())?;
    let mut conditions = status.conditions.iter().flatten();
    let condition = conditions.find(|it| {
        let reason = it.reason.as_deref();
        it.type_ == "PodScheduled" && it.status == "False" && reason == Some("Unschedulable")
    })?;
    Some(condition.message.clone().unwrap_or_default())
}

/// True if kube-scheduler created a claim for the pod's extended resources (KEP-5004). The claim then holds the GPUs,
/// and the pod's own GPU request is ignored.
fn is_served_by_claims(object: &Pod) -> bool {
    object.status.as_ref().is_some_and(|it| it.extended_resource_claim_status.is_some())
}

/// Names of the pod's claims. The name is empty for a template whose claim does not exist yet.
fn claims(object: &Pod) -> Vec<String> {
    let statuses = object.status.iter().flat_map(|it| it.resource_claim_statuses.iter().flatten());
    let generated_names: BTreeMap<_, _> = statuses
        .filter_map(|it| Some((it.name.as_str(), it.resource_claim_name.as_ref()?)))
        .collect();
    let claims = object.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let name = |claim: &PodResourceClaim| {
        let generated_name = generated_names.get(claim.name.as_str()).copied();
        claim.resource_claim_name.as_ref().or(generated_name).cloned().unwrap_or_default()
    };
    claims.map(name).collect()
}

/// Ids in the placement of a pod. An unreadable annotation is ignored, because any user may have written it.
fn gpus(annotations: &BTreeMap<String, String>) -> Vec<DeviceId> {
    let placement = PodPlacement::from_annotations(annotations);
    placement.into_iter().flat_map(|it| it.devices).map(|device| device.id).collect()
}

// === impl ResourceRequest ===

impl ResourceRequest {
    fn of(
        spec: &PodSpec,
        annotations: &BTreeMap<String, String>,
        is_served_by_claims: bool,
    ) -> Self {
        let cpu = amounts::of_pod(spec, "cpu") / amounts::NANOS_PER_MILLI;
        // Rounded up: a node's free memory is rounded down.
        let memory = amounts::round_up(amounts::of_pod(spec, "memory"), amounts::NANOS_PER_MIB);
        Self {
            cpu_milli: u32::try_from(cpu).unwrap_or(u32::MAX),
            memory_mib: u32::try_from(memory).unwrap_or(u32::MAX),
            gpus: if is_served_by_claims { Ok(GpuRequest::None) } else { GpuRequest::of(spec) },
            accepted: AcceptedGpus::from_annotations(annotations),
        }
    }

    /// The request in the types of `windlass_sched`.
    ///
    /// # Errors
    ///
    /// The pod's GPU request is invalid.
    pub fn request(&self, catalog: &Catalog) -> Result<Request, GpuRequestError> {
        Ok(self.request_for(self.gpus.clone()?, catalog))
    }

    /// The request of a pod that is bound to `node`. If the node has no virtual GPUs, HAMi's names count whole GPUs.
    ///
    /// # Errors
    ///
    /// The pod's GPU request is invalid.
    pub(crate) fn request_on(
        &self,
        node: &NodeFacts,
        catalog: &Catalog,
    ) -> Result<Request, GpuRequestError> {
        let gpus = self.gpus.clone()?;
        let gpus = if node.virtual_gpus { gpus } else { gpus.without_virtual_gpus() };
        Ok(self.request_for(gpus, catalog))
    }

    fn request_for(&self, gpus: GpuRequest, catalog: &Catalog) -> Request {
        let (cpu_milli, memory_mib) = (self.cpu_milli, self.memory_mib);
        let models = self.models_for(&gpus, catalog);
        Request { cpu_milli, memory_mib, gpus: gpus.gpus(), models }
    }

    /// Products of the catalog that the pod accepts.
    pub(crate) fn models(&self, catalog: &Catalog) -> ModelSet {
        self.models_for(self.gpus.as_ref().unwrap_or(&GpuRequest::None), catalog)
    }

    /// Products of the catalog that the pod accepts and whose GPUs serve the request.
    fn models_for(&self, gpus: &GpuRequest, catalog: &Catalog) -> ModelSet {
        let kinds = || catalog.models().map(|(model, name)| (model, GpuKind::parse(name)));
        if self.accepted.accepts_all_products() && kinds().all(|(_, kind)| kind.serves(gpus)) {
            return ModelSet::ANY;
        }
        let serves =
            |kind: GpuKind<'_>| kind.serves(gpus) && self.accepted.accepts_product(kind.product);
        let models = kinds().filter(|(_, kind)| serves(*kind));
        models.fold(ModelSet::NONE, |set, (model, _)| set.with(model))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_bound_pod_has_the_gpus_of_its_annotation_unless_the_agent_corrected_them() {
        let pod = |annotations: serde_json::Value| {
            let object = json!({
                "metadata": {"name": "p", "namespace": "ns", "uid": "u", "annotations": annotations,
                             "creationTimestamp": "2026-01-01T00:00:00Z"},
                "spec": {"nodeName": "n1", "containers": [{"name": "c", "resources": {
                    "limits": {"windlass.dev/gpu-memory": "8", "cpu": "1500m", "memory": "1000k"},
                }}]},
                "status": {"phase": "Running"},
            });
            PodFacts::of(&serde_json::from_value(object).expect("a Pod"))
        };
        let placement = json!({"windlass.dev/placement": r#"{"devices":[{"id":"GPU-a"}]}"#});
        let facts = pod(placement.clone());
        assert_eq!(facts.gpus.iter().map(DeviceId::as_str).collect::<Vec<_>>(), ["GPU-a"]);
        assert_eq!((facts.namespaced_name().as_str(), facts.node.as_deref()), ("ns/p", Some("n1")));
        assert_eq!((facts.resources.cpu_milli, facts.resources.memory_mib), (1500, 1));
        assert!(!facts.is_ended && facts.created > 0);
        let mut corrected = placement;
        corrected["windlass.dev/placed"] = json!(r#"{"devices":[{"id":"GPU-b"}]}"#);
        assert_eq!(pod(corrected).gpus[0].as_str(), "GPU-b");
        assert_eq!(pod(json!({"windlass.dev/placement": "GPU-a"})).gpus, []);
    }
}
