//! Cached ranks for claims, compared with those of an index without cache, in random clusters that change.
//!
//! The index for comparison is new for each ranking. Each of its nodes has a different extra capacity, so that no two
//! nodes have equal signatures.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    core::v1::Node,
    resource::v1::{DeviceClass, ResourceClaim, ResourceSlice},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use windlass_control::{
    facts::{GpuRequest, NodeFacts, PodFacts, ResourceRequest, ShareScheme},
    index::Index,
};
use windlass_core::annotation::AcceptedGpus;
use windlass_sched::{
    allocator::{AllocationInput, allocate},
    random::Random,
    request::ShareMemory,
};

const NODES: usize = 10;
const STEPS: usize = 80;
const RANKINGS: usize = 3;

/// The API server's objects.
struct Cluster {
    random: Random,
    nodes: Vec<Value>,
    /// By node.
    slices: Vec<Vec<Value>>,
    classes: [DeviceClass; 2],
    /// Allocated claims, by name.
    allocated: BTreeMap<String, ResourceClaim>,
    pods: BTreeMap<String, PodFacts>,
    created_count: usize,
}

fn object<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("an object of the kind")
}

fn node_name(n: usize) -> String {
    format!("node-{n}")
}

/// One of several slices of a node's pool.
fn slice(n: usize, (name, count): (&str, usize), devices: &Value) -> Value {
    let node = node_name(n);
    json!({
        "metadata": {"name": format!("{node}-{name}")},
        "spec": {
            "driver": "windlass.dev", "nodeName": node, "devices": devices, "pool": {
                "name": format!("{node}/nvidia"), "generation": 1 + n, "resourceSliceCount": count,
            },
        },
    })
}

fn gpu(n: usize, g: usize, model: &str) -> Value {
    json!({
        "name": format!("gpu-{n:04x}-{g}"),
        "attributes": {
            "gpu.nvidia.com/uuid": {"string": format!("GPU-{n:04x}-{g}")},
            "gpu.nvidia.com/productName": {"string": model},
            "resource.kubernetes.io/numaNode": {"int": g / 2},
            "resource.kubernetes.io/pcieRoot": {"string": format!("pci0000:0{}", g / 2)},
            "windlass.dev/type": {"string": "gpu"},
        },
        "capacity": {"gpu.nvidia.com/memory": {"value": "80Gi"}},
    })
}

fn nic(n: usize, root: usize) -> Value {
    json!({
        "name": format!("nic-{n:04x}-{root}"),
        "attributes": {
            "resource.kubernetes.io/pcieRoot": {"string": format!("pci0000:0{root}")},
            "windlass.dev/type": {"string": "nic"},
        },
    })
}

/// Slices of one of four kinds of nodes: whole GPUs with and without NICs, shared GPUs, GPUs with partitions.
fn slices(n: usize) -> Vec<Value> {
    let gpus = |count: usize, gpu: fn(usize, usize) -> Value| {
        slice(n, ("gpus", 1), &(0..count).map(|g| gpu(n, g)).collect())
    };
    match n % 4 {
        0 => {
            let mut nics = slice(n, ("nics", 1), &json!([nic(n, 0), nic(n, 1)]));
            nics["spec"]["pool"]["name"] = format!("{}/nics", node_name(n)).into();
            vec![gpus(4, |n, g| gpu(n, g, "H100")), nics]
        }
        1 => vec![gpus(4, |n, g| gpu(n, g, "A10"))],
        2 => vec![gpus(2, shared)],
        _ => {
            let mut first = slice(n, ("0", 3), &Value::Null);
            let set =
                |g| json!({"name": counter_set_name(n, g), "counters": counters(&[0, 1, 2, 3])});
            first["spec"]["sharedCounters"] = json!([set(0), set(1)]);
            vec![
                first,
                slice(n, ("1", 3), &partitions(n, 0)),
                slice(n, ("2", 3), &partitions(n, 1)),
            ]
        }
    }
}

