//! Free capacity by node: CPUs, memory, extended resources, and published devices.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{
    core::v1::{Node, Pod, Taint},
    resource::v1::{DeviceClass, ResourceClaim},
};
use windlass_core::selector::{Amount, PreparedDevice, PublishedExpression};
use windlass_sched::allocator::{AllocatedDevices, Pools};

use crate::{
    facts::{NANOS_PER_UNIT, PART_OF, amount_of_pod},
    objects::Objects,
};

/// A schedulable node and its free capacity.
#[derive(Clone, Debug)]
pub struct FreeNode {
    /// Name of the node.
    pub name: String,
    /// CPUs that no pod requests.
    pub cpus: f64,
    /// Bytes of memory that no pod requests.
    pub memory: u64,
    /// Labels of the node.
    pub labels: BTreeMap<String, String>,
    /// Taints with the effect `NoSchedule` or `NoExecute`.
    pub taints: Vec<Taint>,
    /// Free extended resources by name. Resources with nothing free are left out.
    pub resources: BTreeMap<String, u32>,
    /// Published devices that no claim holds.
    pub devices: Vec<FreeDevice>,
}

/// A published device that no claim holds.
#[derive(Clone, Debug)]
pub struct FreeDevice {
    /// The device, prepared for CEL expressions.
    pub device: PreparedDevice,
    /// Names of the `DeviceClasses` that select the device.
    pub classes: Vec<String>,
}

/// A class's name with its CEL expressions. `None` if an expression does not parse; such a class selects no device.
type ClassSelectors = (String, Option<Vec<PublishedExpression>>);

// === impl Objects ===

impl Objects {
    /// Free capacity of each schedulable node. Nodes that are cordoned or not ready are left out. The capacity of the
    /// application `without`'s pods and claims counts as free: these pods are about to be replaced.
    pub fn free_nodes(&self, without: Option<&str>) -> Vec<FreeNode> {
        let is_other = |pod: &&Pod| {
            let labels = pod.metadata.labels.as_ref();
            without.is_none()
                || labels.and_then(|labels| labels.get(PART_OF)).map(String::as_str) != without
        };
        let (pods, replaced): (Vec<&Pod>, Vec<&Pod>) = self.pods().iter().partition(is_other);
        let is_held = |claim: &&ResourceClaim| {
            let holders = claim.status.as_ref().and_then(|status| status.reserved_for.as_deref());
            let holders = holders.unwrap_or_default();
            let is_replaced =
                |uid: &str| replaced.iter().any(|pod| pod.metadata.uid.as_deref() == Some(uid));
            holders.is_empty() || !holders.iter().all(|holder| is_replaced(&holder.uid))
        };
        let slices: Vec<_> = self.slices().iter().cloned().map(Arc::new).collect();
        let allocated = AllocatedDevices::of(self.claims().iter().filter(is_held));
        let classes: Vec<_> = self.classes().iter().map(class).collect();
        let nodes = self.nodes().iter().filter(|node| is_schedulable(node));
        nodes
            .map(|node| {
                let name = node.metadata.name.clone().unwrap_or_default();
                let pods: Vec<_> = pods.iter().copied().filter(|pod| runs_on(pod, &name)).collect();
                let pools = Pools::new(&slices, node);
                let devices = pools.free_devices(&allocated).map(|device| FreeDevice {
                    device: device.clone(),
                    classes: classes
                        .iter()
                        .filter(|class| selects(class, device))
                        .map(|(name, _)| name.clone())
                        .collect(),
                });
                FreeNode {
                    cpus: cpus(node, &pods),
                    memory: memory(node, &pods),
                    labels: node.metadata.labels.clone().unwrap_or_default(),
                    taints: taints(node).cloned().collect(),
                    resources: resources(node, &pods),
                    devices: devices.collect(),
                    name,
                }
            })
            .collect()
    }
}

fn is_schedulable(node: &Node) -> bool {
    let is_cordoned = node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true);
    let conditions =
        node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    // A recording has no conditions.
    let is_ready = conditions
        .iter()
        .filter(|condition| condition.type_ == "Ready")
        .all(|condition| condition.status == "True");
    !is_cordoned && is_ready
}

/// Taints that prevent scheduling. `PreferNoSchedule` does not.
fn taints(node: &Node) -> impl Iterator<Item = &Taint> {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    taints.iter().filter(|taint| ["NoSchedule", "NoExecute"].contains(&&*taint.effect))
}

/// True for a pod on this node that has not ended.
fn runs_on(pod: &Pod, node: &str) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let is_on_node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
    is_on_node && !matches!(phase, Some("Succeeded" | "Failed"))
}

