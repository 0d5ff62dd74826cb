//! GPUs in slices and claims of Dynamic Resource Allocation.

use k8s_openapi::api::resource::v1::{Device, DeviceRequestAllocationResult, ResourceSlice};
use windlass_core::{device::DeviceId, selector::Amount};
use windlass_sched::{
    allocator::ChosenDevice,
    request::{Gpus, ShareMemory},
};

use super::{GpuFacts, amounts::NANOS_PER_MIB};

/// Name of a device in allocations.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceName {
    /// The driver.
    pub driver: String,
    /// The pool.
    pub pool: String,
    /// The device.
    pub device: String,
}

/// A GPU that a slice describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceGpu {
    /// Name of the GPU in allocations.
    pub name: DeviceName,
    /// Facts of the GPU.
    pub facts: GpuFacts,
}

// === impl DeviceName ===

impl DeviceName {
    /// True if this is the name of a slice's device.
    pub fn names_device(&self, slice: &ResourceSlice, device: &Device) -> bool {
        self.device == device.name
            && self.pool == slice.spec.pool.name
            && self.driver == slice.spec.driver
    }
}

// === impl SliceGpu ===

impl SliceGpu {
    /// True if the GPU has this id: as its attribute `uuid`, or in lower case as its name, as Windlass names devices.
    pub fn has_id(&self, id: &DeviceId) -> bool {
        self.facts.id.as_ref() == Some(id) || self.name.device == id.as_str().to_lowercase()
    }
}

/// The whole GPUs of a slice: devices whose attribute `type` is `gpu`, in any domain.
pub fn gpus(slice: &ResourceSlice) -> Vec<SliceGpu> {
    let (driver, pool) = (&slice.spec.driver, &slice.spec.pool.name);
    let devices = slice.spec.devices.iter().flatten();
    let gpus = devices.filter(|device| string_attribute(device, "type") == Some("gpu"));
    let gpu = |device: &Device| {
        let (driver, pool) = (driver.clone(), pool.clone());
        let name = DeviceName { driver, pool, device: device.name.clone() };
        let effects = ["NoSchedule", "NoExecute"];
        let taints = device.taints.iter().flatten();
        let taint = taints.into_iter().find(|taint| effects.contains(&taint.effect.as_str()));
        let facts = GpuFacts {
            id: string_attribute(device, "uuid").and_then(|id| id.parse::<DeviceId>().ok()),
            model: string_attribute(device, "productName").unwrap_or_default().to_owned(),
            memory_mib: memory_mib(device),
            has_failed: taint.is_some(),
            restricted_to: None,
            obstacle: taint.map(|taint| {
                let value = taint.value.as_deref().unwrap_or_default();
                format!("tainted {}={value}", taint.key)
            }),
        };
        SliceGpu { name, facts }
    };
    gpus.map(gpu).collect()
}

/// The device of an allocation result, and the equivalent request: a whole GPU, or a share.
pub fn from_allocation_result(result: &DeviceRequestAllocationResult) -> (DeviceName, Gpus) {
    let (driver, pool) = (result.driver.clone(), result.pool.clone());
    let name = DeviceName { driver, pool, device: result.device.clone() };
    if result.share_id.is_none() {
        return (name, Gpus::Whole(1));
    }
    let consumed = result.consumed_capacity.iter().flatten();
    let amounts = consumed.filter_map(|(name, it)| Some((name, Amount::parse(&it.0)?)));
    (name, share(amounts))
}

/// The request that is equivalent to a chosen device: a whole GPU, or a share. The caller checks that the device is a
/// GPU.
pub fn from_chosen_device(device: &ChosenDevice) -> Gpus {
    match &device.consumed {
        None => Gpus::Whole(1),
        Some(consumed) => share(consumed.iter().map(|(name, amount)| (name, *amount))),
    }
}

/// The share of a GPU that consumes these amounts of capacity.
fn share<'a>(consumed: impl Iterator<Item = (&'a String, Amount)>) -> Gpus {
    let memory = consumed.filter(|(name, _)| unqualified(name) == "memory");
    let mib = memory.map(|(_, amount)| mib(amount)).sum();
    Gpus::Share { count: 1, compute_milli: 0, memory: ShareMemory::Mib(mib) }
}

fn memory_mib(device: &Device) -> u32 {
    let capacity = device.capacity.iter().flatten();
    let mut memory = capacity.filter(|(name, _)| unqualified(name) == "memory");
    let amount = memory.next().and_then(|(_, capacity)| Amount::parse(&capacity.value.0));
    amount.map_or(0, mib)
}

fn mib(amount: Amount) -> u32 {
    u32::try_from((amount.nano_units() / NANOS_PER_MIB).max(0)).unwrap_or(u32::MAX)
}

/// Value of a string attribute, in any domain.
fn string_attribute<'a>(device: &'a Device, attribute: &str) -> Option<&'a str> {
    let attributes = device.attributes.iter().flatten();
    let mut matches = attributes.filter(|(name, _)| unqualified(name) == attribute);
    matches.find_map(|(_, attribute)| attribute.string.as_deref())
}

/// The name without its domain.
fn unqualified(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn gpus_of_a_slice_are_found_under_any_domain() {
        let slice: ResourceSlice = serde_json::from_value(json!({
            "metadata": {"name": "s"},
            "spec": {"driver": "windlass.dev", "nodeName": "n",
                     "pool": {"name": "n/nvidia", "generation": 1, "resourceSliceCount": 1},
                     "devices": [
                {"name": "gpu-a", "attributes": {
                    "windlass.dev/type": {"string": "gpu"}, "gpu.nvidia.com/uuid": {"string": "GPU-a"},
                    "gpu.nvidia.com/productName": {"string": "NVIDIA A10"}},
                 "capacity": {"gpu.nvidia.com/memory": {"value": "24Gi"}},
                 "taints": [{"key": "windlass.dev/unhealthy", "value": "xid-79", "effect": "NoSchedule"}]},
                {"name": "nic-0", "attributes": {"type": {"string": "nic"}}}]},
        }))
        .expect("a slice");
        let [gpu] = gpus(&slice).try_into().expect("one GPU");
        assert_eq!((gpu.name.device.as_str(), gpu.facts.model.as_str()), ("gpu-a", "NVIDIA A10"));
        assert_eq!(gpu.facts.memory_mib, 24 * 1024);
        let obstacle = "tainted windlass.dev/unhealthy=xid-79";
        assert_eq!(gpu.facts.obstacle.as_deref(), Some(obstacle));
    }

    #[test]
    fn a_result_takes_a_whole_gpu_or_a_share_of_its_memory() {
        let result = |fields: serde_json::Value| {
            let mut result = json!({"request": "r", "driver": "d", "pool": "p", "device": "gpu-a"});
            result
                .as_object_mut()
                .expect("a map")
                .extend(fields.as_object().cloned().expect("a map"));
            from_allocation_result(&serde_json::from_value(result).expect("a result")).1
        };
        assert_eq!(result(json!({})), Gpus::Whole(1));
        let share = json!({"shareID": "u", "consumedCapacity": {"gpu.nvidia.com/memory": "10Gi"}});
        let memory = ShareMemory::Mib(10 * 1024);
        assert_eq!(result(share), Gpus::Share { count: 1, compute_milli: 0, memory });
    }
}