fn shared(n: usize, g: usize) -> Value {
    let mut gpu = gpu(n, g, "H100");
    gpu["allowMultipleAllocations"] = true.into();
    let policy = json!({"default": "80Gi", "validRange": {"min": "1Gi", "step": "1Gi"}});
    gpu["capacity"]["gpu.nvidia.com/memory"]["requestPolicy"] = policy;
    gpu
}

/// The partitions of a GPU, and the whole GPU.
fn partitions(n: usize, g: usize) -> Value {
    let slot_sets: [&[usize]; 7] = [&[3], &[2], &[1], &[0], &[2, 3], &[0, 1], &[0, 1, 2, 3]];
    let device = |slots: &[usize]| {
        let mut gpu = gpu(n, g, "H100");
        let consumes = json!([{"counterSet": counter_set_name(n, g), "counters": counters(slots)}]);
        gpu["consumesCounters"] = consumes;
        if slots.len() < 4 {
            let profile = format!("{}g", slots.len());
            gpu["name"] = format!("gpu-{n:04x}-{g}-{profile}-{}", slots[0]).into();
            gpu["attributes"]["windlass.dev/type"]["string"] = "mig".into();
            gpu["attributes"]["gpu.nvidia.com/profile"] = json!({"string": profile});
        }
        gpu
    };
    slot_sets.into_iter().map(device).collect()
}

fn counter_set_name(n: usize, g: usize) -> String {
    format!("gpu-{n:04x}-{g}-counters")
}

fn counters(slots: &[usize]) -> Value {
    let slots = slots.iter().map(|it| (format!("slice-{it}"), json!({"value": "1"})));
    Value::Object(slots.collect())
}

fn class(name: &str, expression: &str) -> DeviceClass {
    object(json!({
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }))
}

fn gpu_class(model: &str) -> DeviceClass {
    let model = format!("device.attributes['gpu.nvidia.com'].?productName.orValue('') {model}");
    class("gpu", &format!("device.attributes['windlass.dev'].type == 'gpu' && {model}"))
}

fn request(name: &str, class: &str, fields: &Value) -> Value {
    let mut exactly = json!({"deviceClassName": class});
    exactly.as_object_mut().expect("a map").extend(fields.as_object().expect("a map").clone());
    json!({"name": name, "exactly": exactly})
}

/// Random specifications of a pod's claims.
fn random_specs(random: &mut Random) -> Vec<Value> {
    let cel = |expression: &str| json!({"selectors": [{"cel": {"expression": expression}}]});
    let gpus = |count: usize| request("gpus", "gpu", &json!({"count": count}));
    let spec_of = |requests: Value, constraints: Value| json!({"devices": {"requests": requests, "constraints": constraints}});
    let root = json!([{"matchAttribute": "resource.kubernetes.io/pcieRoot"}]);
    let profile = |name: &str| {
        cel(&format!("device.attributes['gpu.nvidia.com'].?profile.orValue('') == '{name}'"))
    };
    let share = |gib: usize| {
        let capacity = json!({"requests": {"gpu.nvidia.com/memory": format!("{gib}Gi")}});
        request("share", "gpu", &json!({"capacity": capacity}))
    };
    let empty = json!([]);
    let n = random.below(NODES);
    let spec = match random.below(12) {
        0 => spec_of(json!([gpus(1 + random.below(4))]), empty),
        1 => spec_of(json!([gpus(2)]), root),
        2 => spec_of(json!([share(10 * (1 + random.below(4)))]), empty),
        3 => spec_of(json!([request("p", "any", &profile("1g"))]), empty),
        4 => spec_of(json!([request("p", "any", &profile("2g"))]), empty),
        5 => {
            let nic =
                request("nic", "any", &cel("device.attributes['windlass.dev'].type == 'nic'"));
            spec_of(json!([gpus(1), nic]), root)
        }
        6 => {
            let uuid = format!("device.attributes['gpu.nvidia.com'].uuid == 'GPU-{n:04x}-1'");
            spec_of(json!([request("pinned", "gpu", &cel(&uuid))]), empty)
        }
        // These claims may read any attribute.
        7 => {
            let any = "['uuid'].exists(it, device.attributes['gpu.nvidia.com'][it].endsWith('-2'))";
            spec_of(json!([request("any", "gpu", &cel(any))]), empty)
        }
        8 => spec_of(json!([request("all", "gpu", &json!({"allocationMode": "All"}))]), empty),
        9 => {
            let uuid = json!([{"distinctAttribute": "gpu.nvidia.com/uuid"}]);
            spec_of(json!([gpus(1), share(20)]), uuid)
        }
        10 => {
            let sub = |count: usize| json!({"name": format!("s{count}"), "deviceClassName": "gpu", "count": count});
            spec_of(json!([{"name": "some", "firstAvailable": [sub(4), sub(2), sub(1)]}]), empty)
        }
        // An error for devices without the attribute.
        _ => {
            let error = cel("device.attributes['gpu.nvidia.com'].profile == '1g'");
            spec_of(json!([request("p", "any", &error)]), empty)
        }
    };
    if random.below(5) == 0 { vec![spec, spec_of(json!([gpus(1)]), json!([]))] } else { vec![spec] }
}