fn free(node: &Node, pods: &[&Pod], resource: &str) -> i128 {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let total = allocatable
        .and_then(|quantities| quantities.get(resource))
        .and_then(|quantity| Amount::parse(&quantity.0));
    let allocated =
        pods.iter().filter_map(|pod| pod.spec.as_ref()).map(|spec| amount_of_pod(spec, resource));
    total.map_or(0, Amount::nano_units) - allocated.sum::<i128>()
}

fn cpus(node: &Node, pods: &[&Pod]) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a node has few CPUs")]
    let free = free(node, pods, "cpu").max(0) as f64;
    free / 1e9
}

fn memory(node: &Node, pods: &[&Pod]) -> u64 {
    u64::try_from(free(node, pods, "memory") / NANOS_PER_UNIT).unwrap_or(0)
}

/// Free extended resources: those whose names have a domain other than Kubernetes' own.
fn resources(node: &Node, pods: &[&Pod]) -> BTreeMap<String, u32> {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let names = allocatable.into_iter().flat_map(BTreeMap::keys);
    let extended = names.filter(|name| {
        name.split_once('/').is_some_and(|(domain, _)| !domain.ends_with("kubernetes.io"))
    });
    let amounts = extended.map(|name| {
        let amount = free(node, pods, name) / NANOS_PER_UNIT;
        (name.clone(), u32::try_from(amount.max(0)).unwrap_or(u32::MAX))
    });
    amounts.filter(|(_, amount)| *amount > 0).collect()
}

fn class(class: &DeviceClass) -> ClassSelectors {
    let selectors = class.spec.selectors.as_deref().unwrap_or_default().iter();
    let expressions = selectors
        .filter_map(|selector| selector.cel.as_ref())
        .map(|cel| cel.expression.parse().ok());
    (class.metadata.name.clone().unwrap_or_default(), expressions.collect())
}

fn selects((_, expressions): &ClassSelectors, device: &PreparedDevice) -> bool {
    expressions.as_ref().is_some_and(|parsed| {
        parsed.iter().all(|expression| expression.selects(device).unwrap_or(false))
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    #[test]
    fn capacity_of_pods_and_claims_is_not_free() {
        let pod = |name: &str, phase: &str| {
            json!({
                "kind": "Pod", "metadata": {"name": name, "namespace": "default",
                "labels": {"app.kubernetes.io/part-of": "door"}},
                "spec": {"nodeName": "a", "containers": [{"name": "c", "resources": {
                    "requests": {"cpu": "500m"}, "limits": {"coral.ai/tpu": "1"}}}]},
                "status": {"phase": phase},
            })
        };
        let list = json!({"items": [
            {"kind": "Node", "metadata": {"name": "a"}, "status": {"allocatable":
                {"cpu": "4", "coral.ai/tpu": "3", "scheduling.kubernetes.io/x": "1", "pods": "10"}}},
            {"kind": "Node", "metadata": {"name": "b"}, "spec": {"unschedulable": true}},
            pod("one", "Running"), pod("done", "Succeeded"),
            {"kind": "DeviceClass", "metadata": {"name": "npu"}, "spec": {"selectors": [
                {"cel": {"expression": "device.driver == 'npu.example.com'"}}]}},
            {"kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": {
                "driver": "npu.example.com", "nodeName": "a",
                "pool": {"name": "a", "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": "npu-0"}, {"name": "npu-1"}]}},
            {"kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "default"}, "spec": {"devices": {}},
             "status": {"allocation": {"devices": {"results": [
                {"request": "r", "driver": "npu.example.com", "pool": "a", "device": "npu-0"}]}}}},
        ]});
        let objects = Objects::parse(&list.to_string(), Path::new("list.json")).expect("objects");
        let free_nodes = objects.free_nodes(None);
        let [node] = &*free_nodes else { panic!("one node is schedulable: {free_nodes:?}") };
        assert!((node.cpus - 3.5).abs() < 1e-9, "{node:?}");
        assert_eq!(node.resources, [("coral.ai/tpu".to_owned(), 2)].into());
        let nodes_without_door = objects.free_nodes(Some("door"));
        assert_eq!(nodes_without_door[0].resources, [("coral.ai/tpu".to_owned(), 3)].into());
        let devices: Vec<_> = node
            .devices
            .iter()
            .map(|free_device| (free_device.device.id(), free_device.classes.clone()))
            .collect();
        assert_eq!(devices, [("npu.example.com/a/npu-1", vec!["npu".to_owned()])]);
    }
}
