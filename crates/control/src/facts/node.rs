//! Facts of a node: its resources, and its GPUs.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Node;
use windlass_core::{
    annotation::{NodeDevice, NodeDevices, PodKind},
    device::DeviceId,
    selector::Amount,
};
use windlass_sched::{
    gpu::Gpu,
    node::{self, ResourceUsage},
    view::{Catalog, CatalogFull},
};

use super::{
    amounts::{NANOS_PER_MIB, NANOS_PER_MILLI, NANOS_PER_UNIT},
    gpu_kind::GpuKind,
};

/// The facts of a node that placement reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// The node's name.
    pub name: String,
    /// Allocatable CPU, in thousandths of a core.
    pub cpu_milli: u32,
    /// Allocatable memory, in MiB.
    pub memory_mib: u32,
    /// Allocatable number of pods.
    pub pods: u32,
    /// The node's GPUs, by index.
    pub gpus: Vec<GpuFacts>,
    /// True if `nvidia.com/gpu` counts virtual GPUs on this node, so that pods get shares by HAMi's resource names.
    pub virtual_gpus: bool,
    /// True if the node's agent reports a simulated machine.
    pub simulated: bool,
    /// True if an agent of Windlass publishes the node's GPUs.
    pub has_agent: bool,
    /// Labels of the node. Slices may select nodes by labels.
    pub labels: BTreeMap<String, String>,
    /// Errors in the annotation with the node's GPUs.
    pub annotation_errors: Vec<String>,
}

/// A GPU of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuFacts {
    /// The GPU's id; `None` if no agent published one.
    pub id: Option<DeviceId>,
    /// Product name.
    pub model: String,
    /// Memory in MiB; zero if unknown.
    pub memory_mib: u32,
    /// Reason why the GPU accepts no new pods, if any.
    pub obstacle: Option<String>,
    /// True if the obstacle is a failure.
    pub has_failed: bool,
    /// The kind of request to which the GPU is restricted; `None` if it serves all.
    pub restricted_to: Option<PodKind>,
}

// === impl NodeFacts ===

impl NodeFacts {
    /// Reads a Node.
    ///
    /// The GPUs are those of the agent's annotation. On a node with another device plugin the labels and allocatable
    /// resources give their number; these GPUs have no ids.
    pub fn of(object: &Node) -> Self {
        let metadata = &object.metadata;
        let status = object.status.as_ref();
        let allocatable = status.and_then(|it| it.allocatable.as_ref());
        let nano_units = |resource: &str| {
            let quantity = allocatable.and_then(|quantities| quantities.get(resource));
            quantity.and_then(|it| Amount::parse(&it.0)).map_or(0, Amount::nano_units)
        };
        let units = |resource: &str, per: i128| {
            u32::try_from((nano_units(resource) / per).max(0)).unwrap_or(u32::MAX)
        };
        let empty = BTreeMap::new();
        let annotations = metadata.annotations.as_ref().unwrap_or(&empty);
        let labels = metadata.labels.as_ref().unwrap_or(&empty);
        let mut annotation_errors = Vec::new();
        let annotation = annotations.get(NodeDevices::ANNOTATION);
        let node_devices = annotation.and_then(|text| {
            let result = NodeDevices::from_annotation(text);
            result.map_err(|error| annotation_errors.push(windlass_host::causes(&error))).ok()
        });
        let virtual_gpus = node_devices.as_ref().is_some_and(|it| it.virtual_gpus);
        let simulated = node_devices.as_ref().is_some_and(|it| it.simulated);
        let has_agent = node_devices.is_some();
        let gpus = match node_devices {
            Some(node_devices) => without_duplicates(node_devices.devices, &mut annotation_errors),
            None => gpus_of_other_plugins(labels, |resource| units(resource, NANOS_PER_UNIT)),
        };
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            cpu_milli: units("cpu", NANOS_PER_MILLI),
            memory_mib: units("memory", NANOS_PER_MIB),
            pods: units("pods", NANOS_PER_UNIT),
            gpus,
            virtual_gpus,
            simulated,
            has_agent,
            labels: labels.clone(),
            annotation_errors,
        }
    }

    /// The node's state without pods, for a view.
    ///
    /// # Errors
    ///
    /// The catalog is full, so one of the node's products gets no number.
    pub fn empty_node(&self, catalog: &mut Catalog) -> Result<node::Node, CatalogFull> {
        let mut gpu = |facts: &GpuFacts| {
            let gpu = Gpu::free(catalog.intern_model(&facts.kind().to_string())?, facts.memory_mib);
            Ok(Gpu { is_usable: facts.obstacle.is_none(), ..gpu })
        };
        Ok(node::Node {
            cpu_milli: ResourceUsage::free(self.cpu_milli),
            memory_mib: ResourceUsage::free(self.memory_mib),
            pods: ResourceUsage::free(self.pods),
            gpus: self.gpus.iter().map(&mut gpu).collect::<Result<_, CatalogFull>>()?,
        })
    }
}

// === impl GpuFacts ===

impl GpuFacts {
    /// Product of the GPU, and the requests to which the GPU is restricted.
    pub(super) fn kind(&self) -> GpuKind<'_> {
        GpuKind { product: &self.model, restricted_to: self.restricted_to }
    }
}