fn claim(name: &str, spec: &Value) -> ResourceClaim {
    object(json!({
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-{name}")}, "spec": spec,
    }))
}

// === impl Cluster ===

impl Cluster {
    fn new(seed: u64) -> Self {
        let node = |n| {
            json!({
                "metadata": {"name": node_name(n), "labels": {}},
                "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"}},
            })
        };
        Self {
            random: Random::new(seed),
            nodes: (0..NODES).map(node).collect(),
            slices: (0..NODES).map(slices).collect(),
            classes: [gpu_class("!= ''"), class("any", "device.driver == 'windlass.dev'")],
            allocated: BTreeMap::new(),
            pods: BTreeMap::new(),
            created_count: 0,
        }
    }

    fn pod(&mut self, gpus: GpuRequest, claims: Vec<String>) -> PodFacts {
        self.created_count += 1;
        let name = format!("pod-{:04}", self.created_count);
        PodFacts {
            uid: name.clone(),
            resource_version: self.created_count as u64,
            namespace: "ns".to_owned(),
            name,
            node: None,
            created: i64::try_from(self.created_count).expect("a small number"),
            priority: 0,
            unschedulable: None,
            is_ended: false,
            resources: ResourceRequest {
                cpu_milli: [500, 4000][self.random.below(2)],
                memory_mib: 1024,
                gpus: Ok(gpus),
                accepted: AcceptedGpus::default(),
            },
            gang: None,
            gpu_index: None,
            claims,
            gpus: Vec::new(),
        }
    }

    /// Adds pending pods, from which the index computes its forecast.
    fn add_pending(&mut self) {
        let memory = ShareMemory::Mib(20_480);
        let share =
            GpuRequest::Share { count: 1, compute_milli: 0, memory, scheme: ShareScheme::Windlass };
        for gpus in [GpuRequest::Whole(1), share, GpuRequest::Whole(4), GpuRequest::Whole(2)] {
            let pod = self.pod(gpus, Vec::new());
            self.pods.insert(pod.uid.clone(), pod);
        }
    }

    /// A new index with all objects. If `is_salted`, no two nodes have equal signatures.
    fn build_index(&self, is_salted: bool) -> Index {
        let mut index = Index::default();
        self.nodes.iter().for_each(|node| index.set_node(NodeFacts::of(&object(node.clone()))));
        for (n, slice) in
            self.slices.iter().enumerate().flat_map(|(n, all)| all.iter().map(move |it| (n, it)))
        {
            let mut slice = slice.clone();
            let devices = slice["spec"]["devices"].as_array_mut();
            for device in devices.into_iter().flatten().filter(|_| is_salted) {
                let salt = json!({"value": n.to_string(), "requestPolicy": {"default": "0"}});
                device["capacity"]["salt"] = salt;
            }
            index.set_slice(object(slice));
        }
        self.classes.iter().for_each(|class| index.set_class(class.clone()));
        self.allocated.values().for_each(|claim| index.set_claim(claim.clone()));
        self.pods.values().for_each(|pod| index.set_pod(pod.clone()));
        index.set_synced();
        index
    }

    fn change(&mut self, index: &mut Index) {
        let n = self.random.below(NODES);
        match self.random.below(12) {
            0..5 => self.allocate_devices(n, index),
            5..7 => {
                let names: Vec<_> = self.allocated.keys().cloned().collect();
                if let Some(name) = names.get(self.random.below(names.len().max(1))) {
                    self.allocated.remove(name);
                    index.remove_claim("ns", name);
                }
            }
            7 => {
                let slice = self.slices[n].last_mut().expect("each node has one");
                let device = &mut slice["spec"]["devices"][self.random.below(2)];
                let taint = json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]);
                device["taints"] = if device["taints"].is_null() { taint } else { Value::Null };
                index.set_slice(object(slice.clone()));
            }
            8 => {
                // The driver is replacing the pool's slices.
                for slice in &mut self.slices[n] {
                    let pool = &mut slice["spec"]["pool"];
                    pool["generation"] =
                        (pool["generation"].as_i64().expect("a number") + 1).into();
                    let count = pool["resourceSliceCount"].as_i64().expect("a number");
                    pool["resourceSliceCount"] =
                        (if count > 4 { count - 5 } else { count + 5 }).into();
                    index.set_slice(object(slice.clone()));
                }
            }
            9 => {
                self.nodes[n]["metadata"]["labels"]["zone"] =
                    self.random.below(3).to_string().into();
                index.set_node(NodeFacts::of(&object(self.nodes[n].clone())));
            }
            10 => {
                self.classes[0] = gpu_class(["!= ''", "== 'H100'"][self.random.below(2)]);
                index.set_class(self.classes[0].clone());
            }
            _ => {
                let mut pod = self.pod(GpuRequest::None, Vec::new());
                pod.node = Some(node_name(n));
                index.set_pod(pod.clone());
                self.pods.insert(pod.uid.clone(), pod);
            }
        }
    }

    /// Allocates devices of a node to some claims, as kube-scheduler would.
    fn allocate_devices(&mut self, n: usize, index: &mut Index) {
        self.created_count += 1;
        let specs = random_specs(&mut self.random);
        let numbered_specs = specs.iter().enumerate();
        let mut claims: Vec<_> = numbered_specs
            .map(|(c, spec)| claim(&format!("allocated-{}-{c}", self.created_count), spec))
            .collect();
        let slices: Vec<ResourceSlice> = self.slices[n].iter().cloned().map(object).collect();
        let allocated: Vec<_> = self.allocated.values().cloned().collect();
        let input = AllocationInput { classes: &self.classes, slices: &slices, claims: &allocated };
        let node: Node = object(self.nodes[n].clone());
        let Ok(results) = allocate(&claims, input, &node) else { return };
        for (claim, result) in claims.iter_mut().zip(results) {
            claim.status = Some(object(json!({"allocation": result})));
            index.set_claim(claim.clone());
            self.allocated.insert(claim.metadata.name.clone().expect("named"), claim.clone());
        }
    }

    /// Compares ranks and explanations of all nodes in both indexes. Returns the number of ranked nodes.
    fn compare_ranks(&mut self, index: &mut Index) -> usize {
        let specs = random_specs(&mut self.random);
        let names: Vec<_> = (0..specs.len()).map(|c| format!("wanted-{c}")).collect();
        let pod = self.pod(GpuRequest::None, names.clone());
        let mut uncached = self.build_index(true);
        for (name, spec) in names.iter().zip(&specs) {
            index.set_claim(claim(name, spec));
            uncached.set_claim(claim(name, spec));
        }
        let nodes: Vec<_> = (0..NODES).map(node_name).collect();
        let ranked = index.rank(&pod, &nodes, NODES);
        assert_eq!(ranked, uncached.rank(&pod, &nodes, NODES), "{specs:?}");
        for node in &nodes {
            assert_eq!(
                index.explain(&pod, node),
                uncached.explain(&pod, node),
                "{node}: {specs:?}"
            );
            let is_ranked = ranked.contains(&node.as_str());
            assert_eq!(index.explain(&pod, node).is_some(), is_ranked, "{node}: {specs:?}");
        }
        ranked.len()
    }
}

#[test]
fn cached_ranks_equal_those_of_an_index_without_cache() {
    for seed in 1..=2 {
        let mut cluster = Cluster::new(seed);
        cluster.add_pending();
        let mut index = cluster.build_index(false);
        let mut ranked = 0;
        for _ in 0..STEPS {
            cluster.change(&mut index);
            for _ in 0..RANKINGS {
                ranked += cluster.compare_ranks(&mut index);
            }
        }
        assert!(ranked > STEPS * RANKINGS, "{ranked} nodes were ranked");
    }
}

#[test]
fn a_partition_prefers_a_partitioned_gpu_and_the_explanation_says_so() {
    let mut cluster = Cluster::new(1);
    let mut allocated = claim("allocated", &json!({}));
    let result = json!({"request": "r", "driver": "windlass.dev", "pool": "node-7/nvidia",
        "device": "gpu-0007-0-1g-3"});
    allocated.status = Some(object(json!({"allocation": {"devices": {"results": [result]}}})));
    cluster.allocated.insert("allocated".to_owned(), allocated);
    let mut index = cluster.build_index(false);
    let profile = "device.attributes['gpu.nvidia.com'].?profile.orValue('') == '1g'";
    let selectors = json!({"selectors": [{"cel": {"expression": profile}}]});
    let spec = json!({"devices": {"requests": [request("r", "any", &selectors)]}});
    index.set_claim(claim("wanted", &spec));
    let pod = cluster.pod(GpuRequest::None, vec!["wanted".to_owned()]);
    let nodes: Vec<_> = (0..NODES).map(node_name).collect();
    assert_eq!(index.rank(&pod, &nodes, NODES), ["node-7", "node-3"]);
    let reason = |index: &mut Index, node| index.explain(&pod, node).expect("it fits");
    let whole = reason(&mut index, "node-3");
    assert!(
        whole.contains(": fragmentation 50, GPUs broken up -100, places for partitions -50;"),
        "{whole}"
    );
    let partitioned = reason(&mut index, "node-7");
    assert!(partitioned.starts_with("50 points: fragmentation 50;"), "{partitioned}");
}

#[test]
fn claims_of_a_new_shape_are_ranked_in_steps() {
    let mut index = Index::default();
    let names: Vec<_> = (0..1500).map(node_name).collect();
    for (n, name) in names.iter().enumerate() {
        index.set_node(NodeFacts { name: name.clone(), pods: 110, ..NodeFacts::default() });
        index.set_slice(object(slice(n, ("gpus", 1), &json!([gpu(n, 0, "H100")]))));
    }
    index.set_class(gpu_class("!= ''"));
    index.set_synced();
    let mut cluster = Cluster::new(1);
    let pod = cluster.pod(GpuRequest::None, vec!["wanted".to_owned()]);
    let spec = json!({"devices": {"requests": [request("r", "gpu", &json!({}))]}});
    index.set_claim(claim("wanted", &spec));
    let is_last = |_: &usize| index.rank_step(&pod, &names, 100).is_some();
    let steps = (1..10).find(is_last).expect("a few steps");
    assert!(steps > 1, "other requests are served between the steps");
    let ranked = index.rank_step(&pod, &names, 100).expect("the ranks are cached");
    assert_eq!(ranked.len(), 100);
}