/// Maximum number of GPUs of a node: `GpuSet` is a 64-bit set.
pub const MAX_GPUS: usize = 64;

/// Published GPUs. A second GPU with the same id is left out, and reported in `errors`.
fn without_duplicates(devices: Vec<NodeDevice>, errors: &mut Vec<String>) -> Vec<GpuFacts> {
    let mut gpus: Vec<GpuFacts> = Vec::with_capacity(devices.len());
    for NodeDevice { id, model, memory_mib, obstacle, failed, only_for } in devices {
        if gpus.iter().any(|other| other.id.as_ref() == Some(&id)) {
            errors.push(format!("annotation {} has {id} twice", NodeDevices::ANNOTATION));
            continue;
        }
        let (id, has_failed) = (Some(id), failed);
        gpus.push(GpuFacts {
            id,
            model,
            memory_mib,
            obstacle,
            has_failed,
            restricted_to: only_for,
        });
    }
    if gpus.len() > MAX_GPUS {
        let count = gpus.len();
        errors.push(format!("{count} GPUs are published; the first {MAX_GPUS} count"));
        gpus.truncate(MAX_GPUS);
    }
    gpus
}

/// GPUs of other device plugins: NVIDIA's plugin describes them by labels, gpushare by resources.
fn gpus_of_other_plugins(
    labels: &BTreeMap<String, String>,
    units: impl Fn(&str) -> u32,
) -> Vec<GpuFacts> {
    let label = |key: &str| labels.get(key).map(String::as_str).unwrap_or_default();
    let number = |key: &str| label(key).parse::<u32>().ok();
    let gpushare_count = units("aliyun.com/gpu-count");
    let (count, memory_mib) = if gpushare_count > 0 {
        (gpushare_count, units("aliyun.com/gpu-mem") / gpushare_count * 1024)
    } else {
        let allocatable = units("nvidia.com/gpu");
        let replicas = number("nvidia.com/gpu.replicas").unwrap_or(1).max(1);
        (allocatable / replicas, number("nvidia.com/gpu.memory").unwrap_or(0))
    };
    let model = label("nvidia.com/gpu.product").to_owned();
    let gpu = GpuFacts { model, memory_mib, ..GpuFacts::default() };
    vec![gpu; (count as usize).min(MAX_GPUS)]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn facts(object: Value) -> NodeFacts {
        NodeFacts::of(&serde_json::from_value(object).expect("a Node"))
    }

    #[test]
    fn gpus_are_those_of_the_agents_annotation() {
        let devices = r#"{"devices":[
            {"id":"GPU-a","model":"NVIDIA A10","memoryMib":23028},
            {"id":"GPU-b","model":"NVIDIA A10","memoryMib":23028,"obstacle":"xid 79"},
            {"id":"GPU-a","model":"NVIDIA A10","memoryMib":23028}]}"#;
        let facts = facts(json!({
            "metadata": {"name": "n1", "annotations": {"windlass.dev/devices": devices}},
            "status": {"allocatable": {
                "cpu": "63500m", "memory": "131072Mi", "pods": "110", "nvidia.com/gpu": "8",
            }},
        }));
        assert_eq!((facts.cpu_milli, facts.memory_mib, facts.pods), (63_500, 131_072, 110));
        let ids: Vec<_> = facts.gpus.iter().filter_map(|gpu| gpu.id.as_ref()).collect();
        assert_eq!(ids.iter().map(|id| id.as_str()).collect::<Vec<_>>(), ["GPU-a", "GPU-b"]);
        assert_eq!(facts.gpus[1].obstacle.as_deref(), Some("xid 79"));
        assert_eq!(facts.annotation_errors, ["annotation windlass.dev/devices has GPU-a twice"]);
    }

    #[test]
    fn gpus_of_other_device_plugins_are_counted() {
        let nvidia = facts(json!({
            "metadata": {"name": "n", "labels": {
                "nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360",
                "nvidia.com/gpu.replicas": "2",
            }},
            "status": {"allocatable": {"nvidia.com/gpu": "8"}},
        }));
        assert_eq!(nvidia.gpus.len(), 4);
        assert_eq!((nvidia.gpus[0].model.as_str(), nvidia.gpus[0].memory_mib), ("Tesla-T4", 15360));
        let gpushare = facts(json!({
            "metadata": {"name": "n"},
            "status": {"allocatable": {"aliyun.com/gpu-count": "2", "aliyun.com/gpu-mem": "30"}},
        }));
        assert_eq!((gpushare.gpus.len(), gpushare.gpus[1].memory_mib), (2, 15 * 1024));
    }

    #[test]
    fn an_unreadable_annotation_is_reported_and_allocatable_gpus_are_counted() {
        let facts = facts(json!({
            "metadata": {"name": "n", "annotations": {"windlass.dev/devices": "{"}},
            "status": {"allocatable": {"nvidia.com/gpu": "1"}},
        }));
        assert_eq!(facts.gpus.len(), 1);
        assert!(
            facts.annotation_errors[0].starts_with("annotation windlass.dev/devices is unreadable")
        );
    }
}
